//! What a pass of the reaper decides about a row.

use crate::bugs::{self, Bug};
use crate::facts::{Facts, Orphan};
use crate::job::{AttemptOutcome, Verdict};

use super::claim::exhausted;
use super::row::Row;
use super::{Change, backoff};

/// The clock's part in telling whether a lease is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judge {
    pub(crate) now: i64,
    pub(crate) grace: i64,
    /// The longest lease of all kinds.
    pub(crate) longest: i64,
}

impl Judge {
    /// Whether a running row's lease is lost: it is over, or ends further ahead than any
    /// lease can.
    pub(crate) fn is_over(self, lease_until: Option<i64>) -> bool {
        lease_until.is_none_or(|until| {
            let end = until.saturating_sub(i64::from(bugs::on(Bug::LostAtTheEnd)));
            end < self.now.saturating_sub(self.grace)
                || until > self.now.saturating_add(self.longest).saturating_add(60_000)
        })
    }
}

/// What becomes of a running row whose lease is lost, or of a row that is owed an ending.
pub(crate) fn reap(row: &Row, facts: &Facts, now: i64) -> Change {
    let cancelled = row.detail.cancel_requested_at.is_some() && !bugs::on(Bug::ReaperIgnoresCancel);
    if cancelled || row.detail.verdict.is_some() {
        return finish(row, now);
    }
    let mut new = row.clone();
    if row.ahead {
        new.give_back();
        new.epoch = new.epoch.saturating_add(1);
        new.wait(now, now);
        return Change::to(new)
            .noting(AttemptOutcome::Lost, Some("its holder was lost before it started"));
    }
    if row.attempts >= row.max_attempts && !bugs::on(Bug::LastAttemptRequeued) {
        let error = format!("the holder of the last attempt was lost: {}", exhausted(row));
        new.detail.last_error = Some(error.clone());
        new.fail(Verdict::AttemptsExhausted, now);
        return Change::to(new).noting(AttemptOutcome::Lost, Some(&error));
    }
    if facts.orphan == Orphan::Park {
        let error = "its holder was lost, and its kind parks such jobs";
        new.detail.last_error = Some(error.to_owned());
        new.fail(Verdict::Orphaned, now);
        return Change::to(new).noting(AttemptOutcome::Lost, Some(error));
    }
    if row.stalls >= facts.max_stalls {
        let error = format!(
            "lost {} holders in a row without saving anything; the limit is {}",
            row.stalls.saturating_add(1),
            facts.max_stalls
        );
        new.detail.last_error = Some(error.clone());
        new.fail(Verdict::Poison, now);
        return Change::to(new).noting(AttemptOutcome::Lost, Some(&error));
    }
    let wait = backoff::orphan(&facts.orphan_backoff, row.stalls);
    let committed = row.committed() && !bugs::on(Bug::CommittedLossStalls);
    new.stalls = new.stalls.saturating_add(i64::from(!committed));
    new.detail.redrives = new.detail.redrives.saturating_add(1);
    new.epoch = new.epoch.saturating_add(i64::from(!bugs::on(Bug::ReaperKeepsEpoch)));
    new.wait(now.saturating_add(wait), now);
    Change::to(new).noting(AttemptOutcome::Lost, Some("its holder was lost"))
}

/// Ends a row that is owed an ending: a cancel before a verdict.
pub(crate) fn finish(row: &Row, now: i64) -> Change {
    let mut new = row.clone();
    match row.detail.verdict {
        Some(verdict) if row.detail.cancel_requested_at.is_none() => {
            new.fail(verdict, now);
            Change::to(new).noting(AttemptOutcome::Failed, row.detail.last_error.as_deref())
        }
        _ => {
            new.cancel(now);
            Change::to(new).noting(AttemptOutcome::Cancelled, None)
        }
    }
}
