//! Batches of messages, one transaction a batch.
//!
//! What waits is run together, claims last; all is answered after the commit. A message that
//! cannot be undone alone takes its whole batch back, which then runs again one by one, so
//! that it fails alone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rusqlite::{Connection, ErrorCode};

use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::error::StoreFault;
use crate::faults::{Faults, Point};
use crate::rules::text;

use super::cache::Cache;
use super::claim::{Batch, Want};
use super::open::{Files, Place, VERSION, versions, writer};
use super::txn::{AppFence, Effects, FenceView, Txn};
use super::{StoreSettings, statements as sql};

/// A message that waits for its transaction. It may be run more than once; only the last run
/// counts.
pub(crate) trait Pending: Send {
    /// Runs it; an error takes the whole batch back.
    fn run(&mut self, txn: &mut Txn<'_>) -> Result<(), StoreFault>;

    /// Answers it, after the commit or instead of it.
    fn answer(self: Box<Self>, outcome: Result<(), StoreFault>);
}

/// Somebody with free slots: claims ride in the commit of whatever came before them.
pub(crate) trait Claimer: Send + Sync {
    /// What could be taken now. `work` says that this batch has made work due or freed a
    /// place.
    fn want(&self, work: bool) -> Option<Want>;

    /// What was taken, after the commit.
    fn deliver(&self, batch: Batch);
}

/// The writing side of a database.
pub(crate) struct Engine {
    place: Place,
    settings: StoreSettings,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    faults: Faults,
    fence: AppFence,
    conn: Option<Connection>,
    /// The files that are open.
    files: Option<Files>,
    cache: Cache,
}

/// Why a batch did not land.
enum Trouble {
    /// Nothing was run.
    Begin(StoreFault),
    /// It was rolled back; one of its messages is to blame.
    Message(StoreFault),
    /// It may have landed.
    Unknown(StoreFault),
}

/// What a batch came to, besides its answers.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) effects: Effects,
    /// The trouble that the whole batch met.
    pub(crate) fault: Option<StoreFault>,
}

impl Engine {
    /// Opens the database.
    pub(crate) fn open(
        place: Place,
        settings: StoreSettings,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        faults: Faults,
    ) -> Result<Self, StoreFault> {
        let fence = AppFence::new(clock.clone(), settings.code_limit);
        let (conn, files, cache) = (None, None, Cache::default());
        let mut engine =
            Self { place, settings, clock, entropy, faults, fence, conn, files, cache };
        engine.connect()?;
        Ok(engine)
    }

    #[cfg(test)]
    #[allow(clippy::expect_used, reason = "only tests look at the connection")]
    pub(super) fn connection(&self) -> &Connection {
        self.conn.as_ref().expect("a connection")
    }

    /// Lets go of the connection; the next batch opens another.
    pub(crate) fn reconnect(&mut self) {
        self.conn = None;
        self.cache.forget();
    }

    /// A look at application code in the transaction, from other threads.
    pub(crate) fn fence(&self) -> FenceView {
        self.fence.view()
    }

    fn connect(&mut self) -> Result<(), StoreFault> {
        if let Some(files) = &self.files {
            files.still_there(self.conn.is_some())?;
        }
        if self.conn.is_none() {
            let conn = writer(&self.place, &self.settings)?;
            if let Place::File(path) = &self.place {
                self.files = Files::of(path);
            }
            self.fence.install(&conn)?;
            self.cache.forget();
            self.conn = Some(conn);
        }
        Ok(())
    }

    /// Runs a batch and answers it.
    pub(crate) fn run(
        &mut self,
        mut batch: Vec<Box<dyn Pending>>,
        claimer: Option<&dyn Claimer>,
    ) -> Outcome {
        match self.transact(&mut batch, claimer) {
            Ok((effects, batch_of_leases)) => {
                // Work is handed out before anybody is answered.
                if let (Some(claimer), Some(leases)) = (claimer, batch_of_leases) {
                    claimer.deliver(leases);
                }
                for message in batch {
                    message.answer(Ok(()));
                }
                Outcome { effects, fault: None }
            }
            Err(Trouble::Message(_)) if batch.len() > 1 => self.one_by_one(batch),
            Err(Trouble::Message(fault)) if claimer.is_some() && !is_passing(&fault) => {
                // The claim may be to blame: the message runs again without one.
                log::error!(error:% = fault; "a batch was rolled back");
                if batch.is_empty() {
                    return Outcome { effects: Effects::default(), fault: Some(fault) };
                }
                self.run(batch, None)
            }
            Err(Trouble::Message(fault) | Trouble::Begin(fault) | Trouble::Unknown(fault)) => {
                for message in batch {
                    message.answer(Err(fault.clone()));
                }
                Outcome { effects: Effects::default(), fault: Some(fault) }
            }
        }
    }

    fn one_by_one(&mut self, batch: Vec<Box<dyn Pending>>) -> Outcome {
        let mut all = Outcome::default();
        for message in batch {
            let one = self.run(vec![message], None);
            all.effects.work |= one.effects.work;
            all.effects.ended.extend(one.effects.ended);
            all.effects.cancelled.extend(one.effects.cancelled);
            all.effects.after.extend(one.effects.after);
            all.fault = one.fault.filter(is_passing).or(all.fault);
        }
        all
    }

