//! What a handler is given: its job, and the writes that are its own while it holds it.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, FencedError, Refusal, SaveError, StoreFault};
use crate::faults::Point;
use crate::handler::JobError;
use crate::hooks::Tx;
use crate::job::JobId;
use crate::json::Json;
use crate::record::JobRecord;
use crate::store::holder::{Save, Saved};
use crate::store::messages::{Code, SaveOne};
use crate::store::questions::{Checkpoint, FindJob};
use crate::transaction::Rerun;
use crate::work::run::{Run, StopReason};

/// How often a write whose answer was lost is asked for again.
const ASK_AGAIN: u32 = 5;

tokio::task_local! {
    /// The step whose work runs, and in which run.
    static STEP: (u64, String);
}

/// A handler's side of its job.
///
/// Cheap to clone where the state is. Every write is fenced: it lands only while this attempt
/// holds the job, and at most once however often an answer was lost. In a blocking handler,
/// wrap a call in [`Ctx::block_on`].
///
/// Specified in SEMANTICS.md, “The lease and the fence”.
#[derive(Clone)]
pub struct Ctx<S = ()> {
    run: Arc<Run>,
    state: S,
}

impl<S> fmt::Debug for Ctx<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ctx")
            .field("job", &self.run.claimed.id)
            .field("epoch", &self.run.claimed.holder.epoch)
            .finish_non_exhaustive()
    }
}

impl<S> Ctx<S> {
    pub(crate) fn new(run: Arc<Run>, state: S) -> Self {
        Self { run, state }
    }

    pub(crate) fn run(&self) -> &Run {
        &self.run
    }

    /// The application's state.
    pub fn state(&self) -> &S {
        &self.state
    }

    /// The job's id.
    #[must_use]
    pub fn id(&self) -> &JobId {
        &self.run.claimed.id
    }

