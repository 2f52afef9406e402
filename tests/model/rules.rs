//! The semantics of a job's row once more, in plain Rust and on records: what each event is to
//! make of it.

use std::cmp::Ordering;

use leasehold::{AttemptOutcome, ErrorClass, JobRecord, Phase, Preset, Status, Verdict};

/// The facts of a kind, as far as they decide.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kind {
    pub name: &'static str,
    pub queue: &'static str,
    pub lease: i64,
    pub max_attempts: i64,
    pub max_stalls: i64,
    pub max_hits: i64,
    pub parks: bool,
    pub orphan_base: i64,
    pub concurrency: Option<i64>,
    /// So many starts in so many milliseconds.
    pub rate: Option<(i64, i64)>,
    pub provider: Option<&'static str>,
    pub registered: bool,
    pub hooks: bool,
}

const PLAIN: Kind = Kind {
    name: "plain",
    queue: "default",
    lease: 30_000,
    max_attempts: 5,
    max_stalls: 3,
    max_hits: 10,
    parks: false,
    orphan_base: 0,
    concurrency: None,
    rate: None,
    provider: None,
    registered: true,
    hooks: false,
};

pub const KINDS: [Kind; 8] = [
    PLAIN,
    Kind { name: "narrow", queue: "slow", lease: 10_000, concurrency: Some(2), ..PLAIN },
    Kind { name: "rated", rate: Some((3, 20_000)), max_stalls: 1, orphan_base: 15_000, ..PLAIN },
    Kind { name: "parking", queue: "slow", parks: true, max_attempts: 2, ..PLAIN },
    Kind { name: "gated", provider: Some("api"), max_hits: 2, max_attempts: 3, ..PLAIN },
    Kind { name: "behind", queue: "slow", provider: Some("api"), max_attempts: 2, ..PLAIN },
    HOOKED,
    Kind { name: "ghost", registered: false, ..PLAIN },
];
const HOOKED: Kind = Kind { name: "hooked", max_attempts: 3, max_hits: 1, hooks: true, ..PLAIN };

/// What another process, of another version, registers each kind as.
pub const OTHERS: [Kind; 8] = [
    Kind { lease: 7_000, max_attempts: 2, parks: true, ..PLAIN },
    Kind { concurrency: Some(1), max_stalls: 1, ..KINDS[1] },
    Kind { rate: Some((2, 8_000)), ..KINDS[2] },
    Kind { parks: false, orphan_base: 4_000, ..KINDS[3] },
    Kind { max_hits: 0, concurrency: Some(1), ..KINDS[4] },
    Kind { lease: 60_000, max_hits: 1, ..KINDS[5] },
    Kind { max_stalls: 1, parks: true, ..HOOKED },
    KINDS[7],
];

pub const RATED: usize = 2;
pub const HOOKED_AT: usize = 6;
pub const BEHIND_ONE_GATE: [usize; 2] = [4, 5];

pub const QUEUES: [&str; 2] = ["default", "slow"];
pub const QUEUE_LIMIT: (&str, i64) = ("slow", 3);
pub const KEY_LIMITS: [(&str, i64); 2] = [("one", 1), ("two", 2)];
/// How long completed, cancelled and failed jobs are kept.
pub const KEEP: [i64; 3] = [90_000, 60_000, 120_000];
/// Failures of its hooks that an ending survives.
const MAX_HOOK_FAILURES: i64 = 20;

/// The end of an attempt, as its holder says it.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    Complete(Option<String>),
    Fail(ErrorClass, Option<i64>),
    Yield,
    Interrupt,
    Snooze(i64),
    Release,
    Cancelled,
}

/// Some text of the crate's own.
pub const ANY: &str = "*";
pub const ERROR: &str = "boom";

