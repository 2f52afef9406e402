//! Opening the database: connections, pragmas read back, migrations, the write probe.

use std::collections::HashSet;
use std::path::PathBuf;

use r2d2::ManageConnection;
use r2d2_sqlite::SqliteConnectionManager;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use crate::error::StoreFault;

use super::{Checkpoints, Durability, Migrate, StoreSettings, statements as sql};

type Result<T> = std::result::Result<T, StoreFault>;

/// The schema version that this code writes.
pub(super) const VERSION: i64 = 2;

/// Statements kept prepared: more than there are, the application's among them.
const PREPARED: usize = 256;

/// How long to wait for somebody else's lock, and how long at a time, in milliseconds.
pub(super) const BUSY_TIMEOUT: u64 = 5_000;
const LOCK_PAUSE: u64 = 2;

/// The steps from one schema version to the next, oldest first.
const MIGRATIONS: &[&str] =
    &[include_str!("migrations/0001_first.sql"), include_str!("migrations/0002_operators.sql")];

/// The schema as SQL text, a step a version, for applications that run their own migrations.
#[must_use]
pub fn migrations() -> &'static [&'static str] {
    MIGRATIONS
}

/// Where the database is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    File(PathBuf),
    /// In memory, on one connection; gone with it.
    Memory,
}

