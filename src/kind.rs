//! The settings of a kind, as the application gives them.

use std::time::Duration;

use crate::facts::{
    Backoff, DeferFacts, Facts, MAX_ATTEMPTS, Orphan, Rate, Retention, RetryFacts, Strategy,
};

/// How often and when a failed attempt is tried again. See SEMANTICS.md, “Failing and retrying”.
///
/// ```
/// use leasehold::Retry;
/// use std::time::Duration;
///
/// const PATIENT: Retry = Retry::exponential(Duration::from_secs(5))
///     .cap(Duration::from_secs(300))
///     .attempts(8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    strategy: Strategy,
    base: Duration,
    cap: Duration,
    jitter: bool,
    attempts: i64,
}

impl Retry {
    /// 20 attempts, one second doubling up to an hour, jittered: several hours in all.
    #[must_use]
    pub const fn standard() -> Self {
        Self::exponential(Duration::from_secs(1)).cap(Duration::from_hours(1)).attempts(20)
    }

    /// Delays that start at `base` and double, up to an hour; jittered; 20 attempts.
    #[must_use]
    pub const fn exponential(base: Duration) -> Self {
        Self {
            strategy: Strategy::Exponential,
            base,
            cap: Duration::from_hours(1),
            jitter: true,
            attempts: 20,
        }
    }

    /// The same delay each time; jittered; 20 attempts.
    #[must_use]
    pub const fn fixed(delay: Duration) -> Self {
        Self { strategy: Strategy::Fixed, base: delay, cap: delay, jitter: true, attempts: 20 }
    }

    /// No second attempt.
    #[must_use]
    pub const fn never() -> Self {
        Self::fixed(Duration::from_secs(1)).attempts(1)
    }

    /// The longest delay.
    #[must_use]
    pub const fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// Attempts in all, 1 to 1 000 000.
    #[must_use]
    pub const fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts as i64;
        self
    }

    /// Delays exactly as computed, instead of a draw between a half and the whole.
    #[must_use]
    pub const fn no_jitter(mut self) -> Self {
        self.jitter = false;
        self
    }
}

/// The settings of a kind. What they do is specified in SEMANTICS.md.
///
/// ```
/// use leasehold::{Retry, Settings};
/// use std::time::Duration;
///
/// let settings = Settings::new()
///     .queue("mail")
///     .lease(Duration::from_secs(60))
///     .retry(Retry::standard().attempts(5))
///     .concurrency(4);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Settings {
    pub(crate) facts: Facts,
    /// Whoever gives them has said which hooks the kind has, or that it has none.
    pub(crate) says_hooks: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

/// The first field that is given, at whatever depth, but not known.
fn unknown(given: &serde_json::Value, known: &serde_json::Value) -> Option<String> {
    let (given, known) = (given.as_object()?, known.as_object()?);
    given.iter().find_map(|(field, value)| match known.get(field) {
        None => Some(field.clone()),
        Some(known) => unknown(value, known).map(|inner| format!("{field}.{inner}")),
    })
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl Settings {
    /// The standard settings: queue `default`, a lease of 30 s, [`Retry::standard`], a time
    /// limit of 10 min.
    pub fn new() -> Self {
        Self { facts: Facts::default(), says_hooks: false }.retry(Retry::standard())
    }

    /// Settings as they stand in the table of kinds: what is not named has a bare row's
    /// value (5 attempts, one second doubling to a minute).
    ///
    /// # Errors
    ///
    /// A text that says which field does not fit.
    pub fn from_json(json: &crate::Json) -> Result<Self, String> {
        let facts: Facts = json.to()?;
        let known = serde_json::to_value(&facts).map_err(|error| error.to_string())?;
        match unknown(&json.to()?, &known) {
            Some(field) => Err(format!("a kind has no setting {field:?}")),
            None => Ok(Self { facts, says_hooks: false }),
        }
    }

    /// The queue that its jobs wait in.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.facts.queue = queue.into();
        self
    }

    /// How long a holder that is not heard of keeps the job; renewed every third of it.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.facts.lease = ms(lease);
        self
    }

    /// Attempts and the delays between them.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.facts.max_attempts = retry.attempts;
        self.facts.retry = RetryFacts {
            strategy: retry.strategy,
            base: ms(retry.base),
            cap: ms(retry.cap),
            jitter: retry.jitter,
        };
        self
    }

    /// The delays after a rate limit, which cost no attempt, and how many are allowed.
    pub fn defer(mut self, base: Duration, cap: Duration, max_hits: u32) -> Self {
        self.facts.defer = DeferFacts { base: ms(base), cap: ms(cap), max_hits: max_hits.into() };
        self
    }

    /// What becomes of a job whose holder was lost.
    pub fn orphan(mut self, orphan: Orphan) -> Self {
        self.facts.orphan = orphan;
        self
    }

    /// The wait before a job whose holder was lost runs again, doubling with each loss; at
    /// once unless set. 15 s and 10 min are usual for heavy kinds.
    pub fn orphan_backoff(mut self, base: Duration, cap: Duration) -> Self {
        self.facts.orphan_backoff = Backoff { base: ms(base), cap: ms(cap) };
        self
    }

    /// How many attempts in a row may be lost or handed back without progress before the job
    /// is parked as poison; 3 unless set.
    pub fn max_stalls(mut self, stalls: u32) -> Self {
        self.facts.max_stalls = stalls.into();
        self
    }

    /// No number of lost holders ends the job: for work that is killed on purpose.
    pub fn survives_any_loss(mut self) -> Self {
        self.facts.max_attempts = MAX_ATTEMPTS;
        self.facts.max_stalls = i64::from(u32::MAX);
        self
    }

    /// The time limit of an attempt: at the limit its signal fires, a grace later it fails.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.facts.timeout = ms(timeout);
        self
    }

    /// No time limit.
    pub fn no_timeout(mut self) -> Self {
        self.facts.timeout = 0;
        self
    }

    /// How long an attempt works before `should_yield` says to hand back; 5 min unless set.
    pub fn slice(mut self, budget: Duration) -> Self {
        self.facts.slice = ms(budget);
        self
    }

    /// How many may run at a time, over all processes on the database.
    pub fn concurrency(mut self, limit: u32) -> Self {
        self.facts.concurrency = Some(limit.into());
        self
    }

    /// How many may start in any window of this length, over all processes.
    pub fn rate(mut self, starts: u32, window: Duration) -> Self {
        self.facts.rate = Some(Rate { starts: starts.into(), window: ms(window) });
        self
    }

    /// The provider it depends on: a rate limit of one job closes the gate for all kinds
    /// behind the same provider.
    pub fn provider(mut self, provider: impl Into<String>) -> Self {
        self.facts.provider = Some(provider.into());
        self
    }

    /// A job that has completed goes with the next pass of the reaper, a second later at most.
    /// Whoever waits for it in this process hears of its end; in another it may be gone by then.
    pub fn delete_on_success(mut self) -> Self {
        self.facts.delete_on_success = true;
        self
    }

    /// How long completed and cancelled, and how long failed jobs are kept.
    pub fn keep(mut self, ended: Duration, failed: Duration) -> Self {
        let ended = Some(ms(ended));
        self.facts.keep =
            Retention { completed: ended, cancelled: ended, failed: Some(ms(failed)) };
        self
    }
}
