//! What an operator's action does: cancel, redrive, delete; and why a job waits.

use crate::error::Refusal;
use crate::job::{Preset, Status, Verdict, Waiting};

use super::Change;
use super::row::Row;

/// A cancel: at once where the job waits, a request where it runs.
pub(crate) fn cancel(row: &Row, by: &str, now: i64) -> Result<Change, Refusal> {
    let mut new = row.clone();
    if row.status.is_live() && row.detail.cancel_requested_at.is_none() {
        new.detail.cancel_requested_at = Some(now);
        new.detail.cancel_requested_by = Some(by.to_owned());
        new.updated_at = now;
    }
    match row.status {
        Status::Pending => {
            new.cancel(now);
            Ok(Change::to(new))
        }
        Status::Running => Ok(Change::to(new)),
        status @ (Status::Completed | Status::Failed | Status::Cancelled) => {
            Err(Refusal::Terminal { status })
        }
    }
}

/// How a redrive is meant.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Redrive {
    /// What is kept.
    pub preset: Preset,
    /// Also a job whose failure was unrecoverable.
    pub force: bool,
    /// Also a job that completed.
    pub allow_finished: bool,
    /// Only if the job is still at this epoch.
    pub expected_epoch: Option<i64>,
}

impl Default for Redrive {
    fn default() -> Self {
        Self { preset: Preset::Redrive, force: false, allow_finished: false, expected_epoch: None }
    }
}

/// A redrive: an operator's way back from an end.
/// `held` says which of its keys another live job holds.
pub(crate) fn redrive(
    row: &Row,
    how: Redrive,
    held: Option<Refusal>,
    now: i64,
) -> Result<Change, Refusal> {
    match row.status {
        Status::Pending | Status::Running => return Err(Refusal::Live),
        Status::Completed if !how.allow_finished => return Err(Refusal::NotRedrivable),
        Status::Completed | Status::Failed | Status::Cancelled => {}
    }
    if row.detail.verdict == Some(Verdict::Unrecoverable) && !how.force {
        return Err(Refusal::NeedsForce);
    }
    if let Some(held) = held {
        return Err(held);
    }
    if how.expected_epoch.is_some_and(|epoch| epoch != row.epoch) {
        return Err(Refusal::EpochMoved { current_epoch: row.epoch });
    }
    let mut new = row.clone();
    new.wait(now, now);
    new.epoch += 1;
    new.finished_at = None;
    new.settled_epoch = None;
    let detail = &mut new.detail;
    detail.redrives += 1;
    detail.verdict = None;
    detail.error_class = None;
    detail.error_code = None;
    detail.parked_at = None;
    detail.hooked_at = None;
    detail.hook_tried_at = None;
    detail.cancel_requested_at = None;
    detail.cancel_requested_by = None;
    match how.preset {
        Preset::Requeue if new.attempts >= new.max_attempts => {
            new.max_attempts = new.attempts.saturating_add(1);
        }
        Preset::Requeue => {}
        Preset::Redrive | Preset::Restart => {
            new.attempts = 0;
            new.stalls = 0;
            detail.rate_limit_hits = 0;
            detail.rate_limited_at = None;
            detail.hook_failures = 0;
        }
    }
    let mut change = Change::to(new);
    if how.preset == Preset::Restart {
        change.row.seq += 1;
        change.row.commits += 1;
        change.row.detail.progress_done = None;
        change.row.detail.progress_total = None;
        change.drop_checkpoints = true;
    }
    Ok(change)
}

/// Whether a job may be deleted.
pub(crate) const fn delete(row: &Row) -> Result<(), Refusal> {
    if row.status.is_live() { Err(Refusal::Live) } else { Ok(()) }
}

/// What stands around a pending row.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is one of the claim's own conditions")]
pub(crate) struct Surroundings {
    pub(crate) registered: bool,
    pub(crate) queue_paused: bool,
    pub(crate) kind_paused: bool,
    pub(crate) limit_full: bool,
    pub(crate) rate_limited: bool,
}

/// Why a pending job is not running, by the claim's own conditions, the first that holds.
pub(crate) fn why_waiting(row: &Row, around: Surroundings, now: i64) -> Result<Waiting, Refusal> {
    match row.status {
        Status::Pending if row.run_at > now => Ok(Waiting::Scheduled),
        Status::Pending => Ok(around.first().unwrap_or(Waiting::Next)),
        status @ (Status::Running | Status::Completed | Status::Failed | Status::Cancelled) => {
            Err(if status.is_live() { Refusal::Live } else { Refusal::Terminal { status } })
        }
    }
}

impl Surroundings {
    /// The first condition that keeps due rows from being claimed.
    pub(crate) const fn first(self) -> Option<Waiting> {
        if !self.registered {
            Some(Waiting::NotRegistered)
        } else if self.queue_paused {
            Some(Waiting::QueuePaused)
        } else if self.kind_paused {
            Some(Waiting::KindPaused)
        } else if self.limit_full {
            Some(Waiting::LimitFull)
        } else if self.rate_limited {
            Some(Waiting::RateLimited)
        } else {
            None
        }
    }

    /// The same, without what an operator's claim by id may ignore.
    pub(crate) const fn ignoring_pauses(self) -> Self {
        Self { queue_paused: false, kind_paused: false, ..self }
    }
}
