//! A job's row as decisions see it.

use std::sync::Arc;

use crate::bugs::{self, Bug};
use crate::job::{ErrorClass, JobId, Phase, Status, Verdict};

/// How many failures of its hooks a decision survives before it lands without them.
pub(crate) const MAX_HOOK_FAILURES: i64 = 20;

/// A job's row. Times are UTC milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// The key inside the database.
    pub(crate) key: i64,
    pub(crate) id: JobId,
    pub(crate) kind: Arc<str>,
    pub(crate) queue: Arc<str>,
    pub(crate) status: Status,
    pub(crate) priority: i64,
    pub(crate) run_at: i64,
    pub(crate) created_at: i64,
    pub(crate) updated_at: i64,
    pub(crate) started_at: Option<i64>,
    pub(crate) finished_at: Option<i64>,
    pub(crate) attempts: i64,
    pub(crate) max_attempts: i64,
    pub(crate) epoch: i64,
    pub(crate) stalls: i64,
    pub(crate) seq: i64,
    pub(crate) token: Option<[u8; 16]>,
    pub(crate) owner: Option<Arc<str>>,
    pub(crate) lease_until: Option<i64>,
    pub(crate) heartbeat_at: Option<i64>,
    pub(crate) settled_epoch: Option<i64>,
    pub(crate) last_committed_at: Option<i64>,
    /// The epoch of the last commit: tells whether *this* attempt has made one.
    pub(crate) commit_epoch: i64,
    /// The commit counter behind the idempotency key.
    pub(crate) commits: i64,
    /// The last write of a holder.
    pub(crate) last_write: WriteMark,
    /// Claimed ahead of a free slot, its start not yet reported.
    pub(crate) ahead: bool,
    pub(crate) limit_key: Option<String>,
    pub(crate) detail: Detail,
}

/// The columns that most jobs never fill.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Detail {
    pub(crate) verdict: Option<Verdict>,
    pub(crate) error_class: Option<ErrorClass>,
    pub(crate) error_code: Option<String>,
    pub(crate) last_error: Option<String>,
    pub(crate) cancel_requested_at: Option<i64>,
    pub(crate) cancel_requested_by: Option<String>,
    pub(crate) parked_at: Option<i64>,
    pub(crate) hooked_at: Option<i64>,
    pub(crate) hook_failures: i64,
    pub(crate) hook_tried_at: Option<i64>,
    pub(crate) redrives: i64,
    pub(crate) interruptions: i64,
    pub(crate) rate_limit_hits: i64,
    pub(crate) rate_limited_at: Option<i64>,
    pub(crate) progress_done: Option<i64>,
    pub(crate) progress_total: Option<i64>,
    /// How often it was restarted: part of the idempotency keys of its steps.
    pub(crate) restarts: i64,
}

/// Where a pending row waits: what a claim looks through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Not due.
    Scheduled = 0,
    /// Due.
    Ready = 1,
    /// Due, and suspected of killing its process: such rows run one at a time.
    Suspect = 2,
    /// Due, and held back by the limit of its key.
    Held = 3,
}

/// Which attempt wrote, by half of its token, and the number of the write within it. A token
/// is never minted twice, so that a mark stands for one write for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriteMark {
    pub(crate) holder: i64,
    pub(crate) number: u32,
}

impl WriteMark {
    pub(crate) fn new(token: &[u8; 16], number: u32) -> Self {
        Self { holder: half(token), number }
    }

    /// Whether this attempt was the last to write.
    pub(crate) fn is_of(self, token: &[u8; 16]) -> bool {
        self.holder == half(token)
    }
}

fn half(token: &[u8; 16]) -> i64 {
    let mut first = [0; 8];
    first.copy_from_slice(&token[..8]);
    i64::from_le_bytes(first)
}

impl Row {
    pub(crate) const fn phase(&self, now: i64) -> Phase {
        match self.status {
            Status::Pending if self.run_at <= now => Phase::Ready,
            Status::Pending if self.attempts > 0 => Phase::Retrying,
            Status::Pending => Phase::Scheduled,
            Status::Running => match self.lease_until {
                Some(until) if until >= now => Phase::Leased,
                _ => Phase::Orphaned,
            },
            Status::Completed => Phase::Completed,
            Status::Cancelled => Phase::Cancelled,
            Status::Failed if self.detail.parked_at.is_some() => Phase::Parked,
            Status::Failed => Phase::Dead,
        }
    }

    pub(crate) const fn lane(&self, now: i64) -> Option<Lane> {
        match self.status {
            Status::Pending if self.run_at > now => Some(Lane::Scheduled),
            Status::Pending if self.stalls > 0 => Some(Lane::Suspect),
            Status::Pending => Some(Lane::Ready),
            Status::Running | Status::Completed | Status::Failed | Status::Cancelled => None,
        }
    }

    /// Whether an ending has been decided that has not landed: the row waits for a pass of
    /// the reaper, or for the claim that meets it.
    pub(crate) const fn is_owed(&self) -> bool {
        let decided = self.detail.verdict.is_some() || self.detail.cancel_requested_at.is_some();
        match self.status {
            Status::Pending => decided,
            Status::Running => decided && self.token.is_none(),
            Status::Completed | Status::Failed | Status::Cancelled => false,
        }
    }

    pub(crate) const fn committed(&self) -> bool {
        self.epoch > 0 && self.commit_epoch == self.epoch
    }

    /// Takes the lease off the row.
    pub(super) fn unlease(&mut self) {
        self.token = None;
        self.lease_until = None;
        self.ahead = false;
    }

    /// Back to waiting, due at `run_at`.
    pub(super) fn wait(&mut self, run_at: i64, now: i64) {
        self.unlease();
        self.status = Status::Pending;
        self.run_at = run_at;
        self.updated_at = now;
    }

    /// The attempt costs nothing.
    pub(super) fn give_back(&mut self) {
        self.attempts = self.attempts.saturating_sub(1).max(0);
    }

    /// The same, where there is no such bug.
    pub(super) fn give_back_but(&mut self, bug: Bug) {
        if !bugs::on(bug) {
            self.give_back();
        }
    }

    /// To an end.
    pub(super) fn end(&mut self, status: Status, now: i64) {
        self.unlease();
        self.status = status;
        self.finished_at = Some(now);
        self.updated_at = now;
    }

    /// To failed with a verdict, parked where the verdict asks for a person.
    pub(super) fn fail(&mut self, verdict: Verdict, now: i64) {
        self.end(Status::Failed, now);
        self.detail.verdict = Some(verdict);
        self.detail.parked_at = super::parks(verdict).then_some(now);
    }

    pub(super) fn cancel(&mut self, now: i64) {
        self.end(Status::Cancelled, now);
        self.detail.verdict = None;
    }
}
