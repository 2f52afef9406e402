//! Runtimes that play at being processes.

use std::sync::Arc;

use crate::builder::Builder;
use crate::clock::Clock;
use crate::entropy::FixedEntropy;
use crate::error::Result;
use crate::owner::Locks;
use crate::runtime::Runtime;
use crate::store::Spares;

/// How often a free slot looks whether another process has changed the file, in milliseconds:
/// rarely, so that simulated time passes quickly.
const LOOK: i64 = 50;

/// A machine whose processes are runtimes on one thread, so that a seed tells all that happens.
///
/// Every loop of a runtime lives in the `tokio::task::LocalSet` that it is started in. To drop
/// that set is the death of its process: nothing of it goes on, and its owner's lock is free.
/// A set that is not polled for a while is a process that is stopped and goes on later.
///
/// The clock is the caller's. Under tokio's paused time the machine's time passes whenever
/// nothing else is left to do.
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// use leasehold::testing::Machine;
/// use leasehold::{Ctx, Job, JobResult, Outcome, Runtime, SystemClock};
/// use tokio::task::LocalSet;
///
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Report;
/// # impl Job for Report { const KIND: &'static str = "report"; }
/// /// The first attempt never ends.
/// async fn report(_: Report, ctx: Ctx) -> JobResult {
///     if ctx.attempt() == 1 {
///         std::future::pending::<()>().await;
///     }
///     Ok(Outcome::Done)
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let db = dir.path().join("jobs.db");
/// let (machine, clock) = (Machine::new(), Arc::new(SystemClock::new()));
/// let start = |seed| machine.start(Runtime::builder(&db).handle(report), clock.clone(), seed);
///
/// let process = LocalSet::new();
/// let runtime = process.run_until(start(1)).await?;
/// let id = process.run_until(runtime.enqueue(Report)).await?.id;
/// let claimed = async { while runtime.stats().claims == 0 { tokio::task::yield_now().await } };
/// process.run_until(claimed).await;
/// process.spawn_local(async move { drop(runtime) });
/// drop(process); // It dies, and whatever it did with it.
///
/// let process = LocalSet::new();
/// let runtime = process.run_until(start(2)).await?;
/// let done = process.run_until(runtime.wait(id, Duration::from_secs(10))).await?;
/// assert_eq!((done.epoch, done.redrives), (3, 1));
/// # process.run_until(runtime.stop(Duration::ZERO)).await;
/// # process.spawn_local(async move { drop(runtime) });
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Machine {
    locks: Locks,
    spares: Spares,
}

impl Machine {
    /// A machine without processes.
    #[must_use]
    pub fn new() -> Self {
        Self { locks: Locks::Played(Arc::default()), spares: Spares::new() }
    }

    /// Another machine without processes, that has the connections which this one does not use any
    /// more: they have their statements prepared, and processes start many times faster.
    #[must_use]
    pub fn anew(&self) -> Self {
        Self { spares: self.spares.clone(), ..Self::new() }
    }

    /// Starts a runtime as a process of this machine; its bytes follow from `seed`, which is
    /// another for each. Called within the `LocalSet` that it is to live in.
    ///
    /// # Errors
    ///
    /// As [`Builder::start`].
    pub async fn start<S: Clone + 'static, M>(
        &self,
        mut builder: Builder<S, M>,
        clock: Arc<dyn Clock>,
        seed: u64,
    ) -> Result<Runtime> {
        let config = builder.host_mut();
        config.clock = clock;
        config.entropy = Arc::new(FixedEntropy::new(&[0.5], seed));
        config.here = true;
        config.look = LOOK;
        config.locks = self.locks.clone();
        config.store.spares = self.spares.clone();
        builder.start().await
    }
}
