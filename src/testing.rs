//! Testing with a frozen clock.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::builder::Builder;
use crate::client::Client;
use crate::clock::ManualClock;
use crate::entropy::FixedEntropy;
use crate::error::{Result, StoreFault};
use crate::facts::Retention;
use crate::host::{Host, HostConfig};
use crate::job::JobId;
use crate::new_job::NewJob;
use crate::record::JobRecord;
use crate::runtime::Runtime;
use crate::store::Place;
use crate::store::messages::{Reap, Slice};
use crate::store::questions::CountAll;
use crate::store::reaper::{Known, ReapReport};
use crate::work::stop::StopReport;

pub use crate::faults::{Faults, Point};

/// A store with a frozen clock and fixed draws, driven by hand: nothing runs in it.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The store's client.
    pub client: Client,
    /// The clock that it goes by.
    pub clock: ManualClock,
    /// Its draws.
    pub entropy: Arc<FixedEntropy>,
}

/// What is set when a [`Bench`] is made.
#[derive(Clone, Debug)]
pub struct BenchSettings {
    /// What the clock shows at first, in UTC milliseconds.
    pub now: i64,
    /// The draws handed out in order; the last repeats.
    pub draws: Vec<f64>,
    /// Added to a lease before it counts as lost, in milliseconds.
    pub grace: i64,
    /// How long completed, cancelled and failed jobs are kept, in milliseconds, where it is
    /// not the default.
    pub keep: [Option<i64>; 3],
    /// Hooks by kind.
    pub hooks: Vec<(String, crate::Hooks)>,
    /// The database's file, where it is not in memory.
    pub path: Option<PathBuf>,
    /// Where its bytes follow from, ids and tokens among them: another for each of several
    /// benches on one file.
    pub seed: u64,
}

impl Default for BenchSettings {
    fn default() -> Self {
        let (now, draws) = (1_000_000, vec![0.5]);
        let (hooks, keep) = (Vec::new(), [None; 3]);
        Self { now, draws, grace: 0, keep, hooks, path: None, seed: 1 }
    }
}

impl Bench {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Setup`] for hooks that cannot go together; [`crate::Error::Open`], for
    /// which only a file gives cause.
    pub async fn start(settings: BenchSettings) -> Result<Self> {
        settings.hooks.iter().try_for_each(|(kind, hooks)| hooks.check(kind))?;
        let clock = ManualClock::at(settings.now);
        let entropy = Arc::new(FixedEntropy::new(&settings.draws, settings.seed));
        let mut config = HostConfig::new(settings.path.map_or(Place::Memory, Place::File));
        config.clock = Arc::new(clock.clone());
        config.entropy = entropy.clone();
        config.store.grace = settings.grace;
        let usual = config.store.retention;
        let [completed, cancelled, failed] = settings.keep;
        config.store.retention = Retention {
            completed: completed.or(usual.completed),
            cancelled: cancelled.or(usual.cancelled),
            failed: failed.or(usual.failed),
        };
        config.store.hooks =
            settings.hooks.into_iter().map(|(kind, hooks)| (kind.as_str().into(), hooks)).collect();
        let host = Host::start(config).await.unwrap_or(Err(StoreFault::Stopped.into()))?;
        Ok(Self { client: Client::new(host), clock, entropy })
    }
}

/// A whole runtime with a frozen clock: nothing that waits for time moves until it is told to.
///
/// ```
/// # #[tokio::main] async fn main() -> leasehold::Result<()> {
/// use leasehold::testing::Lab;
/// use leasehold::{Ctx, Job, JobResult, Outcome, Phase, Retry, Runtime, Settings};
/// use std::time::Duration;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Flaky;
/// impl Job for Flaky {
///     const KIND: &'static str = "flaky";
///     fn settings() -> Settings {
///         Settings::new().retry(Retry::fixed(Duration::from_secs(2)).no_jitter())
///     }
/// }
///
/// async fn flaky(_: Flaky, ctx: Ctx) -> JobResult {
///     match ctx.attempt() {
///         1 => Err("not yet")?,
///         _ => Ok(Outcome::Done),
///     }
/// }
///
/// let lab = Lab::start(Runtime::in_memory().handle(flaky)).await?;
/// let id = lab.enqueue(Flaky).await?;
/// lab.settle().await;
/// assert_eq!(lab.job(&id).await?.phase, Phase::Retrying);
/// lab.advance(Duration::from_secs(2)).await;
/// assert_eq!(lab.job(&id).await?.phase, Phase::Completed);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Lab {
    /// The runtime.
    pub runtime: Runtime,
    /// Its clock, which shows 2020-01-01 00:00 UTC at first.
    pub clock: ManualClock,
    /// Its draws: 0.5 each unless set.
    pub entropy: Arc<FixedEntropy>,
    /// Failures on demand.
    pub faults: Faults,
}

