//! One run of a runtime, from its start to its stop: slots, attempts, and their endings.
//!
//! The worker's loop, the store's thread, the handlers' threads and the control thread all
//! meet here. Nothing in it waits: each call takes the lock, changes what it must, and sends.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::around::Around;
use crate::error::{Error, Refusal, StoreFault};
use crate::faults::Point;
use crate::handler::Starter;
use crate::health::HealthReport;
use crate::host::Host;
use crate::job::{JobId, Status};
use crate::rules::settle::{Failure, Settle};
use crate::store::claim::Batch;
use crate::store::holder::Write;
use crate::store::messages::SettleOne;

use super::pool::Pool;
use super::run::{Run, StopReason};
use super::stats::{Counters, Stats, add};

/// The first pause before a settle is sent again, doubling up to [`RETRY_CAP`], in ms.
const RETRY_BASE: i64 = 100;
const RETRY_CAP: i64 = 5_000;

/// Which jobs a runtime takes, and how many at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Capacity {
    pub(crate) slots: usize,
    /// Slots by queue; all queues where there are none.
    pub(crate) queues: Option<HashMap<Arc<str>, usize>>,
    pub(crate) kinds: HashMap<Arc<str>, usize>,
}

/// One run of a runtime.
pub(crate) struct Session {
    pub(crate) host: Arc<Host>,
    pub(crate) owner: Arc<str>,
    pub(crate) starters: BTreeMap<Arc<str>, Starter>,
    pub(crate) around: Option<Around>,
    pub(crate) capacity: Capacity,
    /// How many handlers may block their threads before health is red.
    pub(crate) max_zombies: usize,
    pub(crate) pool: Pool,
    pub(crate) counters: Counters,
    /// Something has ended, or stands still: for who waits for a stop or for quiet.
    pub(crate) changed: Notify,
    /// For the worker's loop: look, or look at another time.
    pub(crate) wake: Notify,
    inner: Mutex<Inner>,
}

#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a state of its own")]
pub(super) struct Inner {
    /// Attempts whose code has not ended, or whose end has not landed.
    pub(super) runs: BTreeMap<u64, Arc<Run>>,
    /// Attempts whose code blocks its thread past all limits.
    pub(super) zombies: BTreeMap<u64, Arc<Run>>,
    /// Attempts that hold a slot, by number.
    pub(super) busy: BTreeMap<u64, Arc<Run>>,
    pub(super) retries: Vec<Retry>,
    /// There may be work.
    pub(super) hungry: bool,
    pub(super) quiet: bool,
    /// Claims wait until somebody lets them.
    pub(super) held: bool,
    stopping: bool,
    stopped: bool,
    next_due: Option<i64>,
    next_number: u64,
}

/// A settle whose answer was trouble of the store.
pub(super) struct Retry {
    pub(super) run: Arc<Run>,
    pub(super) how: Settle,
    pub(super) write: Write,
    pub(super) at: i64,
    pub(super) pause: i64,
}

