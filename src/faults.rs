//! Failures on demand, for tests: each point of the code that can be armed to fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::{Result, StoreFault};

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
    /// The disk is full, and the transaction is rolled back.
    Full,
    /// The disk fails, and the transaction is rolled back.
    Io,
    /// The answer of a handler's write is lost: it has landed, and is asked for again.
    LostAnswer,
    /// The process dies before a handler's write is sent.
    BeforeWrite,
    /// The process dies after a handler's write has landed, and before anybody is told.
    AfterWrite,
}

const POINTS: usize = 14;
/// Above the number of times that a point will fail: how often it is passed before.
const PASSES: u32 = 32;

/// Which points are armed, and how often each will fail.
///
/// A runtime has one, unarmed; [`crate::testing::Lab::faults`] hands it out. The points of a
/// handler's writes are reached in the order of those writes: each `save`, `step`, `progress` and
/// fenced write of its [`Ctx`](crate::Ctx), and its end. Those of the store are reached by every
/// transaction, the runtime's own among them.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Armed>);

#[derive(Debug, Default)]
struct Armed {
    points: [AtomicU64; POINTS],
    delay: AtomicU32,
    dead: AtomicBool,
    revived: Notify,
}

impl Faults {
    /// Arms a point to fail the next `times` times that it is reached.
    pub fn arm(&self, point: Point, times: u32) {
        self.arm_after(point, 0, times);
    }

    /// Arms a point to be passed `passes` times, and then to fail the next `times` times.
    pub fn arm_after(&self, point: Point, passes: u32, times: u32) {
        let armed = u64::from(passes) << PASSES | u64::from(times);
        self.0.points[point as usize].store(armed, Ordering::SeqCst);
    }

    /// The process dies here, as far as its database can tell, and an async handler that awaits
    /// this does not go on: nothing that runs is heard of any more, until
    /// [`Lab::crash`](crate::testing::Lab::crash) has dropped it all and started another process.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> leasehold::Result<()> {
    /// # use leasehold::testing::{Faults, Lab};
    /// # use leasehold::{Ctx, Job, JobResult, Outcome, Runtime, Status};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Pay;
    /// # impl Job for Pay { const KIND: &'static str = "pay"; }
    /// /// A stand-in for a provider, whose first answer never comes.
    /// async fn pay(_: Pay, ctx: Ctx<Faults>) -> JobResult {
    ///     if ctx.attempt() == 1 {
    ///         ctx.state().die().await;
    ///     }
    ///     Ok(Outcome::Done)
    /// }
    ///
    /// let faults = Faults::default();
    /// let builder = Runtime::in_memory().faults(faults.clone()).state(faults).handle(pay);
    /// let mut lab = Lab::start(builder).await?;
    /// let id = lab.enqueue(Pay).await?;
    /// lab.settle().await;
    /// lab.crash().await?;
    /// lab.settle().await;
    /// let job = lab.job(&id).await?;
    /// assert_eq!((job.status, job.attempts), (Status::Completed, 2));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn die(&self) {
        self.kill();
        loop {
            let revived = self.0.revived.notified();
            if !self.is_dead() {
                return;
            }
            revived.await;
        }
    }

    /// The process dies: its store runs and answers nothing any more.
    pub(crate) fn kill(&self) {
        self.0.dead.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.0.dead.load(Ordering::SeqCst)
    }

    /// The dead process is gone, for another to start.
    pub(crate) fn revive(&self) {
        self.0.dead.store(false, Ordering::SeqCst);
        self.0.revived.notify_waiters();
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
        self.0.points.iter().for_each(|point| point.store(0, Ordering::SeqCst));
        self.delay(0);
    }

    /// How often the point will still fail.
    #[must_use]
    pub fn left(&self, point: Point) -> u32 {
        let armed = self.0.points[point as usize].load(Ordering::SeqCst);
        u32::try_from(armed & u64::from(u32::MAX)).unwrap_or(u32::MAX)
    }

    /// Whether to fail here, now.
    pub(crate) fn hit(&self, point: Point) -> bool {
        let armed = &self.0.points[point as usize];
        if armed.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let before = armed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |armed| {
            let passed = armed.checked_sub(1 << PASSES);
            passed.or_else(|| armed.checked_sub(1))
        });
        before.is_ok_and(|armed| armed < 1 << PASSES)
    }

    /// The answer to a handler's write, as whoever waits for it gets it.
    pub(crate) fn answer<T>(&self, answer: Result<T>) -> Result<T> {
        if answer.is_ok() && self.hit(Point::LostAnswer) {
            return Err(StoreFault::Unknown("the answer was lost".into()).into());
        }
        answer
    }

    /// Panics here, now, if armed.
    pub(crate) fn panic(&self, point: Point) {
        assert!(!self.hit(point), "an injected panic at {point:?}");
    }
}
