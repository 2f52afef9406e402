//! One attempt that this process runs.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::ask::Store;
use crate::clock::{Clock, Sleep};
use crate::error::Refusal;
use crate::faults::Faults;
use crate::host::Host;
use crate::json::Json;
use crate::rules::ladder::{Stage, beat, margin};
use crate::store::claim::Claimed;
use crate::store::holder::{Saved, Write};

/// Why a handler is asked to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The runtime stops.
    Stopping,
    /// Somebody asked for the job to be cancelled.
    Cancelled,
    /// The attempt's time limit has passed.
    TimedOut,
    /// The job is somebody else's now, or the lease could not be renewed in time: whatever
    /// is saved from here on is refused.
    Lost(Refusal),
}

/// An attempt in this process.
pub(crate) struct Run {
    pub(crate) number: u64,
    pub(crate) claimed: Claimed,
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) faults: Faults,
    timers: tokio::runtime::Handle,
    /// One write at a time, so that a write whose answer was lost is asked for again before
    /// the next is made.
    pub(crate) writing: tokio::sync::Mutex<()>,
    signal: watch::Sender<Option<StopReason>>,
    writes: AtomicU32,
    commits: AtomicU64,
    /// Somebody has taken the right to settle.
    settling: AtomicBool,
    /// The handler's code has ended.
    ended: AtomicBool,
    /// The attempt's end has landed, or never will.
    landed: AtomicBool,
    /// How many futures of this handler wait for the clock.
    pub(crate) sleeping: AtomicU32,
    /// How many wait for the signal.
    pub(crate) listening: AtomicU32,
    state: Mutex<RunState>,
}

/// What changes while it runs. Times are monotonic milliseconds.
pub(crate) struct RunState {
    pub(crate) started: Option<i64>,
    pub(crate) stage: Stage,
    pub(crate) next_beat: i64,
    /// Until when the lease is trusted.
    pub(crate) trusted_until: i64,
    pub(crate) beating: bool,
    pub(crate) revoked: bool,
    pub(crate) abort: Option<AbortHandle>,
    pub(crate) thread: Option<String>,
    pub(crate) checkpoint: Option<Json>,
}

impl Run {
    pub(crate) fn new(number: u64, claimed: Claimed, host: &Host) -> Self {
        let lease = claimed.facts.lease;
        let state = RunState {
            started: None,
            stage: Stage::Running,
            next_beat: claimed.monotonic.saturating_add(beat(lease)),
            trusted_until: claimed.monotonic.saturating_add(lease - margin(lease)),
            beating: false,
            revoked: false,
            abort: None,
            thread: None,
            checkpoint: claimed.checkpoint.clone(),
        };
        let commits = AtomicU64::new(claimed.commits.unsigned_abs());
        Self {
            number,
            claimed,
            store: host.store.clone(),
            clock: host.clock.clone(),
            faults: host.faults.clone(),
            timers: host.timers.clone(),
            writing: tokio::sync::Mutex::new(()),
            signal: watch::Sender::new(None),
            writes: AtomicU32::new(0),
            commits,
            settling: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            landed: AtomicBool::new(false),
            sleeping: AtomicU32::new(0),
            listening: AtomicU32::new(0),
            state: Mutex::new(state),
        }
    }

    /// A sleep on the runtime's clock, whatever timers the handler's own thread has.
    pub(crate) fn sleep(&self, duration: Duration) -> Sleep {
        let _timers = self.timers.enter();
        self.clock.sleep(duration)
    }

    /// A short wait in real time, whatever the runtime's clock.
    pub(crate) fn moment(&self, duration: Duration) -> Sleep {
        let _timers = self.timers.enter();
        crate::clock::moment(duration)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next write of this attempt, with a number of its own.
    pub(crate) fn write(&self) -> Write {
        Write {
            key: self.claimed.key,
            holder: self.claimed.holder.clone(),
            number: self.writes.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    /// A renewal, which carries no number of its own.
    pub(crate) fn renewal(&self) -> Write {
        Write { key: self.claimed.key, holder: self.claimed.holder.clone(), number: 0 }
    }

    /// Asks the handler to stop; the first reason stays, but for one that says it is lost.
    pub(crate) fn fire(&self, reason: StopReason) {
        self.signal.send_if_modified(|now| {
            let lost = |reason: &Option<StopReason>| matches!(reason, Some(StopReason::Lost(_)));
            let replace = now.is_none() || (matches!(reason, StopReason::Lost(_)) && !lost(now));
            if replace {
                *now = Some(reason);
            }
            replace
        });
    }

    pub(crate) fn reason(&self) -> Option<StopReason> {
        self.signal.borrow().clone()
    }

    pub(crate) fn signal(&self) -> watch::Receiver<Option<StopReason>> {
        self.signal.subscribe()
    }

    /// Takes the handler's writes away from it: they are refused here from now on.
    pub(crate) fn revoke(&self) {
        self.state().revoked = true;
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.state().revoked
    }

    /// The job was lost: the handler hears of it, and its writes are refused.
    pub(crate) fn lost(&self, refusal: Refusal) {
        self.revoke();
        self.fire(StopReason::Lost(refusal));
    }

    /// Takes the right to settle; only the first who asks gets it.
    pub(crate) fn take_settle(&self) -> bool {
        !self.settling.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn is_settling(&self) -> bool {
        self.settling.load(Ordering::SeqCst)
    }

    /// The code has ended; answers whether nothing is left of the attempt.
    pub(crate) fn end(&self) -> bool {
        self.ended.store(true, Ordering::SeqCst);
        self.has_landed()
    }

    /// Its end has landed; answers whether nothing is left of the attempt.
    pub(crate) fn land(&self) -> bool {
        self.landed.store(true, Ordering::SeqCst);
        self.ended.load(Ordering::SeqCst)
    }

    pub(crate) fn has_landed(&self) -> bool {
        self.landed.load(Ordering::SeqCst)
    }

    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// A save has landed.
    pub(crate) fn saved(&self, saved: Saved) {
        self.commits.store(saved.commits.unsigned_abs(), Ordering::Relaxed);
        if saved.extended {
            self.renewed(saved.monotonic);
        }
    }

    /// The lease was extended in a transaction of this monotonic time.
    pub(crate) fn renewed(&self, monotonic: i64) {
        let lease = self.claimed.facts.lease;
        let mut state = self.state();
        state.beating = false;
        state.next_beat = state.next_beat.max(monotonic.saturating_add(beat(lease)));
        let trusted = monotonic.saturating_add(lease - margin(lease));
        state.trusted_until = state.trusted_until.max(trusted);
    }

    /// Whether it waits for the clock or the signal, and for nothing that has come.
    pub(crate) fn stands_still(&self) -> bool {
        if self.is_settling() {
            return false;
        }
        let (sleeping, listening) = (&self.sleeping, &self.listening);
        match listening.load(Ordering::SeqCst) {
            0 => sleeping.load(Ordering::SeqCst) > 0,
            _ => self.reason().is_none(),
        }
    }

    /// How long the handler has been running, in milliseconds.
    pub(crate) fn running_for(&self) -> i64 {
        let now = self.clock.monotonic();
        self.state().started.map_or(0, |started| now.saturating_sub(started))
    }
}
