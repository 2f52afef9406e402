//! Answers and records, compared with what they must be.

use std::fmt::Debug;

use leasehold::{Counts, Error, JobRecord, Phase, Refusal, Status, StoreFault};

/// A command that was played as it should, or what was wrong.
pub type Played = Result<(), String>;

/// Why a call is refused or fails, without the texts of the application and of SQL.
#[derive(Clone, Debug, PartialEq)]
pub enum No {
    Refused(Refusal),
    /// A hook has not agreed; so often by now.
    Hook(i64),
    Vetoed,
    /// The answer was lost.
    Unknown,
    /// Application code was rolled back: it panicked, or broke the transaction.
    Application,
    Trouble(String),
}

pub fn plain<T>(answer: leasehold::Result<T>) -> Result<T, No> {
    answer.map_err(|error| match error {
        Error::Refused(Refusal::HookFailed { failures, .. }) => No::Hook(failures),
        Error::Refused(Refusal::Vetoed { .. }) => No::Vetoed,
        Error::Refused(refusal) => No::Refused(refusal),
        Error::Store(StoreFault::Unknown(_)) => No::Unknown,
        Error::Store(StoreFault::Panicked(_) | StoreFault::Application(_)) => No::Application,
        other => No::Trouble(other.to_string()),
    })
}

pub fn plain_transaction<T>(
    answer: Result<T, leasehold::TransactionError<Error>>,
) -> Result<T, String> {
    answer.map_err(|error| error.to_string())
}

pub fn same<T: Debug + PartialEq>(what: &str, seen: &T, expected: &T) -> Played {
    if seen == expected {
        return Ok(());
    }
    Err(format!("{what}: expected {expected:?}\n  and saw {seen:?}"))
}

/// The fields in which two records differ.
pub fn difference(expected: &JobRecord, seen: &JobRecord) -> String {
    let fields = |job: &JobRecord| -> Vec<String> {
        let text = format!("{job:#?}").replace("\n     ", "").replace("\n    )", ")");
        text.lines().map(|line| line.trim_matches([' ', ',']).replace("   ", "")).collect()
    };
    let (one, other) = (fields(expected), fields(seen));
    let differs = one.iter().zip(&other).filter(|(one, other)| one != other);
    let differs: Vec<_> =
        differs.map(|(one, other)| format!("expected {one}, saw {other}")).collect();
    format!("job {}: {}", expected.id, differs.join("; "))
}

pub fn digest(jobs: &[JobRecord]) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    format!("{jobs:?}").hash(&mut hasher);
    hasher.finish()
}

pub fn count(counts: &mut Counts, job: &JobRecord) {
    *match job.phase {
        Phase::Scheduled => &mut counts.scheduled,
        Phase::Retrying => &mut counts.retrying,
        Phase::Ready => &mut counts.ready,
        Phase::Leased => &mut counts.leased,
        Phase::Orphaned => &mut counts.orphaned,
        Phase::Completed => &mut counts.completed,
        Phase::Cancelled => &mut counts.cancelled,
        Phase::Dead => &mut counts.dead,
        Phase::Parked => &mut counts.parked,
    } += 1;
    if job.status == Status::Pending {
        *counts.kinds.entry(job.kind.to_string()).or_default() += 1;
    }
}
