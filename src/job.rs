//! The vocabulary: what a job is called, the states it can be in, and what is shown of it.
//!
//! The words are those of SEMANTICS.md: a *job* is one row, a *kind* names its handler, an
//! *attempt* is one run under one claim.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::kind::Settings;
use crate::new_job::NewJob;

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
///
/// Specified in SEMANTICS.md, “Statuses and phases”.
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
