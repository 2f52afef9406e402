//! What a builder can be told besides its handlers.

use std::sync::Arc;
use std::time::Duration;

use crate::builder::Builder;
use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::faults::Faults;
use crate::hooks::{BoxError, Tx};
use crate::job::Job;
use crate::runtime::Policy;
use crate::store::{Checkpoints, Durability, Migrate};
use crate::validate::Sizes;

impl<S: Clone + 'static, M> Builder<S, M> {
    /// What to do once the runtime cannot mend itself any more; [`Policy::Stay`] unless set.
    pub fn when_unhealthy(mut self, policy: Policy) -> Self {
        self.parts.policy = policy;
        self
    }

    /// How many handlers run at a time, in all; as many as there are cores unless set.
    pub fn slots(mut self, slots: usize) -> Self {
        self.parts.capacity.slots = slots;
        self
    }

    /// Serves a queue with so many slots. Where any queue is named, only the named ones are
    /// served, and their slots together are the slots in all.
    pub fn queue(mut self, queue: &str, slots: usize) -> Self {
        let queues = self.parts.capacity.queues.get_or_insert_default();
        queues.insert(queue.into(), slots);
        self.parts.capacity.slots = queues.values().sum();
        self
    }

    /// At most so many handlers of a kind at a time in this process.
    pub fn kind_slots<J: Job>(mut self, slots: usize) -> Self {
        self.parts.capacity.kinds.insert(J::KIND.into(), slots);
        self
    }

    /// At most so many running jobs of a queue, over all processes.
    pub fn limit_queue(mut self, queue: &str, running: u32) -> Self {
        self.parts.limits.push(("queue", queue.to_owned(), running.into()));
        self
    }

    /// At most so many running jobs with this limit key, over all processes.
    pub fn limit_key(mut self, key: &str, running: u32) -> Self {
        self.parts.limits.push(("limit_key", key.to_owned(), running.into()));
        self
    }

    /// Adds a reason for which jobs may be enqueued.
    pub fn reason(mut self, id: &str, label: &str) -> Self {
        self.parts.reasons.push((id.to_owned(), label.to_owned()));
        self
    }

    /// How large payloads, results and keys may be, for every process on the database.
    pub fn sizes(mut self, sizes: Sizes) -> Self {
        self.parts.sizes = Some(sizes);
        self
    }

    /// Threads for async handlers; as many as there are cores unless set.
    pub fn threads(mut self, threads: usize) -> Self {
        self.parts.threads = threads.max(1);
        self
    }

    /// How safe a commit is when it is answered; [`Durability::Full`] unless set.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.parts.host.store.durability = durability;
        self
    }

    /// The clock; the system's unless set.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.parts.host.clock = Arc::new(clock);
        self
    }

    /// The randomness; the system's unless set.
    pub fn entropy(mut self, entropy: impl Entropy) -> Self {
        self.parts.host.entropy = Arc::new(entropy);
        self
    }

    /// Failures on demand, for tests.
    pub fn faults(mut self, faults: Faults) -> Self {
        self.parts.host.faults = faults;
        self
    }

    /// The time limit of application code in a transaction; 5 s unless set.
    pub fn code_limit(mut self, limit: Duration) -> Self {
        let ms = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
        self.parts.host.store.code_limit = ms;
        self
    }

    /// How many handlers may block their threads past all limits before health is red; 8
    /// unless set.
    pub fn max_zombies(mut self, zombies: usize) -> Self {
        self.parts.max_zombies = zombies;
        self
    }

    /// Added to a lease before it counts as lost; nothing unless set.
    pub fn lease_grace(mut self, grace: Duration) -> Self {
        self.parts.host.store.grace = i64::try_from(grace.as_millis()).unwrap_or(i64::MAX);
        self
    }

    /// No lock file beside the database: a dead process is then known by its leases alone.
    pub fn no_owner_files(mut self) -> Self {
        self.parts.owner_files = false;
        self
    }

    /// What becomes of a schema that is older than this code; [`Migrate::Auto`] unless set.
    pub fn migrate(mut self, migrate: Migrate) -> Self {
        self.parts.host.store.migrate = migrate;
        self
    }

    /// Who writes the log back into the database file; [`Checkpoints::Auto`] unless set.
    pub fn checkpoints(mut self, checkpoints: Checkpoints) -> Self {
        self.parts.host.store.checkpoints = checkpoints;
        self
    }

    /// No ballast file beside the database: on a full disk running jobs cannot settle then.
    pub fn no_ballast(mut self) -> Self {
        self.parts.host.store.ballast = false;
        self
    }

    /// Stops, with a grace of 5 s, on SIGTERM and SIGINT; `Runtime::stopped` tells when.
    /// Without this no signal handler is installed.
    pub fn stop_on_signals(mut self) -> Self {
        self.parts.stop_on_signals = true;
        self
    }

    /// A sweep of the application's own: code that every pass of the reaper runs, once a second,
    /// in its transaction; what it does wrong undoes it alone. It is given the time in UTC
    /// milliseconds.
    pub fn sweep<F>(mut self, name: &str, sweep: F) -> Self
    where
        F: Fn(&mut Tx<'_>, i64) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        self.parts.host.store.sweeps.push((name.into(), Arc::new(sweep)));
        self
    }
}
