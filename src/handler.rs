//! Handlers: what they return, and how typed ones become ones that the runtime can start.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde::Serialize;

use crate::context::Ctx;
use crate::hooks::BoxError;
use crate::job::{ErrorClass, Job, Verdict};
use crate::json::Json;
use crate::rules::settle::{Failure, Settle};
use crate::rules::text;
use crate::validate::{self, Sizes};
use crate::work::run::Run;

/// How an attempt ended well.
///
/// Specified in SEMANTICS.md, “Statuses and phases”.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The job is done, without a result.
    Done,
    /// The job is done; made by [`Outcome::done_with`].
    DoneWith(JobOutput),
    /// A slice is done; the job goes on with the next.
    Yield,
    /// Nothing to do yet; try again after this long, at no cost.
    Snooze(Duration),
    /// The handler stopped before the end, because it was asked to or by its own choice.
    Cancelled,
}

/// A result as JSON, or why it cannot be that.
#[derive(Clone, Debug)]
pub struct JobOutput(Result<Json, String>);

impl Outcome {
    /// The job is done, with a result. A result that JSON cannot hold fails the attempt.
    pub fn done_with<T: Serialize + ?Sized>(result: &T) -> Self {
        Self::DoneWith(JobOutput(Json::of(result)))
    }
}

impl Outcome {
    /// The job is done, with a result that is JSON already.
    pub(crate) fn done_as(json: Json) -> Self {
        Self::DoneWith(JobOutput(Ok(json)))
    }
}

/// What a handler returns.
pub type JobResult = Result<Outcome, JobError>;

/// An error of a handler. Made by `?` from anything that is `Into<Box<dyn Error + Send +
/// Sync>>`, and then tried again by the kind's policy.
///
/// ```
/// use leasehold::{JobError, JobResult, Outcome};
/// use std::time::Duration;
///
/// fn charge(status: u16) -> JobResult {
///     match status {
///         200 => Ok(Outcome::Done),
///         404 => Err(JobError::give_up("no such card")),
///         429 => Err(JobError::rate_limited("slow down", Some(Duration::from_secs(30)))),
///         500 => Err("the provider is down")?,
///         _ => Err(std::io::Error::other("odd answer").into()),
///     }
/// }
/// # assert!(charge(500).is_err());
/// ```
///
/// Specified in SEMANTICS.md, “Failing and retrying”.
#[derive(Clone)]
pub struct JobError {
    pub(crate) failure: Failure,
    /// What it was made of, for whoever classifies it.
    source: Option<Arc<BoxError>>,
}

impl PartialEq for JobError {
    fn eq(&self, other: &Self) -> bool {
        self.failure == other.failure
    }
}

impl Eq for JobError {}

impl From<Failure> for JobError {
    fn from(failure: Failure) -> Self {
        Self { failure, source: None }
    }
}

impl JobError {
    fn classed(class: ErrorClass, error: impl Into<BoxError>) -> Self {
        let error = error.into();
        let failure = Failure { class, ..Failure::transient(text::of(&error)) };
        Self { failure, source: Some(Arc::new(error)) }
    }

    /// Try again by the kind's policy; what `?` does.
    pub fn retry(error: impl Into<BoxError>) -> Self {
        Self::classed(ErrorClass::Transient, error)
    }

    /// Try again, no sooner than this long from now.
    pub fn retry_after(error: impl Into<BoxError>, wait: Duration) -> Self {
        let mut this = Self::retry(error);
        this.failure.retry_after = Some(millis(wait));
        this
    }

    /// Never try again.
    pub fn give_up(error: impl Into<BoxError>) -> Self {
        Self::classed(ErrorClass::Terminal, error)
    }

    /// Never try again; an operator needs `force` to do so.
    pub fn unrecoverable(error: impl Into<BoxError>) -> Self {
        Self::classed(ErrorClass::Unrecoverable, error)
    }

    /// Try later, at no cost of attempts; `wait` is the least time to wait.
    pub fn rate_limited(error: impl Into<BoxError>, wait: Option<Duration>) -> Self {
        let mut this = Self::classed(ErrorClass::RateLimited, error);
        this.failure.retry_after = wait.map(millis);
        this
    }

