//! What a claim does with a row that it meets.

use std::sync::Arc;

use crate::bugs::{self, Bug};
use crate::facts::Facts;
use crate::job::{AttemptOutcome, Status, Verdict};

use super::row::Row;
use super::{Change, reap};

/// What a claim makes of a pending row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Met {
    /// The row is leased.
    Taken(Box<Row>),
    /// The row cannot run any more and is ended instead; it takes no slot.
    Ended(Box<Change>),
    /// The row is not due after all: the clock went back.
    NotDue,
}

/// Who claims, and how.
#[derive(Clone, Debug)]
pub(crate) struct Claimant {
    pub(crate) owner: Arc<str>,
    pub(crate) token: [u8; 16],
    /// Whether `run_at` counts.
    pub(crate) early: bool,
}

/// Meets a pending row.
pub(crate) fn meet(row: &Row, facts: &Facts, by: Claimant, now: i64) -> Met {
    if row.run_at > now && !by.early && !bugs::on(Bug::ClaimedEarly) {
        return Met::NotDue;
    }
    if row.is_owed() {
        return Met::Ended(Box::new(reap::finish(row, now)));
    }
    if row.attempts >= row.max_attempts {
        let mut new = row.clone();
        let error = exhausted(row);
        new.detail.last_error = Some(error.clone());
        new.fail(Verdict::AttemptsExhausted, now);
        return Met::Ended(Box::new(Change::to(new).noting(AttemptOutcome::Failed, Some(&error))));
    }
    let mut new = row.clone();
    new.status = Status::Running;
    new.token = Some(by.token);
    new.finished_at = None;
    new.epoch = new.epoch.saturating_add(i64::from(!bugs::on(Bug::EpochKept) || row.epoch == 0));
    new.attempts = new.attempts.saturating_add(1);
    new.owner = Some(by.owner);
    new.lease_until = Some(now.saturating_add(facts.lease));
    new.heartbeat_at = Some(now);
    new.started_at = Some(row.started_at.unwrap_or(now));
    new.updated_at = now;
    Met::Taken(Box::new(new))
}

pub(super) fn exhausted(row: &Row) -> String {
    format!("{} of {} attempts are used up", row.attempts, row.max_attempts)
}
