//! Failures on demand, for tests: each point of the code that can be armed to fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

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
}

const POINTS: usize = 8;

/// Which points are armed, and how often each will fail.
///
/// A runtime has one, unarmed; [`crate::testing::Lab::faults`] hands it out.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<[AtomicU32; POINTS]>);

impl Faults {
    /// Arms a point to fail the next `times` times that it is reached.
    pub fn arm(&self, point: Point, times: u32) {
        self.0[point as usize].store(times, Ordering::SeqCst);
    }

    /// How often the point will still fail.
    #[must_use]
    pub fn left(&self, point: Point) -> u32 {
        self.0[point as usize].load(Ordering::SeqCst)
    }

    /// Whether to fail here, now.
    pub(crate) fn hit(&self, point: Point) -> bool {
        let count = &self.0[point as usize];
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
