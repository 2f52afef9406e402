//! Every message to the store, with its reply.
//!
//! | message | reply |
//! |---|---|
//! | [`Enqueue`] | an [`Enqueued`] or a refusal for each item |
//! | [`SettleOne`] | the job's status after it |
//! | [`Renewals`] | the new end of each lease, or a refusal |
//! | [`SaveOne`] | what was saved |
//! | [`Claim`], [`ClaimById`] | leases |
//! | [`Cancel`] | the job's status after it |
//! | [`RedriveOne`], [`Delete`], [`Pause`], [`Resume`], [`Transact`] | nothing |
//! | [`RunAgain`] | the new job's id |
//! | [`StartBulk`] | the number of the operation |
//! | [`SwitchBulk`] | nothing |
//! | [`Slice`] | when the next slice is due |
//! | [`Sweep`] | how many jobs it removed |
//! | [`Register`] | nothing |
//! | [`Reap`] | what the pass came to |
//!
//! Questions are messages too; they are in [`super::questions`].

use std::sync::Arc;

use crate::bugs::{self, Bug};
use crate::bulk::{BulkState, NewBulk};
use crate::error::{Error, Refusal, StoreFault};
use crate::hooks::Tx;
use crate::job::{JobId, Status};
use crate::kind::Settings;
use crate::new_job::{Enqueued, NewJob};
use crate::operator::{Operator, Target};
use crate::rules::operate::Redrive;
use crate::rules::settle::Settle;
use crate::scope::Scope;
use crate::validate::{self, Sizes};

use super::claim::{Batch, Claimed, Want};
use super::engine::Pending;
use super::holder::{Save, Saved, Write};
use super::reaper::{Known, Pass};
use super::txn::Txn;

/// A message with a reply of its own type.
pub(crate) trait Message: Send + 'static {
    type Reply: Send + 'static;

    /// Whether it goes before others: what holders have waited for, so that no lease is
    /// judged while its renewal waits.
    const URGENT: bool = false;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Self::Reply, Error>;
}

/// A message of a client that may see and touch the jobs of a scope alone.
pub(crate) struct Scoped<M> {
    pub(crate) scope: Option<Scope>,
    pub(crate) message: M,
}

impl<M: Message> Message for Scoped<M> {
    type Reply = M::Reply;

    const URGENT: bool = M::URGENT;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Self::Reply, Error> {
        txn.scope.clone_from(&self.scope);
        let reply = self.message.run(txn);
        txn.scope = None;
        reply
    }
}

/// A message on its way, with whoever waits for its answer.
pub(crate) struct Envelope<M, F>
where
    M: Message,
    F: FnOnce(Result<M::Reply, Error>) + Send,
{
    message: M,
    reply: Option<F>,
    done: Option<Result<M::Reply, Error>>,
}

impl<M, F> Drop for Envelope<M, F>
where
    M: Message,
    F: FnOnce(Result<M::Reply, Error>) + Send,
{
    /// Nobody waits for ever: what was never answered may have landed or not.
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            let error = "the store died before it answered";
            reply(Err(StoreFault::Unknown(error.into()).into()));
        }
    }
}

impl<M, F> Envelope<M, F>
where
    M: Message,
    F: FnOnce(Result<M::Reply, Error>) + Send + 'static,
{
    pub(crate) fn seal(message: M, reply: F) -> Box<dyn Pending> {
        Box::new(Self { message, reply: Some(reply), done: None })
    }
}

impl<M, F> Pending for Envelope<M, F>
where
    M: Message,
    F: FnOnce(Result<M::Reply, Error>) + Send,
{
    fn run(&mut self, txn: &mut Txn<'_>) -> Result<(), StoreFault> {
        self.done = None;
        match self.message.run(txn) {
            // What application code did wrong was undone alone, and is an answer.
            Err(Error::Store(fault)) if !super::operator::is_application(&fault) => Err(fault),
            answer => {
                self.done = Some(answer);
                Ok(())
            }
        }
    }

    fn answer(mut self: Box<Self>, outcome: Result<(), StoreFault>) {
        let answer = match outcome {
            Err(fault) => Err(fault.into()),
            Ok(()) => self.done.take().unwrap_or(Err(StoreFault::Stopped.into())),
        };
        if let Some(reply) = self.reply.take() {
            reply(answer);
        }
    }
}

