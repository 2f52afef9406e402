//! The vocabulary: what a job is called, the states it can be in, and what is shown of it.
//!
//! The words are those of the semantics: a *job* is one row, a *kind* names its handler, an
//! *attempt* is one run under one claim.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::json::Json;
use crate::kind::Settings;

/// A job's payload type: the data, the name of its kind, and the kind's settings.
///
/// The kind lives on the type, so what is enqueued and what is handled cannot disagree.
///
/// ```
/// use leasehold::{Job, Retry, Settings};
/// use serde::{Deserialize, Serialize};
/// use std::time::Duration;
///
/// #[derive(Serialize, Deserialize)]
/// struct Welcome { email: String }
///
/// impl Job for Welcome {
///     const KIND: &'static str = "welcome";
///     fn settings() -> Settings {
///         Settings::new().retry(Retry::exponential(Duration::from_secs(2)).attempts(5))
///     }
/// }
///
/// let later = Welcome { email: "ada@example.com".into() }
///     .after(Duration::from_secs(60))
///     .dedup_key("welcome:ada");
/// assert_eq!(later.kind(), "welcome");
/// ```
pub trait Job: Serialize + DeserializeOwned + 'static {
    /// The name of the kind: `[a-z0-9][a-z0-9_.-]{0,99}`.
    const KIND: &'static str;

    /// The kind's settings; [`Settings::new`] unless overridden.
    fn settings() -> Settings {
        Settings::new()
    }

    /// This payload as a job to enqueue, due at once.
    fn into_new(self) -> NewJob
    where
        Self: Sized,
    {
        NewJob::from(self)
    }

    /// This payload as a job to enqueue that is due `delay` from its enqueue.
    fn after(self, delay: Duration) -> NewJob
    where
        Self: Sized,
    {
        NewJob::from(self).delay(delay)
    }
}

/// A job's identity: a UUIDv7 that the runtime minted, or any text the caller gave.
///
/// Ids that are given cost more the more random they are, as rows are kept in id order.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(Repr);

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Repr {
    Given(Arc<str>),
    Minted(Uuid),
}

impl JobId {
    /// An id from its text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        match Uuid::try_parse(text) {
            Ok(uuid) if uuid.hyphenated().to_string() == text => Self(Repr::Minted(uuid)),
            _ => Self(Repr::Given(text.into())),
        }
    }

    pub(crate) fn minted(uuid: Uuid) -> Self {
        Self(Repr::Minted(uuid))
    }

    /// The UUID, for an id in a UUID's canonical form.
    #[must_use]
    pub fn as_uuid(&self) -> Option<Uuid> {
        match &self.0 {
            Repr::Minted(uuid) => Some(*uuid),
            Repr::Given(_) => None,
        }
    }

    pub(crate) fn given(&self) -> Option<&str> {
        match &self.0 {
            Repr::Minted(_) => None,
            Repr::Given(text) => Some(text),
        }
    }
}

impl From<&str> for JobId {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for JobId {
    fn from(text: String) -> Self {
        Self::new(&text)
    }
}

impl From<&JobId> for JobId {
    fn from(id: &JobId) -> Self {
        id.clone()
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Given(text) => f.write_str(text),
            Repr::Minted(uuid) => uuid.hyphenated().fmt(f),
        }
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

/// Declares an enum whose values are words: in Rust, in SQL, in JSON and on the command line.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word for it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            /// The value with this word.
            #[must_use]
            pub fn parse(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// The stored status of a job.
    Status {
        /// Waiting, due or not.
        Pending = "pending",
        /// Held by an attempt, or by nobody since its lease was lost.
        Running = "running",
        /// Ended with a result.
        Completed = "completed",
        /// Ended without one.
        Failed = "failed",
        /// Ended because somebody asked.
        Cancelled = "cancelled",
    }
}

impl Status {
    /// Pending or running.
    #[must_use]
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Pending | Self::Running)
    }
}

words! {
    /// What a job is doing, derived from its row and the time; never stored.
    Phase {
        /// Pending, not yet due, no attempt spent.
        Scheduled = "scheduled",
        /// Pending, not yet due, with attempts spent.
        Retrying = "retrying",
        /// Pending and due.
        Ready = "ready",
        /// Running under a lease that has not ended.
        Leased = "leased",
        /// Running, and its lease has ended.
        Orphaned = "orphaned",
        /// Ended with a result.
        Completed = "completed",
        /// Ended because somebody asked.
        Cancelled = "cancelled",
        /// Failed.
        Dead = "dead",
        /// Failed in a way that asks for a person.
        Parked = "parked",
    }
}

