//! What was asked of the runtime, and what it has answered; and what is found in a database that a
//! power cut or a failing disk has left.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use leasehold::rusqlite::types::Value;
use leasehold::rusqlite::{Connection, Result as SqlResult};
use leasehold::{Error, StoreFault};

use crate::disk::Disk;

/// Something that was asked for. Once it is so, it stays so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Enqueued(String),
    /// By this epoch.
    Claimed(String, i64),
    /// A checkpoint of at least this.
    Saved(String, i64),
    /// The attempt of this epoch ended so.
    Settled(String, i64, &'static str),
    /// This row of the application's, by the attempt of this epoch.
    Paid(String, i64, i64),
    /// So many times.
    Redriven(String, i64),
    /// A job after this one.
    Copied(String),
    BulkStarted,
    BulkDone,
    Gone(String),
}

/// How a call came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    None,
    /// It is so; said when the disk had seen so many changes.
    Yes(usize),
    /// It is not so.
    No,
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub what: What,
    /// How many changes the disk had seen.
    pub asked: usize,
    pub answer: Answer,
}

/// The book of one history.
#[derive(Clone)]
pub struct Book {
    disk: Arc<Disk>,
    entries: Arc<Mutex<Vec<Entry>>>,
    /// What else was answered, and how often.
    errors: Arc<Mutex<BTreeMap<&'static str, usize>>>,
}

impl Book {
    pub fn new(disk: Arc<Disk>) -> Self {
        Self { disk, entries: Arc::default(), errors: Arc::default() }
    }

    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.entries.lock().unwrap().clone()
    }

    pub fn errors(&self) -> BTreeMap<&'static str, usize> {
        self.errors.lock().unwrap().clone()
    }

    fn note(&self, error: &'static str) {
        *self.errors.lock().unwrap().entry(error).or_default() += 1;
    }

    /// Something is asked for; answers its place in the book.
    pub fn asks(&self, what: What) -> usize {
        let asked = self.disk.len();
        let mut entries = self.entries.lock().unwrap();
        entries.push(Entry { what, asked, answer: Answer::None });
        entries.len() - 1
    }

    /// It is so.
    pub fn yes(&self, place: usize) {
        let now = self.disk.len();
        self.entries.lock().unwrap()[place].answer = Answer::Yes(now);
    }

    /// It is not so.
    pub fn no(&self, place: usize) {
        self.entries.lock().unwrap()[place].answer = Answer::No;
    }

    /// It is so, as a read has shown.
    pub fn seen(&self, what: What) {
        let place = self.asks(what);
        self.yes(place);
    }

    /// Asks for it, and again where the store is in trouble; nothing where it stays so.
    pub async fn ask<T>(
        &self,
        what: &[What],
        call: impl AsyncFn() -> leasehold::Result<T>,
    ) -> Option<T> {
        self.ask_times(3, what, call).await
    }

    /// Asks for it once.
    pub async fn ask_once(&self, what: What, call: impl AsyncFn() -> leasehold::Result<()>) {
        self.ask_times(1, &[what], call).await;
    }

    async fn ask_times<T>(
        &self,
        times: usize,
        what: &[What],
        call: impl AsyncFn() -> leasehold::Result<T>,
    ) -> Option<T> {
        let places: Vec<_> = what.iter().map(|what| self.asks(what.clone())).collect();
        let mut certain = true;
        for _ in 0..times {
            match call().await {
                Ok(value) => {
                    for place in places {
                        self.yes(place);
                    }
                    return Some(value);
                }
                // What came before it has not landed, or has although it was not answered.
                Err(Error::Refused(_)) => {
                    self.note("refused");
                    return None;
                }
                Err(error) => certain &= self.trouble(&error),
            }
            if self.disk.is_broken() {
                break;
            }
        }
        if certain {
            for place in places {
                self.no(place);
            }
        }
        None
    }

    /// Notes an error, which must be of a sort that a bad disk gives cause for; answers whether
    /// it says that nothing has landed.
    pub fn trouble(&self, error: &Error) -> bool {
        let fault = match error {
            Error::Store(fault) | Error::Open { fault, .. } => fault,
            other => panic!("not what a bad disk gives cause for: {other:?}"),
        };
        let name = match fault {
            StoreFault::Io(_) => "Io",
            StoreFault::Full => "Full",
            StoreFault::Unknown(_) => "Unknown",
            other => panic!("not what a bad disk gives cause for: {other:?}"),
        };
        self.note(name);
        name != "Unknown"
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSeen {
    pub kind: String,
    pub status: String,
    pub epoch: i64,
    pub redrives: i64,
    pub copy_of: Option<String>,
    pub result: Option<i64>,
    pub saved: Option<i64>,
}

/// What is in a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub jobs: BTreeMap<String, JobSeen>,
    /// Rows of the application's, each with the epochs that wrote it.
    pub paid: BTreeMap<(String, i64), Vec<i64>>,
    pub bulks: Vec<String>,
    /// Everything, as a text.
    pub all: String,
}