/// Enqueues jobs, each with the id that it gets if it is new and has none.
pub(crate) struct Enqueue(pub(crate) Vec<(NewJob, JobId)>);

impl Message for Enqueue {
    type Reply = Vec<Result<Enqueued, Refusal>>;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Self::Reply, Error> {
        let mut answers = Vec::with_capacity(self.0.len());
        for (job, minted) in &self.0 {
            let answer = refusal(txn.enqueue(job, minted))?;
            if bugs::on(Bug::ConflictEndsBatch) && answer.is_err() {
                answer?;
                continue;
            }
            answers.push(answer);
        }
        Ok(answers)
    }
}

/// Takes a refusal for an answer, and any other error for an error.
fn refusal<T>(outcome: Result<T, Error>) -> Result<Result<T, Refusal>, Error> {
    match outcome {
        Ok(value) => Ok(Ok(value)),
        Err(Error::Refused(refusal)) => Ok(Err(refusal)),
        Err(other) => Err(other),
    }
}

/// Ends an attempt.
pub(crate) struct SettleOne {
    pub(crate) write: Write,
    pub(crate) how: Settle,
}

impl Message for SettleOne {
    type Reply = Status;

    const URGENT: bool = true;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Status, Error> {
        txn.settle(&self.write, &self.how)
    }
}

/// Extends leases.
pub(crate) struct Renewals(pub(crate) Vec<(Write, bool)>);

/// A renewed lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Renewed {
    pub(crate) lease_until: i64,
    pub(crate) cancel_requested: bool,
    /// The monotonic time of the transaction.
    pub(crate) monotonic: i64,
}

impl Message for Renewals {
    type Reply = Vec<Result<Renewed, Refusal>>;

    const URGENT: bool = true;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Self::Reply, Error> {
        let monotonic = txn.monotonic;
        let mut answers = Vec::with_capacity(self.0.len());
        for (write, trusted) in &self.0 {
            let renewed = txn.renew(write, *trusted).map(|(lease_until, cancel_requested)| {
                Renewed { lease_until, cancel_requested, monotonic }
            });
            answers.push(refusal(renewed)?);
        }
        Ok(answers)
    }
}

/// Application code in a transaction.
pub(crate) type Code = Box<dyn FnMut(&mut Tx<'_>) -> Result<(), Error> + Send>;

/// Application code in a transaction of its own.
pub(crate) struct Transact {
    /// Tells it from other code in the same batch.
    pub(crate) name: String,
    pub(crate) code: Code,
}

impl Message for Transact {
    type Reply = ();

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<(), Error> {
        let Self { name, code } = self;
        txn.contained(|txn| txn.application(name, |tx| code(tx)))
    }
}

/// Saves something of an attempt that goes on.
pub(crate) struct SaveOne {
    pub(crate) write: Write,
    pub(crate) save: Save,
    pub(crate) code: Option<Code>,
}

impl Message for SaveOne {
    type Reply = Saved;

    const URGENT: bool = true;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Saved, Error> {
        txn.save(&self.write, &self.save, self.code.as_mut())
    }
}

/// Claims for somebody who is no worker.
pub(crate) struct Claim(pub(crate) Want);

impl Message for Claim {
    type Reply = Batch;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Batch, Error> {
        txn.whole("claim")?;
        validate::key("owner", &self.0.owner, txn.sizes()?)?;
        Ok(txn.claim(&self.0)?)
    }
}

/// Claims one job.
pub(crate) struct ClaimById {
    pub(crate) id: JobId,
    pub(crate) owner: Arc<str>,
}

impl Message for ClaimById {
    type Reply = Option<Claimed>;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Self::Reply, Error> {
        validate::key("owner", &self.owner, txn.sizes()?)?;
        txn.claim_by_id(&self.id, &self.owner)
    }
}

/// Declares an operator's actions: who and why, what, and the reply.
macro_rules! actions {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),+ } -> $reply:ty
        = |$txn:ident, $this:ident| $run:expr;)+) => {
        $($(#[$doc])*
        pub(crate) struct $name {
            pub(crate) by: Operator,
            $(pub(crate) $field: $type,)+
        }

        impl Message for $name {
            type Reply = $reply;

            fn run(&mut self, $txn: &mut Txn<'_>) -> Result<$reply, Error> {
                let $this = self;
                validate::operator(&$this.by, $txn.sizes()?)?;
                $run
            }
        })+
    };
}