/// What a lab's clock shows at first: 2020-01-01 00:00 UTC.
const START: i64 = 1_577_836_800_000;

impl Lab {
    /// Starts a runtime, with a clock and draws of the lab's in place of its own.
    ///
    /// # Errors
    ///
    /// As [`Builder::start`].
    pub async fn start<S: Clone + 'static, M>(builder: Builder<S, M>) -> Result<Self> {
        Self::start_with(builder, ManualClock::at(START), 1).await
    }

    /// The same with a clock of the caller's, and bytes that follow from `seed`: several labs
    /// on one file can share a clock.
    ///
    /// # Errors
    ///
    /// As [`Builder::start`].
    pub async fn start_with<S: Clone + 'static, M>(
        mut builder: Builder<S, M>,
        clock: ManualClock,
        seed: u64,
    ) -> Result<Self> {
        let entropy = Arc::new(FixedEntropy::new(&[0.5], seed));
        let config = builder.host_mut();
        config.clock = Arc::new(clock.clone());
        config.entropy = entropy.clone();
        let faults = config.faults.clone();
        let runtime = builder.start().await?;
        Ok(Self { runtime, clock, entropy, faults })
    }

    /// Enqueues a job.
    ///
    /// # Errors
    ///
    /// As [`Client::enqueue`].
    pub async fn enqueue(&self, job: impl Into<NewJob>) -> Result<JobId> {
        Ok(self.runtime.enqueue(job).await?.id)
    }

    /// A job as it stands.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`](crate::Refusal::NotFound); a [`StoreFault`].
    pub async fn job(&self, id: impl Into<JobId>) -> Result<JobRecord> {
        self.client().job(id).await?.ok_or(crate::Refusal::NotFound.into())
    }

    /// The runtime's client.
    #[must_use]
    pub fn client(&self) -> Client {
        self.runtime.client()
    }

    /// Runs all that is due at this moment, until nothing moves: no handler runs but those
    /// that wait for the clock or for a signal.
    pub async fn settle(&self) {
        let session = self.runtime.session();
        loop {
            let before = self.runtime.stats().claims;
            let still = self.look().await;
            loop {
                let changed = session.changed.notified();
                if session.stands_still() && !self.clock.is_ringing() {
                    break;
                }
                tokio::select! {
                    () = changed => {}
                    // A handler that begins to sleep tells nobody.
                    () = tokio::task::yield_now() => {}
                }
            }
            if self.runtime.stats().claims == before && still {
                return;
            }
        }
    }

    /// Has every loop look once at what is due, without waiting for what handlers make of it;
    /// answers whether the reaper found nothing to do.
    pub async fn look(&self) -> bool {
        let session = self.runtime.session();
        self.tick().await;
        let (mut still, mut known) = (true, Known::default());
        loop {
            let pass = session.host.store.ask(Reap(known.clone())).await;
            if let Ok(pass) = &pass {
                session.host.health.unserved(&pass.unserved);
            }
            still &= pass.as_ref().is_ok_and(|pass| pass.report == ReapReport::default());
            known.unswept = pass.is_ok_and(|pass| pass.unswept);
            if !known.unswept {
                break;
            }
        }
        let _next = session.host.store.ask(Slice).await;
        session.look();
        // Answered in a batch that has claimed.
        let _counts = session.host.store.ask(CountAll).await;
        session.host.listening.after.idle().await;
        still
    }

    /// Moves the clock, then [`Lab::settle`]s.
    pub async fn advance(&self, duration: Duration) {
        self.clock.advance(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX));
        self.settle().await;
    }

    /// One look of the control thread at everything that has a deadline.
    async fn tick(&self) {
        let session = self.runtime.session().clone();
        let (sender, ticked) = tokio::sync::oneshot::channel();
        let control = session.host.control.clone();
        control.spawn(async move {
            session.tick();
            let _gone = sender.send(());
        });
        let _ticked = ticked.await;
    }

    /// Stops the runtime; the clock moves on to the deadline where handlers do not end.
    pub async fn stop(&self, grace: Duration) -> StopReport {
        let stop = self.runtime.stop(grace);
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                report = &mut stop => return report,
                () = tokio::task::yield_now() => {
                    if self.runtime.session().stands_still() {
                        self.clock.advance(1);
                    } else {
                        // What is due between two ticks of the control thread.
                        self.tick().await;
                    }
                }
            }
        }
    }
}