const JOBS: &str = "
SELECT j.id, n.name,
  CASE j.status WHEN 0 THEN 'pending' WHEN 1 THEN 'running' WHEN 2 THEN 'completed'
    WHEN 3 THEN 'failed' ELSE 'cancelled' END,
  j.epoch, ifnull(d.redrives, 0), l.copy_of, CAST(r.result AS INTEGER),
  (SELECT CAST(value AS INTEGER) FROM leasehold_checkpoints c WHERE c.job = j.key AND c.key = '')
FROM leasehold_job j
JOIN leasehold_names n ON n.id = j.kind
LEFT JOIN leasehold_detail d ON d.job = j.key
LEFT JOIN leasehold_label l ON l.job = j.key
LEFT JOIN leasehold_result r ON r.job = j.key";

fn has(conn: &Connection, table: &str) -> SqlResult<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = ?1)";
    conn.query_row(sql, [table], |row| row.get(0))
}

/// Looks at a database, which must be sound; an error says what is wrong with it.
pub fn look(path: &Path) -> Result<Seen, String> {
    let conn = Connection::open(path).map_err(|error| error.to_string())?;
    let sound: String = conn
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .map_err(|error| error.to_string())?;
    if sound != "ok" {
        return Err(sound);
    }
    read(&conn).map_err(|error| error.to_string())
}

fn read(conn: &Connection) -> SqlResult<Seen> {
    let mut seen = Seen { all: everything(conn)?, ..Seen::default() };
    if has(conn, "paid")? {
        let mut statement = conn.prepare("SELECT id, n, epoch FROM paid")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            seen.paid.entry((row.get(0)?, row.get(1)?)).or_default().push(row.get(2)?);
        }
    }
    if !has(conn, "leasehold_bulks")? {
        return Ok(seen);
    }
    let mut statement = conn.prepare(JOBS)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let job = JobSeen {
            kind: row.get(1)?,
            status: row.get(2)?,
            epoch: row.get(3)?,
            redrives: row.get(4)?,
            copy_of: row.get(5)?,
            result: row.get(6)?,
            saved: row.get(7)?,
        };
        let id = match row.get(0)? {
            Value::Text(id) => id,
            Value::Blob(bytes) => uuid::Uuid::from_slice(&bytes).unwrap().to_string(),
            other => panic!("no id: {other:?}"),
        };
        seen.jobs.insert(id, job);
    }
    let mut statement = conn.prepare("SELECT state FROM leasehold_bulks")?;
    seen.bulks = statement.query_map([], |row| row.get(0))?.collect::<SqlResult<_>>()?;
    Ok(seen)
}

/// Every row of every table.
fn everything(conn: &Connection) -> SqlResult<String> {
    let mut text = String::new();
    let mut names =
        conn.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1")?;
    let names: Vec<String> = names.query_map([], |row| row.get(0))?.collect::<SqlResult<_>>()?;
    for name in names {
        let mut statement = conn.prepare(&format!("SELECT * FROM {name}"))?;
        let columns = statement.column_count();
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let values: Vec<Value> = (0..columns).map(|n| row.get(n)).collect::<SqlResult<_>>()?;
            writeln!(text, "{name} {values:?}").unwrap();
        }
    }
    Ok(text)
}

