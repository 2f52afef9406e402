//! A job to enqueue, and what enqueuing it came to.

use std::time::Duration;

use crate::job::{By, Job, JobId};
use crate::json::Json;
use crate::kind::Settings;
use crate::record::JobRecord;

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
///
/// Specified in SEMANTICS.md, “Enqueue and keys” and “Validation”.
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
    pub(crate) keep_key_for: Option<Duration>,
    pub(crate) unique_for: Option<Duration>,
    pub(crate) lock_key: Option<String>,
    pub(crate) limit_key: Option<String>,
    pub(crate) tenant: Option<String>,
    pub(crate) organization: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) subject_type: Option<String>,
    pub(crate) subject_id: Option<String>,
    pub(crate) meta: Option<Json>,
    pub(crate) trace_context: Option<String>,
    pub(crate) copy_of: Option<JobId>,
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
            keep_key_for: None,
            unique_for: None,
            lock_key: None,
            limit_key: None,
            tenant: None,
            organization: None,
            reason: None,
            subject_type: None,
            subject_id: None,
            meta: None,
            trace_context: None,
            copy_of: None,
        }
    }

    /// A job like one that has ended.
    pub(crate) fn like(old: &JobRecord) -> Self {
        Self {
            priority: old.priority,
            max_attempts: Some(old.max_attempts),
            dedup_key: old.dedup_key.clone(),
            lock_key: old.lock_key.clone(),
            limit_key: old.limit_key.clone(),
            tenant: old.tenant.clone(),
            organization: old.organization.clone(),
            reason: Some("redrive".to_owned()),
            subject_type: old.subject_type.clone(),
            subject_id: old.subject_id.clone(),
            meta: old.meta.clone(),
            trace_context: old.trace_context.clone(),
            copy_of: Some(old.id.clone()),
            ..Self::raw(&*old.kind, old.payload.clone())
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

    /// The idempotency key stays taken for so long from its enqueue, also where the job's row is
    /// deleted before.
    #[must_use]
    pub fn keep_key_for(mut self, period: Duration) -> Self {
        self.keep_key_for = Some(period);
        self
    }

    /// The dedup key stays taken for so long from its enqueue, also where the job ends before:
    /// at most one such job in the period.
    #[must_use]
    pub fn unique_for(mut self, period: Duration) -> Self {
        self.unique_for = Some(period);
        self
    }

    /// Anything else to keep beside it, as JSON.
    #[must_use]
    pub fn meta(mut self, meta: Json) -> Self {
        self.meta = Some(meta);
        self
    }
}

/// A dedup key for “one live job of this kind about this subject”: `kind:type:id`, with an empty
/// text for a part that is absent.
///
/// ```
/// let key = leasehold::dedup_key_for("invoice", Some("order"), Some("42"));
/// assert_eq!(key, "invoice:order:42");
/// ```
#[must_use]
pub fn dedup_key_for(kind: &str, subject_type: Option<&str>, subject_id: Option<&str>) -> String {
    format!("{kind}:{}:{}", subject_type.unwrap_or_default(), subject_id.unwrap_or_default())
}
