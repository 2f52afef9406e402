//! Testing with a frozen clock.

use std::sync::Arc;

use crate::client::Client;
use crate::clock::ManualClock;
use crate::entropy::FixedEntropy;
use crate::error::{Result, StoreFault};
use crate::host::{Host, HostConfig};
use crate::kind::Retention;
use crate::store::Place;

pub use crate::faults::{Faults, Point};

/// A store in memory with a frozen clock and fixed draws, driven by hand: nothing runs in it.
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
}

impl Default for BenchSettings {
    fn default() -> Self {
        let (now, draws) = (1_000_000, vec![0.5]);
        Self { now, draws, grace: 0, keep: [None; 3], hooks: Vec::new() }
    }
}

impl Bench {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Setup`] for hooks that cannot go together; [`crate::Error::Open`], which
    /// memory does not give cause for.
    pub async fn start(settings: BenchSettings) -> Result<Self> {
        settings.hooks.iter().try_for_each(|(kind, hooks)| hooks.check(kind))?;
        let clock = ManualClock::at(settings.now);
        let entropy = Arc::new(FixedEntropy::new(&settings.draws, 1));
        let mut config = HostConfig::new(Place::Memory);
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
        Ok(Self { client: Client { host }, clock, entropy })
    }
}
