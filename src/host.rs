//! The threads that a runtime or a client lives on: a System of its own, so that a host that
//! stops its own System takes nothing of ours with it.

use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use actix::Addr;
use actix_rt::{Arbiter, ArbiterHandle, System};
use tokio::sync::{Semaphore, oneshot};

use crate::actors::store::{Attach, Checkpoint, Finish, Nudge, StoreActor, Submit};
use crate::actors::supervise;
use crate::after::After;
use crate::clock::{self, Clock, Sleep, SystemClock};
use crate::entropy::{Entropy, SystemEntropy};
use crate::error::{Error, Result, StoreFault};
use crate::events::{Event, Hub};
use crate::faults::Faults;
use crate::health::Health;
use crate::job::JobId;
use crate::record::JobRecord;
use crate::scope::Scope;
use crate::store::messages::{Envelope, Message, Scoped};
use crate::store::questions::FindJob;
use crate::store::txn::{Effects, FenceView, HookTable};
use crate::store::{Claimer, Engine, Place, Readers, StoreSettings};

/// Messages that may wait for the store at a time; callers beyond it wait with theirs.
const ADMITTED: usize = 10_000;

/// How to open a database.
#[derive(Clone)]
pub(crate) struct HostConfig {
    pub(crate) place: Place,
    pub(crate) store: StoreSettings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) faults: Faults,
}

impl HostConfig {
    /// The usual settings. A file keeps its place although the process changes its folder.
    pub(crate) fn new(place: Place) -> Self {
        let place = match place {
            Place::File(path) => Place::File(std::path::absolute(&path).unwrap_or(path)),
            Place::Memory => Place::Memory,
        };
        Self {
            place,
            store: StoreSettings::default(),
            clock: Arc::new(SystemClock::new()),
            entropy: Arc::new(SystemEntropy::new()),
            faults: Faults::default(),
        }
    }
}

/// A database with the store's thread on it.
pub(crate) struct Host {
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) faults: Faults,
    pub(crate) health: Arc<Health>,
    /// The control thread.
    pub(crate) control: ArbiterHandle,
    /// The control thread's timers, for code on threads that have none.
    pub(crate) timers: tokio::runtime::Handle,
    pub(crate) path: Option<PathBuf>,
    /// What application code sits in the store's transaction.
    pub(crate) inside: FenceView,
    pub(crate) listening: Arc<Listening>,
    pub(crate) events: Hub,
    /// The time limit of application code in a transaction, in milliseconds.
    pub(crate) code_limit: i64,
    /// The hooks that are in this process.
    pub(crate) hooks: HookTable,
    system: System,
}

type OnCancel = Arc<dyn Fn(&JobId) + Send + Sync>;

/// Who hears of what transactions have done.
#[derive(Default)]
pub(crate) struct Listening {
    waiters: Mutex<HashMap<JobId, Vec<oneshot::Sender<()>>>>,
    /// Fires the signals of jobs whose cancel was asked for.
    on_cancel: Mutex<Option<OnCancel>>,
    /// Runs hooks after their commit.
    pub(crate) after: After,
    events: Hub,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listening {
    fn hear(&self, effects: Effects) {
        if !effects.ended.is_empty() {
            let mut waiters = locked(&self.waiters);
            for id in &effects.ended {
                for waiter in waiters.remove(id).unwrap_or_default() {
                    let _gone = waiter.send(());
                }
            }
        }
        if !effects.cancelled.is_empty() {
            let fire = locked(&self.on_cancel).clone();
            if let Some(fire) = fire {
                effects.cancelled.iter().for_each(|id| fire(id));
            }
        }
        effects.after.into_iter().for_each(|call| self.after.run(call));
        effects.events.into_iter().for_each(|event| self.events.send(Event::Job(event)));
    }

    /// Whom to tell of jobs whose cancel was asked for.
    pub(crate) fn set_on_cancel(&self, tell: OnCancel) {
        *locked(&self.on_cancel) = Some(tell);
    }

    /// A signal for the end of a job in this process.
    fn wait_for(&self, id: &JobId) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut waiters = locked(&self.waiters);
        let waiting = waiters.entry(id.clone()).or_default();
        waiting.retain(|waiter| !waiter.is_closed());
        waiting.push(sender);
        receiver
    }

