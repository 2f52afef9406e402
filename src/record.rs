//! What is shown of a job: its record, its history, and how many there are.

use std::sync::Arc;

use crate::job::{ErrorClass, JobId, Phase, Status, Verdict};
use crate::json::Json;

/// A job as it stands: every column of its row but the claim token.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the columns are described once, in the semantics")]
pub struct JobRecord {
    pub id: JobId,
    pub kind: Arc<str>,
    pub queue: Arc<str>,
    pub tenant: Option<String>,
    pub organization: Option<String>,
    pub reason: Option<String>,
    pub subject_type: Option<String>,
    pub subject_id: Option<String>,
    pub meta: Option<Json>,
    pub trace_context: Option<String>,
    pub payload: Option<Json>,
    pub result: Option<Json>,
    pub progress_done: Option<i64>,
    pub progress_total: Option<i64>,
    pub idempotency_key: Option<String>,
    pub dedup_key: Option<String>,
    pub lock_key: Option<String>,
    pub limit_key: Option<String>,
    pub status: Status,
    pub phase: Phase,
    pub priority: i64,
    pub run_at: i64,
    pub created_at: i64,
    pub epoch: i64,
    pub owner: Option<Arc<str>>,
    pub lease_until: Option<i64>,
    pub heartbeat_at: Option<i64>,
    pub attempts: i64,
    pub max_attempts: i64,
    pub stalls: i64,
    pub seq: i64,
    pub redrives: i64,
    pub interruptions: i64,
    pub rate_limit_hits: i64,
    pub rate_limited_at: Option<i64>,
    pub hook_failures: i64,
    pub last_committed_at: Option<i64>,
    pub verdict: Option<Verdict>,
    pub error_class: Option<ErrorClass>,
    pub error_code: Option<String>,
    pub last_error: Option<String>,
    pub cancel_requested_at: Option<i64>,
    pub cancel_requested_by: Option<String>,
    pub parked_at: Option<i64>,
    pub settled_epoch: Option<i64>,
    pub hooked_at: Option<i64>,
    pub updated_at: i64,
    pub started_at: Option<i64>,
    pub finished_at: Option<i64>,
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
    pub outcome: String,
    /// The error, or what was refused.
    pub error: Option<String>,
}

/// How many jobs are in each phase, and how many wait by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "one field a phase, named as the phase")]
pub struct Counts {
    pub scheduled: i64,
    pub retrying: i64,
    pub ready: i64,
    pub leased: i64,
    pub orphaned: i64,
    pub completed: i64,
    pub cancelled: i64,
    pub dead: i64,
    pub parked: i64,
    /// Pending jobs by kind, where there are any.
    pub kinds: std::collections::BTreeMap<String, i64>,
}