/// Claim order: the time that a job has been due, a level of priority being a minute.
pub fn order(a: &JobRecord, b: &JobRecord) -> Ordering {
    let place = |job: &JobRecord| (job.run_at + job.priority * 60_000, job.created_at);
    let name = |job: &JobRecord| (job.id.as_uuid().is_some(), job.id.to_string());
    place(a).cmp(&place(b)).then_with(|| name(a).cmp(&name(b)))
}

pub fn phase(job: &JobRecord, now: i64) -> Phase {
    match job.status {
        Status::Pending if job.run_at <= now => Phase::Ready,
        Status::Pending if job.attempts == 0 => Phase::Scheduled,
        Status::Pending => Phase::Retrying,
        Status::Running if job.lease_until.is_some_and(|until| until >= now) => Phase::Leased,
        Status::Running => Phase::Orphaned,
        Status::Completed => Phase::Completed,
        Status::Cancelled => Phase::Cancelled,
        Status::Failed if job.parked_at.is_some() => Phase::Parked,
        Status::Failed => Phase::Dead,
    }
}

/// With draws of a half, three quarters of the whole delay.
fn backoff(base: i64, cap: i64, n: i64) -> i64 {
    let whole = (0..n - 1).fold(base, |delay, _| (delay * 2).min(cap)).min(cap);
    (3 * whole + 2) / 4
}

fn wait(job: &mut JobRecord, run_at: i64, now: i64) {
    job.status = Status::Pending;
    job.run_at = run_at;
    job.lease_until = None;
    job.updated_at = now;
}

fn end(job: &mut JobRecord, status: Status, now: i64) {
    job.status = status;
    job.lease_until = None;
    job.finished_at = Some(now);
    job.updated_at = now;
}

fn fail(job: &mut JobRecord, verdict: Verdict, now: i64) {
    end(job, Status::Failed, now);
    job.verdict = Some(verdict);
    let parks = matches!(verdict, Verdict::Poison | Verdict::Orphaned);
    job.parked_at = parks.then_some(now);
}

fn give_back(job: &mut JobRecord) {
    job.attempts = (job.attempts - 1).max(0);
}

pub fn claimed(job: &mut JobRecord, facts: &Kind, owner: &str, now: i64) {
    job.status = Status::Running;
    job.epoch += 1;
    job.attempts += 1;
    job.owner = Some(owner.into());
    job.lease_until = Some(now + facts.lease);
    job.heartbeat_at = Some(now);
    job.started_at = job.started_at.or(Some(now));
    job.updated_at = now;
}

pub fn renewed(job: &mut JobRecord, facts: &Kind, now: i64) {
    job.lease_until = Some(now + facts.lease);
    job.heartbeat_at = Some(now);
    job.updated_at = now;
}

/// A write that saves nothing.
pub fn touched(job: &mut JobRecord, facts: &Kind, now: i64) {
    job.updated_at = now;
    if job.lease_until.is_some_and(|until| until > now) {
        renewed(job, facts, now);
    }
}

pub fn saved(job: &mut JobRecord, facts: &Kind, now: i64) {
    touched(job, facts, now);
    job.attempts = 1;
    job.stalls = 0;
    job.rate_limit_hits = 0;
    job.last_committed_at = Some(now);
}

/// An attempt's end by its holder; `committed` says that it had saved something.
pub fn settled(job: &mut JobRecord, facts: &Kind, how: &End, committed: bool, now: i64) {
    if let (Some(_), false) = (job.cancel_requested_at, matches!(how, End::Complete(_))) {
        end(job, Status::Cancelled, now);
        job.verdict = None;
        if matches!(how, End::Fail(..)) {
            job.last_error = Some(ERROR.into());
        }
    } else {
        match how {
            End::Complete(_) => {
                end(job, Status::Completed, now);
                (job.verdict, job.error_class, job.error_code) = (None, None, None);
                job.rate_limit_hits = 0;
            }
            End::Fail(class, floor) => failed(job, facts, *class, floor.unwrap_or(0), now),
            End::Yield => {
                job.seq += 1;
                job.stalls += i64::from(!committed);
                give_back(job);
                if !committed && job.stalls >= facts.max_stalls {
                    job.last_error = Some(ANY.into());
                    fail(job, Verdict::Poison, now);
                } else {
                    wait(job, now, now);
                }
            }
            End::Interrupt => {
                job.seq += 1;
                job.interruptions += 1;
                give_back(job);
                wait(job, now, now);
            }
            End::Snooze(ms) => {
                give_back(job);
                wait(job, now + ms, now);
            }
            End::Release => {
                give_back(job);
                wait(job, now, now);
            }
            End::Cancelled => {
                end(job, Status::Cancelled, now);
                job.verdict = None;
            }
        }
    }
    if !job.status.is_live() {
        job.settled_epoch = Some(job.epoch);
    }
}

