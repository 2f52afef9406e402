//! The facts about a kind that every process on the database shares, as the table of kinds keeps
//! them.

use serde::{Deserialize, Serialize};

use crate::error::Refusal;

/// What a kind is stored as: its settings in numbers, as the table of kinds keeps them.
///
/// The facts decide about a row whichever process looks at it. All times are milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Facts {
    pub(crate) queue: String,
    pub(crate) lease: i64,
    pub(crate) max_attempts: i64,
    pub(crate) retry: RetryFacts,
    pub(crate) defer: DeferFacts,
    pub(crate) orphan: Orphan,
    pub(crate) orphan_backoff: Backoff,
    pub(crate) max_stalls: i64,
    pub(crate) timeout: i64,
    pub(crate) slice: i64,
    pub(crate) concurrency: Option<i64>,
    pub(crate) rate: Option<Rate>,
    pub(crate) provider: Option<String>,
    pub(crate) hooks: bool,
    pub(crate) veto: bool,
    pub(crate) keep: Retention,
    pub(crate) delete_on_success: bool,
}

impl Default for Facts {
    /// A bare row's numbers.
    fn default() -> Self {
        Self {
            queue: "default".into(),
            lease: 30_000,
            max_attempts: 5,
            retry: RetryFacts::default(),
            defer: DeferFacts::default(),
            orphan: Orphan::Requeue,
            orphan_backoff: Backoff::default(),
            max_stalls: 3,
            timeout: 600_000,
            slice: 300_000,
            concurrency: None,
            rate: None,
            provider: None,
            hooks: false,
            veto: false,
            keep: Retention::default(),
            delete_on_success: false,
        }
    }
}

/// How a delay grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Strategy {
    Exponential,
    Fixed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RetryFacts {
    pub(crate) strategy: Strategy,
    pub(crate) base: i64,
    pub(crate) cap: i64,
    pub(crate) jitter: bool,
}

impl Default for RetryFacts {
    fn default() -> Self {
        Self { strategy: Strategy::Exponential, base: 1_000, cap: 60_000, jitter: true }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DeferFacts {
    pub(crate) base: i64,
    pub(crate) cap: i64,
    pub(crate) max_hits: i64,
}

impl Default for DeferFacts {
    fn default() -> Self {
        Self { base: 30_000, cap: 900_000, max_hits: 10 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Backoff {
    pub(crate) base: i64,
    pub(crate) cap: i64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: 0, cap: 600_000 }
    }
}

/// So many starts in a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rate {
    pub(crate) starts: i64,
    pub(crate) window: i64,
}

/// How long ended jobs are kept, where the kind says so, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Retention {
    pub(crate) completed: Option<i64>,
    pub(crate) cancelled: Option<i64>,
    pub(crate) failed: Option<i64>,
}

/// What becomes of a job whose holder was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Orphan {
    /// It waits for another attempt.
    Requeue,
    /// It is parked for a person to look at.
    Park,
}

pub(crate) const MAX_ATTEMPTS: i64 = 1_000_000;

impl Facts {
    /// The first field out of its range.
    pub(crate) fn check(&self, kind: &str) -> Result<(), Refusal> {
        crate::validate::name("kind", kind)?;
        crate::validate::name("queue", &self.queue)?;
        let at_least = |field: &'static str, value: i64, least: i64| {
            let rule = format!("at least {least}; set it in the settings of kind {kind}");
            if value < least { Err(Refusal::invalid(field, value, rule)) } else { Ok(()) }
        };
        at_least("lease", self.lease, 1)?;
        at_least("max_attempts", self.max_attempts, 1)?;
        if self.max_attempts > MAX_ATTEMPTS {
            let rule = format!("at most {MAX_ATTEMPTS}; set it in the settings of kind {kind}");
            return Err(Refusal::invalid("max_attempts", self.max_attempts, rule));
        }
        at_least("retry.base", self.retry.base, 0)?;
        at_least("retry.cap", self.retry.cap, 0)?;
        at_least("defer.base", self.defer.base, 0)?;
        at_least("defer.cap", self.defer.cap, 0)?;
        at_least("defer.max_hits", self.defer.max_hits, 0)?;
        at_least("orphan_backoff.base", self.orphan_backoff.base, 0)?;
        at_least("orphan_backoff.cap", self.orphan_backoff.cap, 0)?;
        at_least("max_stalls", self.max_stalls, 1)?;
        at_least("timeout", self.timeout, 0)?;
        at_least("slice", self.slice, 1)?;
        at_least("concurrency", self.concurrency.unwrap_or(1), 1)?;
        if let Some(rate) = self.rate {
            at_least("rate.starts", rate.starts, 1)?;
            at_least("rate.window", rate.window, 1)?;
        }
        Ok(())
    }
}
