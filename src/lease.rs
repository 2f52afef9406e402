//! Leases held by hand, for operators, tests and executors of another making.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::client::Client;
use crate::error::{Result, StoreFault};
use crate::job::{ErrorClass, JobId, Status};
use crate::json::Json;
use crate::rules::settle::{Failure, Settle};
use crate::store::claim::Claimed;
use crate::store::holder::{Save, Write};
use crate::store::messages::{Code, Renewals, SaveOne, SettleOne};
use crate::store::questions::Checkpoints;
use crate::validate;

/// A job claimed by hand. Every write of it is refused once the job is somebody else's.
///
/// Specified in SEMANTICS.md, “The lease and the fence”.
pub struct Lease {
    client: Client,
    claimed: Claimed,
    writes: AtomicU32,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("job", &self.claimed.id)
            .field("epoch", &self.claimed.holder.epoch)
            .finish_non_exhaustive()
    }
}

impl Lease {
    pub(crate) fn new(client: Client, claimed: Claimed) -> Self {
        Self { client, claimed, writes: AtomicU32::new(0) }
    }

    /// The job's id.
    #[must_use]
    pub fn job(&self) -> &JobId {
        &self.claimed.id
    }

    /// The epoch that names this attempt.
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.claimed.holder.epoch
    }

    /// The job's payload.
    #[must_use]
    pub fn payload(&self) -> Option<&Json> {
        self.claimed.payload.as_ref()
    }

    /// The next write of this attempt, with a number of its own.
    fn write(&self) -> Write {
        Write {
            key: self.claimed.key,
            holder: self.claimed.holder.clone(),
            number: self.writes.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    /// Has the next write repeat the number of the last one.
    pub(crate) fn repeat(&self) {
        self.writes.fetch_sub(1, Ordering::Relaxed);
    }

    async fn settle(&self, how: Settle) -> Result<Status> {
        self.client.host.store.ask(SettleOne { write: self.write(), how }).await
    }

    /// Extends the lease; answers its new end in UTC milliseconds.
    ///
    /// # Errors
    ///
    /// [`crate::Refusal::Expired`] once it has ended, and the refusals of every write of a holder:
    /// [`crate::Refusal::NotFound`], [`crate::Refusal::NotRunning`],
    /// [`crate::Refusal::Superseded`].
    pub async fn renew(&self) -> Result<i64> {
        let renewals = Renewals(vec![(self.write(), false)]);
        match self.client.host.store.ask(renewals).await?.pop() {
            Some(renewed) => Ok(renewed?.lease_until),
            None => Err(StoreFault::Stopped.into()),
        }
    }

    /// Ends the job with a result.
    ///
    /// # Errors
    ///
    /// The refusals of every write of a holder; [`crate::Refusal::Invalid`] for a result over its
    /// limits, [`crate::Refusal::HookFailed`].
    pub async fn complete(&self, result: Option<Json>) -> Result<Status> {
        self.settle(Settle::Complete(result)).await
    }

    /// Ends the attempt as failed; answers what that made of the job.
    ///
    /// # Errors
    ///
    /// The refusals of every write of a holder; [`crate::Refusal::HookFailed`].
    pub async fn fail(&self, failure: Failed) -> Result<Status> {
        let retry_after = match failure.retry_after {
            Some(wait) => Some(validate::duration("retry_after", wait)?),
            None => None,
        };
        let failure = Failure {
            class: failure.class,
            code: failure.code,
            retry_after,
            ..Failure::transient(failure.error)
        };
        self.settle(Settle::Fail(failure)).await
    }

    /// Hands the job back for its next slice.
    ///
    /// # Errors
    ///
    /// The refusals of every write of a holder; [`crate::Refusal::HookFailed`].
    pub async fn hand_back(&self) -> Result<Status> {
        self.settle(Settle::Yield).await
    }

    /// Hands the job back because something outside asked for it.
    ///
    /// # Errors
    ///
    /// The refusals of every write of a holder.
    pub async fn interrupt(&self) -> Result<Status> {
        self.settle(Settle::Interrupt).await
    }

    /// Hands the job back, due `wait` from now.
    ///
    /// # Errors
    ///
    /// The refusals of every write of a holder; [`crate::Refusal::Invalid`].
    pub async fn snooze(&self, wait: Duration) -> Result<Status> {
        self.settle(Settle::Snooze(validate::duration("ms", wait)?)).await
    }

    /// Undoes the claim.
    ///
    /// # Errors
    ///
    /// The refusals of every write of a holder.
    pub async fn release(&self) -> Result<Status> {
        self.settle(Settle::Release).await
    }

    /// Ends the job as cancelled.
    ///
    /// # Errors
    ///
    /// The refusals of every write of a holder; [`crate::Refusal::HookFailed`].
    pub async fn cancelled(&self) -> Result<Status> {
        self.settle(Settle::Cancelled).await
    }

    async fn save(&self, save: Save) -> Result<()> {
        self.save_with(save, None).await
    }

    /// The same, with statements of the application's.
    pub(crate) async fn save_with(&self, save: Save, code: Option<Code>) -> Result<()> {
        let message = SaveOne { write: self.write(), save, code };
        self.client.host.store.ask(message).await.map(|_| ())
    }

    /// Saves a value under a key; the empty key is the job's own checkpoint.
    ///
    /// # Errors
    ///
    /// The refusals of every write of a holder; [`crate::Refusal::Invalid`].
    pub async fn checkpoint(&self, key: &str, value: Json) -> Result<()> {
        self.save(Save::Checkpoint { key: key.to_owned(), value }).await
    }

    /// Says how far the work is.
    ///
    /// # Errors
    ///
    /// The refusals of every write of a holder.
    pub async fn progress(&self, done: i64, total: Option<i64>) -> Result<()> {
        self.save(Save::Progress { done, total }).await
    }

    /// All saved values that this attempt may see, by key.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
    pub async fn load(&self) -> Result<Vec<(String, Json)>> {
        let question = Checkpoints { key: self.claimed.key, epoch: self.epoch() };
        self.client.host.store.read(question).await
    }
}

/// A failed attempt, as [`Lease::fail`] takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// What went wrong.
    pub error: String,
    /// How it is to be treated.
    pub class: ErrorClass,
    /// A code of the application's own.
    pub code: Option<String>,
    /// The least time to wait.
    pub retry_after: Option<Duration>,
}

impl Failed {
    /// A failure that is tried again.
    #[must_use]
    pub fn transient(error: impl Into<String>) -> Self {
        Self { error: error.into(), class: ErrorClass::Transient, code: None, retry_after: None }
    }
}