    /// A code of the application's own, kept beside the text.
    #[must_use]
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.failure.code = Some(code.into());
        self
    }

    /// The error's text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.failure.error
    }

    /// How it is to be treated.
    #[must_use]
    pub const fn class(&self) -> ErrorClass {
        self.failure.class
    }

    /// The same error, to be treated in another way; for [`Job::classify`].
    #[must_use]
    pub fn with_class(mut self, class: ErrorClass) -> Self {
        self.failure.class = class;
        self
    }

    /// The same error, with the least time to wait before the next try.
    #[must_use]
    pub fn with_wait(mut self, wait: Duration) -> Self {
        self.failure.retry_after = Some(millis(wait));
        self
    }

    /// The error of this type that it was made of, or one of that error's sources. An
    /// `anyhow::Error` hides the type of the error that it was made of until it is given a context.
    #[must_use]
    pub fn find<E: std::error::Error + 'static>(&self) -> Option<&E> {
        let mut error: &(dyn std::error::Error + 'static) = &***self.source.as_ref()?;
        loop {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            error = error.source()?;
        }
    }

    pub(crate) fn undecodable(kind: &str, error: &str) -> Self {
        let error = format!("the payload does not decode into the type of kind {kind}: {error}");
        Failure { verdict: Verdict::Undecodable, ..Failure::transient(error) }.into()
    }
}

fn millis(wait: Duration) -> i64 {
    i64::try_from(wait.as_millis()).unwrap_or(i64::MAX).min(validate::END_OF_TIME)
}

impl<E: Into<BoxError>> From<E> for JobError {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobError({}: {:?})", self.failure.class, self.failure.error)
    }
}

/// The settle that a handler's answer asks for.
pub(crate) fn settle_of(result: JobResult, sizes: Sizes) -> Settle {
    match result {
        Ok(Outcome::Done) => Settle::Complete(None),
        Ok(Outcome::DoneWith(JobOutput(Ok(json)))) => match validate::result(Some(&json), sizes) {
            Ok(()) => Settle::Complete(Some(json)),
            Err(refusal) => Settle::Fail(Failure::transient(refusal.to_string())),
        },
        Ok(Outcome::DoneWith(JobOutput(Err(error)))) => {
            let error = format!("the result cannot be JSON: {error}");
            Settle::Fail(Failure::transient(error))
        }
        Ok(Outcome::Yield) => Settle::Yield,
        Ok(Outcome::Snooze(wait)) => Settle::Snooze(millis(wait)),
        Ok(Outcome::Cancelled) => Settle::Cancelled,
        Err(error) => {
            let JobError { failure, source } = error;
            // What the application's error does when it goes is its own affair.
            let _panic = catch_unwind(AssertUnwindSafe(|| drop(source)));
            Settle::Fail(failure)
        }
    }
}

/// What a thread of handlers keeps: the state that the application's factory made for it.
#[derive(Default)]
pub(crate) struct Locals(RefCell<Option<Box<dyn Any>>>);

/// Makes, or clones, the application's state.
pub(crate) type StateSource<S> = Arc<dyn Fn() -> S + Send + Sync>;

impl Locals {
    fn state<S: Clone + 'static>(&self, source: &StateSource<S>) -> S {
        let mut slot = self.0.borrow_mut();
        if let Some(state) = slot.as_ref().and_then(|state| state.downcast_ref::<S>()) {
            return state.clone();
        }
        let state = source();
        *slot = Some(Box::new(state.clone()));
        state
    }
}

type Local<T> = Pin<Box<dyn Future<Output = T>>>;
type Sent<T> = Pin<Box<dyn Future<Output = T> + Send>>;

type LocalStart = dyn Fn(Arc<Run>, &Locals) -> Local<JobResult> + Send + Sync;
type BlockingStart = dyn Fn(Arc<Run>, &Locals) -> JobResult + Send + Sync;
type HostedStart = dyn Fn(Arc<Run>) -> Sent<JobResult> + Send + Sync;

/// How a kind's handler is started. Each catches the unwind of the call and of the future.
#[derive(Clone)]
pub(crate) enum Starter {
    /// A task on a thread of handlers; need not be `Send`.
    Local(Arc<LocalStart>),
    /// A thread of its own while it runs.
    Blocking(Arc<BlockingStart>),
    /// A task on the host's runtime.
    Hosted(tokio::runtime::Handle, Arc<HostedStart>),
}

pub(crate) fn panicked(panic: Box<dyn Any + Send>) -> JobResult {
    Err(Failure::transient(text::of_panic(panic)).into())
}

fn decode<J: Job>(run: &Run) -> Result<J, JobError> {
    let none = Json::stored("null".to_owned());
    let payload = run.claimed.payload.as_ref().unwrap_or(&none);
    payload.to().map_err(|error| JobError::undecodable(J::KIND, &error))
}

