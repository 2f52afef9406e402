//! Time: tokio's paused one, which passes when nothing else is left to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use leasehold::{Clock, Sleep};
use tokio::time::Instant;

/// What the clocks show at first: 2020-01-01 00:00 UTC.
const START: i64 = 1_577_836_800_000;

/// The clock of one process: the time of all, and how far its wall clock is off.
#[derive(Clone, Debug)]
pub struct SimClock {
    start: Instant,
    skew: Arc<AtomicI64>,
}

impl SimClock {
    pub fn new(start: Instant) -> Self {
        Self { start, skew: Arc::default() }
    }

    /// Moves the wall clock.
    pub fn step(&self, ms: i64) {
        self.skew.fetch_add(ms, Ordering::Relaxed);
    }

    /// Sets the wall clock so far off.
    pub fn set(&self, skew: i64) {
        self.skew.store(skew, Ordering::Relaxed);
    }

    pub fn skew(&self) -> i64 {
        self.skew.load(Ordering::Relaxed)
    }
}

impl Clock for SimClock {
    fn now(&self) -> i64 {
        START + self.monotonic() + self.skew()
    }

    fn monotonic(&self) -> i64 {
        i64::try_from(self.start.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }
}
