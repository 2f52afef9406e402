//! What an operator's action does: cancel, redrive, delete; and why a job waits. Whether it may
//! be done at all is in [`super::table`].

use serde::{Deserialize, Serialize};

use crate::bugs::{self, Bug};
use crate::error::Refusal;
use crate::job::{Action, Preset, Status, Waiting};

use super::Change;
use super::row::Row;
use super::table::check;

/// A cancel: at once where the job waits, a request where it runs.
pub(crate) fn cancel(row: &Row, by: &str, now: i64) -> Result<Change, Refusal> {
    check(row, Action::Cancel, Redrive::default())?;
    let mut new = row.clone();
    if row.detail.cancel_requested_at.is_none() || bugs::on(Bug::LastRequesterKept) {
        new.detail.cancel_requested_at = Some(now);
        new.detail.cancel_requested_by = Some(by.to_owned());
        new.updated_at = now;
    }
    if row.status == Status::Pending || bugs::on(Bug::CancelEndsRunning) {
        new.cancel(now);
    }
    Ok(Change::to(new))
}

/// How a redrive is meant.
///
/// ```
/// use leasehold::{Preset, Redrive};
///
/// let how = Redrive::new(Preset::Restart).force().expecting(7);
/// # let _ = how;
/// ```
///
/// Specified in SEMANTICS.md, “Cancel, redrive, delete, sweep, retention”.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[must_use]
pub struct Redrive {
    preset: Preset,
    force: bool,
    allow_finished: bool,
    expected_epoch: Option<i64>,
}

impl Redrive {
    /// A redrive that keeps what the preset says, of jobs that failed or were cancelled.
    pub fn new(preset: Preset) -> Self {
        Self { preset, ..Self::default() }
    }

    /// Also a job whose failure was unrecoverable.
    pub fn force(mut self) -> Self {
        self.force = true;
        self
    }

    /// Also a job that completed.
    pub fn allow_finished(mut self) -> Self {
        self.allow_finished = true;
        self
    }

    pub(crate) fn allows(self, option: &str) -> bool {
        match option {
            "force" => self.force,
            "allow_finished" => self.allow_finished || bugs::on(Bug::FinishedRedriven),
            _ => false,
        }
    }

    /// Only if the job is still at this epoch.
    pub fn expecting(mut self, epoch: i64) -> Self {
        self.expected_epoch = Some(epoch);
        self
    }
}

impl From<Preset> for Redrive {
    fn from(preset: Preset) -> Self {
        Self::new(preset)
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
    check(row, Action::Redrive, how)?;
    if let Some(held) = held {
        return Err(held);
    }
    if let Some(expected_epoch) = how.expected_epoch.filter(|epoch| *epoch != row.epoch) {
        return Err(Refusal::EpochMoved { expected_epoch, current_epoch: row.epoch });
    }
    let mut new = row.clone();
    new.wait(now, now);
    new.epoch = new.epoch.saturating_add(i64::from(!bugs::on(Bug::RedriveKeepsEpoch)));
    new.finished_at = None;
    new.settled_epoch = None;
    let detail = &mut new.detail;
    detail.redrives = detail.redrives.saturating_add(1);
    detail.verdict = detail.verdict.filter(|_| bugs::on(Bug::RedriveKeepsVerdict));
    detail.error_class = None;
    detail.error_code = None;
    detail.parked_at = None;
    detail.hooked_at = None;
    detail.hook_tried_at = None;
    detail.cancel_requested_at = None;
    detail.cancel_requested_by = None;
    match how.preset {
        Preset::Requeue if new.attempts >= new.max_attempts && !bugs::on(Bug::RequeueSpent) => {
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
        change.row.seq = change.row.seq.saturating_add(1);
        change.row.commits = change.row.commits.saturating_add(1);
        change.row.detail.progress_done = None;
        change.row.detail.progress_total = None;
        change.row.detail.restarts = change.row.detail.restarts.saturating_add(1);
        change.drop_checkpoints = true;
    }
    Ok(change)
}

/// Whether a job may be deleted.
pub(crate) fn delete(row: &Row) -> Result<(), Refusal> {
    check(row, Action::Delete, Redrive::default())
}

/// Whether a new job like this one may be made.
pub(crate) fn run_again(row: &Row) -> Result<(), Refusal> {
    check(row, Action::RunAgain, Redrive::default())
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
        Status::Running => Err(Refusal::Live {
            status: row.status,
            epoch: row.epoch,
            owner: row.token.and(row.owner.clone()),
        }),
        status @ (Status::Completed | Status::Failed | Status::Cancelled) => {
            Err(Refusal::Terminal { status, epoch: row.epoch })
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