/// The database, its log and the log's index as they are on the disk. `SQLite` goes on in a file
/// that was taken away, and what it writes there is lost with the last process that has it open;
/// where it is the index, others make another, and each writes over what the other has committed.
pub(super) struct Files(#[cfg(unix)] [(PathBuf, (u64, u64)); 3]);

#[cfg(unix)]
impl Files {
    fn number(path: &std::path::Path) -> std::io::Result<(u64, u64)> {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).map(|found| (found.dev(), found.ino()))
    }

    pub(super) fn of(path: &std::path::Path) -> Option<Self> {
        // As `SQLite` has it: past links, and wherever the process goes.
        let path = path.canonicalize().ok()?;
        let known = |suffix| {
            let mut path = path.as_os_str().to_owned();
            path.push(suffix);
            Self::number(path.as_ref()).ok().map(|number| (path.into(), number))
        };
        Some(Self([known("")?, known("-wal")?, known("-shm")?]))
    }

    /// Whether the log's index is the one that is open.
    pub(super) fn has_its_index(&self) -> bool {
        let [_, _, (path, number)] = &self.0;
        Self::number(path).is_ok_and(|found| found == *number)
    }

    /// Whether they are the same files still. The log and its index go by themselves with the last
    /// connection.
    pub(super) fn still_there(&self, connected: bool) -> Result<()> {
        for (path, number) in &self.0[..if connected { 3 } else { 1 }] {
            match Self::number(path) {
                Ok(found) if found == *number => {}
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {}
                _ => {
                    return Err(StoreFault::Io(format!(
                        "{} was taken away while it was open; put it back, or start again",
                        path.display()
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Elsewhere an open file cannot be taken away.
#[cfg(not(unix))]
impl Files {
    pub(super) fn of(_: &std::path::Path) -> Option<Self> {
        None
    }

    #[allow(clippy::unused_self, reason = "as on unix")]
    pub(super) fn has_its_index(&self) -> bool {
        true
    }

    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "as on unix")]
    pub(super) fn still_there(&self, _: bool) -> Result<()> {
        Ok(())
    }
}

/// The pool's manager: a connection that is still in a transaction, or in a statement, is
/// broken and is not handed out again.
pub(super) struct Manager(SqliteConnectionManager);

impl Manager {
    /// Read-only connections to a file.
    pub(super) fn readers(path: &std::path::Path, busy_timeout: u64) -> Self {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let manager = SqliteConnectionManager::file(path).with_flags(flags);
        Self(manager.with_init(move |conn| {
            prepare_connection(conn, busy_timeout)?;
            conn.pragma_update(None, "query_only", true)
        }))
    }
}

impl ManageConnection for Manager {
    type Connection = Connection;
    type Error = rusqlite::Error;

    fn connect(&self) -> rusqlite::Result<Connection> {
        self.0.connect()
    }

    fn is_valid(&self, _: &mut Connection) -> rusqlite::Result<()> {
        Ok(())
    }

    fn has_broken(&self, conn: &mut Connection) -> bool {
        !conn.is_autocommit() || conn.is_busy()
    }
}

fn prepare_connection(conn: &Connection, busy_timeout: u64) -> rusqlite::Result<()> {
    conn.set_prepared_statement_cache_capacity(PREPARED);
    conn.busy_timeout(std::time::Duration::from_millis(busy_timeout))?;
    // Before anything is prepared: statements are planned once, whatever is bound to them.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// What the writing connection does each time that it finds the lock taken, `times` in a row until
/// now: a short pause, until the pauses come to [`BUSY_TIMEOUT`].
///
/// `SQLite`'s own timeout pauses for up to 100 ms. Where other processes write all the time the
/// lock is free for moments only, and who sleeps so long misses one after the other.
#[allow(clippy::disallowed_methods, reason = "a short wait on the store's own thread")]
fn wait_for_lock(times: i32) -> bool {
    let waits = u64::from(times.unsigned_abs()) < BUSY_TIMEOUT / LOCK_PAUSE;
    if waits {
        std::thread::sleep(std::time::Duration::from_millis(LOCK_PAUSE));
    }
    waits
}

/// Has a connection that writes wait for others as it should.
pub(super) fn patient(conn: &Connection) -> rusqlite::Result<()> {
    conn.busy_handler(Some(wait_for_lock))
}

/// Opens the writing connection: pragmas, what is left in the log, schema, write probe.
#[allow(clippy::disallowed_methods, reason = "the one place that opens connections to write")]
pub(super) fn writer(place: &Place, settings: &StoreSettings) -> Result<Connection> {
    let mut conn = match place {
        Place::File(path) => Connection::open(path)?,
        Place::Memory => Connection::open_in_memory()?,
    };
    prepare_connection(&conn, BUSY_TIMEOUT)?;
    set(&conn, "foreign_keys", "1", "1")?;
    if let Place::File(path) = place {
        // Where the file may only be read, that is how `SQLite` opens it.
        if conn.is_readonly(rusqlite::MAIN_DB)? {
            return Err(StoreFault::ReadOnly);
        }
        refuse_unknown_future(&conn)?;
        write_ahead(&conn).map_err(|fault| match fault {
            StoreFault::Sql(error) => StoreFault::Sql(format!(
                "{error}; the file system of {} may not support it",
                path.display()
            )),
            other => other,
        })?;
    }
    patient(&conn)?;
    let (word, number) = match settings.durability {
        Durability::Full => ("full", "2"),
        Durability::Normal => ("normal", "1"),
    };
    set(&conn, "synchronous", word, number)?;
    let pages = if settings.checkpoints == Checkpoints::Auto { "1000" } else { "0" };
    set(&conn, "wal_autocheckpoint", pages, pages)?;
    set(&conn, "cache_size", "-16384", "-16384")?;
    if settings.checkpoints == Checkpoints::Auto {
        // What is left of a process whose last sync failed, or that was killed before it, can be
        // read and is not safe: it is written back before anybody is answered by it.
        super::disk::cut_off(&conn, std::time::Duration::ZERO)?;
        patient(&conn)?;
    }
    migrate(&mut conn, settings.migrate)?;
    Ok(conn)
}

/// Turns the write-ahead log on. Where somebody else uses the file at that moment `SQLite` says
/// busy, at times at once and at times after its timeout, so it is asked without one, again and
/// again until the time is up.
#[allow(clippy::disallowed_methods, reason = "a short wait on the store's own thread")]
fn write_ahead(conn: &Connection) -> Result<()> {
    const PAUSE: u64 = 10;
    let mut left = BUSY_TIMEOUT / PAUSE;
    conn.busy_timeout(std::time::Duration::ZERO)?;
    loop {
        match set(conn, "journal_mode", "wal", "wal") {
            Err(StoreFault::Busy) if left > 0 => left -= 1,
            done => return done,
        }
        std::thread::sleep(std::time::Duration::from_millis(PAUSE));
    }
}

/// Sets a pragma and reads it back: `SQLite` ignores what it does not know.
fn set(conn: &Connection, pragma: &str, value: &str, expected: &str) -> Result<()> {
    conn.pragma_update_and_check(None, pragma, value, |_| Ok(())).or_else(|error| match error {
        rusqlite::Error::QueryReturnedNoRows => Ok(()),
        other => Err(other),
    })?;
    let found: String = conn.pragma_query_value(None, pragma, |row| {
        let value: rusqlite::types::Value = row.get(0)?;
        Ok(match value {
            rusqlite::types::Value::Integer(n) => n.to_string(),
            rusqlite::types::Value::Text(text) => text,
            other => format!("{other:?}"),
        })
    })?;
    if found == expected {
        Ok(())
    } else {
        Err(StoreFault::Sql(format!(
            "pragma {pragma} is {found}, not {expected}, after setting it"
        )))
    }
}

/// The versions in the schema table, where there is one.
pub(super) fn versions(conn: &Connection) -> Result<Option<(i64, i64)>> {
    let known: bool = conn
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'leasehold_schema')",
        )?
        .query_row([], |row| row.get(0))?;
    if !known {
        return Ok(None);
    }
    let mut versions = conn.prepare_cached(sql::SCHEMA)?;
    Ok(Some(versions.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?))
}

/// What of the schema is not there, by name.
fn lacking(conn: &Connection) -> Result<Vec<&'static str>> {
    let mut statement = conn.prepare("SELECT name FROM sqlite_schema")?;
    let there: HashSet<String> =
        statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let named = |verb: &'static str| {
        let lines = MIGRATIONS.iter().flat_map(|step| step.lines());
        lines.filter_map(move |line| {
            let named = line.strip_prefix(verb)?;
            named.split([' ', ';']).find(|word| word.starts_with("leasehold_"))
        })
    };
    let dropped: HashSet<_> = named("DROP ").collect();
    let made = named("CREATE ").filter(|name| !dropped.contains(name));
    Ok(made.filter(|name| !there.contains(*name)).collect())
}

fn refuse_unknown_future(conn: &Connection) -> Result<()> {
    match versions(conn)? {
        Some((_, oldest_compatible)) if oldest_compatible > VERSION => {
            Err(StoreFault::TooNew { oldest_compatible })
        }
        _ => Ok(()),
    }
}

/// Brings the schema up to date in one immediate transaction, which also proves that the
/// file can be written. Processes that start together wait here, look again, and find nothing
/// left to do.
fn migrate(conn: &mut Connection, how: Migrate) -> Result<()> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    refuse_unknown_future(&tx)?;
    let version = versions(&tx)?.map_or(0, |(version, _)| version);
    if version == 0 && !lacking(&tx)?.contains(&"leasehold_job") {
        return Err(StoreFault::Corrupt("leasehold_schema is gone".into()));
    }
    let done = usize::try_from(version).unwrap_or_default();
    if how == Migrate::Require && done < MIGRATIONS.len() {
        return Err(StoreFault::TooOld { version, needed: VERSION });
    }
    for step in MIGRATIONS.iter().skip(done) {
        tx.execute_batch(step)?;
    }
    if let Some(name) = lacking(&tx)?.first().filter(|_| version <= VERSION) {
        return Err(StoreFault::Corrupt(format!("{name} is gone")));
    }
    tx.execute("UPDATE leasehold_schema SET version = max(version, ?1) WHERE one = 1", [VERSION])?;
    // The probe: a write of something else each time, as `SQLite` writes nothing where nothing
    // changes. Its sync also makes safe what was found in the log and nobody writes back.
    tx.execute(
        "INSERT INTO leasehold_state (name, value) VALUES ('opened', 1) \
         ON CONFLICT (name) DO UPDATE SET value = value + 1",
        [],
    )?;
    tx.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_the_lock_to_write_looks_every_few_milliseconds_for_five_seconds() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::File(dir.path().join("jobs.db"));
        let conn = writer(&place, &StoreSettings::default()).unwrap();
        // SQLite's own timeout, with its long pauses, would stand here.
        let own: i64 = conn.query_row("PRAGMA busy_timeout", [], |row| row.get(0)).unwrap();
        assert_eq!(own, 0);
        let last = i32::try_from(BUSY_TIMEOUT / LOCK_PAUSE).unwrap() - 1;
        assert_eq!((BUSY_TIMEOUT, LOCK_PAUSE), (5_000, 2));
        assert!(wait_for_lock(0) && wait_for_lock(last) && !wait_for_lock(last + 1));
    }
}
