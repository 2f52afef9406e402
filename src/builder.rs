//! Putting a runtime together.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::process::Command;
use std::sync::Arc;

use tokio::runtime::Handle;

use crate::around::{self, Around, Call, Next};
use crate::context::Ctx;
use crate::error::{Error, Result};
use crate::handler::{self, JobResult, Starter, StateSource};
use crate::hooks::Hooks;
use crate::host::HostConfig;
use crate::job::Job;
use crate::kind::Settings;
use crate::runtime::{Policy, Runtime};
use crate::store::Place;
use crate::validate::Sizes;
use crate::work::session::Capacity;

/// What a runtime is made of.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) host: HostConfig,
    pub(crate) kinds: Vec<(String, Settings)>,
    pub(crate) limits: Vec<(&'static str, String, i64)>,
    pub(crate) reasons: Vec<(String, String)>,
    pub(crate) sizes: Option<Sizes>,
    pub(crate) starters: BTreeMap<Arc<str>, Starter>,
    pub(crate) capacity: Capacity,
    pub(crate) around: Option<Around>,
    pub(crate) policy: Policy,
    pub(crate) max_zombies: usize,
    pub(crate) threads: usize,
    pub(crate) owner_files: bool,
    pub(crate) stop_on_signals: bool,
}

/// Handlers run on threads of the runtime's own.
#[derive(Debug)]
pub enum OwnThreads {}

/// Handlers run on the host's tokio runtime.
#[derive(Debug)]
pub enum OnHost {}

/// Puts a runtime together: handlers, state, slots, settings.
///
/// `S` is the application's state, `M` says where async handlers run.
#[must_use]
pub struct Builder<S = (), M = OwnThreads> {
    pub(crate) parts: Parts,
    source: StateSource<S>,
    host: Option<Handle>,
    /// Changes of kinds' settings, in the order in which they were given.
    changes: Vec<(&'static str, Change)>,
    wrong: Option<String>,
    mode: PhantomData<M>,
}

type Change = Box<dyn FnOnce(Settings) -> Settings + Send>;

impl<S, M> fmt::Debug for Builder<S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("kinds", &self.parts.kinds).finish_non_exhaustive()
    }
}

/// How many cores there are, as far as can be told.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, std::num::NonZero::get)
}

impl Builder {
    pub(crate) fn new(place: Place) -> Self {
        Self {
            parts: Parts {
                host: HostConfig::new(place),
                kinds: Vec::new(),
                limits: Vec::new(),
                reasons: Vec::new(),
                sizes: None,
                starters: BTreeMap::new(),
                capacity: Capacity { slots: cores(), ..Capacity::default() },
                around: None,
                policy: Policy::Stay,
                max_zombies: 8,
                threads: cores(),
                owner_files: true,
                stop_on_signals: false,
            },
            source: Arc::new(|| ()),
            host: None,
            changes: Vec::new(),
            wrong: None,
            mode: PhantomData,
        }
    }

    /// The application's state, cloned for each handler. Set before the handlers.
    pub fn state<S: Clone + Send + Sync + 'static>(self, state: S) -> Builder<S> {
        self.state_with(move || state.clone())
    }

    /// Makes the application's state on each thread that runs handlers, for state that
    /// cannot be sent between threads. Set before the handlers.
    pub fn state_with<S: Clone + 'static>(
        mut self,
        make: impl Fn() -> S + Send + Sync + 'static,
    ) -> Builder<S> {
        if !self.parts.starters.is_empty() {
            self.wrong = Some("the state is set after a handler; set it before".into());
        }
        let Self { parts, host, changes, wrong, .. } = self;
        Builder { parts, source: Arc::new(make), host, changes, wrong, mode: PhantomData }
    }
}

impl<S: Clone + 'static> Builder<S> {
    /// Handles a kind with an async function. Its future need not be `Send`: it stays on one
    /// of the runtime's threads.
    pub fn handle<J, F, Fut>(self, handler: F) -> Self
    where
        J: Job,
        F: Fn(J, Ctx<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = JobResult> + 'static,
    {
        let starter = handler::local(handler, self.source.clone());
        self.add::<J>(starter)
    }

    /// From here on async handlers run on this tokio runtime, where the host's pools and
    /// connections live; they must be `Send`.
    pub fn handlers_on(self, host: Handle) -> Builder<S, OnHost> {
        let Self { parts, source, changes, wrong, .. } = self;
        Builder { parts, source, host: Some(host), changes, wrong, mode: PhantomData }
    }
}

