//! The runtime: handlers registered, threads started, and a stop by a deadline.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::actors::supervisor::{Crew, SupervisorActor};
use crate::builder::{Builder, Parts};
use crate::client::Client;
use crate::clock;
use crate::error::{Error, Result, StoreFault};
use crate::events::Events;
use crate::health::HealthReport;
use crate::hooks::Tx;
use crate::host::Host;
use crate::job::JobId;
use crate::new_job::{Enqueued, NewJob};
use crate::owner::{self, OwnerLock};
use crate::record::JobRecord;
use crate::store::messages::Register;
use crate::transaction::TransactionError;
use crate::work::pool::Pool;
use crate::work::session::Session;
use crate::work::standing::Standing;
use crate::work::stats::Stats;
use crate::work::stop::{StopReport, cut_short, stop};

/// How long a runtime whose last handle is dropped gives its handlers.
const GRACE: Duration = Duration::from_secs(5);

/// What to do once the runtime cannot mend itself any more: a loop of it has failed too often,
/// too many handlers block their threads, or application code sits in the store's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Stay up, unhealthy.
    Stay,
    /// Stop, with a grace of 5 s.
    Stop,
    /// Abort the process, for whoever supervises it to start it anew.
    Abort,
}

/// A running runtime. Cheap to clone; dropping the last handle starts a stop without
/// blocking.
///
/// ```
/// # #[tokio::main] async fn main() -> leasehold::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// use leasehold::{Ctx, Job, JobResult, Outcome, Runtime};
/// use std::time::Duration;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Double { n: i64 }
/// impl Job for Double { const KIND: &'static str = "double"; }
///
/// async fn double(job: Double, _: Ctx) -> JobResult {
///     Ok(Outcome::done_with(&(2 * job.n)))
/// }
///
/// let runtime = Runtime::builder(dir.path().join("jobs.db")).handle(double).start().await?;
/// let job = runtime.enqueue(Double { n: 21 }).await?;
/// let done = runtime.wait(job.id, Duration::from_secs(10)).await?;
/// assert_eq!(done.result.unwrap().as_str(), "42");
/// assert!(runtime.stop(Duration::from_secs(5)).await.drained);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Runtime(Arc<Handle>);

/// The last of these starts the stop.
struct Handle {
    client: Client,
    running: Arc<Running>,
}

/// What a stop needs.
struct Running {
    session: Arc<Session>,
    crew: Arc<Crew>,
    lock: Mutex<Option<OwnerLock>>,
    asked: AtomicBool,
    report: watch::Sender<Option<StopReport>>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("owner", &self.0.running.session.owner)
            .finish_non_exhaustive()
    }
}

