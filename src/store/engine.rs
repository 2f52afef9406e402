//! Batches of messages, one transaction a batch.
//!
//! What waits is run together, claims last; all is answered after the commit. A message that
//! cannot be undone alone takes its whole batch back, which then runs again one by one, so
//! that it fails alone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rusqlite::{Connection, ErrorCode};

use crate::bugs::{self, Bug};
use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::error::StoreFault;
use crate::faults::{Faults, Point};
use crate::rules::text;

use super::cache::Cache;
use super::claim::{Batch, Claimed, Want};
use super::disk::{Ballast, LogCare};
use super::open::{Files, Place, VERSION, versions};
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

    /// Nothing could be taken: the store is in trouble.
    fn failed(&self);
}

/// The writing side of a database.
pub(crate) struct Engine {
    pub(super) place: Place,
    pub(super) settings: StoreSettings,
    pub(super) clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    pub(super) faults: Faults,
    pub(super) fence: AppFence,
    pub(super) conn: Option<Connection>,
    /// The files that are open.
    pub(super) files: Option<Files>,
    cache: Cache,
    /// Leases of commits whose answer was lost: to be looked up, as nobody else knows of them.
    pub(super) unsure: Vec<Claimed>,
    pub(super) ballast: Option<Ballast>,
    pub(super) log: LogCare,
}

/// Why a batch did not land.
enum Trouble {
    /// Nothing was run.
    Begin(StoreFault),
    /// It was rolled back; one of its messages is to blame.
    Message(StoreFault),
    /// It may have landed, and with it these leases.
    Unknown(StoreFault, Vec<Claimed>),
}

