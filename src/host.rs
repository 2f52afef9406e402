//! The threads that a runtime or a client lives on: a System of its own, so that a host that
//! stops its own System takes nothing of ours with it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use actix_rt::System;
use tokio::sync::oneshot;

use crate::actors::store::{Listener, StoreActor};
use crate::actors::supervise;
use crate::after::After;
use crate::ask::{Store, Writer};
use crate::clock::{self, Clock, Sleep, SystemClock};
use crate::entropy::{Entropy, SystemEntropy};
use crate::error::{Error, Result, StoreFault};
use crate::events::{Event, Hub};
use crate::faults::Faults;
use crate::health::Health;
use crate::home::{Home, Thread};
use crate::job::JobId;
use crate::owner::Locks;
use crate::record::JobRecord;
use crate::scope::Scope;
use crate::store::messages::Scoped;
use crate::store::questions::FindJob;
use crate::store::txn::{Effects, FenceView, HookTable};
use crate::store::{Engine, Place, Readers, StoreSettings};

/// How often a free slot looks whether another process has changed the file, in milliseconds.
const LOOK: i64 = 10;

/// How to open a database.
#[derive(Clone)]
pub(crate) struct HostConfig {
    pub(crate) place: Place,
    pub(crate) store: StoreSettings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) faults: Faults,
    /// All loops live on the thread that starts them.
    pub(crate) here: bool,
    /// There is no actor: whoever sends a message runs it.
    pub(crate) direct: bool,
    /// Nothing is claimed and no pass is made but when somebody asks for it.
    pub(crate) by_hand: bool,
    pub(crate) locks: Locks,
    /// How often a free slot looks whether another process has changed the file, in ms.
    pub(crate) look: i64,
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
            here: false,
            direct: false,
            by_hand: false,
            locks: Locks::default(),
            look: LOOK,
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
    /// Where the loops live, the control thread first.
    pub(crate) home: Home,
    /// The control thread's timers, for code on threads that have none.
    pub(crate) timers: tokio::runtime::Handle,
    pub(crate) path: Option<PathBuf>,
    pub(crate) locks: Locks,
    pub(crate) look: i64,
    /// Nothing is claimed and no pass is made but when somebody asks for it.
    pub(crate) by_hand: bool,
    /// What application code sits in the store's transaction.
    pub(crate) inside: FenceView,
    pub(crate) listening: Arc<Listening>,
    pub(crate) events: Hub,
    /// The time limit of application code in a transaction, in milliseconds.
    pub(crate) code_limit: i64,
    /// The hooks that are in this process.
    pub(crate) hooks: HookTable,
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

    /// A wait in real time, whatever timers the caller's own thread has.
    pub(crate) fn moment(&self, duration: Duration) -> Sleep {
        let _timers = self.timers.enter();
        clock::moment(duration)
    }

    /// Starts the threads and opens the database; the answer comes when it is open.
    pub(crate) fn start(config: HostConfig) -> oneshot::Receiver<Result<Arc<Self>>> {
        let (sender, receiver) = oneshot::channel();
        if config.here {
            let timers = tokio::runtime::Handle::current();
            let _gone = sender.send(open(config, Home::Here, &Home::Here.thread(), timers));
            return receiver;
        }
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
           biased;
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
               biased;
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
        let finished = self.store.finish();
        let home = self.home.clone();
        if !home.is_here() {
            self.home.spawn(async move {
                let _finished = finished.await;
                home.end();
            });
        }
    }
}

fn control_thread(config: HostConfig, sender: oneshot::Sender<Result<Arc<Host>>>) {
    let runner = System::new();
    let home = Home::Apart(System::current());
    let store = home.thread();
    let timers = runner.runtime().tokio_runtime().handle().clone();
    match open(config, home, &store, timers) {
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
    store.stop();
}

/// Opens the database on the store's thread.
fn open(
    config: HostConfig,
    home: Home,
    store: &Thread,
    timers: tokio::runtime::Handle,
) -> Result<Arc<Host>> {
    let (sender, opened) = mpsc::channel();
    let events = config.store.events.clone();
    let health = Arc::new(Health::new(config.clock.clone(), events.clone()));
    let after = After::new(home.is_here());
    let listening = Arc::new(Listening { events: events.clone(), after, ..Listening::default() });
    let (ours, hears, state) = (config.clone(), listening.clone(), health.clone());
    store.run(move || {
        let engine =
            Engine::open(ours.place, ours.store, ours.clock, ours.entropy, ours.faults.clone());
        let answer = engine.map(|engine| {
            let inside = engine.fence();
            let listener: Listener = Arc::new(move |effects| hears.hear(effects));
            if ours.direct {
                return (Writer::Sender(Arc::new(Mutex::new(engine)), listener), inside);
            }
            let actor = StoreActor::new(engine, listener, state.clone(), ours.faults);
            (Writer::Actor(supervise::start("store", state, actor)), inside)
        });
        let _gone = sender.send(answer);
    });
    let path = match &config.place {
        Place::File(path) => Some(path.clone()),
        Place::Memory => None,
    };
    let failed = |fault| Error::Open { path: path.clone().unwrap_or_default(), fault };
    let (writer, inside) =
        opened.recv().map_err(|_| failed(StoreFault::Stopped))?.map_err(failed)?;
    let readers = match &path {
        Some(path) => Some(
            Readers::start(path, &config.store, &config.clock, &config.entropy, config.here)
                .map_err(failed)?,
        ),
        None => None,
    };
    Ok(Arc::new(Host {
        store: Store::new(writer, readers),
        clock: config.clock,
        entropy: config.entropy,
        faults: config.faults,
        health,
        home,
        timers,
        path,
        locks: config.locks,
        look: config.look,
        by_hand: config.by_hand,
        inside,
        listening,
        events,
        code_limit: config.store.code_limit,
        hooks: config.store.hooks,
    }))
}