impl Runtime {
    /// A runtime on a database file, which is made where it is not there.
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder::new(crate::store::Place::File(path.as_ref().to_owned()))
    }

    /// A runtime in memory: gone with the process, and shared with no other.
    pub fn in_memory() -> Builder {
        Builder::new(crate::store::Place::Memory)
    }

    /// A client of the same database, which outlives a stop.
    #[must_use]
    pub fn client(&self) -> Client {
        self.0.client.clone()
    }

    /// [`Client::enqueue`].
    ///
    /// # Errors
    ///
    /// As [`Client::enqueue`].
    pub async fn enqueue(&self, job: impl Into<NewJob>) -> Result<Enqueued> {
        self.0.client.enqueue(job).await
    }

    /// [`Client::enqueue_blocking`].
    ///
    /// # Errors
    ///
    /// As [`Client::enqueue`].
    pub fn enqueue_blocking(&self, job: impl Into<NewJob>) -> Result<Enqueued> {
        self.0.client.enqueue_blocking(job)
    }

    /// [`Client::events`].
    #[must_use]
    pub fn events(&self) -> Events {
        self.0.client.events()
    }

    /// [`Client::transaction`].
    ///
    /// # Errors
    ///
    /// As [`Client::transaction`].
    pub async fn transaction<F, R, E>(&self, code: F) -> Result<R, TransactionError<E>>
    where
        F: FnMut(&mut Tx<'_>) -> Result<R, E> + Send + 'static,
        R: Send + 'static,
        E: Send + 'static,
    {
        self.0.client.transaction(code).await
    }

    /// [`Client::wait`].
    ///
    /// # Errors
    ///
    /// As [`Client::wait`].
    pub async fn wait(&self, id: impl Into<JobId>, deadline: Duration) -> Result<JobRecord> {
        self.0.client.wait(id, deadline).await
    }

    /// What it has done since its start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.running.session.stats()
    }

    /// How it is doing.
    #[must_use]
    pub fn health(&self) -> HealthReport {
        self.0.running.session.health()
    }

    /// The random id of this start, as jobs' `owner` shows it.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.0.running.session.owner
    }

    /// Claims no more; what runs goes on.
    pub fn quiet(&self) {
        self.0.running.session.quiet();
    }

    /// Stops: no new claims; handlers are asked to end, and at `grace` those that have not
    /// are dropped and their jobs handed back at no cost. Returns within `grace` and a moment
    /// whatever handlers do, and says what it left behind. A second stop joins the first.
    ///
    /// Specified in SEMANTICS.md, “Stop”.
    pub async fn stop(&self, grace: Duration) -> StopReport {
        reported(self.0.running.clone().begin(grace)).await
    }

    /// Ends when the runtime has stopped, whoever asked for it: a signal, where
    /// [`Builder::stop_on_signals`] is set, or a call of [`Runtime::stop`]. Asks for nothing
    /// itself.
    pub async fn stopped(&self) -> StopReport {
        reported(self.0.running.report.subscribe()).await
    }

    /// [`Runtime::stop`] for code that is not async.
    pub fn stop_blocking(&self, grace: Duration) -> StopReport {
        crate::block_on(self.stop(grace))
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.0.running.session
    }

    /// Dies as a process does: what runs is dropped, nothing more is written, its lock is free.
    pub(crate) async fn die(&self) {
        let running = &self.0.running;
        running.asked.store(true, Ordering::SeqCst);
        cut_short(&running.session).await;
        running.end(false);
        running.report.send_replace(Some(StopReport::default()));
    }

    /// Starts what a builder has put together.
    pub(crate) async fn start(parts: Parts) -> Result<Self> {
        for (kind, settings) in &parts.kinds {
            settings.facts.check(kind)?;
        }
        let host = Host::start(parts.host);
        let host = host.await.unwrap_or(Err(StoreFault::Stopped.into()))?;
        let register = Register {
            kinds: parts.kinds,
            limits: parts.limits,
            reasons: parts.reasons,
            sizes: parts.sizes,
        };
        host.store.ask(register).await?;
        let owner = owner::name(host.entropy.bytes());
        let lock = match host.path.as_deref().filter(|_| parts.owner_files) {
            Some(path) => host.locks.take(path, &owner).unwrap_or_else(|error| {
                log::warn!(error:% = error; "no owner lock: only leases tell that it is alive");
                None
            }),
            None => None,
        };
        let (sender, started) = oneshot::channel();
        let home = host.home.clone();
        let (capacity, handlers) = (parts.capacity, (parts.starters, parts.around));
        let (max_zombies, threads) = (parts.max_zombies, parts.threads);
        home.run(move || {
            let pool = Pool::new(threads, host.home.clone());
            let session = Session::new(host, owner, handlers, capacity, max_zombies, pool);
            let _gone = sender.send(start_on_control(Arc::new(session), lock));
        });
        let running = started.await.map_err(|_| Error::from(StoreFault::Stopped))?;
        let client = Client::new(running.session.host.clone());
        let runtime = Self(Arc::new(Handle { client, running }));
        runtime.watch_health(parts.policy);
        if parts.stop_on_signals {
            runtime.stop_on_signals();
        }
        Ok(runtime)
    }

    /// Does as the policy says once the runtime cannot mend itself any more.
    fn watch_health(&self, policy: Policy) {
        /// How often to look, in real time.
        const LOOK: Duration = Duration::from_millis(250);
        if policy == Policy::Stay {
            return;
        }
        let running = self.0.running.clone();
        self.0.client.host.home.spawn(async move {
            while !running.session.has_stopped() {
                clock::moment(LOOK).await;
                let Some(trouble) = running.session.trouble() else { continue };
                log::error!(error:% = trouble; "the runtime cannot mend itself: {policy:?}");
                if policy == Policy::Abort {
                    std::process::abort();
                }
                drop(running.begin(GRACE));
                return;
            }
        });
    }

    fn stop_on_signals(&self) {
        let running = self.0.running.clone();
        self.0.client.host.home.spawn(async move {
            let asked = async {
                use tokio::signal::unix::{SignalKind, signal};
                let mut term = signal(SignalKind::terminate())?;
                let mut int = signal(SignalKind::interrupt())?;
                tokio::select! { biased; _ = term.recv() => {}, _ = int.recv() => {} }
                std::io::Result::Ok(())
            };
            let session = running.session.clone();
            tokio::select! {
                biased;
                asked = asked => match asked {
                    Ok(()) => drop(running.begin(GRACE)),
                    Err(error) => log::error!(error:% = error; "signals cannot be heard"),
                },
                () = async { while !session.has_stopped() { session.changed.notified().await } } => {}
            }
        });
    }
}

async fn reported(mut report: watch::Receiver<Option<StopReport>>) -> StopReport {
    match report.wait_for(Option::is_some).await {
        Ok(report) => report.clone().unwrap_or_default(),
        Err(_) => StopReport::default(),
    }
}

/// Starts the actors, the pool and the claims, on the control thread.
fn start_on_control(session: Arc<Session>, lock: Option<OwnerLock>) -> Arc<Running> {
    let crew = Arc::new(Crew::new());
    session.pool.open(&session);
    SupervisorActor::start_all(&session, &crew);
    let signals = Arc::downgrade(&session);
    session.host.listening.set_on_cancel(Arc::new(move |id| {
        if let Some(session) = signals.upgrade() {
            session.cancel(id);
        }
    }));
    session.host.store.attach(Some(Arc::new(Standing(session.clone()))));
    Arc::new(Running {
        session,
        crew,
        lock: Mutex::new(lock),
        asked: AtomicBool::new(false),
        report: watch::Sender::new(None),
    })
}

impl Running {
    /// Starts the stop where nobody has; answers where its report will be.
    fn begin(self: Arc<Self>, grace: Duration) -> watch::Receiver<Option<StopReport>> {
        let report = self.report.subscribe();
        if !self.asked.swap(true, Ordering::SeqCst) {
            let home = self.session.host.home.clone();
            home.spawn(async move {
                let report = stop(&self.session, grace).await;
                self.end(report.in_flight.is_empty());
                self.report.send_replace(Some(report));
            });
        }
        report
    }

    /// Ends the loops. Where nothing is left of it, its lock's file goes with it.
    fn end(&self, clean: bool) {
        let session = &self.session;
        session.host.store.attach(None);
        session.end();
        self.crew.dismiss();
        session.pool.close();
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(lock) = lock.filter(|_| clean) {
            lock.remove();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        drop(self.running.clone().begin(GRACE));
    }
}
