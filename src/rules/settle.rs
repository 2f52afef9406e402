//! What a holder's write does: the fence, the settles, the commits.

use crate::bugs::{self, Bug};
use crate::error::Refusal;
use crate::facts::Facts;
use crate::job::{Action, AttemptOutcome, ErrorClass, Status, Verdict};
use crate::json::Json;

use super::operate::Redrive;
use super::row::{MAX_HOOK_FAILURES, Row};
use super::table::check;
use super::{Change, Gate, Holder, backoff, text};

/// How an attempt ends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Settle {
    Complete(Option<Json>),
    Fail(Failure),
    Yield,
    Interrupt,
    Snooze(i64),
    Release,
    Cancelled,
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) class: ErrorClass,
    pub(crate) error: String,
    pub(crate) code: Option<String>,
    pub(crate) retry_after: Option<i64>,
    /// The verdict where the budget is spent.
    pub(crate) verdict: Verdict,
}

impl Failure {
    pub(crate) fn transient(error: String) -> Self {
        Self {
            class: ErrorClass::Transient,
            error,
            code: None,
            retry_after: None,
            verdict: Verdict::AttemptsExhausted,
        }
    }
}

/// Whether the holder still holds the job, and may do this in its state.
pub(crate) fn fence<'r>(
    row: Option<&'r Row>,
    holder: &Holder,
    action: Action,
) -> Result<&'r Row, Refusal> {
    let row = row.ok_or(Refusal::NotFound)?;
    if late_is_let_in(row, holder, action) {
        return Ok(row);
    }
    check(row, action, Redrive::default())?;
    if row.token != Some(holder.token) && !is_unfenced(action) {
        let (held_epoch, current_epoch) = (holder.epoch, row.epoch);
        return Err(Refusal::Superseded { held_epoch, current_epoch, owner: row.owner.clone() });
    }
    Ok(row)
}

/// Whether a bug lets an attempt in that has lost its job.
fn late_is_let_in(row: &Row, holder: &Holder, action: Action) -> bool {
    let redriven = row.status == Status::Pending && row.detail.redrives > 0;
    let completed = row.status == Status::Completed && action == Action::Complete;
    bugs::on(Bug::LateAfterRedrive) && redriven && row.epoch == holder.epoch + 1
        || bugs::on(Bug::CompletedTwice) && completed
}

/// Whether a bug leaves out the fence.
fn is_unfenced(action: Action) -> bool {
    bugs::on(Bug::UnfencedCompletion) && action == Action::Complete
        || bugs::on(Bug::UnfencedSave) && action == Action::Save
}

impl Settle {
    /// What the table of actions calls it.
    pub(crate) const fn action(&self) -> Action {
        match self {
            Self::Complete(_) => Action::Complete,
            Self::Fail(failure) => match failure.class {
                ErrorClass::RateLimited => Action::Defer,
                ErrorClass::Transient | ErrorClass::Terminal | ErrorClass::Unrecoverable => {
                    Action::Fail
                }
            },
            Self::Yield => Action::Yield,
            Self::Interrupt => Action::Interrupt,
            Self::Snooze(_) => Action::Snooze,
            Self::Release => Action::Release,
            Self::Cancelled => Action::Stop,
        }
    }
}

/// Whether this settle has landed already: the job ended by this attempt in the same way.
pub(crate) fn is_repeat(row: &Row, holder: &Holder, settle: &Settle) -> bool {
    let cancelled = row.detail.cancel_requested_at.is_some();
    let poisoned = row.detail.verdict == Some(Verdict::Poison);
    let same = match settle {
        Settle::Complete(_) => row.status == Status::Completed,
        _ if cancelled => row.status == Status::Cancelled,
        Settle::Fail(_) => row.status == Status::Failed && !poisoned,
        Settle::Yield => row.status == Status::Failed && poisoned,
        Settle::Cancelled => row.status == Status::Cancelled,
        Settle::Interrupt | Settle::Snooze(_) | Settle::Release => false,
    };
    let retried = matches!(settle, Settle::Fail(_)) && row.status == Status::Pending;
    same && row.settled_epoch == Some(holder.epoch) && row.last_write.is_of(&holder.token)
        || bugs::on(Bug::RetryRepeated) && retried && row.last_write.is_of(&holder.token)
}

/// What a settle by the present holder makes of its row.
pub(crate) fn settle(
    row: &Row,
    facts: &Facts,
    settle: &Settle,
    now: i64,
    draw: &mut dyn FnMut() -> f64,
) -> Change {
    let mut change = decide(row, facts, settle, now, draw);
    if !change.row.status.is_live() {
        change.row.settled_epoch = Some(row.epoch);
    }
    change
}

