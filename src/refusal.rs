//! Refusals: answers to calls that may not be done now, with what the caller needs to decide.

use std::error::Error as StdError;
use std::fmt::{self, Display};
use std::sync::Arc;

use crate::job::{JobId, Status, Verdict};

/// The store's answer to a call that may not be done now. Nothing was changed by it.
///
/// Which call is refused in which state is in SEMANTICS.md, “What can be done when”.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// No such job, or none that this client may see.
    NotFound,
    /// The job is not held by anyone.
    NotRunning {
        /// What it is instead.
        status: Status,
        /// The job's present epoch.
        epoch: i64,
    },
    /// Another attempt holds the job, or nobody until its ending lands.
    Superseded {
        /// The attempt that asked.
        held_epoch: i64,
        /// The job's present one.
        current_epoch: i64,
        /// Who holds it, or held it last.
        owner: Option<Arc<str>>,
    },
    /// The lease ended before it was renewed.
    Expired {
        /// How long ago, in milliseconds.
        by_ms: i64,
    },
    /// The handle was taken away in this process; the store was not asked.
    Revoked,
    /// A hook of the application did not agree, so nothing landed but the count of it.
    HookFailed {
        /// What the hook said.
        error: String,
        /// How often the job's hooks have failed by now; at 20 its ending lands without them.
        failures: i64,
    },
    /// The job has ended.
    Terminal {
        /// How.
        status: Status,
        /// The job's present epoch.
        epoch: i64,
    },
    /// The job has not ended.
    Live {
        /// Whether it waits or runs.
        status: Status,
        /// The job's present epoch.
        epoch: i64,
        /// Who holds it, where it runs.
        owner: Option<Arc<str>>,
    },
    /// The job completed; only a redrive that allows finished jobs runs it again.
    NotRedrivable {
        /// The job's present epoch.
        epoch: i64,
    },
    /// The job failed in a way that only a redrive with force runs again.
    NeedsForce {
        /// Why it failed.
        verdict: Option<Verdict>,
        /// The job's present epoch.
        epoch: i64,
    },
    /// The job has moved on since the caller looked.
    EpochMoved {
        /// The epoch that the caller expected.
        expected_epoch: i64,
        /// The job's present one.
        current_epoch: i64,
    },
    /// Another live job holds the lock key.
    LockHeld {
        /// Which.
        by: JobId,
    },
    /// Another live job holds the dedup key.
    DedupHeld {
        /// Which.
        by: JobId,
    },
    /// The id is that of a job outside of the client's scope.
    IdTaken,
    /// The call is about more than the client's scope.
    OutOfScope {
        /// The call.
        call: &'static str,
    },
    /// The application does not let the job be deleted.
    Vetoed {
        /// Why not.
        error: String,
    },
    /// The reason is in no registry.
    UnknownReason {
        /// The reason as given.
        reason: String,
    },
    /// A field breaks a rule.
    Invalid {
        /// The field.
        field: &'static str,
        /// Its value, shortened where it is long.
        value: String,
        /// The rule, and what to do about it.
        rule: String,
    },
    /// The result cannot be written as JSON.
    Unrepresentable {
        /// Why.
        error: String,
    },
}

impl Refusal {
    pub(crate) fn invalid(field: &'static str, value: impl Display, rule: impl Display) -> Self {
        let mut value = value.to_string();
        if value.chars().count() > 80 {
            value = value.chars().take(77).collect::<String>() + "...";
        }
        Self::Invalid { field, value, rule: rule.to_string() }
    }

    /// The word for it, the same in every interface.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::NotRunning { .. } => "not_running",
            Self::Superseded { .. } => "superseded",
            Self::Expired { .. } => "expired",
            Self::Revoked => "revoked",
            Self::HookFailed { .. } => "hook_failed",
            Self::Terminal { .. } => "terminal",
            Self::Live { .. } => "live",
            Self::NotRedrivable { .. } => "not_redrivable",
            Self::NeedsForce { .. } => "needs_force",
            Self::EpochMoved { .. } => "epoch_moved",
            Self::LockHeld { .. } => "lock_held",
            Self::DedupHeld { .. } => "dedup_held",
            Self::IdTaken => "id_taken",
            Self::OutOfScope { .. } => "out_of_scope",
            Self::Vetoed { .. } => "vetoed",
            Self::UnknownReason { .. } => "unknown_reason",
            Self::Invalid { .. } => "invalid",
            Self::Unrepresentable { .. } => "unrepresentable",
        }
    }
}

/// Who holds a job, to follow the word of its status.
struct HeldBy<'o>(&'o Option<Arc<str>>);

impl Display for HeldBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(owner) => write!(f, ", held by {owner}"),
            None => Ok(()),
        }
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("no such job"),
            Self::NotRunning { status, epoch } => {
                write!(f, "the job is {status}, not running; it is at epoch {epoch}")
            }
            Self::Superseded { held_epoch, current_epoch, owner } => write!(
                f,
                "attempt {held_epoch} lost the job, which is at {current_epoch}{}",
                HeldBy(owner)
            ),
            Self::Expired { by_ms } => write!(f, "the lease ended {by_ms} ms ago"),
            Self::Revoked => f.write_str("the attempt was taken away from this handler"),
            Self::HookFailed { error, failures } => {
                write!(f, "a hook did not agree: {error} (failures so far: {failures})")
            }
            Self::Terminal { status, .. } => write!(f, "the job has ended: {status}"),
            Self::Live { status, epoch, owner } => {
                write!(f, "the job has not ended: it is {status} at epoch {epoch}{}", HeldBy(owner))
            }
            Self::NotRedrivable { .. } => {
                f.write_str("the job completed; to run it again, allow finished jobs")
            }
            Self::NeedsForce { verdict, .. } => {
                let verdict = verdict.map_or("failed", Verdict::as_str);
                write!(f, "the job failed as {verdict}; to run it again, force it")
            }
            Self::EpochMoved { expected_epoch, current_epoch } => write!(
                f,
                "the job has moved on from epoch {expected_epoch} to {current_epoch}; look again"
            ),
            Self::LockHeld { by } => write!(f, "the lock is held by job {by}"),
            Self::DedupHeld { by } => write!(f, "the dedup key is held by job {by}"),
            Self::IdTaken => f.write_str("the id is taken; give another, or none"),
            Self::OutOfScope { call } => {
                write!(f, "{call} is about the whole database; a client without a scope may do it")
            }
            Self::Vetoed { error } => write!(f, "the application keeps the job: {error}"),
            Self::UnknownReason { reason } => {
                write!(f, "reason {reason:?} is not registered; register it or use `manual`")
            }
            Self::Invalid { field, value, rule } => {
                write!(f, "{field} is {value:?}, but must be {rule}")
            }
            Self::Unrepresentable { error } => write!(f, "the result cannot be JSON: {error}"),
        }
    }
}

impl StdError for Refusal {}