    /// Jobs whose end somebody waits for.
    pub(crate) fn waits(&self) -> usize {
        locked(&self.waiters).len()
    }

    fn forget(&self, id: &JobId) {
        let mut waiters = locked(&self.waiters);
        if let Some(waiting) = waiters.get_mut(id) {
            waiting.retain(|waiter| !waiter.is_closed());
            if waiting.is_empty() {
                waiters.remove(id);
            }
        }
    }
}

impl Host {
    /// A sleep on the runtime's clock, whatever timers the caller's own thread has.
    pub(crate) fn sleep(&self, duration: Duration) -> Sleep {
        let _timers = self.timers.enter();
        self.clock.sleep(duration)
    }

    /// Starts the threads and opens the database; the answer comes when it is open.
    pub(crate) fn start(config: HostConfig) -> oneshot::Receiver<Result<Arc<Self>>> {
        let (sender, receiver) = oneshot::channel();
        let spawned = std::thread::Builder::new()
            .name("leasehold-control".into())
            .spawn(move || control_thread(config, sender));
        if let Err(error) = spawned {
            log::error!(error:% = error; "no thread could be started");
        }
        receiver
    }

    /// Waits for a job's end, or for nothing if it has ended: until `deadline` by the clock, or
    /// until nobody waits for the answer. Runs on the control thread, which has timers
    /// wherever the caller comes from.
    pub(crate) async fn wait(
        self: Arc<Self>,
        (id, scope): (JobId, Option<Scope>),
        deadline: Duration,
        mut answer: oneshot::Sender<Result<JobRecord>>,
    ) {
        /// How long past the deadline a store that does not answer is waited for.
        const STUCK: Duration = Duration::from_millis(500);
        let overdue = async {
            self.clock.sleep(deadline).await;
            clock::moment(STUCK).await;
        };
        let outcome = tokio::select! {
            ended = self.until_ended(&id, scope, deadline) => ended,
            () = overdue => Err(Error::Deadline { id: id.clone() }),
            () = answer.closed() => Err(StoreFault::Stopped.into()),
        };
        self.listening.forget(&id);
        let _gone = answer.send(outcome);
    }

