//! Whether the runtime is well, and what it has been through.

use std::mem::{Discriminant, discriminant};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::Clock;
use crate::error::StoreFault;
use crate::events::{Event, Hub};

/// What is known of a runtime's own state, shared by its actors.
pub(crate) struct Health {
    pub(crate) clock: Arc<dyn Clock>,
    events: Hub,
    restarts: AtomicU64,
    log_bytes: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    store: Option<StoreFault>,
    told: Option<Told>,
    given_up: Vec<String>,
    /// How often a person is needed, and what for the last time.
    unhooked: Option<(u64, String)>,
    last_restart: Option<String>,
    /// Loops that wait for their restart.
    pausing: Vec<&'static str>,
    /// Endings that nobody serves.
    unserved: Vec<String>,
}

/// The trouble of the store that the log told of last.
#[derive(Clone, Copy)]
struct Told {
    sort: Discriminant<StoreFault>,
    /// When, by the monotonic clock.
    at: i64,
    /// It has come again since, and the log has not told of it.
    silent: bool,
}

/// How long the log does not tell of the same trouble again, in milliseconds.
const OFTEN: i64 = 60_000;

/// Whether trouble is over only when something could be written.
const fn is_of_the_disk(fault: &StoreFault) -> bool {
    matches!(fault, StoreFault::Full | StoreFault::Io(_) | StoreFault::ReadOnly)
}

/// How a runtime is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealthReport {
    /// What is wrong now, a line each; empty where all is well.
    pub troubles: Vec<String>,
    /// Restarts of the runtime's own loops since the start.
    pub restarts: u64,
    /// Why the last of them was needed.
    pub last_restart: Option<String>,
    /// Handlers that block their thread past all limits.
    pub zombies: u64,
    /// The size of the write-ahead log when it was last looked at.
    pub log_bytes: u64,
}

impl HealthReport {
    /// Whether all is well.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.troubles.is_empty()
    }
}