fn decide(
    row: &Row,
    facts: &Facts,
    settle: &Settle,
    now: i64,
    draw: &mut dyn FnMut() -> f64,
) -> Change {
    let mut new = row.clone();
    let done = matches!(settle, Settle::Complete(_)) && !bugs::on(Bug::DoneCancelled);
    let forgotten = matches!(settle, Settle::Fail(_)) && bugs::on(Bug::CancelForgotten);
    if row.detail.cancel_requested_at.is_some() && !done && !forgotten {
        let mut error = None;
        if let Settle::Fail(failure) = settle {
            error = Some(text::stored(Some(&failure.error)));
        }
        new.cancel(now);
        new.detail.last_error = error.clone().or(new.detail.last_error);
        return Change::to(new).noting(AttemptOutcome::Cancelled, error.as_deref());
    }
    match settle {
        Settle::Complete(result) => complete(new, facts, result.clone(), now),
        Settle::Fail(failure) => fail(new, facts, failure, now, draw),
        Settle::Yield => hand_back(new, facts, now),
        Settle::Interrupt => {
            new.seq = new.seq.saturating_add(1);
            new.detail.interruptions = new.detail.interruptions.saturating_add(1);
            new.stalls += i64::from(bugs::on(Bug::InterruptStalls));
            new.give_back();
            new.wait(now, now);
            Change::to(new).noting(AttemptOutcome::Interrupted, None)
        }
        Settle::Snooze(ms) => {
            new.give_back_but(Bug::SnoozeCharged);
            new.wait(now.saturating_add(*ms), now);
            Change::to(new).noting(AttemptOutcome::Snoozed, None)
        }
        Settle::Release => {
            new.give_back_but(Bug::ReleaseCharged);
            new.wait(now, now);
            Change::to(new).noting(AttemptOutcome::Released, None)
        }
        Settle::Cancelled => {
            new.cancel(now);
            Change::to(new).noting(AttemptOutcome::Cancelled, None)
        }
    }
}

fn complete(mut new: Row, facts: &Facts, result: Option<Json>, now: i64) -> Change {
    let first_try = new.epoch == 1;
    new.end(Status::Completed, now);
    new.detail.verdict = None;
    new.detail.error_class = None;
    new.detail.error_code = None;
    if !bugs::on(Bug::CompletionKeepsHits) {
        new.detail.rate_limit_hits = 0;
    }
    let mut change = Change::to(new);
    change.result = result;
    change.drop_checkpoints = !bugs::on(Bug::CheckpointsKept);
    let opens = facts.provider.is_some() && !bugs::on(Bug::GateStaysClosed);
    change.gate = opens.then_some(Gate::Open);
    if first_try { change } else { change.noting(AttemptOutcome::Completed, None) }
}

fn fail(
    mut new: Row,
    facts: &Facts,
    failure: &Failure,
    now: i64,
    draw: &mut dyn FnMut() -> f64,
) -> Change {
    let error = text::stored(Some(&failure.error));
    new.detail.error_class = Some(failure.class);
    new.detail.error_code = text::code(failure.code.as_deref());
    new.detail.last_error = Some(error.clone());
    let mut gate = None;
    let outcome = match failure.class {
        ErrorClass::Terminal => {
            new.fail(Verdict::Terminal, now);
            AttemptOutcome::Failed
        }
        ErrorClass::Unrecoverable => {
            new.fail(Verdict::Unrecoverable, now);
            AttemptOutcome::Failed
        }
        ErrorClass::RateLimited => {
            new.detail.rate_limit_hits = new.detail.rate_limit_hits.saturating_add(1);
            new.detail.rate_limited_at = Some(now);
            let hits = new.detail.rate_limit_hits;
            if hits > facts.defer.max_hits {
                new.fail(Verdict::RateLimitExhausted, now);
                AttemptOutcome::Failed
            } else {
                let wait = backoff::defer(&facts.defer, hits, failure.retry_after, draw);
                let until = now.saturating_add(wait);
                new.give_back_but(Bug::DeferCharged);
                new.wait(until, now);
                gate = facts.provider.as_ref().map(|_| Gate::CloseUntil(until));
                AttemptOutcome::Deferred
            }
        }
        ErrorClass::Transient if new.attempts < new.max_attempts + one_more() => {
            let wait = backoff::retry(&facts.retry, new.attempts, failure.retry_after, draw);
            new.wait(now.saturating_add(wait), now);
            AttemptOutcome::Retried
        }
        ErrorClass::Transient => {
            new.fail(failure.verdict, now);
            AttemptOutcome::Failed
        }
    };
    let mut change = Change::to(new).noting(outcome, Some(&error));
    change.gate = gate;
    change
}

/// The attempt that a bug allows beyond the budget.
fn one_more() -> i64 {
    i64::from(bugs::on(Bug::AttemptsOffByOne))
}

