//! What is shown of a job: its record, its history, and how many there are.

use std::sync::Arc;

use crate::job::{
    Action, AttemptOutcome, ErrorClass, JobId, Phase, State, Status, Verdict, Waiting,
};
use crate::json::Json;
use crate::rules::table::{Allowed, allowed};

/// A job as it stands: every column of its row but the claim token.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct JobRecord {
    /// What names the job.
    pub id: JobId,
    /// The name of its handler.
    pub kind: Arc<str>,
    /// The queue it waits in.
    pub queue: Arc<str>,
    /// Whom it is for.
    pub tenant: Option<String>,
    /// Whom it is for, below the tenant.
    pub organization: Option<String>,
    /// Why it was enqueued.
    pub reason: Option<String>,
    /// What sort of thing it is about.
    pub subject_type: Option<String>,
    /// Which thing it is about.
    pub subject_id: Option<String>,
    /// Whatever else was kept beside it.
    pub meta: Option<Json>,
    /// The trace context it carries along.
    pub trace_context: Option<String>,
    /// The job that this one was made after, by an operator.
    pub copy_of: Option<JobId>,
    /// What the handler is given.
    pub payload: Option<Json>,
    /// What it completed with.
    pub result: Option<Json>,
    /// How far the work is, as the handler last said.
    pub progress_done: Option<i64>,
    /// How much there is to do.
    pub progress_total: Option<i64>,
    /// Names the job as long as its row is kept.
    pub idempotency_key: Option<String>,
    /// Names it while it is live.
    pub dedup_key: Option<String>,
    /// Only one live job may hold it.
    pub lock_key: Option<String>,
    /// Jobs with the same one share a limit.
    pub limit_key: Option<String>,
    /// Where it stands, as stored.
    pub status: Status,
    /// Where it stands, at the time of the look.
    pub phase: Phase,
    /// Smaller goes first; a level is worth a minute of waiting.
    pub priority: i64,
    /// When it is due, in UTC milliseconds.
    pub run_at: i64,
    /// When it was enqueued, in UTC milliseconds.
    pub created_at: i64,
    /// How often it was claimed or taken back; names the present attempt.
    pub epoch: i64,
    /// The runtime that holds it, or held it last.
    pub owner: Option<Arc<str>>,
    /// When the lease of its holder ends, in UTC milliseconds.
    pub lease_until: Option<i64>,
    /// When its holder was last heard of, in UTC milliseconds.
    pub heartbeat_at: Option<i64>,
    /// Attempts since it last made progress.
    pub attempts: i64,
    /// How many it may have.
    pub max_attempts: i64,
    /// Attempts in a row that were lost or handed back without progress.
    pub stalls: i64,
    /// How often it has handed back: the number of its slice.
    pub seq: i64,
    /// How often it was made to run again, by the reaper or an operator.
    pub redrives: i64,
    /// How often a stop has cut an attempt short.
    pub interruptions: i64,
    /// Rate limits met since it last made progress.
    pub rate_limit_hits: i64,
    /// When it last met one, in UTC milliseconds.
    pub rate_limited_at: Option<i64>,
    /// How often a hook has not agreed to its ending.
    pub hook_failures: i64,
    /// When it last saved something, in UTC milliseconds.
    pub last_committed_at: Option<i64>,
    /// Why it failed for good.
    pub verdict: Option<Verdict>,
    /// How its last error was to be treated.
    pub error_class: Option<ErrorClass>,
    /// The application's own code of its last error.
    pub error_code: Option<String>,
    /// The text of its last error.
    pub last_error: Option<String>,
    /// When somebody asked for it to be cancelled, in UTC milliseconds.
    pub cancel_requested_at: Option<i64>,
    /// Who asked first.
    pub cancel_requested_by: Option<String>,
    /// Since when it waits for a person, in UTC milliseconds.
    pub parked_at: Option<i64>,
    /// The attempt that ended it; none where an operator or the reaper did.
    pub settled_epoch: Option<i64>,
    /// When its hooks agreed to its ending, in UTC milliseconds.
    pub hooked_at: Option<i64>,
    /// When its row was last written, in UTC milliseconds.
    pub updated_at: i64,
    /// When it was first claimed, in UTC milliseconds.
    pub started_at: Option<i64>,
    /// When it ended, in UTC milliseconds.
    pub finished_at: Option<i64>,
}

impl JobRecord {
    /// What an action on the job can come to.
    #[must_use]
    pub fn allowed(&self, action: Action) -> Allowed {
        allowed(State::of(self.status, self.verdict), action)
    }
}

/// One attempt in a job's history: those that did not simply succeed at the first try.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The epoch that names it.
    pub epoch: i64,
    /// Who held it.
    pub owner: Option<Arc<str>>,
    /// When it was claimed, in UTC milliseconds.
    pub claimed_at: Option<i64>,
    /// When it ended, in UTC milliseconds.
    pub ended_at: i64,
    /// How it ended.
    pub outcome: AttemptOutcome,
    /// The error, or what was refused.
    pub error: Option<String>,
}

/// Why a pending job is not running.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Why {
    /// The first reason that holds, by the claim's own conditions.
    pub reason: Waiting,
    /// What holds it: a queue, a kind, a limit key or a provider, by its name.
    pub by: Option<String>,
    /// Until when at least, in UTC milliseconds, where that is known.
    pub until: Option<i64>,
}

/// How many jobs are in each phase, and how many wait by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Waiting for their time, no attempt spent.
    pub scheduled: i64,
    /// Waiting for their time, with attempts spent.
    pub retrying: i64,
    /// Due, and waiting for a slot.
    pub ready: i64,
    /// Held by an attempt.
    pub leased: i64,
    /// Running by the row, but their lease is over.
    pub orphaned: i64,
    /// Ended with a result.
    pub completed: i64,
    /// Ended because somebody asked.
    pub cancelled: i64,
    /// Failed.
    pub dead: i64,
    /// Failed, and waiting for a person.
    pub parked: i64,
    /// Pending jobs by kind, where there are any.
    pub kinds: std::collections::BTreeMap<String, i64>,
}

impl Counts {
    /// How many have not ended.
    #[must_use]
    pub const fn live(&self) -> i64 {
        self.scheduled + self.retrying + self.ready + self.leased + self.orphaned
    }

    /// Adds so many of a kind in a phase.
    pub(crate) fn add(&mut self, kind: &str, phase: Phase, n: i64) {
        let count = match phase {
            Phase::Scheduled => &mut self.scheduled,
            Phase::Retrying => &mut self.retrying,
            Phase::Ready => &mut self.ready,
            Phase::Leased => &mut self.leased,
            Phase::Orphaned => &mut self.orphaned,
            Phase::Completed => &mut self.completed,
            Phase::Cancelled => &mut self.cancelled,
            Phase::Dead => &mut self.dead,
            Phase::Parked => &mut self.parked,
        };
        *count += n;
        if n > 0 && matches!(phase, Phase::Scheduled | Phase::Retrying | Phase::Ready) {
            *self.kinds.entry(kind.to_owned()).or_default() += n;
        }
    }
}

/// How many jobs of a kind have ever ended, those that were removed since among them. A job that
/// was redriven counts where it ended last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// With a result.
    pub completed: i64,
    /// Without one.
    pub failed: i64,
    /// Because somebody asked.
    pub cancelled: i64,
}