words! {
    /// Why a job failed for good.
    Verdict {
        /// Its attempts were used up.
        AttemptsExhausted = "attempts_exhausted",
        /// The handler said to stop.
        Terminal = "terminal",
        /// The handler said that it can never work; a redrive needs `force`.
        Unrecoverable = "unrecoverable",
        /// Its deferrals were used up.
        RateLimitExhausted = "rate_limit_exhausted",
        /// Too many attempts in a row ended without progress.
        Poison = "poison",
        /// Its holder was lost and the kind parks such jobs.
        Orphaned = "orphaned",
        /// No handler is registered for its kind.
        NoHandler = "no_handler",
        /// Its payload does not decode.
        Undecodable = "undecodable",
    }
}

words! {
    /// How an error is to be treated.
    ErrorClass {
        /// Try again.
        Transient = "transient",
        /// Stop now; a plain redrive is allowed.
        Terminal = "terminal",
        /// Stop now; a redrive needs `force`.
        Unrecoverable = "unrecoverable",
        /// Try later, at no cost of attempts.
        RateLimited = "rate_limited",
    }
}

words! {
    /// What an enqueue found in its place.
    By {
        /// A job with the same id.
        Id = "id",
        /// A job with the same idempotency key.
        IdempotencyKey = "idempotency_key",
        /// A live job with the same dedup key.
        DedupKey = "dedup_key",
    }
}

words! {
    /// Why a pending job is not running.
    Waiting {
        /// Its time has not come.
        Scheduled = "scheduled",
        /// Nobody has registered its kind.
        NotRegistered = "not_registered",
        /// Its queue is paused.
        QueuePaused = "queue_paused",
        /// Its kind is paused.
        KindPaused = "kind_paused",
        /// A limit on running jobs is full.
        LimitFull = "limit_full",
        /// A rate or a provider's gate is closed.
        RateLimited = "rate_limited",
        /// Nothing: a claim would take it when its turn comes.
        Next = "next",
    }
}

words! {
    /// What a redrive keeps of a job's history.
    Preset {
        /// Budgets and checkpoints stay; one more attempt is allowed.
        Requeue = "requeue",
        /// Budgets start anew, checkpoints stay.
        Redrive = "redrive",
        /// Budgets start anew, checkpoints and progress are dropped.
        Restart = "restart",
    }
}

/// What an enqueue did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// The job: the new one, or the one that was there.
    pub id: JobId,
    /// Which of the two it is.
    pub was: Was,
}

/// Whether an enqueue made a job or found one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Was {
    /// A new job.
    New,
    /// A job that was there, unchanged.
    Existing {
        /// What the two had in common.
        by: By,
    },
}

/// A job to enqueue.
///
/// Made from a payload ([`Job::into_new`], [`Job::after`], or any `impl Job` where a
/// `NewJob` is wanted), or from a kind's name with [`NewJob::raw`]. What is out of range is
/// refused by the enqueue, before anything is written, naming the field.
#[derive(Clone, Debug)]
pub struct NewJob {
    pub(crate) kind: String,
    pub(crate) payload: Result<Option<Json>, String>,
    pub(crate) defaults: Option<Settings>,
    pub(crate) id: Option<JobId>,
    pub(crate) run_at: Option<i64>,
    pub(crate) delay: Option<Duration>,
    pub(crate) priority: i64,
    pub(crate) max_attempts: Option<i64>,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) dedup_key: Option<String>,
    pub(crate) lock_key: Option<String>,
    pub(crate) limit_key: Option<String>,
    pub(crate) tenant: Option<String>,
    pub(crate) organization: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) subject_type: Option<String>,
    pub(crate) subject_id: Option<String>,
    pub(crate) meta: Option<Json>,
    pub(crate) trace_context: Option<String>,
}

impl<J: Job> From<J> for NewJob {
    fn from(job: J) -> Self {
        let mut new = Self::raw(J::KIND, None);
        new.payload = Json::of(&job).map(Some);
        new.defaults = Some(J::settings());
        new
    }
}

/// Declares the setters of [`NewJob`] that take a text.
macro_rules! text_setters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $name(mut self, value: impl Into<String>) -> Self {
            self.$name = Some(value.into());
            self
        })+
    };
}

impl NewJob {
    /// A job of a kind that this program may not know, with its payload as JSON text.
    #[must_use]
    pub fn raw(kind: impl Into<String>, payload: Option<Json>) -> Self {
        Self {
            kind: kind.into(),
            payload: Ok(payload),
            defaults: None,
            id: None,
            run_at: None,
            delay: None,
            priority: 0,
            max_attempts: None,
            idempotency_key: None,
            dedup_key: None,
            lock_key: None,
            limit_key: None,
            tenant: None,
            organization: None,
            reason: None,
            subject_type: None,
            subject_id: None,
            meta: None,
            trace_context: None,
        }
    }