    fn transact(
        &mut self,
        batch: &mut [Box<dyn Pending>],
        claimer: Option<&dyn Claimer>,
    ) -> Result<(Effects, Option<Batch>), Trouble> {
        self.begin().map_err(Trouble::Begin)?;
        let ran = self.messages(batch, claimer);
        let Some(conn) = self.conn.as_ref() else {
            return Err(Trouble::Begin(StoreFault::Stopped));
        };
        match ran {
            Ok(done) => match commit(conn) {
                Ok(()) if self.faults.hit(Point::Commit) => {
                    self.conn = None;
                    Err(Trouble::Unknown(StoreFault::Unknown("the answer was lost".into())))
                }
                Ok(()) => Ok(done),
                Err(error) => Err(self.failed_commit(error)),
            },
            Err(fault) => {
                self.roll_back();
                if matches!(fault, StoreFault::Io(_) | StoreFault::Corrupt(_)) {
                    self.conn = None;
                }
                Err(Trouble::Message(fault))
            }
        }
    }

    fn begin(&mut self) -> Result<(), StoreFault> {
        self.connect()?;
        let Some(conn) = self.conn.as_ref() else { return Err(StoreFault::Stopped) };
        let begun = conn
            .prepare_cached(sql::BEGIN)
            .and_then(|mut begin| begin.execute([]))
            .map_err(StoreFault::from);
        if let Err(fault) = begun {
            if !matches!(fault, StoreFault::Busy | StoreFault::Full) {
                self.conn = None;
            }
            return Err(fault);
        }
        let looked = self
            .cache
            .refresh(conn)
            .and_then(|moved| if moved { known_schema(conn) } else { Ok(()) });
        if looked.is_err() {
            self.roll_back();
        }
        looked
    }

    /// Runs the messages, then a claim where somebody has room.
    fn messages(
        &mut self,
        batch: &mut [Box<dyn Pending>],
        claimer: Option<&dyn Claimer>,
    ) -> Result<(Effects, Option<Batch>), StoreFault> {
        let Some(conn) = self.conn.as_ref() else { return Err(StoreFault::Stopped) };
        let mut txn = Txn {
            conn,
            cache: &mut self.cache,
            now: self.clock.now(),
            monotonic: self.clock.monotonic(),
            entropy: &*self.entropy,
            settings: &self.settings,
            fence: &self.fence,
            effects: Effects::default(),
        };
        for message in batch {
            if self.faults.hit(Point::Message) {
                return Err(StoreFault::Sql("an injected failure".into()));
            }
            let ran = catch_unwind(AssertUnwindSafe(|| message.run(&mut txn)));
            let ran = ran.unwrap_or_else(|panic| Err(StoreFault::Panicked(text::of_panic(panic))));
            if conn.is_autocommit() && ran.is_ok() {
                let error = "the database rolled the transaction back";
                return Err(StoreFault::Sql(error.into()));
            }
            ran?;
        }
        let Some(want) = claimer.and_then(|claimer| claimer.want(txn.effects.work)) else {
            return Ok((txn.effects, None));
        };
        let leases = catch_unwind(AssertUnwindSafe(|| txn.claim(&want)))
            .unwrap_or_else(|panic| Err(StoreFault::Panicked(text::of_panic(panic))))?;
        Ok((txn.effects, Some(leases)))
    }

    fn failed_commit(&mut self, error: rusqlite::Error) -> Trouble {
        let constraint = error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation);
        let text = error.to_string();
        let fault = StoreFault::from(error);
        self.roll_back();
        match fault {
            // A constraint is looked at before anything is written; a busy commit wrote nothing.
            fault if constraint => Trouble::Message(fault),
            StoreFault::Busy => Trouble::Message(StoreFault::Busy),
            _ => {
                // After a failed sync the same connection must not be trusted again.
                self.conn = None;
                Trouble::Unknown(StoreFault::Unknown(text))
            }
        }
    }

    fn roll_back(&mut self) {
        self.cache.forget();
        let Some(conn) = self.conn.as_ref().filter(|conn| !conn.is_autocommit()) else { return };
        let done = conn.prepare_cached(sql::ROLLBACK).and_then(|mut back| back.execute([]));
        if let Err(error) = done {
            log::error!(error:% = error; "a rollback failed; the connection is replaced");
            self.conn = None;
        }
    }

    /// Writes the log back into the file and cuts it off, at a stop.
    pub(crate) fn checkpoint(&mut self) {
        if let Some(conn) = self.conn.as_ref() {
            let done = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
            if let Err(error) = done {
                log::info!(error:% = error; "the log was not written back at the stop");
            }
        }
    }
}

fn commit(conn: &Connection) -> rusqlite::Result<()> {
    conn.prepare_cached(sql::COMMIT)?.execute([]).map(|_| ())
}

fn known_schema(conn: &Connection) -> Result<(), StoreFault> {
    match versions(conn)? {
        Some((_, oldest_compatible)) if oldest_compatible > VERSION => {
            Err(StoreFault::TooNew { oldest_compatible })
        }
        Some(_) => Ok(()),
        None => Err(StoreFault::Corrupt("leasehold's tables are gone".into())),
    }
}

fn is_passing(fault: &StoreFault) -> bool {
    fault.is_passing()
}
