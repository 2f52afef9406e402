//! What operators do by a client: who acts and why, and every action.

use std::collections::BTreeMap;

use crate::client::Client;
use crate::error::Result;
#[cfg(doc)]
use crate::error::{Refusal, StoreFault};
use crate::hooks::Hooks;
use crate::job::{JobId, Status};
use crate::kind::Settings;
use crate::rules::operate::Redrive;
use crate::store::messages::{
    Cancel, Delete, Pause, Reap, RedriveOne, Register, Resume, RunAgain, Slice, Sweep,
};
use crate::store::questions::{Actions, Pauses, Reasons};
use crate::store::reaper::{Known, ReapReport};
use crate::validate::Sizes;

/// Who acts, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operator {
    /// Who.
    pub actor: String,
    /// Why, where it was said.
    pub reason: Option<String>,
}

impl Operator {
    /// Somebody who gives no reason.
    #[must_use]
    pub fn named(actor: impl Into<String>) -> Self {
        Self { actor: actor.into(), reason: None }
    }

    /// The reason.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }
}

/// What is paused and resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// All kinds of a queue.
    Queue(String),
    /// One kind.
    Kind(String),
}

impl Target {
    pub(crate) fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Queue(name) => ("queue", name),
            Self::Kind(name) => ("kind", name),
        }
    }
}

/// What an operator has done, as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Done {
    /// Its number within all, to go on from.
    pub n: i64,
    /// When, in UTC milliseconds.
    pub at: i64,
    /// Who, and why.
    pub by: Operator,
    /// What.
    pub action: String,
    /// To what: a job's id, a queue, a kind, an operation on many.
    pub target: String,
    /// Which jobs, where it was about all that meet a filter; JSON.
    pub filter: Option<String>,
    /// To how many.
    pub count: i64,
}

/// A queue or a kind that is paused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Paused {
    /// Which.
    pub target: Target,
    /// Since when, in UTC milliseconds.
    pub at: i64,
    /// Who paused it, and why.
    pub by: Operator,
}

/// What operators do. Each call that changes something is recorded with who and why, and refused
/// as [`Refusal::Invalid`] where the actor is empty or too long.
impl Client {
    /// Cancels a waiting job, or asks a running one to stop; answers `cancelled` or
    /// `running`.
    ///
    /// Specified in SEMANTICS.md, “Cancel, redrive, delete, sweep, retention”.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], [`Refusal::Terminal`], [`Refusal::HookFailed`]; a
    /// [`StoreFault`].
    pub async fn cancel(&self, id: impl Into<JobId>, by: Operator) -> Result<Status> {
        self.ask(Cancel { by, id: id.into() }).await
    }

    /// Makes an ended job live again.
    ///
    /// Specified in SEMANTICS.md, “Cancel, redrive, delete, sweep, retention”.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], [`Refusal::Live`], [`Refusal::NotRedrivable`],
    /// [`Refusal::NeedsForce`], [`Refusal::LockHeld`], [`Refusal::DedupHeld`],
    /// [`Refusal::EpochMoved`], [`Refusal::HookFailed`]; a [`StoreFault`].
    pub async fn redrive(
        &self,
        id: impl Into<JobId>,
        how: impl Into<Redrive>,
        by: Operator,
    ) -> Result<()> {
        self.ask(RedriveOne { by, id: id.into(), how: how.into() }).await
    }

    /// Makes a new job like an ended one, due at once, and answers its id. The old one stays as
    /// it is; the new one names it in `copy_of`, has the reason `redrive`, and no idempotency key.
    ///
    /// Specified in SEMANTICS.md, “Cancel, redrive, delete, sweep, retention”.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], [`Refusal::Live`], [`Refusal::DedupHeld`], [`Refusal::LockHeld`]; a
    /// [`StoreFault`].
    pub async fn run_again(&self, id: impl Into<JobId>, by: Operator) -> Result<JobId> {
        let minted = JobId::minted(self.host.entropy.uuid(self.host.clock.now()));
        let id = id.into();
        self.ask_again(|| RunAgain { by: by.clone(), id: id.clone(), minted: minted.clone() }).await
    }

    /// Deletes an ended job with all that hangs on it.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], [`Refusal::Live`], [`Refusal::Vetoed`] where the kind's
    /// [`Hooks::on_delete`](crate::Hooks::on_delete) keeps it; a [`StoreFault`].
    pub async fn delete(&self, id: impl Into<JobId>, by: Operator) -> Result<()> {
        self.ask(Delete { by, id: id.into() }).await
    }

