//! Sending to the store: messages to its actor, questions to its readers.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use actix::Addr;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::actors::store::{Attach, Checkpoint, Die, Finish, Listener, Nudge, StoreActor, Submit};
use crate::error::{Result, StoreFault};
use crate::store::messages::{Envelope, Message};
use crate::store::{Claimer, Engine, Pending, Readers};

/// Messages that may wait for the store at a time; callers beyond it wait with theirs.
const ADMITTED: usize = 10_000;

/// Messages that share a transaction.
type Batch = Vec<Box<dyn Pending>>;

/// Sends messages to the store.
#[derive(Clone)]
pub(crate) struct Store {
    writer: Writer,
    readers: Option<Readers>,
    permits: Arc<Semaphore>,
    /// Messages of senders who run them, while they are to wait for each other.
    held: Arc<Mutex<Option<Batch>>>,
}

/// Who runs messages.
#[derive(Clone)]
pub(crate) enum Writer {
    Actor(Addr<StoreActor>),
    /// Whoever sends one, at once and alone: for tests that want no threads.
    Sender(Arc<Mutex<Engine>>, Listener),
}

impl Writer {
    fn submit(&self, submit: Submit) {
        match self {
            Self::Actor(addr) => addr.do_send(submit),
            Self::Sender(..) => self.run(vec![submit.message]),
        }
    }

    /// Runs a batch, where there is no actor.
    fn run(&self, batch: Batch) {
        if let Self::Sender(engine, listener) = self {
            let mut engine = engine.lock().unwrap_or_else(PoisonError::into_inner);
            let outcome = engine.run(batch, None);
            drop(engine);
            listener(outcome.effects);
        }
    }

    /// Sends what only the actor has a use for.
    fn tell<M>(&self, message: M)
    where
        M: actix::Message + Send + 'static,
        M::Result: Send,
        StoreActor: actix::Handler<M>,
    {
        if let Self::Actor(addr) = self {
            addr.do_send(message);
        }
    }
}

impl Store {
    pub(crate) fn new(writer: Writer, readers: Option<Readers>) -> Self {
        let (permits, held) = (Arc::new(Semaphore::new(ADMITTED)), Arc::default());
        Self { writer, readers, permits, held }
    }

    /// Has messages wait until [`Store::release`], where there is no actor.
    pub(crate) fn hold(&self) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
    }

    /// Runs what has waited as one batch.
    pub(crate) fn release(&self) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.writer.run(held.unwrap_or_default());
    }

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
        message: Box<dyn Pending>,
        urgent: bool,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        if let Writer::Sender(..) = self.writer
            && let Some(held) = &mut *self.held.lock().unwrap_or_else(PoisonError::into_inner)
        {
            return held.push(message);
        }
        self.writer.submit(Submit { message, urgent, permit });
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
        self.writer.tell(Checkpoint { last, done });
        let _seen = seen.await;
    }

    /// There may be work.
    pub(crate) fn nudge(&self) {
        self.writer.tell(Nudge);
    }

    /// Has it finish what waits; the answer comes when the file is as it stays.
    pub(crate) fn finish(&self) -> oneshot::Receiver<()> {
        let (sender, finished) = oneshot::channel();
        self.writer.tell(Finish(sender));
        finished
    }

    /// Its process dies: answered when nothing more is run or answered.
    pub(crate) fn die(&self) -> oneshot::Receiver<()> {
        let (sender, dead) = oneshot::channel();
        self.writer.tell(Die(sender));
        dead
    }

    /// Lets somebody's claims ride along.
    pub(crate) fn attach(&self, claimer: Option<Arc<dyn Claimer>>) {
        self.writer.tell(Attach(claimer));
    }
}