fn failed(job: &mut JobRecord, facts: &Kind, class: ErrorClass, floor: i64, now: i64) {
    job.error_class = Some(class);
    job.error_code = None;
    job.last_error = Some(ERROR.into());
    match class {
        ErrorClass::Terminal => fail(job, Verdict::Terminal, now),
        ErrorClass::Unrecoverable => fail(job, Verdict::Unrecoverable, now),
        ErrorClass::RateLimited => {
            job.rate_limit_hits += 1;
            job.rate_limited_at = Some(now);
            if job.rate_limit_hits > facts.max_hits {
                fail(job, Verdict::RateLimitExhausted, now);
            } else {
                give_back(job);
                let delay = backoff(30_000, 900_000, job.rate_limit_hits).max(floor);
                wait(job, now + delay, now);
            }
        }
        ErrorClass::Transient if job.attempts < job.max_attempts => {
            let delay = backoff(1_000, 60_000, job.attempts).max(floor);
            wait(job, now + delay, now);
        }
        ErrorClass::Transient => fail(job, Verdict::AttemptsExhausted, now),
    }
}

/// Whether a settle by an attempt that has ended answers as the first one did.
pub fn is_repeat(job: &JobRecord, how: &End, epoch: i64) -> bool {
    let poison = job.verdict == Some(Verdict::Poison);
    job.settled_epoch == Some(epoch)
        && match how {
            End::Complete(_) => job.status == Status::Completed,
            _ if job.cancel_requested_at.is_some() => job.status == Status::Cancelled,
            End::Fail(..) => job.status == Status::Failed && !poison,
            End::Yield => job.status == Status::Failed && poison,
            End::Cancelled => job.status == Status::Cancelled,
            End::Interrupt | End::Snooze(_) | End::Release => false,
        }
}

pub fn cancelled(job: &mut JobRecord, by: &str, now: i64) {
    if job.cancel_requested_at.is_none() {
        job.cancel_requested_at = Some(now);
        job.cancel_requested_by = Some(by.to_owned());
        job.updated_at = now;
    }
    if job.status == Status::Pending {
        end(job, Status::Cancelled, now);
    }
}

/// What the history says of an attempt that its holder has ended, if it says anything.
pub fn outcome(before: &JobRecord, after: &JobRecord, how: &End) -> Option<AttemptOutcome> {
    let poison = after.verdict == Some(Verdict::Poison);
    Some(match (how, after.status) {
        (End::Cancelled, _) | (_, Status::Cancelled) => AttemptOutcome::Cancelled,
        // It has simply succeeded at the first try.
        (End::Complete(_), _) if before.epoch == 1 => return None,
        (End::Complete(_), _) => AttemptOutcome::Completed,
        (End::Fail(..), Status::Failed) => AttemptOutcome::Failed,
        (End::Fail(ErrorClass::RateLimited, _), _) => AttemptOutcome::Deferred,
        (End::Fail(..), _) => AttemptOutcome::Retried,
        (End::Yield, _) if poison => AttemptOutcome::Poison,
        (End::Yield, _) => AttemptOutcome::Yielded,
        (End::Interrupt, _) => AttemptOutcome::Interrupted,
        (End::Snooze(_), _) => AttemptOutcome::Snoozed,
        (End::Release, _) => AttemptOutcome::Released,
    })
}