impl<S: Clone + Send + Sync + 'static> Builder<S, OnHost> {
    /// Handles a kind with an async function that runs on the host's runtime.
    pub fn handle<J, F, Fut>(self, handler: F) -> Self
    where
        J: Job + Send,
        F: Fn(J, Ctx<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = JobResult> + Send + 'static,
    {
        match self.host.clone() {
            Some(host) => {
                let starter = handler::hosted(host, handler, self.source.clone());
                self.add::<J>(starter)
            }
            None => self,
        }
    }
}

impl<S: Clone + 'static, M> Builder<S, M> {
    /// Handles a kind with a function that blocks its thread; it has one of its own while it
    /// runs.
    pub fn handle_blocking<J, F>(self, handler: F) -> Self
    where
        J: Job,
        F: Fn(J, Ctx<S>) -> JobResult + Send + Sync + 'static,
    {
        let starter = handler::blocking(handler, self.source.clone());
        self.add::<J>(starter)
    }

    /// Handles a kind with a process of its own for each attempt, which is killed where it does
    /// not end in time: for code that must be killable. It finds the payload on its standard
    /// input; its standard output is the result, and its standard error the error where its exit
    /// status is not 0. The environment names the attempt: `LEASEHOLD_JOB`, `LEASEHOLD_KIND`,
    /// `LEASEHOLD_ATTEMPT`, `LEASEHOLD_IDEMPOTENCY_KEY`.
    pub fn handle_process<J, F>(self, command: F) -> Self
    where
        J: Job,
        F: Fn(&J) -> Command + Send + Sync + 'static,
    {
        self.add::<J>(handler::process(command))
    }

    fn add<J: Job>(mut self, starter: Starter) -> Self {
        if self.parts.starters.insert(J::KIND.into(), starter).is_some() {
            self.wrong = Some(format!("kind {} has two handlers; keep one", J::KIND));
        }
        self.parts.kinds.push((J::KIND.to_owned(), J::settings()));
        self
    }

    /// Runs code around every handler: the first that is given is the outermost.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// let builder = leasehold::Runtime::builder(dir.path().join("jobs.db"))
    ///     .around(|call, next| async move {
    ///         let result = next.await;
    ///         log::info!("attempt {} of {} has ended: {result:?}", call.attempt, call.id);
    ///         result
    ///     });
    /// # drop(builder);
    /// ```
    pub fn around<F, Fut>(mut self, around: F) -> Self
    where
        F: Fn(Call, Next) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = JobResult> + Send + 'static,
    {
        self.parts.around = Some(around::add(self.parts.around.take(), around));
        self
    }

    /// Changes the settings of a kind that has a handler here, before or after it is given.
    pub fn configure<J: Job>(
        mut self,
        change: impl FnOnce(Settings) -> Settings + Send + 'static,
    ) -> Self {
        self.changes.push((J::KIND, Box::new(change)));
        self
    }

    /// Application code inside the transactions in which this kind's jobs end or come back.
    pub fn hooks<J: Job>(mut self, hooks: Hooks) -> Self {
        if let Err(error) = hooks.check(J::KIND) {
            self.wrong = Some(error.to_string());
        }
        self.parts.host.store.hooks.insert(J::KIND.into(), hooks);
        self
    }

    /// Opens the database, registers the kinds and starts.
    ///
    /// # Errors
    ///
    /// [`Error::Setup`] or a refusal naming the setting, for what cannot work;
    /// [`Error::Open`] for a database that cannot be opened or written.
    pub async fn start(self) -> Result<Runtime> {
        Runtime::start(self.into_parts()?).await
    }

    /// What it has put together, checked.
    pub(crate) fn into_parts(mut self) -> Result<Parts> {
        if let Some(wrong) = self.wrong {
            return Err(Error::Setup(wrong));
        }
        if self.parts.capacity.slots == 0 {
            return Err(Error::Setup("there are no slots; give at least one".into()));
        }
        let hooks = &self.parts.host.store.hooks;
        for kind in hooks.keys() {
            if !self.parts.starters.contains_key(kind) {
                let error = format!("kind {kind} has hooks but no handler; add the handler");
                return Err(Error::Setup(error));
            }
        }
        for (kind, change) in self.changes {
            let known = self.parts.kinds.iter_mut().find(|(known, _)| known == kind);
            let Some((_, settings)) = known else {
                let error = format!("kind {kind} is configured but has no handler; add it");
                return Err(Error::Setup(error));
            };
            *settings = change(settings.clone());
        }
        for (kind, settings) in &mut self.parts.kinds {
            Hooks::note(hooks.get(kind.as_str()), settings);
        }
        Ok(self.parts)
    }

    /// [`Builder::start`] for code that is not async.
    ///
    /// # Errors
    ///
    /// As [`Builder::start`].
    pub fn start_blocking(self) -> Result<Runtime> {
        crate::block_on(self.start())
    }

    pub(crate) fn host_mut(&mut self) -> &mut HostConfig {
        &mut self.parts.host
    }
}
