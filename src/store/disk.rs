//! The files beside the database: the write-ahead log, which must not grow for ever, and the
//! ballast, which is given up on a full disk so that running work can still settle.
//!
//! The database and its log are never opened here, only looked at by name.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;

use crate::error::StoreFault;

use super::statements as sql;

/// How large the ballast is, in bytes: room for the log of a few hundred settles.
const BALLAST: usize = 256 << 10;
/// How long after it was given up the ballast is made anew, and after it was in vain the log is
/// tried to be cut off again, in milliseconds.
const AGAIN: i64 = 10_000;
/// From which size on the log is written back explicitly, in bytes.
const LARGE_LOG: u64 = 4 << 20;
/// From which size on it is cut off. Readers that overlap without a gap let it be written back as
/// far as they have come, but never begin anew, so that somebody has to wait for them.
const HUGE_LOG: u64 = 32 << 20;
/// How long that waits for readers, and all writers with it.
const FOR_READERS: Duration = Duration::from_millis(500);

/// The ballast of one database, shared by all its processes.
pub(super) struct Ballast {
    path: PathBuf,
    /// When to see to it that it is there, by the monotonic clock.
    look_at: i64,
}

impl Ballast {
    pub(super) fn beside(database: &Path) -> Self {
        Self { path: crate::owner::folder(database).join("ballast"), look_at: i64::MIN }
    }

    /// Gives it up; answers whether that has freed anything.
    pub(super) fn give_up(&mut self, now: i64) -> bool {
        self.look_at = now.saturating_add(AGAIN);
        let freed = fs::remove_file(&self.path).is_ok();
        if freed {
            log::error!("the disk is full; the ballast is given up so that jobs can settle");
        }
        freed
    }

    /// Makes it where it is not there; asked after each commit, looks now and then.
    pub(super) fn keep(&mut self, now: i64) {
        if now < self.look_at {
            return;
        }
        self.look_at = now.saturating_add(AGAIN);
        let whole = fs::metadata(&self.path).is_ok_and(|file| file.len() == BALLAST as u64);
        if !whole && let Err(error) = self.fill() {
            log::debug!(error:% = error; "the ballast could not be made");
            let _half_made = fs::remove_file(&self.path);
        }
    }

    fn fill(&self) -> std::io::Result<()> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = fs::File::create(&self.path)?;
        // Bytes that no file system stores as a hole.
        file.write_all(&vec![0xb7; BALLAST])?;
        file.sync_all()
    }
}

/// The size of a database's log, in bytes.
pub(super) fn log_size(database: &Path) -> u64 {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    fs::metadata(PathBuf::from(name)).map_or(0, |file| file.len())
}

pub(super) fn is_large(log: u64) -> bool {
    log > LARGE_LOG
}

/// Writes the log back into the file as far as nobody reads it; answers whether all of it was.
pub(super) fn write_back(conn: &Connection) -> Result<bool, StoreFault> {
    let (pages, written): (i64, i64) = conn
        .prepare_cached(sql::CHECKPOINT_LOG)?
        .query_row([], |row| Ok((row.get(1)?, row.get(2)?)))?;
    Ok(pages == written)
}

/// The same, and cuts the log off; answers whether it could.
pub(super) fn cut_off(conn: &Connection, wait: Duration) -> Result<bool, StoreFault> {
    conn.busy_timeout(wait)?;
    let busy: bool = conn.prepare_cached(sql::TRUNCATE_LOG)?.query_row([], |row| row.get(0))?;
    Ok(!busy)
}

/// When to cut off a log that has become huge.
#[derive(Default)]
pub(super) struct LogCare {
    /// Readers kept it from being cut off: when to try again, by the monotonic clock.
    again: Option<i64>,
}

impl LogCare {
    pub(super) fn is_due(&self, log: u64, now: i64) -> bool {
        log > HUGE_LOG && self.again.is_none_or(|again| now >= again)
    }

    /// Cuts it off; the caller has the connection wait for others again as long as it did.
    pub(super) fn cut_off(&mut self, conn: &Connection, now: i64) -> Result<bool, StoreFault> {
        let done = cut_off(conn, FOR_READERS)?;
        match (done, self.again) {
            (false, None) => log::warn!("the log grows: a reader keeps it from being cut off"),
            (true, Some(_)) => log::info!("the log could be cut off again"),
            _ => {}
        }
        self.again = (!done).then(|| now.saturating_add(AGAIN));
        Ok(done)
    }
}