    /// The name of the job's kind.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.run.claimed.kind
    }

    /// Which attempt since the last progress this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> i64 {
        self.run.claimed.attempt
    }

    /// The epoch that names this attempt: rises with every claim of the job.
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.run.claimed.holder.epoch
    }

    /// The number of the slice, from 0: how often the job has handed back.
    #[must_use]
    pub fn seq(&self) -> i64 {
        self.run.claimed.seq
    }

    /// When the job was enqueued, in UTC milliseconds.
    #[must_use]
    pub fn created_at(&self) -> i64 {
        self.run.claimed.created_at
    }

    /// The runtime's time, in UTC milliseconds.
    #[must_use]
    pub fn now(&self) -> i64 {
        self.run.clock.now()
    }

    /// A key for effects outside of the database: `<id>:<n>`, where `n` rises with each save
    /// of the job's checkpoint, so that the same piece of work has the same key through
    /// crashes, retries and interruptions, and the next piece has a new one.
    ///
    /// All of a piece has one key: where it has several effects, give each a step of its own.
    /// Inside of [`Ctx::step`] the key is `<id>:<restarts>:<name>`, that of the step.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        let claimed = &self.run.claimed;
        let step = STEP.try_with(|(run, name)| (*run == self.run.number).then(|| name.clone()));
        match step {
            Ok(Some(name)) => format!("{}:{}:{name}", claimed.id, claimed.restarts),
            _ => format!("{}:{}", claimed.id, self.run.commits()),
        }
    }

    /// The job as it stands, with what was said when it was enqueued: its subject, its keys, its
    /// meta.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`] where it was deleted since; a [`StoreFault`].
    pub async fn job(&self) -> crate::Result<JobRecord> {
        let found = self.run.store.read(FindJob(self.id().clone())).await?;
        found.ok_or_else(|| Refusal::NotFound.into())
    }

    /// Ends after `duration` on the runtime's clock.
    pub async fn sleep(&self, duration: Duration) {
        let mut sleep = self.run.sleep(duration);
        let waiting = Waiting::new(&self.run.sleeping);
        (&mut sleep).await;
        // In this order: whoever looks sees the clock ring, or the handler go on.
        drop(waiting);
        drop(sleep);
    }

    /// Whether it is time to save and hand back: the slice's budget is spent, or somebody
    /// asked the handler to stop.
    #[must_use]
    pub fn should_yield(&self) -> bool {
        self.stop_reason().is_some() || self.run.running_for() >= self.run.claimed.facts.slice
    }

    /// Why the handler is asked to stop, if it is.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.run.reason()
    }

    /// Ends when the handler is asked to stop, and says why.
    pub async fn cancelled(&self) -> StopReason {
        let mut signal = self.run.signal();
        let waiting = Waiting::new(&self.run.listening);
        loop {
            if let Some(reason) = signal.borrow_and_update().clone() {
                drop(waiting);
                return reason;
            }
            if signal.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Waits for a future in a handler that blocks its thread.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        crate::block_on(future)
    }

    /// The job's checkpoint as last saved.
    ///
    /// # Errors
    ///
    /// A text where it does not decode into this type: the attempt fails, and what was saved
    /// stays.
    pub fn checkpoint<T: DeserializeOwned>(&self) -> Result<Option<T>, JobError> {
        let saved = self.run.state().checkpoint.clone();
        match saved {
            None => Ok(None),
            Some(json) => json.to().map(Some).map_err(|error| {
                JobError::retry(format!("the checkpoint does not decode: {error}"))
            }),
        }
    }

    /// Saves the job's checkpoint: durable progress.
    ///
    /// Specified in SEMANTICS.md, “Slices, checkpoints, steps, fenced writes”.
    ///
    /// # Errors
    ///
    /// [`SaveError::Lost`] where the job is somebody else's; trouble of the store; a value
    /// that cannot be saved.
    pub async fn save<T: Serialize + ?Sized>(&self, value: &T) -> Result<(), SaveError> {
        let value = Json::of(value).map_err(SaveError::Value)?;
        let save = Save::Checkpoint { key: String::new(), value: value.clone() };
        self.write(save, || None).await.map_err(save_error)?;
        self.run.state().checkpoint = Some(value);
        Ok(())
    }

    /// Says how far the work is; no commit.
    ///
    /// # Errors
    ///
    /// As [`Ctx::save`].
    pub async fn progress(&self, done: i64, total: Option<i64>) -> Result<(), SaveError> {
        self.write(Save::Progress { done, total }, || None).await.map_err(save_error)?;
        Ok(())
    }

    /// Runs statements of the application in a transaction that lands only if this attempt
    /// still holds the job. The closure may run more than once, and commits at most once.
    ///
    /// Specified in SEMANTICS.md, “Slices, checkpoints, steps, fenced writes”.
    ///
    /// # Errors
    ///
    /// [`FencedError::Lost`] where the job is somebody else's; trouble of the store; the
    /// closure's own error. Nothing was written then.
    pub async fn fenced<F, R, E>(&self, code: F) -> Result<R, FencedError<E>>
    where
        F: FnMut(&mut Tx<'_>) -> Result<R, E> + Send + 'static,
        R: Send + 'static,
        E: Send + 'static,
    {
        self.fenced_write(Save::Nothing, code).await
    }

    /// [`Ctx::fenced`] and [`Ctx::save`] in one transaction: the statements and the
    /// checkpoint land together or not at all.
    ///
    /// # Errors
    ///
    /// As [`Ctx::fenced`].
    pub async fn fenced_save<T, F, R, E>(&self, value: &T, code: F) -> Result<R, FencedError<E>>
    where
        T: Serialize + ?Sized,
        F: FnMut(&mut Tx<'_>) -> Result<R, E> + Send + 'static,
        R: Send + 'static,
        E: Send + 'static,
    {
        let value = Json::of(value)
            .map_err(|error| FencedError::Store(StoreFault::Sql(format!("checkpoint: {error}"))))?;
        let save = Save::Checkpoint { key: String::new(), value: value.clone() };
        let answer = self.fenced_write(save, code).await?;
        self.run.state().checkpoint = Some(value);
        Ok(answer)
    }

    async fn fenced_write<F, R, E>(&self, save: Save, code: F) -> Result<R, FencedError<E>>
    where
        F: FnMut(&mut Tx<'_>) -> Result<R, E> + Send + 'static,
        R: Send + 'static,
        E: Send + 'static,
    {
        let rerun = Rerun::new(code);
        let outcome = self.write(save, || Some(rerun.code(None))).await;
        let answer = rerun.answer();
        match (outcome, answer) {
            (Ok(_), Some(Ok(value))) => Ok(value),
            (Err(Error::Refused(Refusal::Revoked)), Some(Err(error))) => {
                Err(FencedError::Application(error))
            }
            (Ok(_), _) => {
                let error = "the write landed in an earlier life, its answer is gone";
                Err(FencedError::Store(StoreFault::Unknown(error.into())))
            }
            (Err(error), _) => match save_error(error) {
                SaveError::Lost(refusal) => Err(FencedError::Lost(refusal)),
                SaveError::Store(fault) => Err(FencedError::Store(fault)),
                SaveError::Value(error) => Err(FencedError::Store(StoreFault::Sql(error))),
            },
        }
    }

    /// Runs `work` once in the life of the job: where a value is saved under `name`, it is
    /// returned; else `work` runs and its value is saved before this returns.
    ///
    /// Specified in SEMANTICS.md, “Slices, checkpoints, steps, fenced writes”.
    ///
    /// # Errors
    ///
    /// The error of `work`, or of the save; a saved value that does not decode any more names
    /// the step.
    pub async fn step<T, F, Fut>(&self, name: &str, work: F) -> Result<T, JobError>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, JobError>>,
    {
        crate::validate::key("name", name, self.run.claimed.sizes)?;
        let claimed = &self.run.claimed;
        let epoch = claimed.holder.epoch;
        let question = Checkpoint { key: claimed.key, name: name.to_owned(), epoch };
        if let Some(json) = self.run.store.read(question).await? {
            return json.to().map_err(|error| {
                JobError::retry(format!("the saved value of step {name} does not decode: {error}"))
            });
        }
        let value = STEP.scope((self.run.number, name.to_owned()), work()).await?;
        let json = Json::of(&value)
            .map_err(|error| JobError::retry(format!("the value of step {name}: {error}")))?;
        let save = Save::Checkpoint { key: name.to_owned(), value: json };
        self.write(save, || None).await.map_err(save_error)?;
        Ok(value)
    }

    /// A write of this attempt. Its number stays the same however often it is asked for.
    async fn write(&self, save: Save, code: impl Fn() -> Option<Code>) -> Result<Saved, Error> {
        let _one_at_a_time = self.run.writing.lock().await;
        if self.run.is_revoked() {
            return Err(Refusal::Revoked.into());
        }
        let (write, faults) = (self.run.write(), &self.run.faults);
        if faults.hit(Point::BeforeWrite) {
            faults.die().await;
        }
        let mut asked = 0;
        let mut lost = None;
        loop {
            let message = SaveOne { write: write.clone(), save: save.clone(), code: code() };
            asked += 1;
            match (faults.answer(self.run.store.ask(message).await), lost.take()) {
                (Ok(saved), _) => {
                    if faults.hit(Point::AfterWrite) {
                        faults.die().await;
                    }
                    self.run.saved(saved);
                    return Ok(saved);
                }
                (Err(Error::Store(fault @ StoreFault::Unknown(_))), _) if asked < ASK_AGAIN => {
                    lost = Some(fault);
                }
                // That it did not land this time says nothing of the time before.
                (Err(Error::Store(_)), Some(before)) => return Err(before.into()),
                (Err(error), before) => {
                    if let Some(
                        refusal @ (Refusal::NotFound
                        | Refusal::NotRunning { .. }
                        | Refusal::Superseded { .. }),
                    ) = error.refusal()
                    {
                        self.run.lost(refusal.clone());
                        // Nor does that the job has been lost since.
                        return Err(before.map_or(error, Error::from));
                    }
                    return Err(error);
                }
            }
        }
    }
}

fn save_error(error: Error) -> SaveError {
    match error {
        Error::Refused(refusal @ Refusal::Invalid { .. }) => SaveError::Value(refusal.to_string()),
        Error::Refused(refusal) => SaveError::Lost(refusal),
        Error::Store(fault) => SaveError::Store(fault),
        other => SaveError::Store(StoreFault::Sql(other.to_string())),
    }
}

/// Counts the futures of a handler that wait for something.
struct Waiting<'r>(&'r AtomicU32);

impl<'r> Waiting<'r> {
    fn new(count: &'r AtomicU32) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