impl Session {
    pub(crate) fn new(
        host: Arc<Host>,
        owner: Arc<str>,
        (starters, around): (BTreeMap<Arc<str>, Starter>, Option<Around>),
        capacity: Capacity,
        max_zombies: usize,
        pool: Pool,
    ) -> Self {
        let held = host.by_hand;
        Self {
            host,
            owner,
            starters,
            around,
            capacity,
            max_zombies,
            pool,
            counters: Counters::default(),
            changed: Notify::new(),
            wake: Notify::new(),
            inner: Mutex::new(Inner { hungry: true, held, ..Inner::default() }),
        }
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn kinds(&self) -> Vec<Arc<str>> {
        self.starters.keys().cloned().collect()
    }

    /// Makes the next batch of the store claim, if there is a free slot.
    pub(crate) fn look(&self) {
        self.inner().hungry = true;
        self.host.store.nudge();
    }

    /// Whether a slot is free and claims are wanted.
    pub(crate) fn has_room(&self) -> bool {
        let inner = self.inner();
        !inner.quiet && inner.busy.len() < self.capacity.slots
    }

    pub(crate) fn next_due(&self) -> Option<i64> {
        self.inner().next_due
    }

    pub(crate) fn set_next_due(&self, next_due: Option<i64>) {
        self.inner().next_due = next_due;
    }

    /// No claims from here on.
    pub(crate) fn quiet(&self) {
        self.inner().quiet = true;
    }

    /// Has claims wait, or lets them.
    pub(crate) fn hold(&self, held: bool) {
        self.inner().held = held;
    }

    /// The stop begins: no claims, and every handler is asked to end.
    pub(crate) fn begin_stop(&self) {
        let runs = {
            let mut inner = self.inner();
            inner.quiet = true;
            inner.stopping = true;
            inner.runs.values().cloned().collect::<Vec<_>>()
        };
        for run in runs {
            run.fire(StopReason::Stopping);
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.inner().stopping
    }

    /// The stop is over: the loops end.
    pub(crate) fn end(&self) {
        self.inner().stopped = true;
        self.changed.notify_waiters();
        self.wake.notify_one();
    }

    pub(crate) fn has_stopped(&self) -> bool {
        self.inner().stopped
    }

    /// Attempts whose code has not ended, or whose end has not landed.
    pub(crate) fn runs(&self) -> Vec<Arc<Run>> {
        self.inner().runs.values().cloned().collect()
    }

    pub(crate) fn zombies(&self) -> Vec<Arc<Run>> {
        self.inner().zombies.values().cloned().collect()
    }

    /// How it is doing.
    pub(crate) fn health(&self) -> HealthReport {
        let mut report = self.host.health.report();
        report.zombies = self.inner().zombies.len() as u64;
        report.troubles.extend(self.stuck());
        report
    }

    /// What the runtime cannot mend by itself.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.host.health.given_up().or_else(|| self.stuck())
    }

    /// Application code that does not return, where there is too much of it.
    fn stuck(&self) -> Option<String> {
        let zombies = self.inner().zombies.len();
        if zombies > self.max_zombies {
            return Some(format!("{zombies} handlers block their threads"));
        }
        let inside = self.host.inside.inside()?;
        let (what, stuck) = (inside.what, inside.for_ms);
        (stuck > self.host.code_limit)
            .then(|| format!("the store is stuck in {what} for {stuck} ms"))
    }

    pub(crate) fn stats(&self) -> Stats {
        self.counters.read(self.inner().runs.len() as u64)
    }

    /// Fires the signal of a job that runs here.
    pub(crate) fn cancel(&self, id: &JobId) {
        let runs = self.runs();
        runs.iter().filter(|run| run.claimed.id == *id).for_each(|run| {
            run.fire(StopReason::Cancelled);
        });
    }

    /// The handler's code has ended, in whatever way.
    pub(crate) fn finish(self: &Arc<Self>, run: &Arc<Run>, how: Settle) {
        {
            let mut inner = self.inner();
            inner.busy.remove(&run.number);
            inner.zombies.remove(&run.number);
            if run.end() {
                inner.runs.remove(&run.number);
            }
        }
        if run.take_settle() {
            let how = match how {
                // Work in slices that stops because the runtime does is no stall.
                Settle::Yield if run.reason() == Some(StopReason::Stopping) => Settle::Interrupt,
                other => other,
            };
            self.settle(run, how);
        } else {
            self.changed.notify_waiters();
            // No settle follows that a claim for the free slot could ride with.
            self.look();
        }
    }

    /// The handler's task was dropped before it ended.
    pub(crate) fn dropped(self: &Arc<Self>, run: &Arc<Run>) {
        let stopping = self.is_stopping();
        // Where it was not us, the host's runtime has gone, and will refuse the next too.
        self.finish(run, if stopping { Settle::Release } else { Settle::Snooze(1_000) });
    }

    /// Gives the attempt's slot to the next; answers whether it still had one.
    pub(super) fn free_slot(&self, run: &Run) -> bool {
        self.inner().busy.remove(&run.number).is_some()
    }

    /// Sends an attempt's end; whoever calls has taken the right to.
    pub(super) fn settle(self: &Arc<Self>, run: &Arc<Run>, how: Settle) {
        if self.host.faults.hit(Point::BeforeWrite) {
            self.host.faults.kill();
        }
        let write = run.write();
        self.send_settle(run.clone(), how, write, RETRY_BASE);
    }

    pub(super) fn send_settle(
        self: &Arc<Self>,
        run: Arc<Run>,
        how: Settle,
        write: Write,
        pause: i64,
    ) {
        let session = self.clone();
        let message = SettleOne { write: write.clone(), how: how.clone() };
        let faults = self.host.faults.clone();
        self.host.store.tell(message, move |answer| match faults.answer(answer) {
            Ok(_) if faults.hit(Point::AfterWrite) => faults.kill(),
            Ok(status) => session.landed(&run, &how, status),
            Err(Error::Refused(Refusal::Invalid { field, value, rule })) => {
                let refusal = Refusal::Invalid { field, value, rule };
                session.settle(&run, Settle::Fail(Failure::transient(refusal.to_string())));
            }
            Err(Error::Refused(Refusal::HookFailed { error, .. })) => {
                log::warn!(job:% = run.claimed.id, kind:% = run.claimed.kind, error:% = error;
                    "an ending waits for a hook");
                add(&session.counters.failures);
                session.forget(&run);
            }
            Err(Error::Store(StoreFault::Stopped)) => session.forget(&run),
            Err(Error::Store(fault)) => {
                log::debug!(job:% = run.claimed.id, error:% = fault; "a settle is sent again");
                let at = session.host.clock.monotonic().saturating_add(pause);
                let pause = pause.saturating_mul(2).min(RETRY_CAP);
                session.inner().retries.push(Retry { run, how, write, at, pause });
            }
            Err(refused) => {
                log::warn!(job:% = run.claimed.id, kind:% = run.claimed.kind,
                    epoch = run.claimed.holder.epoch, error:% = refused;
                    "an attempt had lost its job");
                add(&session.counters.lost);
                session.forget(&run);
            }
        });
    }

    /// A settle has landed.
    fn landed(&self, run: &Run, how: &Settle, status: Status) {
        let counters = &self.counters;
        match (how, status) {
            (_, Status::Cancelled) => add(&counters.cancelled),
            (Settle::Complete(_), _) => add(&counters.completions),
            (Settle::Fail(_), _) => add(&counters.failures),
            _ => add(&counters.yields),
        }
        if self.is_stopping() {
            match how {
                Settle::Release | Settle::Interrupt => add(&counters.handed_back),
                _ => add(&counters.settled),
            }
        }
        self.forget(run);
    }

    /// Nothing more is to be sent for an attempt.
    pub(super) fn forget(&self, run: &Run) {
        {
            let mut inner = self.inner();
            if run.land() {
                inner.runs.remove(&run.number);
            }
        }
        self.changed.notify_waiters();
    }

    /// Hands a claimed job to the threads that run handlers.
    fn hand_out(self: &Arc<Self>, run: Arc<Run>) {
        match self.starters.get(&run.claimed.kind) {
            Some(_) => self.pool.start(self, run),
            // Claims list only kinds that have a handler here.
            None => self.finish(&run, Settle::Release),
        }
    }

    /// Takes what a batch has claimed for this session.
    pub(crate) fn take(self: &Arc<Self>, batch: Batch) {
        let mut runs = Vec::with_capacity(batch.claimed.len());
        let late = {
            let mut inner = self.inner();
            for claimed in batch.claimed {
                let number = inner.next_number;
                inner.next_number += 1;
                let run = Arc::new(Run::new(number, claimed, &self.host));
                inner.runs.insert(number, run.clone());
                inner.busy.insert(number, run.clone());
                runs.push(run);
            }
            // With a free slot left there was no more to be had.
            inner.hungry = batch.more || inner.busy.len() >= self.capacity.slots;
            inner.next_due = batch.next_due;
            inner.stopping || inner.quiet
        };
        self.counters.claims.fetch_add(runs.len() as u64, Ordering::Relaxed);
        for run in runs {
            if late {
                self.finish(&run, Settle::Release);
            } else {
                self.hand_out(run);
            }
        }
        self.changed.notify_waiters();
        self.wake.notify_one();
    }
}
