//! What the engine sees to between batches: leases of commits whose answer was lost, the log,
//! the ballast, and a connection that application code has left in a state.

use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE as NO_CHECKPOINT_ON_CLOSE;

use crate::error::StoreFault;
use crate::faults::Point;

use super::claim::{Batch, Claimed};
use super::disk;
use super::engine::{Claimer, Engine};
use super::open::{Place, patient, writer};
use super::spares::Spare;
use super::{Checkpoints, statements as sql};

impl Drop for Engine {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Engine {
    /// Opens a connection, where there is none to go on with.
    pub(super) fn opened(&mut self) -> Result<Connection, StoreFault> {
        match self.settings.spares.take(&self.place, true) {
            Some(spare) => {
                patient(&spare.conn)?;
                Ok(self.fence.adopt(spare))
            }
            None => Ok(self.fence.install(writer(&self.place, &self.settings)?)?),
        }
    }

    /// Its process dies: nothing that has not been committed lands any more.
    pub(crate) fn die(&mut self) {
        self.roll_back();
        self.let_go();
    }

    /// Trouble of the disk on demand, for a transaction that has begun.
    pub(super) fn injected(&self) -> Result<(), StoreFault> {
        if self.faults.hit(Point::Full) {
            return Err(StoreFault::Full);
        }
        if self.faults.hit(Point::Io) {
            return Err(StoreFault::Io("an injected failure".into()));
        }
        Ok(())
    }

    /// Hands out leases whose commit has landed after all. What cannot be looked up now is
    /// looked up before the next batch.
    pub(super) fn look_up_leases(&mut self, claimer: Option<&dyn Claimer>) {
        let Some(claimer) = claimer.filter(|_| !self.unsure.is_empty()) else { return };
        let unsure = std::mem::take(&mut self.unsure);
        match self.connect().and_then(|()| self.holding(&unsure)) {
            Ok(held) => {
                let landed = unsure.into_iter().filter(|one| held.contains(&one.key)).collect();
                claimer.deliver(Batch { claimed: landed, more: true, next_due: None });
            }
            Err(fault) => {
                log::debug!(error:% = fault; "leases could not be looked up yet");
                self.unsure = unsure;
            }
        }
    }

    /// Which of these leases are in the database.
    pub(super) fn holding(&self, leases: &[Claimed]) -> Result<Vec<i64>, StoreFault> {
        let Some(conn) = self.conn.as_ref() else { return Err(StoreFault::Stopped) };
        let mut statement = conn.prepare_cached(sql::HOLDS)?;
        let mut held = Vec::new();
        for lease in leases {
            if statement.exists((lease.key, lease.holder.token))? {
                held.push(lease.key);
            }
        }
        Ok(held)
    }

    /// Closes the connection, or leaves it to whoever comes next.
    pub(super) fn let_go(&mut self) {
        if let Some(conn) = self.conn.take() {
            let fence = Some(self.fence.view());
            self.settings.spares.keep(&self.place, Spare { conn, fence });
        }
    }

    /// Whether the files that are open are there still.
    pub(super) fn look_at_files(&self) -> Result<(), StoreFault> {
        let Some(files) = &self.files else { return Ok(()) };
        files.still_there(self.conn.is_some()).inspect_err(|_| {
            let conn = self.conn.as_ref().filter(|_| !files.has_its_index());
            // Written back by an index that others do not have, the log would be cut off with what
            // they have committed, when this connection is closed.
            let kept = conn.map(|conn| conn.set_db_config(NO_CHECKPOINT_ON_CLOSE, true));
            if let Some(Err(error)) = kept {
                log::error!(error:% = error; "the log cannot be kept from being written back");
            }
        })
    }

    pub(super) fn give_up_ballast(&mut self) -> bool {
        let now = self.clock.monotonic();
        self.ballast.as_mut().is_some_and(|ballast| ballast.give_up(now))
    }

    /// Sees to the log: writes it back where it has grown large, answers its size in bytes.
    /// With `last`, at a stop, it is cut off too.
    pub(crate) fn see_to_log(&mut self, last: bool) -> u64 {
        let Place::File(path) = self.place.clone() else { return 0 };
        let size = disk::log_size(&path);
        let index_is_gone = self.look_at_files().is_err()
            && self.files.as_ref().is_some_and(|f| !f.has_its_index());
        let Some(conn) = self.conn.as_ref().filter(|_| !index_is_gone) else { return size };
        if self.settings.checkpoints == Checkpoints::Never || !(last || disk::is_large(size)) {
            return size;
        }
        let now = self.clock.monotonic();
        let seen = if last {
            // Waits for nobody: what is left is written back at the next start.
            disk::cut_off(conn, Duration::ZERO)
        } else if self.log.is_due(size, now) {
            let done = self.log.cut_off(conn, now);
            let as_before = patient(conn).map_err(StoreFault::from);
            done.and_then(|done| as_before.map(|()| done))
        } else {
            disk::write_back(conn)
        };
        // After the cut, and where a sync may have failed, the next batch, if there is one, starts
        // with a connection as it should be.
        let replaced = last || seen.is_err();
        match seen {
            Ok(true) => {}
            Ok(false) => log::debug!("a reader keeps the log from being written back"),
            Err(fault) => log::info!(error:% = fault; "the log was not written back"),
        }
        if replaced {
            self.mistrust();
        }
        disk::log_size(&path)
    }

    /// Replaces a connection on which application code has left a statement open: no write
    /// could be committed on it any more, or every read would see the file as it was then.
    pub(super) fn drop_busy(&mut self) {
        let is_file = matches!(self.place, Place::File(_));
        if is_file
            && self.fence.was_entered()
            && self.conn.as_ref().is_some_and(Connection::is_busy)
        {
            log::error!("application code left a statement open; the connection is replaced");
            self.mistrust();
        }
    }
}