/// What a batch came to, besides its answers.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) effects: Effects,
    /// The trouble that the whole batch met.
    pub(crate) fault: Option<StoreFault>,
    /// Something was written.
    pub(crate) wrote: bool,
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
        let fence = AppFence::new(settings.code_limit);
        let (conn, files, cache) = (None, None, Cache::default());
        let ballast = match &place {
            Place::File(path) if settings.ballast => Some(Ballast::beside(path)),
            _ => None,
        };
        let (unsure, log) = (Vec::new(), LogCare::default());
        let mut engine = Self {
            place,
            settings,
            clock,
            entropy,
            faults,
            fence,
            conn,
            files,
            cache,
            unsure,
            ballast,
            log,
        };
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
        self.roll_back();
        self.mistrust();
    }

    /// A look at application code in the transaction, from other threads.
    pub(crate) fn fence(&self) -> FenceView {
        self.fence.view()
    }

    pub(super) fn connect(&mut self) -> Result<(), StoreFault> {
        self.look_at_files()?;
        if self.conn.is_none() {
            let conn = self.opened()?;
            if let Place::File(path) = &self.place {
                self.files = Files::of(path);
            }
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
        self.look_up_leases(claimer);
        let changes = |engine: &Self| engine.conn.as_ref().map(Connection::total_changes);
        let before = changes(self);
        match self.transact(&mut batch, claimer) {
            Ok((effects, batch_of_leases)) => {
                self.fence.trial.close();
                // Work is handed out before anybody is answered.
                if let (Some(claimer), Some(leases)) = (claimer, batch_of_leases) {
                    claimer.deliver(leases);
                }
                for message in batch {
                    answer(message, Ok(()));
                }
                if let Some(ballast) = &mut self.ballast {
                    ballast.keep(self.clock.monotonic());
                }
                Outcome { effects, fault: None, wrote: changes(self) != before }
            }
            // With the ballast gone there is room for what waits, once.
            Err(Trouble::Message(StoreFault::Full) | Trouble::Begin(StoreFault::Full))
                if self.give_up_ballast() =>
            {
                self.run(batch, claimer)
            }
            Err(Trouble::Message(fault)) if bugs::give_up() => self.failed(batch, claimer, fault),
            Err(Trouble::Message(_)) if self.fence.trial.has_learned() => self.run(batch, claimer),
            Err(Trouble::Message(fault)) if batch.len() > 1 && !fault.is_passing() => {
                self.one_by_one(batch)
            }
            Err(Trouble::Message(fault)) if claimer.is_some() && !fault.is_passing() => {
                // The claim may be to blame: the message runs again without one.
                log::debug!(error:% = fault; "a batch was rolled back");
                if let Some(claimer) = claimer {
                    claimer.failed();
                }
                if batch.is_empty() {
                    return Outcome { fault: Some(fault), ..Outcome::default() };
                }
                self.run(batch, None)
            }
            Err(Trouble::Unknown(fault, leases)) => {
                self.unsure.extend(leases);
                self.look_up_leases(claimer);
                self.failed(batch, claimer, fault)
            }
            Err(Trouble::Message(fault) | Trouble::Begin(fault)) => {
                self.failed(batch, claimer, fault)
            }
        }
    }

    fn failed(
        &mut self,
        batch: Vec<Box<dyn Pending>>,
        claimer: Option<&dyn Claimer>,
        fault: StoreFault,
    ) -> Outcome {
        self.fence.trial.close();
        if let Some(claimer) = claimer {
            claimer.failed();
        }
        for message in batch {
            let early = bugs::on(Bug::AnsweredBeforeCommit);
            answer(message, if early { Ok(()) } else { Err(fault.clone()) });
        }
        Outcome { fault: Some(fault), ..Outcome::default() }
    }

    /// Lets go of a connection that cannot be trusted any more; in memory there is only one.
    pub(super) fn mistrust(&mut self) {
        self.cache.forget();
        if self.place != Place::Memory {
            self.let_go();
        }
    }

    fn one_by_one(&mut self, batch: Vec<Box<dyn Pending>>) -> Outcome {
        let mut all = Outcome::default();
        for message in batch {
            let one = self.run(vec![message], None);
            all.effects.append(one.effects);
            all.wrote |= one.wrote;
            all.fault = one.fault.filter(StoreFault::is_passing).or(all.fault);
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
                    self.mistrust();
                    let fault = StoreFault::Unknown("the answer was lost".into());
                    Err(Trouble::Unknown(fault, leases_of(done.1)))
                }
                Ok(()) => {
                    self.drop_busy();
                    Ok(done)
                }
                Err(error) => Err(self.failed_commit(error, leases_of(done.1))),
            },
            Err(fault) => {
                self.roll_back();
                if matches!(fault, StoreFault::Io(_) | StoreFault::Corrupt(_)) {
                    self.mistrust();
                }
                Err(Trouble::Message(fault))
            }
        }
    }

    fn begin(&mut self) -> Result<(), StoreFault> {
        self.connect()?;
        let Some(conn) = self.conn.as_ref() else { return Err(StoreFault::Stopped) };
        if self.faults.hit(Point::Busy) {
            return Err(StoreFault::Busy);
        }
        let begun = conn
            .prepare_cached(sql::BEGIN)
            .and_then(|mut begin| begin.execute([]))
            .map_err(StoreFault::from);
        if let Err(fault) = begun {
            if !matches!(fault, StoreFault::Busy | StoreFault::Full) {
                self.mistrust();
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
        self.injected()?;
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
            scope: None,
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

    fn failed_commit(&mut self, error: rusqlite::Error, leases: Vec<Claimed>) -> Trouble {
        let constraint = error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation);
        let text = error.to_string();
        let fault = StoreFault::from(error);
        self.roll_back();
        match &fault {
            // A constraint is looked at before anything is written; a busy commit wrote nothing.
            _ if constraint => {
                self.fence.trial.suspect_all();
                Trouble::Message(fault)
            }
            // Nor did one for which there was no room: its last page is not whole.
            StoreFault::Busy | StoreFault::Full => Trouble::Message(fault),
            _ => {
                // After a failed sync the same connection must not be trusted again.
                self.mistrust();
                Trouble::Unknown(StoreFault::Unknown(text), leases)
            }
        }
    }

    pub(super) fn roll_back(&mut self) {
        self.cache.forget();
        let Some(conn) = self.conn.as_ref().filter(|conn| !conn.is_autocommit()) else { return };
        let done = conn.prepare_cached(sql::ROLLBACK).and_then(|mut back| back.execute([]));
        if let Err(error) = done {
            log::error!(error:% = error; "a rollback failed; the connection is replaced");
            self.mistrust();
        }
        self.drop_busy();
    }
}

fn leases_of(batch: Option<Batch>) -> Vec<Claimed> {
    batch.map(|batch| batch.claimed).unwrap_or_default()
}

/// Answers a message and drops it: what application code in it held may panic then.
fn answer(message: Box<dyn Pending>, outcome: Result<(), StoreFault>) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| message.answer(outcome))) {
        let error = text::of_panic(panic);
        log::error!(error:% = error; "a message panicked when it was dropped");
    }
}

fn commit(conn: &Connection) -> rusqlite::Result<()> {
    conn.prepare_cached(sql::COMMIT)?.execute([]).map(|_| ())
}

/// Whether this code may write the schema that is there.
pub(super) fn known_schema(conn: &Connection) -> Result<(), StoreFault> {
    match versions(conn)? {
        Some((_, oldest_compatible)) if oldest_compatible > VERSION => {
            Err(StoreFault::TooNew { oldest_compatible })
        }
        Some(_) => Ok(()),
        None => Err(StoreFault::Corrupt("leasehold's tables are gone".into())),
    }
}
