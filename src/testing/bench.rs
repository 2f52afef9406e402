//! A store driven by hand.

use std::path::PathBuf;
use std::sync::Arc;

use crate::client::Client;
use crate::clock::{Clock as _, ManualClock};
use crate::entropy::FixedEntropy;
use crate::error::{Result, StoreFault};
use crate::facts::Retention;
use crate::faults::Faults;
use crate::hooks::Tx;
use crate::host::{Host, HostConfig};
use crate::json::Json;
use crate::lease::Lease;
use crate::record::JobRecord;
use crate::store::Place;
use crate::store::bench::{AllJobs, Clear};
use crate::store::claim::Want;
use crate::store::holder::Save;
use crate::store::messages::Claim;

/// A store with a frozen clock and fixed draws, driven by hand: nothing runs in it.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The store's client.
    pub client: Client,
    /// The clock that it goes by.
    pub clock: ManualClock,
    /// Its draws.
    pub entropy: Arc<FixedEntropy>,
    /// Failures on demand.
    pub faults: Faults,
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
    /// Whoever asks runs the statements, on its own thread: much faster, but there is no actor,
    /// and nobody can wait for the end of a job. Within a tokio runtime.
    pub direct: bool,
    /// Failures on demand, which several benches can share.
    pub faults: Faults,
}

impl Default for BenchSettings {
    fn default() -> Self {
        let (now, draws) = (1_000_000, vec![0.5]);
        let (hooks, keep) = (Vec::new(), [None; 3]);
        let (path, faults) = (None, Faults::default());
        Self { now, draws, grace: 0, keep, hooks, path, seed: 1, direct: false, faults }
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
        let faults = settings.faults;
        config.faults = faults.clone();
        (config.here, config.direct) = (settings.direct, settings.direct);
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
        Ok(Self { client: Client::new(host), clock, entropy, faults })
    }

    /// Claims as a worker does, in one transaction: at most `limit` jobs, and of those that have
    /// stalls at most `suspects`.
    ///
    /// # Errors
    ///
    /// As [`Client::claim`].
    pub async fn claim(
        &self,
        kinds: &[&str],
        owner: &str,
        limit: usize,
        suspects: usize,
    ) -> Result<Vec<Lease>> {
        let kinds = kinds.iter().map(|kind| Arc::from(*kind)).collect();
        let want = Want { owner: owner.into(), kinds, limit, suspects, ..Want::default() };
        let batch = self.client.ask(Claim(want)).await?;
        Ok(batch.claimed.into_iter().map(|one| Lease::new(self.client.clone(), one)).collect())
    }

    /// Runs statements of the application's in a write of a lease's holder, as `Ctx::fenced` does,
    /// or as `Ctx::fenced_save` where a value is given.
    ///
    /// # Errors
    ///
    /// The refusals of every write of a holder; what the code answers; a [`StoreFault`].
    pub async fn fenced(
        &self,
        lease: &Lease,
        save: Option<Json>,
        code: impl FnMut(&mut Tx<'_>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let save = match save {
            Some(value) => Save::Checkpoint { key: String::new(), value },
            None => Save::Nothing,
        };
        lease.save_with(save, Some(Box::new(code))).await
    }

    /// Has a lease's next write repeat its last one, as after an answer that was lost.
    pub fn repeat(&self, lease: &Lease) {
        lease.repeat();
    }

    /// Has what is asked from here on wait for [`Bench::release`], where the bench is direct.
    pub fn hold(&self) {
        self.client.host.store.hold();
    }

    /// Runs what has waited in one transaction.
    pub fn release(&self) {
        self.client.host.store.release();
    }

    /// Every job as it stands, in the order in which they came.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
    pub async fn jobs(&self) -> Result<Vec<JobRecord>> {
        self.client.host.store.ask(AllJobs).await
    }

    /// As it was made, but for the kinds, limits and reasons that are registered: no job is left,
    /// the clock shows `now`, and the bytes follow from `seed`.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
    pub async fn clear(&self, now: i64, seed: u64) -> Result<()> {
        self.client.host.store.ask(Clear).await?;
        self.clock.advance(now.saturating_sub(self.clock.now()));
        self.entropy.reseed(seed);
        Ok(())
    }
}