impl What {
    /// Whether it is so.
    fn holds(&self, seen: &Seen) -> bool {
        let job = |id: &String| seen.jobs.get(id);
        match self {
            Self::Enqueued(id) => job(id).is_some(),
            Self::Claimed(id, epoch) => job(id).is_some_and(|job| job.epoch >= *epoch),
            Self::Saved(id, least) => {
                job(id).is_some_and(|job| job.saved >= Some(*least) || job.status == "completed")
            }
            Self::Settled(id, epoch, status) => job(id).is_some_and(|job| {
                job.epoch > *epoch
                    || job.epoch == *epoch
                        && (job.status == *status
                            || *status == "pending" && job.status != "running")
            }),
            Self::Paid(id, n, epoch) => {
                seen.paid.get(&(id.clone(), *n)).is_some_and(|epochs| epochs.contains(epoch))
            }
            Self::Redriven(id, times) => job(id).is_some_and(|job| job.redrives >= *times),
            Self::Copied(of) => seen.jobs.values().any(|job| job.copy_of.as_ref() == Some(of)),
            Self::BulkStarted => !seen.bulks.is_empty(),
            Self::BulkDone => seen.bulks.iter().any(|state| state == "done"),
            Self::Gone(id) => job(id).is_none(),
        }
    }

    /// Whether it is so and nothing else can have made it so.
    fn landed(&self, seen: &Seen) -> bool {
        match self {
            Self::Enqueued(_) | Self::Paid(..) | Self::Copied(_) | Self::BulkStarted => {
                self.holds(seen)
            }
            Self::Settled(id, epoch, status) => {
                let job = seen.jobs.get(id);
                job.is_some_and(|job| job.epoch == *epoch && job.status == *status)
                    && *status == "completed"
            }
            _ => false,
        }
    }

    /// The job that it is about.
    fn job(&self) -> Option<&String> {
        match self {
            Self::Enqueued(id)
            | Self::Claimed(id, _)
            | Self::Saved(id, _)
            | Self::Settled(id, ..)
            | Self::Redriven(id, _) => Some(id),
            Self::Copied(_)
            | Self::BulkStarted
            | Self::BulkDone
            | Self::Gone(_)
            | Self::Paid(..) => None,
        }
    }
}

/// What of the book, as it stood when the disk had seen so many changes, is not so in a database
/// that was found: promises that are broken, and what nobody asked for.
pub fn broken(entries: &[Entry], seen: &Seen, at: usize) -> Vec<String> {
    let mut found = Vec::new();
    let asked = || entries.iter().filter(|entry| entry.asked <= at).map(|entry| &entry.what);
    let gone = |id: &String| asked().any(|what| *what == What::Gone(id.clone()));
    for entry in entries {
        let excused = entry.what.job().is_some_and(gone);
        match entry.answer {
            Answer::Yes(when) if when <= at && !excused && !entry.what.holds(seen) => {
                found.push(format!("lost: {:?}", entry.what));
            }
            Answer::No if entry.what.landed(seen) => {
                found.push(format!("said not to have landed: {:?}", entry.what));
            }
            _ => {}
        }
    }
    found.extend(strange(&asked, seen));
    found
}

/// What is there and was not asked for, or twice, or does not agree with its job.
fn strange<'e, I: Iterator<Item = &'e What>>(asked: &impl Fn() -> I, seen: &Seen) -> Vec<String> {
    let mut found = Vec::new();
    let known = |what: &What| asked().any(|one| one == what);
    for (id, job) in &seen.jobs {
        let what = job.copy_of.clone().map_or(What::Enqueued(id.clone()), What::Copied);
        if !known(&what) {
            found.push(format!("a ghost: {id} {job:?}"));
        }
        let ended = ["completed", "failed", "cancelled"].iter().find(|end| **end == job.status);
        let settled = |end: &&'static str| known(&What::Settled(id.clone(), job.epoch, end));
        if job.copy_of.is_none() && !ended.is_none_or(settled) {
            found.push(format!("an end that nobody asked for: {id} {job:?}"));
        }
        if job.kind == "pay" {
            let rows = seen.paid.keys().filter(|(paid, _)| paid == id).count() as i64;
            let said = job.result.or(job.saved).unwrap_or_default();
            if rows != said {
                found.push(format!("{id} says {said}, and there are {rows} rows: {job:?}"));
            }
        }
    }
    for ((id, n), epochs) in &seen.paid {
        if epochs.len() != 1 || !known(&What::Paid(id.clone(), *n, epochs[0])) {
            found.push(format!("a row that nobody asked for, or twice: {id} {n} {epochs:?}"));
        }
    }
    let copies = |id| seen.jobs.values().filter(|job| job.copy_of.as_ref() == Some(id)).count();
    found.extend(seen.jobs.keys().filter(|id| copies(*id) > 1).map(|id| format!("two of {id}")));
    if seen.bulks.len() > 1 {
        found.push(format!("{} bulk operations", seen.bulks.len()));
    }
    found
}
