//! What a runtime counts of itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::session::Session;

/// What a runtime has done since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Jobs claimed.
    pub claims: u64,
    /// Attempts that completed their job.
    pub completions: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// Settles and renewals that were refused: the job was somebody else's.
    pub lost: u64,
    /// Attempts that ended as cancelled.
    pub cancelled: u64,
    /// Attempts that handed back.
    pub yields: u64,
    /// Looks for work by the clock.
    pub polls: u64,
    /// Looks for work because somebody said so.
    pub wakes: u64,
    /// Commits with which a claim could not be made.
    pub claim_errors: u64,
    /// Leases renewed.
    pub renewals: u64,
    /// Handlers that run, or wait for a thread.
    pub in_flight: u64,
}

impl Stats {
    /// How often an attempt has begun or ended.
    pub(crate) const fn events(&self) -> u64 {
        self.claims + self.completions + self.failures + self.lost + self.cancelled + self.yields
    }
}

/// Counters behind [`Stats`].
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) claims: AtomicU64,
    pub(super) completions: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(super) cancelled: AtomicU64,
    pub(crate) yields: AtomicU64,
    pub(crate) polls: AtomicU64,
    pub(crate) wakes: AtomicU64,
    pub(crate) claim_errors: AtomicU64,
    pub(crate) renewals: AtomicU64,
    /// Attempts settled since the stop began.
    pub(crate) settled: AtomicU64,
    /// Attempts handed back since the stop began.
    pub(crate) handed_back: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counters {
    /// What they stand at, with so many attempts under way.
    pub(super) fn read(&self, in_flight: u64) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            claims: get(&self.claims),
            completions: get(&self.completions),
            failures: get(&self.failures),
            lost: get(&self.lost),
            cancelled: get(&self.cancelled),
            yields: get(&self.yields),
            polls: get(&self.polls),
            wakes: get(&self.wakes),
            claim_errors: get(&self.claim_errors),
            renewals: get(&self.renewals),
            in_flight,
        }
    }
}

impl Session {
    /// How many things are kept for jobs, by sort; all 0 where none runs and nobody waits.
    pub(crate) fn kept(&self) -> BTreeMap<&'static str, usize> {
        let inner = self.inner();
        let (runs, busy) = (inner.runs.len(), inner.busy.len());
        let (zombies, retries) = (inner.zombies.len(), inner.retries.len());
        drop(inner);
        BTreeMap::from([
            ("runs", runs),
            ("slots", busy),
            ("zombies", zombies),
            ("settles to send again", retries),
            ("attempts without a thread", self.pool.waiting()),
            ("added threads", self.pool.added()),
            ("waits", self.host.listening.waits()),
            ("hooks after a commit", self.host.listening.after.waiting()),
            ("messages to the store", self.host.store.waiting()),
        ])
    }
}
