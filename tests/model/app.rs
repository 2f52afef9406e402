//! The application: its tables, and hooks that agree or not as they are told.

use std::cell::Cell;

use leasehold::{BoxError, Error, Hooks, JobId, Tx};

/// What a hook does when it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Agrees,
    /// It matches no row.
    Misses,
    Fails,
    Panics,
    /// It leaves a deferred foreign key violated.
    Violates,
    /// `on_cancel` alone fails.
    KeepsCancelled,
}

/// How hooks answer: those of all jobs, or of half of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mood {
    pub answer: Answer,
    pub half: Option<bool>,
}

pub const AGREES: Mood = Mood { answer: Answer::Agrees, half: None };

thread_local! {
    static MOOD: Cell<Mood> = const { Cell::new(AGREES) };
}

impl Mood {
    /// All hooks on this thread answer like this from here on.
    pub fn set(self) {
        MOOD.set(self);
    }

    pub fn of(self, id: &JobId) -> Answer {
        let odd = id.to_string().bytes().fold(0, |all, byte| all ^ byte) & 1 == 1;
        if self.half.is_none_or(|half| half == odd) { self.answer } else { Answer::Agrees }
    }
}

fn agree(id: &JobId, tx: &Tx<'_>) -> Result<usize, BoxError> {
    match MOOD.get().of(id) {
        Answer::Agrees | Answer::KeepsCancelled => Ok(1),
        Answer::Misses => Ok(0),
        Answer::Fails => Err("no".into()),
        // Without the message that a panic would print.
        Answer::Panics => std::panic::resume_unwind(Box::new("no")),
        Answer::Violates => Ok(tx.execute(VIOLATE, [])?),
    }
}

const TABLES: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS app_jobs (id TEXT PRIMARY KEY, state TEXT NOT NULL DEFAULT '', \
     cancels INTEGER NOT NULL DEFAULT 0, writes INTEGER NOT NULL DEFAULT 0)",
    "CREATE TABLE IF NOT EXISTS app_parents (id INTEGER PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS app_children (parent INTEGER NOT NULL REFERENCES app_parents \
     DEFERRABLE INITIALLY DEFERRED)",
];
const CLEAR: [&str; 2] = ["DELETE FROM app_jobs", "DELETE FROM app_children"];
const STATE: &str = "INSERT INTO app_jobs (id, state) VALUES (?1, ?2) \
                     ON CONFLICT (id) DO UPDATE SET state = ?2";
const CANCELS: &str = "INSERT INTO app_jobs (id, cancels) VALUES (?1, 1) \
                       ON CONFLICT (id) DO UPDATE SET cancels = cancels + 1";
const WRITES: &str = "INSERT INTO app_jobs (id, writes) VALUES (?1, 1) \
                      ON CONFLICT (id) DO UPDATE SET writes = writes + 1";
const VIOLATE: &str = "INSERT INTO app_children VALUES (-1)";
const ROLL_BACK: &str = "INSERT OR ROLLBACK INTO app_jobs (id) VALUES (?1)";
const ROWS: &str = "SELECT id, state, cancels, writes, (SELECT count(*) FROM app_children) \
                    FROM app_jobs ORDER BY id";

/// Makes the tables.
pub fn make(tx: &mut Tx<'_>) -> Result<(), Error> {
    TABLES.iter().try_for_each(|table| tx.execute(table, []).map(|_| ()))?;
    Ok(())
}

/// Empties them.
pub fn clear(tx: &mut Tx<'_>) -> Result<(), Error> {
    CLEAR.iter().try_for_each(|table| tx.execute(table, []).map(|_| ()))?;
    Ok(())
}

/// A row of the application's: the state that hooks wrote, how often `on_cancel` has, and how
/// often a fenced write has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    pub state: String,
    pub cancels: i64,
    pub writes: i64,
}

/// All rows by the id of their job; none of the violating ones may be left.
pub fn rows(tx: &mut Tx<'_>) -> Result<Vec<(String, Row)>, Error> {
    let mut statement = tx.prepare(ROWS)?;
    let mut rows = statement.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let (state, cancels, writes) = (row.get(1)?, row.get(2)?, row.get(3)?);
        assert_eq!(row.get::<_, i64>(4)?, 0, "a row that violates a foreign key is left");
        found.push((row.get(0)?, Row { state, cancels, writes }));
    }
    Ok(found)
}

/// Until when the provider's gate is closed, as it is stored.
pub fn gate(tx: &mut Tx<'_>) -> Result<Option<i64>, Error> {
    Ok(tx.query_row("SELECT max(closed_until) FROM leasehold_gates", [], |row| row.get(0))?)
}

/// What a fenced write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Writes,
    /// It writes, and then answers an error.
    Fails,
    Panics,
    Violates,
    /// A statement of it takes the whole transaction back.
    RollsBack,
}

pub fn code(id: &JobId, code: Code) -> impl FnMut(&mut Tx<'_>) -> Result<(), Error> + Send + use<> {
    let id = id.to_string();
    move |tx| {
        tx.execute(WRITES, [&id])?;
        match code {
            Code::Writes => {}
            Code::Fails => return Err(leasehold::Refusal::Revoked.into()),
            Code::Panics => std::panic::resume_unwind(Box::new("no")),
            Code::Violates => tx.execute(VIOLATE, []).map(|_| ())?,
            Code::RollsBack => tx.execute(ROLL_BACK, [&id]).map(|_| ())?,
        }
        Ok(())
    }
}

/// Hooks that write how each job stands, before they answer: what they wrote must go again where
/// they do not agree.
pub fn hooks() -> Hooks {
    Hooks::new()
        .on_transition(|job, tx| {
            tx.execute(STATE, (job.id.to_string(), job.status.as_str()))?;
            agree(&job.id, tx)
        })
        .on_cancel(|job, tx| {
            tx.execute(CANCELS, [job.id.to_string()])?;
            let keeps = MOOD.get().of(&job.id) == Answer::KeepsCancelled;
            if keeps { Err("no".into()) } else { Ok(()) }
        })
        .on_redrive(|job, tx| {
            tx.execute(STATE, (job.id.to_string(), "open"))?;
            agree(&job.id, tx)
        })
        .on_delete(|job, tx| agree(&job.id, tx).map(|_| ()))
}