actions! {
    /// Cancels a waiting job, or asks a running one to stop.
    Cancel { id: JobId } -> Status = |txn, this| txn.cancel(&this.id, &this.by);
    /// Makes an ended job live again.
    RedriveOne { id: JobId, how: Redrive } -> () =
        |txn, this| txn.redrive(&this.id, this.how, &this.by);
    /// Makes a new job like an ended one.
    RunAgain { id: JobId, minted: JobId } -> JobId =
        |txn, this| txn.run_again(&this.id, &this.minted, &this.by);
    /// Deletes an ended job.
    Delete { id: JobId } -> () = |txn, this| txn.delete(&this.id, &this.by);
    /// Deletes jobs that ended before a horizon.
    Sweep { settled_before: i64, limit: usize } -> u64 =
        |txn, this| txn.sweep(this.settled_before, this.limit, &this.by);
    /// Pauses a queue or a kind.
    Pause { target: Target } -> () = |txn, this| txn.pause(&this.target, &this.by);
    /// Stops an operation on many jobs, or lets it go on.
    SwitchBulk { id: i64, to: BulkState } -> () =
        |txn, this| txn.switch_bulk(this.id, this.to, &this.by);
    /// Lets a queue or a kind go on.
    Resume { target: Target } -> () = |txn, this| txn.resume(&this.target, &this.by);
}

/// Writes down what a runtime brings with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Register {
    pub(crate) kinds: Vec<(String, Settings)>,
    /// Limits on running jobs: scope, name, number.
    pub(crate) limits: Vec<(&'static str, String, i64)>,
    pub(crate) reasons: Vec<(String, String)>,
    /// How large what is given may be.
    pub(crate) sizes: Option<Sizes>,
}

impl Message for Register {
    type Reply = ();

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<(), Error> {
        txn.whole("register")?;
        for (kind, settings) in &self.kinds {
            txn.register(kind, settings)?;
        }
        for (scope, name, running) in &self.limits {
            txn.put_limit(scope, name, *running)?;
        }
        for (id, label) in &self.reasons {
            txn.put_reason(id, label)?;
        }
        if let Some(sizes) = self.sizes {
            txn.put_sizes(sizes)?;
        }
        Ok(())
    }
}

/// Starts an operation on many jobs.
pub(crate) struct StartBulk {
    pub(crate) by: Operator,
    pub(crate) bulk: NewBulk,
    pub(crate) minted: uuid::Uuid,
}

impl Message for StartBulk {
    type Reply = i64;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<i64, Error> {
        validate::operator(&self.by, txn.sizes()?)?;
        txn.start_bulk(&self.bulk, self.minted, &self.by)
    }
}

/// Works a slice of an operation on many jobs off; answers when the next is due.
pub(crate) struct Slice;

impl Message for Slice {
    type Reply = Option<i64>;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Option<i64>, Error> {
        Ok(txn.work_bulk()?)
    }
}

/// A pass of the reaper.
pub(crate) struct Reap(pub(crate) Known);

impl Message for Reap {
    type Reply = Pass;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Pass, Error> {
        txn.whole("reap_once")?;
        Ok(txn.reap(&self.0)?)
    }
}