    async fn until_ended(
        &self,
        id: &JobId,
        scope: Option<Scope>,
        deadline: Duration,
    ) -> Result<JobRecord> {
        /// How soon to look for an end that another process has made, doubling up to
        /// [`RARELY`]; one that this process makes is heard of.
        const LOOK: Duration = Duration::from_millis(50);
        const RARELY: Duration = Duration::from_secs(1);
        let mut pause = LOOK;
        let mut late = self.clock.sleep(deadline);
        loop {
            let ended = self.listening.wait_for(id);
            let question = Scoped { scope: scope.clone(), message: FindJob(id.clone()) };
            let record = self.store.read(question).await?;
            let record = record.ok_or(crate::Refusal::NotFound)?;
            if !record.status.is_live() {
                return Ok(record);
            }
            let look = self.clock.sleep(pause);
            pause = (2 * pause).min(RARELY);
            tokio::select! {
                _ = ended => {}
                () = look => {}
                () = &mut late => return Err(Error::Deadline { id: id.clone() }),
            }
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The store finishes what waits; then its thread and the control thread end.
        let system = self.system.clone();
        let (sender, receiver) = oneshot::channel();
        self.store.addr.do_send(Finish(sender));
        self.control.spawn(async move {
            let _finished = receiver.await;
            system.stop();
        });
    }
}

fn control_thread(config: HostConfig, sender: oneshot::Sender<Result<Arc<Host>>>) {
    let runner = System::new();
    let system = System::current();
    let arbiter = Arbiter::new();
    let timers = runner.runtime().tokio_runtime().handle().clone();
    match open(config, &arbiter.handle(), system, timers) {
        Ok(host) => {
            // Whoever asked may be gone; the host is then dropped, which stops the system.
            let _gone = sender.send(Ok(host));
        }
        Err(error) => {
            let _gone = sender.send(Err(error));
            System::current().stop();
        }
    }
    if let Err(error) = runner.run() {
        log::error!(error:% = error; "the control thread ended badly");
    }
    arbiter.stop();
}

/// Opens the database on the store's thread.
fn open(
    config: HostConfig,
    store: &ArbiterHandle,
    system: System,
    timers: tokio::runtime::Handle,
) -> Result<Arc<Host>> {
    let (sender, opened) = mpsc::channel();
    let events = config.store.events.clone();
    let health = Arc::new(Health::new(config.clock.clone(), events.clone()));
    let listening = Arc::new(Listening { events: events.clone(), ..Listening::default() });
    let (ours, hears, state) = (config.clone(), listening.clone(), health.clone());
    store.spawn_fn(move || {
        let engine =
            Engine::open(ours.place, ours.store, ours.clock, ours.entropy, ours.faults.clone());
        let answer = engine.map(|engine| {
            let inside = engine.fence();
            let listener = Arc::new(move |effects| hears.hear(effects));
            let actor = StoreActor::new(engine, listener, state.clone(), ours.faults);
            (supervise::start("store", state, actor), inside)
        });
        let _gone = sender.send(answer);
    });
    let path = match &config.place {
        Place::File(path) => Some(path.clone()),
        Place::Memory => None,
    };
    let failed = |fault| Error::Open { path: path.clone().unwrap_or_default(), fault };
    let (addr, inside) = opened.recv().map_err(|_| failed(StoreFault::Stopped))?.map_err(failed)?;
    let readers = match &path {
        Some(path) => Some(
            Readers::start(path, &config.store, &config.clock, &config.entropy).map_err(failed)?,
        ),
        None => None,
    };
    Ok(Arc::new(Host {
        store: Store { addr, readers, permits: Arc::new(Semaphore::new(ADMITTED)) },
        clock: config.clock,
        entropy: config.entropy,
        faults: config.faults,
        health,
        control: system.arbiter().clone(),
        timers,
        path,
        inside,
        listening,
        events,
        code_limit: config.store.code_limit,
        hooks: config.store.hooks,
        system,
    }))
}

/// Sends messages to the store.
#[derive(Clone)]
pub(crate) struct Store {
    addr: Addr<StoreActor>,
    readers: Option<Readers>,
    permits: Arc<Semaphore>,
}

impl Store {
    /// Sends a message and waits for its answer; first for a place, where too many wait.
    pub(crate) fn ask<M: Message>(&self, message: M) -> impl Future<Output = Result<M::Reply>> {
        let store = self.clone();
        async move {
            let permit = if M::URGENT {
                None
            } else {
                // The semaphore is never closed.
                store.permits.clone().acquire_owned().await.ok()
            };
            let (reply, answer) = oneshot::channel();
            let message = Envelope::seal(message, move |outcome| {
                let _gone = reply.send(outcome);
            });
            store.submit(message, M::URGENT, permit);
            answer.await.unwrap_or(Err(StoreFault::Stopped.into()))
        }
    }

    /// Sends a message whose answer goes to `reply`, on the store's thread.
    pub(crate) fn tell<M: Message>(
        &self,
        message: M,
        reply: impl FnOnce(Result<M::Reply>) + Send + 'static,
    ) {
        self.submit(Envelope::seal(message, reply), M::URGENT, None);
    }

    fn submit(
        &self,
        message: Box<dyn crate::store::Pending>,
        urgent: bool,
        permit: Option<tokio::sync::OwnedSemaphorePermit>,
    ) {
        self.addr.do_send(Submit { message, urgent, permit });
    }

    /// Messages that wait for their answer.
    pub(crate) fn waiting(&self) -> usize {
        ADMITTED - self.permits.available_permits()
    }

    /// Asks a question.
    pub(crate) async fn read<M: Message>(&self, question: M) -> Result<M::Reply> {
        let Some(readers) = &self.readers else { return self.ask(question).await };
        let (reply, answer) = oneshot::channel();
        readers.ask(Envelope::seal(question, move |outcome| {
            let _gone = reply.send(outcome);
        }));
        answer.await.unwrap_or(Err(StoreFault::Stopped.into()))
    }

    /// Has the store see to its log.
    pub(crate) async fn see_to_log(&self, last: bool) {
        let (done, seen) = oneshot::channel();
        self.addr.do_send(Checkpoint { last, done });
        let _seen = seen.await;
    }

    /// There may be work.
    pub(crate) fn nudge(&self) {
        self.addr.do_send(Nudge);
    }

    /// Lets somebody's claims ride along.
    pub(crate) fn attach(&self, claimer: Option<Arc<dyn Claimer>>) {
        self.addr.do_send(Attach(claimer));
    }
}