impl Health {
    pub(crate) fn new(clock: Arc<dyn Clock>, events: Hub) -> Self {
        let (restarts, log_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { clock, events, restarts, log_bytes, state: Mutex::default() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A loop has been restarted.
    pub(crate) fn restarted(&self, name: &str, error: &str) {
        log::error!(actor:% = name, error:% = error; "a loop is restarted");
        self.state().last_restart = Some(format!("{name}: {error}"));
        self.restarts.fetch_add(1, Ordering::SeqCst);
        self.events.send(Event::Restarted { name: name.to_owned(), error: error.to_owned() });
    }

    /// A loop waits for its restart.
    pub(crate) fn pauses(&self, name: &'static str) {
        self.state().pausing.push(name);
    }

    /// A loop's wait is over.
    pub(crate) fn goes_on(&self, name: &str) {
        self.state().pausing.retain(|pausing| *pausing != name);
    }

    pub(crate) fn is_pausing(&self, name: &str) -> bool {
        self.state().pausing.contains(&name)
    }

    /// A loop is not restarted any more.
    pub(crate) fn gave_up(&self, name: &str, error: &str) {
        log::error!(actor:% = name, error:% = error; "a loop is given up: it failed too often");
        self.state().given_up.push(format!("{name} failed too often: {error}"));
    }

    /// A job has ended in a way that a person must look at.
    pub(crate) fn needs_a_person(&self, trouble: &str) {
        log::error!("{trouble}");
        let mut state = self.state();
        let before = state.unhooked.as_ref().map_or(0, |(count, _)| *count);
        state.unhooked = Some((before + 1, trouble.to_owned()));
    }

    /// Kinds of which jobs are owed an ending that no process has the hooks for, as the last pass
    /// of the reaper saw them.
    pub(crate) fn unserved(&self, kinds: &[(Arc<str>, i64)]) {
        self.state().unserved = kinds
            .iter()
            .map(|(kind, jobs)| {
                format!("jobs of kind {kind} owed an ending: {jobs}; no process has its hooks")
            })
            .collect();
    }

    /// The size of the write-ahead log.
    pub(crate) fn log_bytes(&self, bytes: u64) {
        self.log_bytes.store(bytes, Ordering::Relaxed);
    }

    /// A loop that is not restarted any more.
    pub(crate) fn given_up(&self) -> Option<String> {
        self.state().given_up.first().cloned()
    }

    /// What the last batch of the store met, and whether it wrote anything. One line a change of
    /// state is logged, and of trouble that comes and goes one a minute.
    pub(crate) fn store(&self, fault: Option<&StoreFault>, wrote: bool) {
        let mut state = self.state();
        // Where nothing was written, nothing shows that it could have been.
        if fault.is_none() && !wrote && state.store.as_ref().is_some_and(is_of_the_disk) {
            return;
        }
        let changed = state.store.as_ref().map(discriminant) != fault.map(discriminant);
        state.store = fault.cloned();
        let Some(fault) = fault else {
            if changed && state.told.is_some_and(|told| !told.silent) {
                log::info!("the store is well again");
            }
            return;
        };
        let (sort, at) = (discriminant(fault), self.clock.monotonic());
        let lately = |told: &Told| told.sort == sort && at.saturating_sub(told.at) < OFTEN;
        match state.told {
            Some(told) if lately(&told) => {
                state.told = Some(Told { silent: told.silent || changed, ..told });
            }
            Some(told) if !changed && !told.silent => {}
            _ => {
                log::error!(error:% = fault; "the store is in trouble");
                state.told = Some(Told { sort, at, silent: false });
            }
        }
    }

    pub(crate) fn report(&self) -> HealthReport {
        let state = self.state();
        let mut troubles = state.given_up.clone();
        troubles.extend(state.store.as_ref().map(|fault| format!("store: {fault}")));
        troubles.extend(state.unhooked.as_ref().map(|(count, last)| {
            format!("jobs that ended without their hook since the start: {count}; last, {last}")
        }));
        troubles.extend(state.unserved.iter().cloned());
        HealthReport {
            troubles,
            restarts: self.restarts.load(Ordering::Relaxed),
            last_restart: state.last_restart.clone(),
            zombies: 0,
            log_bytes: self.log_bytes.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn trouble_of_the_disk_is_over_when_something_was_written_and_not_before() {
        let health = Health::new(Arc::new(ManualClock::at(0)), Hub::default());
        for (fault, is_over) in [
            (StoreFault::Full, false),
            (StoreFault::Io("at one place".into()), false),
            (StoreFault::ReadOnly, false),
            (StoreFault::Busy, true),
        ] {
            health.store(Some(&fault), false);
            health.store(None, false);
            assert_eq!(health.report().is_healthy(), is_over, "{fault}");
            health.store(None, true);
            assert!(health.report().is_healthy());
        }
    }

    #[test]
    fn trouble_that_comes_and_goes_is_told_of_once_a_minute_and_what_stays_at_last() {
        let clock = ManualClock::at(0);
        let health = Health::new(Arc::new(clock.clone()), Hub::default());
        let told = |fault: Option<&StoreFault>| {
            health.store(fault, true);
            health.state().told.map(|told| (told.at, told.silent))
        };
        let (full, busy) = (StoreFault::Full, StoreFault::Busy);
        assert_eq!(told(Some(&full)), Some((0, false)));
        clock.advance(100_000);
        assert_eq!(told(Some(&full)), Some((0, false)), "it stays, and is told of already");
        assert_eq!(told(None), Some((0, false)));
        assert_eq!(told(Some(&full)), Some((100_000, false)));
        clock.advance(1_000);
        told(None);
        assert_eq!(told(Some(&full)), Some((100_000, true)), "in silence");
        clock.advance(59_000);
        assert_eq!(told(Some(&full)), Some((160_000, false)), "it is still there");
        assert_eq!(told(Some(&busy)), Some((160_000, false)));
    }
}
