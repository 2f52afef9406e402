//! `WorkerActor`: the loop that finds out that there is work.
//!
//! Owns      the watch on the file, the times of the next looks
//! Receives  Ping
//! Sends     nudges to the store, whose batches then claim for the session
//! Never     runs a handler, writes, waits for a handler
//! Stops     with its thread, when the supervisor stops it, or when another has its place
//! Panics    restarts it; the slots and attempts are the session's and stay

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::fut::wrap_future;
use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, Supervised};

use crate::faults::Point;
use crate::store::FileWatch;
use crate::store::questions::LookForWork;
use crate::work::session::Session;
use crate::work::stats::add;

/// How often a free slot looks for work regardless, in milliseconds.
const POLL: i64 = 500;

/// Whether the actor's thread still takes messages.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Ping;

/// The actor.
pub(crate) struct WorkerActor {
    session: Arc<Session>,
    /// Counts the workers that have had this place.
    place: Arc<AtomicU64>,
    number: u64,
}

impl WorkerActor {
    /// A worker that takes the place of those before it.
    pub(crate) fn new(session: Arc<Session>, place: Arc<AtomicU64>) -> Self {
        let number = place.fetch_add(1, Ordering::SeqCst) + 1;
        Self { session, place, number }
    }
}

impl Actor for WorkerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let (session, place, number) = (self.session.clone(), self.place.clone(), self.number);
        let looking = async move { look_for_work(&session, &place, number).await };
        ctx.spawn(wrap_future::<_, Self>(looking).map(|(), _, _| ()));
    }
}

impl Supervised for WorkerActor {}

impl Handler<Ping> for WorkerActor {
    type Result = ();

    fn handle(&mut self, _: Ping, _: &mut Context<Self>) {}
}

async fn look_for_work(session: &Session, place: &AtomicU64, number: u64) {
    let clock = &session.host.clock;
    let mut watch = session.host.path.as_deref().and_then(FileWatch::open);
    let mut next_poll = clock.monotonic();
    while place.load(Ordering::SeqCst) == number && !session.is_stopping() {
        session.host.faults.panic(Point::Worker);
        if session.host.faults.hit(Point::WorkerStuck) {
            std::thread::park_timeout(Duration::from_hours(1));
        }
        let mut pause = POLL;
        if session.has_room() {
            let polls = clock.monotonic() >= next_poll;
            let changed = watch.as_mut().is_some_and(FileWatch::changed);
            let due = session.next_due().is_some_and(|at| at <= clock.now());
            if polls {
                next_poll = clock.monotonic().saturating_add(POLL);
                add(&session.counters.polls);
            }
            if polls || changed || due {
                look(session).await;
            }
            pause = if watch.is_some() { session.host.look } else { POLL };
            // What is due already has been looked for; it is looked for again at the usual pace.
            if let Some(at) = session.next_due().filter(|at| *at > clock.now()) {
                pause = pause.min(at.saturating_sub(clock.now()));
            }
        }
        let pause = clock.sleep(Duration::from_millis(pause.unsigned_abs()));
        tokio::select! {
            biased;
            () = pause => {}
            () = session.wake.notified() => add(&session.counters.wakes),
        }
    }
}

/// Looks with a read, so that the write lock is taken only if there is work.
async fn look(session: &Session) {
    match session.host.store.read(LookForWork(session.kinds())).await {
        Ok(work) => {
            session.set_next_due(work.next_due);
            if work.now {
                session.look();
            }
        }
        Err(error) => log::debug!(error:% = error; "a look for work failed"),
    }
}
