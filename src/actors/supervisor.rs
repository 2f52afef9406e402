//! `SupervisorActor`: keeps the loops going and the deadlines.
//!
//! Owns      the worker's thread and place, the ticks of the control thread
//! Receives  End
//! Sends     Ping to the worker; renewals and late settles to the store, by the session
//! Never     runs SQL or a handler, waits for either
//! Stops     when the session has stopped
//! Panics    restarts it; heartbeats and limits go on with the next tick

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix::fut::wrap_future;
use actix::{
    Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, Supervised,
};

use crate::actors::reaper::ReaperActor;
use crate::actors::supervise;
use crate::actors::worker::{Ping, WorkerActor};
use crate::clock;
use crate::faults::Point;
use crate::home::Thread;
use crate::work::session::Session;

/// How often attempts are looked at while there are any, in milliseconds.
const TICK: u64 = 20;
/// How often the loops are asked for a sign of life.
const ASK: Duration = Duration::from_secs(1);
/// How long a loop may owe it before it counts as stuck.
const STUCK: Duration = Duration::from_secs(3);

/// The session has stopped: end, also where a frozen clock would keep a loop waiting.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct End;

/// The actor.
pub(crate) struct SupervisorActor {
    session: Arc<Session>,
    crew: Arc<Crew>,
}

/// The loops that are watched, and how to have a new one.
pub(crate) struct Crew {
    place: Arc<AtomicU64>,
    worker: Mutex<Option<(Thread, Addr<WorkerActor>)>>,
    reaper: Mutex<Option<Addr<ReaperActor>>>,
    /// Kept only to be kept: an actor that nobody can reach is not restarted.
    supervisor: Mutex<Option<Addr<SupervisorActor>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crew {
    pub(crate) fn new() -> Self {
        let (worker, reaper, supervisor) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { place: Arc::default(), worker, reaper, supervisor }
    }

    /// Starts a worker on a thread of its own, in the place of the one before.
    fn start_worker(&self, session: &Arc<Session>) {
        let thread = session.host.home.thread();
        let (sender, receiver) = std::sync::mpsc::channel();
        let (ours, place) = (session.clone(), self.place.clone());
        thread.run(move || {
            let actor = WorkerActor::new(ours.clone(), place);
            let _gone = sender.send(supervise::start("worker", ours.host.health.clone(), actor));
        });
        if let Ok(addr) = receiver.recv() {
            // A thread that is stuck cannot be stopped; it ends when its code does.
            if let Some((old, _)) = locked(&self.worker).replace((thread, addr)) {
                old.stop();
            }
        }
    }

    fn start_reaper(&self, session: &Arc<Session>) {
        let actor = ReaperActor(session.clone());
        let addr = supervise::start("reaper", session.host.health.clone(), actor);
        *locked(&self.reaper) = Some(addr);
    }

    /// Ends the loops with the session.
    pub(crate) fn dismiss(&self) {
        if let Some((thread, _)) = locked(&self.worker).take() {
            thread.stop();
        }
        *locked(&self.reaper) = None;
        if let Some(supervisor) = locked(&self.supervisor).take() {
            supervisor.do_send(End);
        }
    }
}

impl SupervisorActor {
    /// Starts the loops, and the supervisor over them, on this thread.
    pub(crate) fn start_all(session: &Arc<Session>, crew: &Arc<Crew>) {
        crew.start_worker(session);
        if !session.host.by_hand {
            crew.start_reaper(session);
        }
        let actor = Self { session: session.clone(), crew: crew.clone() };
        let addr = supervise::start("supervisor", session.host.health.clone(), actor);
        *locked(&crew.supervisor) = Some(addr);
    }
}

impl Actor for SupervisorActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let ticking = tick(self.session.clone());
        ctx.spawn(wrap_future::<_, Self>(ticking).map(|(), _, _| ()));
        let watching = watch(self.session.clone(), self.crew.clone());
        ctx.spawn(wrap_future::<_, Self>(watching).map(|(), _, _| ()));
    }
}

impl Supervised for SupervisorActor {}

impl Handler<End> for SupervisorActor {
    type Result = ();

    fn handle(&mut self, _: End, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

async fn tick(session: Arc<Session>) {
    let clock = session.host.clock.clone();
    while !session.has_stopped() {
        session.host.faults.panic(Point::Supervisor);
        let changed = session.changed.notified();
        if session.runs().is_empty() {
            // Nothing has a deadline until something is claimed.
            changed.await;
        } else {
            session.tick();
            clock.sleep(Duration::from_millis(TICK)).await;
        }
    }
}

/// Asks the worker for a sign of life; one that owes it too long gets a successor. The reaper
/// shares this thread, and the store shows by its answers that it lives.
async fn watch(session: Arc<Session>, crew: Arc<Crew>) {
    while !session.has_stopped() {
        clock::moment(ASK).await;
        let worker = locked(&crew.worker).as_ref().map(|(_, addr)| addr.clone());
        let Some(worker) = worker else { continue };
        let answer = worker.send(Ping);
        tokio::select! {
            biased;
            _ = answer => {}
            () = clock::moment(STUCK) => {
                if !session.has_stopped() {
                    session.host.health.restarted("worker", "its thread does not answer");
                    crew.start_worker(&session);
                }
            }
        }
    }
}