fn hand_back(mut new: Row, facts: &Facts, now: i64) -> Change {
    let committed = new.committed() && !bugs::on(Bug::CommittedYieldStalls);
    new.seq = new.seq.saturating_add(1);
    new.give_back_but(Bug::YieldCharged);
    if !committed {
        new.stalls = new.stalls.saturating_add(1);
    }
    if !committed && new.stalls >= facts.max_stalls && !bugs::on(Bug::YieldNeverPoison) {
        let error = format!(
            "handed back {} times in a row without saving anything; the limit is {}",
            new.stalls, facts.max_stalls
        );
        new.detail.last_error = Some(error.clone());
        new.fail(Verdict::Poison, now);
        return Change::to(new).noting(AttemptOutcome::Poison, Some(&error));
    }
    new.wait(now, now);
    Change::to(new).noting(AttemptOutcome::Yielded, None)
}

/// Why an ending did not land.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused<'e> {
    pub(crate) error: &'e str,
    /// A hook was asked; otherwise its code is in another process.
    pub(crate) asked: bool,
}

/// What a hook's refusal makes of an ending that was decided: the decision is kept on the
/// row without a lease, or a completion becomes a failed attempt.
pub(crate) fn hook_refused(
    row: &Row,
    facts: &Facts,
    intended: &Row,
    refusal: Refused<'_>,
    now: i64,
    draw: &mut dyn FnMut() -> f64,
) -> Change {
    let mut failed = row.clone();
    let counts = refusal.asked && !bugs::on(Bug::HookFailureUncounted);
    failed.detail.hook_failures = failed.detail.hook_failures.saturating_add(i64::from(counts));
    failed.detail.hook_tried_at = Some(now);
    let error = refusal.error;
    let base = if intended.status == Status::Completed {
        let failure = Failure::transient(format!("the completion was refused by a hook: {error}"));
        let change = settle(&failed, facts, &Settle::Fail(failure), now, draw);
        if change.row.status.is_live() && !bugs::on(Bug::RefusedCompletionOwed) {
            return change;
        }
        change.row
    } else {
        intended.clone()
    };
    let mut base = base;
    if bugs::on(Bug::RefusedCompletionOwed) && intended.status == Status::Completed {
        base.detail.verdict = Some(Verdict::AttemptsExhausted);
    }
    let mut owed = Row { status: row.status, finished_at: None, settled_epoch: None, ..base };
    owed.unlease();
    owed.detail.parked_at = None;
    owed.detail.hooked_at = None;
    owed.detail.hook_failures = failed.detail.hook_failures;
    owed.detail.hook_tried_at = Some(now);
    if base_is_cancel(intended) && owed.detail.cancel_requested_at.is_none() {
        owed.detail.cancel_requested_at = Some(now);
        owed.detail.cancel_requested_by = Some("handler".to_owned());
    }
    owed.updated_at = now;
    Change::to(owed)
}

fn base_is_cancel(intended: &Row) -> bool {
    intended.status == Status::Cancelled
}

/// Whether the next failure of a hook is the last that is waited for.
pub(crate) const fn hooks_spent(row: &Row) -> bool {
    row.detail.hook_failures.saturating_add(1) >= MAX_HOOK_FAILURES
}

/// A checkpoint or step saved: durable progress.
pub(crate) fn commit(row: &Row, facts: &Facts, own_checkpoint: bool, now: i64) -> Row {
    let mut new = touch(row, facts, now);
    if !bugs::on(Bug::CommitKeepsAttempts) {
        new.attempts = 1;
    }
    if !bugs::on(Bug::CommitKeepsStalls) {
        new.stalls = 0;
    }
    new.detail.rate_limit_hits = 0;
    new.last_committed_at = Some(now);
    new.commit_epoch = new.epoch;
    new.commits = new.commits.saturating_add(i64::from(own_checkpoint));
    new
}

/// A write that is no commit: the lease is extended where it still lives.
pub(crate) fn touch(row: &Row, facts: &Facts, now: i64) -> Row {
    let mut new = row.clone();
    new.ahead = false;
    new.updated_at = now;
    if new.lease_until.is_some_and(|until| until > now || bugs::on(Bug::SaveRevivesLease)) {
        new.lease_until = Some(now.saturating_add(facts.lease));
        new.heartbeat_at = Some(now);
    }
    new
}

/// A renewal. `trusted` says that the holder's own monotonic deadline has not passed, so
/// that a step of the wall clock alone takes no lease away.
pub(crate) fn renew(row: &Row, facts: &Facts, trusted: bool, now: i64) -> Result<i64, Refusal> {
    match row.lease_until {
        Some(until) if until <= now && !trusted && !bugs::on(Bug::ExpiredRenewed) => {
            Err(Refusal::Expired { by_ms: now.saturating_sub(until) })
        }
        _ => Ok(now.saturating_add(facts.lease)),
    }
}