/// Whether an ending is decided that has not landed, for want of a hook that agrees.
pub fn is_owed(job: &JobRecord) -> bool {
    let decided = job.verdict.is_some() || job.cancel_requested_at.is_some();
    let unheld =
        job.status == Status::Pending || job.status == Status::Running && job.lease_until.is_none();
    decided && unheld
}

/// Ends a job that is owed its ending: a cancel goes before a verdict.
pub fn finished(job: &mut JobRecord, now: i64) -> AttemptOutcome {
    match job.verdict {
        Some(verdict) if job.cancel_requested_at.is_none() => {
            fail(job, verdict, now);
            AttemptOutcome::Failed
        }
        _ => {
            end(job, Status::Cancelled, now);
            job.verdict = None;
            AttemptOutcome::Cancelled
        }
    }
}

/// Whether the next failure of its hooks is the last that its ending waits for.
pub fn hooks_spent(job: &JobRecord) -> bool {
    job.hook_failures + 1 >= MAX_HOOK_FAILURES
}

/// The decision `intended` stays on the row, for a hook has not agreed.
pub fn owed(job: &mut JobRecord, intended: JobRecord, now: i64) {
    let cancels = intended.status == Status::Cancelled;
    let (status, failures) = (job.status, job.hook_failures);
    *job = intended;
    (job.status, job.hook_failures) = (status, failures);
    (job.finished_at, job.settled_epoch, job.hooked_at) = (None, None, None);
    (job.lease_until, job.parked_at) = (None, None);
    if cancels && job.cancel_requested_at.is_none() {
        job.cancel_requested_at = Some(now);
        job.cancel_requested_by = Some("handler".into());
    }
    job.updated_at = now;
}

pub fn is_lost(job: &JobRecord, longest: i64, now: i64) -> bool {
    let until = job.lease_until.unwrap_or(i64::MIN);
    job.status == Status::Running && (until < now || until > now + longest + 60_000)
}

/// A running row whose lease is lost.
pub fn lost(job: &mut JobRecord, facts: &Kind, committed: bool, now: i64) -> AttemptOutcome {
    if job.cancel_requested_at.is_some() {
        return finished(job, now);
    }
    let verdict = if job.attempts >= job.max_attempts {
        Verdict::AttemptsExhausted
    } else if facts.parks {
        Verdict::Orphaned
    } else if job.stalls >= facts.max_stalls {
        Verdict::Poison
    } else {
        let delay = (0..job.stalls).fold(facts.orphan_base, |delay, _| (delay * 2).min(600_000));
        job.stalls += i64::from(!committed);
        job.redrives += 1;
        job.epoch += 1;
        wait(job, now + delay, now);
        return AttemptOutcome::Lost;
    };
    job.last_error = Some(ANY.into());
    fail(job, verdict, now);
    AttemptOutcome::Lost
}

pub fn redriven(job: &mut JobRecord, preset: Preset, now: i64) {
    wait(job, now, now);
    job.epoch += 1;
    job.redrives += 1;
    (job.finished_at, job.settled_epoch, job.hooked_at, job.result) = (None, None, None, None);
    (job.verdict, job.error_class, job.error_code, job.parked_at) = (None, None, None, None);
    (job.cancel_requested_at, job.cancel_requested_by) = (None, None);
    if preset == Preset::Requeue {
        if job.attempts >= job.max_attempts {
            job.max_attempts = job.attempts + 1;
        }
        return;
    }
    (job.attempts, job.stalls, job.rate_limit_hits, job.rate_limited_at) = (0, 0, 0, None);
    job.hook_failures = 0;
    if preset == Preset::Restart {
        job.seq += 1;
        (job.progress_done, job.progress_total) = (None, None);
    }
}
