//! Failures on demand, for tests: each point of the code that can be armed to fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Where a failure can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Point {
    /// The answer of a commit is lost: it has landed, and nobody is told.
    Commit,
    /// A message of a batch fails, so that the batch is rolled back.
    Message,
    /// The store's own code panics, outside of any message.
    Store,
    /// The worker's own code panics.
    Worker,
    /// The worker's own code never returns.
    WorkerStuck,
    /// The reaper's own code panics.
    Reaper,
    /// The supervisor's own code panics.
    Supervisor,
    /// A heartbeat is not sent.
    Heartbeat,
    /// The database is busy: another process has the write lock for too long.
    Busy,
}

const POINTS: usize = 9;

/// Which points are armed, and how often each will fail.
///
/// A runtime has one, unarmed; [`crate::testing::Lab::faults`] hands it out.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Armed>);

#[derive(Debug, Default)]
struct Armed {
    times: [AtomicU32; POINTS],
    delay: AtomicU32,
}

impl Faults {
    /// Arms a point to fail the next `times` times that it is reached.
    pub fn arm(&self, point: Point, times: u32) {
        self.0.times[point as usize].store(times, Ordering::SeqCst);
    }

    /// Has the store take its next batch so many milliseconds late, by the runtime's clock.
    pub fn delay(&self, ms: u32) {
        self.0.delay.store(ms, Ordering::SeqCst);
    }

    /// The delay, once.
    pub(crate) fn take_delay(&self) -> Option<Duration> {
        let delay = &self.0.delay;
        (delay.load(Ordering::Relaxed) > 0)
            .then(|| Duration::from_millis(delay.swap(0, Ordering::SeqCst).into()))
    }

    /// Disarms everything.
    pub fn calm(&self) {
        self.0.times.iter().for_each(|point| point.store(0, Ordering::SeqCst));
        self.delay(0);
    }

    /// How often the point will still fail.
    #[must_use]
    pub fn left(&self, point: Point) -> u32 {
        self.0.times[point as usize].load(Ordering::SeqCst)
    }

    /// Whether to fail here, now.
    pub(crate) fn hit(&self, point: Point) -> bool {
        let count = &self.0.times[point as usize];
        count.load(Ordering::Relaxed) > 0
            && count
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                .is_ok()
    }

    /// Panics here, now, if armed.
    pub(crate) fn panic(&self, point: Point) {
        assert!(!self.hit(point), "an injected panic at {point:?}");
    }
}
