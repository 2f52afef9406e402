//! A job's payload type, and what a job is called.
//!
//! The words are those of SEMANTICS.md: a *job* is one row, a *kind* names its handler, an
//! *attempt* is one run under one claim.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::handler::JobError;
use crate::kind::Settings;
use crate::new_job::NewJob;
pub use crate::words::{
    Action, AttemptOutcome, By, ErrorClass, Phase, Preset, State, Status, Verdict, Waiting,
};

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

    /// How an error of the kind's handler is to be treated; as the handler says unless overridden.
    ///
    /// ```
    /// # use leasehold::{ErrorClass, Job, JobError};
    /// # use std::io::ErrorKind;
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Import;
    /// impl Job for Import {
    ///     const KIND: &'static str = "import";
    ///
    ///     fn classify(error: JobError) -> JobError {
    ///         match error.find::<std::io::Error>().map(std::io::Error::kind) {
    ///             Some(ErrorKind::NotFound) => error.with_class(ErrorClass::Terminal),
    ///             _ => error,
    ///         }
    ///     }
    /// }
    /// # let missing = JobError::from(std::io::Error::from(ErrorKind::NotFound));
    /// # assert_eq!(Import::classify(missing).class(), ErrorClass::Terminal);
    /// ```
    #[must_use]
    fn classify(error: JobError) -> JobError {
        error
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

impl From<&String> for JobId {
    fn from(text: &String) -> Self {
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

impl Serialize for JobId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::new(&text))
    }
}