    /// The name of its kind.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The job's id, once and for all: enqueuing the same id again answers the existing job.
    #[must_use]
    pub fn id(mut self, id: impl Into<JobId>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The first instant at which it may be claimed, in UTC milliseconds, 1970 to 2200.
    #[must_use]
    pub fn run_at(mut self, utc_ms: i64) -> Self {
        self.run_at = Some(utc_ms);
        self
    }

    /// Due this long after its enqueue; wins over [`NewJob::run_at`].
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Smaller goes first, -1000 to 1000; a level is worth a minute of waiting.
    #[must_use]
    pub fn priority(mut self, priority: i64) -> Self {
        self.priority = priority;
        self
    }

    /// Attempts allowed, 1 to 1 000 000; wins over the kind's.
    #[must_use]
    pub fn max_attempts(mut self, attempts: i64) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    text_setters! {
        /// A key that names this job as long as its row is kept: enqueuing it again answers
        /// the existing job, whatever became of it.
        idempotency_key,
        /// A key that names this job while it is live: enqueuing it again then answers it.
        dedup_key,
        /// A key that only one live job may hold: a second enqueue is refused.
        lock_key,
        /// A key whose jobs share a limit on how many run at a time.
        limit_key,
        /// Whom it is for.
        tenant,
        /// Whom it is for, below the tenant.
        organization,
        /// Why it was enqueued: an id of the registry of reasons.
        reason,
        /// What sort of thing it is about.
        subject_type,
        /// Which thing it is about.
        subject_id,
        /// A trace context to carry along, as text.
        trace_context,
    }

    /// Anything else to keep beside it, as JSON.
    #[must_use]
    pub fn meta(mut self, meta: Json) -> Self {
        self.meta = Some(meta);
        self
    }
}

/// A job as it stands: every column of its row but the claim token.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the columns are described once, in the semantics")]
pub struct JobRecord {
    pub id: JobId,
    pub kind: Arc<str>,
    pub queue: Arc<str>,
    pub tenant: Option<String>,
    pub organization: Option<String>,
    pub reason: Option<String>,
    pub subject_type: Option<String>,
    pub subject_id: Option<String>,
    pub meta: Option<Json>,
    pub trace_context: Option<String>,
    pub payload: Option<Json>,
    pub result: Option<Json>,
    pub progress_done: Option<i64>,
    pub progress_total: Option<i64>,
    pub idempotency_key: Option<String>,
    pub dedup_key: Option<String>,
    pub lock_key: Option<String>,
    pub limit_key: Option<String>,
    pub status: Status,
    pub phase: Phase,
    pub priority: i64,
    pub run_at: i64,
    pub created_at: i64,
    pub epoch: i64,
    pub owner: Option<Arc<str>>,
    pub lease_until: Option<i64>,
    pub heartbeat_at: Option<i64>,
    pub attempts: i64,
    pub max_attempts: i64,
    pub stalls: i64,
    pub seq: i64,
    pub redrives: i64,
    pub interruptions: i64,
    pub rate_limit_hits: i64,
    pub rate_limited_at: Option<i64>,
    pub hook_failures: i64,
    pub last_committed_at: Option<i64>,
    pub verdict: Option<Verdict>,
    pub error_class: Option<ErrorClass>,
    pub error_code: Option<String>,
    pub last_error: Option<String>,
    pub cancel_requested_at: Option<i64>,
    pub cancel_requested_by: Option<String>,
    pub parked_at: Option<i64>,
    pub settled_epoch: Option<i64>,
    pub hooked_at: Option<i64>,
    pub updated_at: i64,
    pub started_at: Option<i64>,
    pub finished_at: Option<i64>,
}

/// One attempt in a job's history: those that did not simply succeed at the first try.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The epoch that names it.
    pub epoch: i64,
    /// Who held it.
    pub owner: Option<Arc<str>>,
    /// When it was claimed, in UTC milliseconds.
    pub claimed_at: Option<i64>,
    /// When it ended, in UTC milliseconds.
    pub ended_at: i64,
    /// How it ended.
    pub outcome: String,
    /// The error, or what was refused.
    pub error: Option<String>,
}

/// How many jobs are in each phase, and how many wait by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "one field a phase, named as the phase")]
pub struct Counts {
    pub scheduled: i64,
    pub retrying: i64,
    pub ready: i64,
    pub leased: i64,
    pub orphaned: i64,
    pub completed: i64,
    pub cancelled: i64,
    pub dead: i64,
    pub parked: i64,
    /// Pending jobs by kind, where there are any.
    pub kinds: std::collections::BTreeMap<String, i64>,
}
