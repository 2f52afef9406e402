//! `StoreActor`: the only writer.
//!
//! Owns      the engine with its connection, the messages that wait
//! Receives  Submit, Nudge, Attach, Flush, Checkpoint, Die, Finish
//! Sends     replies; leases to whoever claims; what has ended to the host
//! Never     runs a handler, answers before the commit, waits to fill a batch
//! Stops     after Finish: answers what waits, refuses what comes, writes the log back
//! Panics    application code is caught around its message; its own code restarts it, and
//!           what had no answer is answered as unknown

use std::collections::VecDeque;
use std::sync::Arc;

use actix::fut::wrap_future;
use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, Supervised};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::error::StoreFault;
use crate::faults::{Faults, Point};
use crate::health::Health;
use crate::store::txn::Effects;
use crate::store::{Claimer, Engine, Pending};

/// The most messages in one transaction.
const BATCH: usize = 256;

/// A message for the next transaction.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Submit {
    pub(crate) message: Box<dyn Pending>,
    pub(crate) urgent: bool,
    /// Its place among those that may wait, given back with the answer.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
}

/// There may be work for whoever claims.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Nudge;

/// From now on this one's claims ride along; or nobody's.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Attach(pub(crate) Option<Arc<dyn Claimer>>);

/// Run what waits.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Flush;

/// See to the log; with `last`, at a stop, cut it off. Answered when that is done.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Checkpoint {
    pub(crate) last: bool,
    pub(crate) done: oneshot::Sender<()>,
}

/// The process dies, in a test: nothing more is run or answered. Answered when that is so.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Die(pub(crate) oneshot::Sender<()>);

/// The last message; answered when the file is as it stays.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Finish(pub(crate) oneshot::Sender<()>);

/// Hears what transactions have done.
pub(crate) type Listener = Arc<dyn Fn(Effects) + Send + Sync>;

/// The actor.
pub(crate) struct StoreActor {
    engine: Engine,
    /// Renewals and settles: they go first.
    urgent: VecDeque<Submit>,
    waiting: VecDeque<Submit>,
    armed: bool,
    nudged: bool,
    finished: bool,
    claimer: Option<Arc<dyn Claimer>>,
    listener: Listener,
    health: Arc<Health>,
    faults: Faults,
}

impl StoreActor {
    pub(crate) fn new(
        engine: Engine,
        listener: Listener,
        health: Arc<Health>,
        faults: Faults,
    ) -> Self {
        Self {
            engine,
            urgent: VecDeque::new(),
            waiting: VecDeque::new(),
            armed: false,
            nudged: false,
            finished: false,
            claimer: None,
            listener,
            health,
            faults,
        }
    }

    fn arm(&mut self, ctx: &mut Context<Self>) {
        if self.armed {
            return;
        }
        self.armed = true;
        match self.faults.take_delay() {
            None => ctx.notify(Flush),
            Some(delay) => {
                let late = wrap_future::<_, Self>(self.health.clock.sleep(delay));
                ctx.spawn(late.map(|(), _, ctx| ctx.notify(Flush)));
            }
        }
    }

    fn flush(&mut self) {
        if self.faults.is_dead() {
            return;
        }
        self.faults.panic(Point::Store);
        let nudged = std::mem::take(&mut self.nudged);
        let (mut batch, mut permits) = (Vec::new(), Vec::new());
        while batch.len() < BATCH
            && let Some(next) = self.urgent.pop_front().or_else(|| self.waiting.pop_front())
        {
            batch.push(next.message);
            permits.extend(next.permit);
        }
        let claimer = self.claimer.clone();
        let idle = batch.is_empty();
        if idle && !(nudged && claimer.as_ref().is_some_and(|one| one.want(false).is_some())) {
            return;
        }
        let outcome = self.engine.run(batch, claimer.as_deref());
        drop(permits);
        let troubled = outcome.fault.as_ref().filter(|fault| fault.is_of_the_store());
        self.health.store(troubled, outcome.wrote);
        for trouble in &outcome.effects.unhooked {
            self.health.needs_a_person(trouble);
        }
        (self.listener)(outcome.effects);
    }
}

impl Actor for StoreActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.armed = false;
        self.arm(ctx);
    }
}

impl Supervised for StoreActor {
    fn restarting(&mut self, _: &mut Context<Self>) {
        self.engine.reconnect();
    }
}

impl Handler<Submit> for StoreActor {
    type Result = ();

    fn handle(&mut self, submit: Submit, ctx: &mut Context<Self>) {
        if self.finished {
            submit.message.answer(Err(StoreFault::Stopped));
            return;
        }
        if submit.urgent {
            self.urgent.push_back(submit);
        } else {
            self.waiting.push_back(submit);
        }
        if self.urgent.len() + self.waiting.len() >= BATCH {
            self.flush();
        } else {
            self.arm(ctx);
        }
    }
}

impl Handler<Nudge> for StoreActor {
    type Result = ();

    fn handle(&mut self, _: Nudge, ctx: &mut Context<Self>) {
        self.nudged = true;
        self.arm(ctx);
    }
}

impl Handler<Attach> for StoreActor {
    type Result = ();

    fn handle(&mut self, attach: Attach, ctx: &mut Context<Self>) {
        self.claimer = attach.0;
        self.nudged = true;
        self.arm(ctx);
    }
}

impl Handler<Flush> for StoreActor {
    type Result = ();

    fn handle(&mut self, _: Flush, ctx: &mut Context<Self>) {
        self.armed = false;
        self.flush();
        let idle = self.urgent.is_empty() && self.waiting.is_empty();
        if !idle && !self.faults.is_dead() {
            self.arm(ctx);
        }
    }
}

impl Handler<Checkpoint> for StoreActor {
    type Result = ();

    fn handle(&mut self, see: Checkpoint, _: &mut Context<Self>) {
        self.health.log_bytes(self.engine.see_to_log(see.last));
        // Whoever asked may have stopped waiting.
        let _gone = see.done.send(());
    }
}

impl Handler<Die> for StoreActor {
    type Result = ();

    fn handle(&mut self, die: Die, _: &mut Context<Self>) {
        // For ever, whatever process comes after it.
        self.faults = Faults::default();
        self.faults.kill();
        self.claimer = None;
        self.engine.die();
        // Whoever asked may have stopped waiting.
        let _gone = die.0.send(());
    }
}

impl Handler<Finish> for StoreActor {
    type Result = ();

    fn handle(&mut self, finish: Finish, _: &mut Context<Self>) {
        self.claimer = None;
        if self.faults.is_dead() {
            self.urgent.clear();
            self.waiting.clear();
        }
        while !self.urgent.is_empty() || !self.waiting.is_empty() {
            self.flush();
        }
        self.finished = true;
        self.engine.see_to_log(true);
        // Whoever asked may have stopped waiting; the file is as it stays all the same.
        let _gone = finish.0.send(());
    }
}