    /// Deletes at most `limit` jobs that ended before `settled_before` (UTC milliseconds),
    /// oldest first; answers how many.
    ///
    /// # Errors
    ///
    /// [`Refusal::OutOfScope`] of a scoped client; a [`StoreFault`].
    pub async fn sweep(&self, settled_before: i64, limit: usize, by: Operator) -> Result<u64> {
        self.ask(Sweep { by, settled_before, limit }).await
    }

    /// Pauses a queue or a kind: no more claims; what runs goes on.
    ///
    /// # Errors
    ///
    /// [`Refusal::OutOfScope`] of a scoped client; [`Refusal::Invalid`] for a name that cannot
    /// be one; a [`StoreFault`].
    pub async fn pause(&self, target: Target, by: Operator) -> Result<()> {
        self.ask(Pause { by, target }).await
    }

    /// Lets a queue or a kind go on.
    ///
    /// # Errors
    ///
    /// [`Refusal::OutOfScope`] of a scoped client; a [`StoreFault`].
    pub async fn resume(&self, target: Target, by: Operator) -> Result<()> {
        self.ask(Resume { by, target }).await
    }

    /// The registry of reasons: labels by id. A job may have a reason that is in no registry any
    /// more; it is shown as its id.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
    pub async fn reasons(&self) -> Result<BTreeMap<String, String>> {
        self.read(Reasons).await
    }

    /// What is paused.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
    pub async fn pauses(&self) -> Result<Vec<Paused>> {
        self.read(Pauses).await
    }

    /// What operators have done, the last first: at most `limit`, before the one with number
    /// `before`; [`i64::MAX`] begins. Kept for a year.
    ///
    /// # Errors
    ///
    /// [`Refusal::OutOfScope`]; a [`StoreFault`].
    pub async fn actions(&self, before: i64, limit: usize) -> Result<Vec<Done>> {
        self.read(Actions { before, limit }).await
    }

    /// Writes a kind's settings down for every process, the last registration winning. A
    /// runtime does this for the kinds that it handles.
    ///
    /// # Errors
    ///
    /// [`Refusal::OutOfScope`] of a scoped client; [`Refusal::Invalid`] naming the setting; a
    /// [`StoreFault`].
    pub async fn register(&self, kind: &str, mut settings: Settings) -> Result<()> {
        Hooks::note(self.host.hooks.get(kind), &mut settings);
        let kinds = vec![(kind.to_owned(), settings)];
        self.ask(Register { kinds, ..Register::default() }).await
    }

    /// Limits how many jobs of a queue run at a time, over all processes.
    ///
    /// # Errors
    ///
    /// [`Refusal::OutOfScope`] of a scoped client; [`Refusal::Invalid`]; a [`StoreFault`].
    pub async fn limit_queue(&self, queue: &str, running: u32) -> Result<()> {
        self.limit("queue", queue, running).await
    }

    /// Limits how many jobs with a limit key run at a time, over all processes.
    ///
    /// # Errors
    ///
    /// [`Refusal::OutOfScope`] of a scoped client; [`Refusal::Invalid`]; a [`StoreFault`].
    pub async fn limit_key(&self, key: &str, running: u32) -> Result<()> {
        self.limit("limit_key", key, running).await
    }

    async fn limit(&self, scope: &'static str, name: &str, running: u32) -> Result<()> {
        let limits = vec![(scope, name.to_owned(), running.into())];
        self.ask(Register { limits, ..Register::default() }).await
    }

    /// Adds a reason to the registry, or changes its label.
    ///
    /// # Errors
    ///
    /// [`Refusal::OutOfScope`] of a scoped client; [`Refusal::Invalid`]; a [`StoreFault`].
    pub async fn register_reason(&self, id: &str, label: &str) -> Result<()> {
        let reasons = vec![(id.to_owned(), label.to_owned())];
        self.ask(Register { reasons, ..Register::default() }).await
    }

    /// Sets how large what is given may be, for every process on the database.
    ///
    /// # Errors
    ///
    /// [`Refusal::OutOfScope`] of a scoped client; [`Refusal::Invalid`]; a [`StoreFault`].
    pub async fn set_sizes(&self, sizes: Sizes) -> Result<()> {
        self.ask(Register { sizes: Some(sizes), ..Register::default() }).await
    }

    /// Runs one pass of the reaper: ends what is owed an ending, takes lost leases, removes
    /// what is past retention; and a slice of an operation on many jobs, where one is due. Judges
    /// by the runtime's clock.
    ///
    /// Specified in SEMANTICS.md, “The reaper”.
    ///
    /// # Errors
    ///
    /// [`Refusal::OutOfScope`] of a scoped client; a [`StoreFault`].
    pub async fn reap_once(&self) -> Result<ReapReport> {
        let report = self.ask(Reap(Known::default())).await?.report;
        self.ask(Slice).await?;
        Ok(report)
    }
}