/// A handler whose future stays on its thread.
pub(crate) fn local<J, S, F, Fut>(handler: F, source: StateSource<S>) -> Starter
where
    J: Job,
    S: Clone + 'static,
    F: Fn(J, Ctx<S>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = JobResult> + 'static,
{
    let handler = Arc::new(handler);
    Starter::Local(Arc::new(move |run, locals| {
        // The state is made outside of the future, which may outlive this borrow.
        let state = catch_unwind(AssertUnwindSafe(|| locals.state(&source)));
        let handler = handler.clone();
        Box::pin(async move {
            let work = AssertUnwindSafe(async move {
                let state = state.map_err(|panic| JobError::retry(text::of_panic(panic)))?;
                let job = decode::<J>(&run)?;
                handler(job, Ctx::new(run, state)).await.map_err(J::classify)
            });
            work.catch_unwind().await.unwrap_or_else(panicked)
        })
    }))
}

/// A handler that blocks its thread.
pub(crate) fn blocking<J, S, F>(handler: F, source: StateSource<S>) -> Starter
where
    J: Job,
    S: Clone + 'static,
    F: Fn(J, Ctx<S>) -> JobResult + Send + Sync + 'static,
{
    Starter::Blocking(Arc::new(move |run, locals| {
        let work = AssertUnwindSafe(|| {
            let job = decode::<J>(&run)?;
            handler(job, Ctx::new(run, locals.state(&source))).map_err(J::classify)
        });
        catch_unwind(work).unwrap_or_else(panicked)
    }))
}

/// A handler in a process of its own.
pub(crate) fn process<J, F>(command: F) -> Starter
where
    J: Job,
    F: Fn(&J) -> Command + Send + Sync + 'static,
{
    Starter::Blocking(Arc::new(move |run, _| {
        let work = AssertUnwindSafe(|| {
            let job = decode::<J>(&run)?;
            let ctx = Ctx::new(run.clone(), ());
            let payload = run.claimed.payload.as_ref();
            crate::process::run(command(&job), payload, &ctx).map_err(J::classify)
        });
        catch_unwind(work).unwrap_or_else(panicked)
    }))
}

/// A handler that runs on the host's runtime.
pub(crate) fn hosted<J, S, F, Fut>(
    host: tokio::runtime::Handle,
    handler: F,
    source: StateSource<S>,
) -> Starter
where
    J: Job + Send,
    S: Clone + Send + Sync + 'static,
    F: Fn(J, Ctx<S>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = JobResult> + Send + 'static,
{
    let handler = Arc::new(handler);
    Starter::Hosted(
        host,
        Arc::new(move |run| {
            let (handler, source) = (handler.clone(), source.clone());
            Box::pin(async move {
                let work = AssertUnwindSafe(async move {
                    let job = decode::<J>(&run)?;
                    let state = source();
                    handler(job, Ctx::new(run, state)).await.map_err(J::classify)
                });
                work.catch_unwind().await.unwrap_or_else(panicked)
            })
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(error: impl Into<JobError>) -> JobError {
        error.into()
    }

    #[test]
    fn the_question_mark_takes_any_error() {
        assert_eq!(through("text").text(), "text");
        assert_eq!(through(String::from("owned")).text(), "owned");
        assert_eq!(through(anyhow::anyhow!("from anyhow")).text(), "from anyhow");
        assert_eq!(through(std::io::Error::other("io")).text(), "io");
        let boxed: BoxError = "boxed".into();
        assert_eq!(through(boxed).text(), "boxed");
        let same: JobError = through(JobError::give_up("kept"));
        assert_eq!(same.class(), ErrorClass::Terminal);
    }

    #[test]
    fn an_error_is_found_in_what_it_was_made_of() {
        #[derive(Debug)]
        struct Outer(std::io::Error);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("outer")
            }
        }
        impl std::error::Error for Outer {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        let error = through(Outer(std::io::Error::from(std::io::ErrorKind::TimedOut)));
        assert!(error.find::<Outer>().is_some());
        let io = error.find::<std::io::Error>().map(std::io::Error::kind);
        assert_eq!(io, Some(std::io::ErrorKind::TimedOut));
        assert!(error.find::<fmt::Error>().is_none());
        let any = anyhow::Error::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        assert!(through(any.context("fetching")).find::<std::io::Error>().is_some());
        let changed = error.with_class(ErrorClass::Terminal).with_wait(Duration::from_secs(1));
        assert_eq!(
            (changed.class(), changed.failure.retry_after),
            (ErrorClass::Terminal, Some(1_000))
        );
    }

    #[test]
    fn a_result_that_json_cannot_hold_is_a_failed_attempt() {
        let settle = settle_of(Ok(Outcome::done_with(&f64::NAN)), Sizes::default());
        assert!(matches!(settle, Settle::Fail(failure) if failure.error.contains("JSON")));
        let large = "x".repeat(1 << 20);
        let settle = settle_of(Ok(Outcome::done_with(&large)), Sizes::default());
        assert!(matches!(settle, Settle::Fail(failure) if failure.error.contains("result")));
    }
}
