//! One write transaction, and how application code is kept in its place within it.

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use crate::clock::{Clock, SystemClock};
use crate::entropy::Entropy;
use crate::error::{Error, StoreFault};
use crate::events::{JobEvent, What};
use crate::hooks::{Enqueues, Hooks, Tx};
use crate::job::{AttemptOutcome, JobId, Status};
use crate::new_job::{Enqueued, NewJob};
use crate::record::JobRecord;
use crate::rules::row::Row;
use crate::rules::text;
use crate::scope::Scope;

use super::cache::Cache;
use super::spares::Spare;
use super::statements as sql;
use super::trial::{Trial, violated};

/// A write transaction that has the lock: its connection, its one `now`, and what it has
/// done so far.
pub(crate) struct Txn<'e> {
    pub(super) conn: &'e Connection,
    pub(super) cache: &'e mut Cache,
    pub(super) now: i64,
    pub(super) monotonic: i64,
    pub(super) entropy: &'e dyn Entropy,
    pub(super) settings: &'e super::StoreSettings,
    pub(super) fence: &'e AppFence,
    pub(super) effects: Effects,
    /// Whose jobs whoever asks may see and touch; all where nothing is said.
    pub(super) scope: Option<Scope>,
}

/// Hooks by kind.
pub(crate) type HookTable = HashMap<Arc<str>, Hooks>;

/// A sweep of the application's own.
pub(crate) type SweepCode =
    Arc<dyn Fn(&mut Tx<'_>, i64) -> Result<(), crate::hooks::BoxError> + Send + Sync>;

/// What a transaction has done that somebody must hear of after its commit.
#[derive(Default)]
pub(crate) struct Effects {
    /// Work has become due, or a place has become free.
    pub(crate) work: bool,
    /// Jobs that have ended.
    pub(crate) ended: Vec<JobId>,
    /// Runs of a cancel request: signals to fire in this process.
    pub(crate) cancelled: Vec<JobId>,
    /// Hooks to run after the commit.
    pub(crate) after: Vec<(Hooks, AfterHook, JobRecord)>,
    /// What happened, where anybody listens.
    pub(crate) events: Vec<JobEvent>,
    /// Endings that landed without their hook, for a person to look at.
    pub(crate) unhooked: Vec<String>,
}

/// Which of the hooks that run after the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterHook {
    Transition,
    Redrive,
}

impl Effects {
    /// Notes a change of a row.
    pub(super) fn note(&mut self, old: &Row, new: &Row, now: i64) {
        let freed = old.status == Status::Running && new.status != Status::Running;
        let due = new.status == Status::Pending && new.run_at <= now;
        self.work |= freed || due;
        if old.status.is_live() && !new.status.is_live() {
            self.ended.push(new.id.clone());
        }
        let asked =
            old.detail.cancel_requested_at.is_none() && new.detail.cancel_requested_at.is_some();
        if asked && new.status == Status::Running {
            self.cancelled.push(new.id.clone());
        }
    }

    /// How much there is, so that a rollback can take off what came after.
    fn mark(&self) -> (bool, [usize; 5]) {
        let Self { work, ended, cancelled, after, events, unhooked } = self;
        let counts = [ended.len(), cancelled.len(), after.len(), events.len(), unhooked.len()];
        (*work, counts)
    }

    fn take_back(&mut self, (work, counts): (bool, [usize; 5])) {
        self.work = work;
        self.ended.truncate(counts[0]);
        self.cancelled.truncate(counts[1]);
        self.after.truncate(counts[2]);
        self.events.truncate(counts[3]);
        self.unhooked.truncate(counts[4]);
    }

    /// Adds what another transaction of the same batch has done.
    pub(super) fn append(&mut self, other: Self) {
        self.work |= other.work;
        self.ended.extend(other.ended);
        self.cancelled.extend(other.cancelled);
        self.after.extend(other.after);
        self.events.extend(other.events);
        self.unhooked.extend(other.unhooked);
    }
}

impl Txn<'_> {
    /// Notes that something happened to a job, where anybody listens.
    pub(super) fn happened(&mut self, what: What, row: &Row, outcome: Option<AttemptOutcome>) {
        if !self.settings.events.is_heard() {
            return;
        }
        self.effects.events.push(JobEvent {
            what,
            id: row.id.clone(),
            kind: row.kind.clone(),
            epoch: row.epoch,
            status: row.status,
            outcome,
            at: self.now,
        });
    }

    /// Runs `work` so that an error of it undoes what it wrote, and nothing else.
    pub(super) fn contained<R>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mark = self.effects.mark();
        self.control(sql::SAVEPOINT)?;
        match work(self) {
            Ok(value) => {
                self.control(sql::RELEASE)?;
                Ok(value)
            }
            Err(error) => {
                self.effects.take_back(mark);
                self.cache.forget();
                if self.conn.is_autocommit() {
                    // The whole transaction is gone; whoever runs it sees that for itself.
                    return Err(StoreFault::Sql("the transaction was rolled back".into()).into());
                }
                self.control(sql::ROLLBACK_TO)?;
                self.control(sql::RELEASE)?;
                Err(error)
            }
        }
    }

    fn control(&self, statement: &str) -> Result<(), StoreFault> {
        self.conn.prepare_cached(statement)?.execute([])?;
        Ok(())
    }

    /// Runs application code with a restricted view of the transaction: its panic, its
    /// overtime and its error are errors of this call.
    pub(super) fn application<R>(
        &mut self,
        what: &str,
        code: impl FnOnce(&mut Tx<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let (conn, fence, now) = (self.conn, self.fence, self.now);
        if let Some(guilt) = fence.trial.guilt_of(what) {
            return Err(guilt);
        }
        let before = fence.trial.is_careful().then(|| violated(conn));
        let scope = self.scope.take();
        let inside = fence.enter(what);
        let outcome = catch_unwind(AssertUnwindSafe(|| code(&mut Tx::new(conn, now, self))));
        let overtime = fence.leave();
        drop(inside);
        self.scope = scope;
        if fence.enqueues() {
            // What plain SQL has added on our own connection, nothing else tells of.
            self.cache.forget();
            self.effects.work = true;
        }
        let outcome = match outcome {
            Err(panic) => Err(StoreFault::Panicked(text::of_panic(panic)).into()),
            Ok(_) if overtime => Err(StoreFault::TimedOut.into()),
            Ok(result) => result,
        };
        if conn.is_autocommit() {
            fence.trial.convict(what, outcome.as_ref().err());
        } else if outcome.is_ok() && before.is_some_and(|before| violated(conn) > before) {
            return Err(StoreFault::Application("it left a foreign key violated".into()).into());
        }
        outcome
    }
}

impl Enqueues for Txn<'_> {
    fn enqueue(&mut self, job: &NewJob, scope: Option<&Scope>) -> Result<Enqueued, Error> {
        let _outside = self.fence.step_out();
        self.scope = scope.cloned();
        let minted = JobId::minted(self.entropy.uuid(self.now));
        // Whole or not at all, whatever the application makes of an error.
        let enqueued = self.contained(|txn| Txn::enqueue(txn, job, &minted));
        self.scope = None;
        enqueued
    }
}

/// Keeps application code from what is not its own: transactions, savepoints, attached
/// files, pragmas, our tables; and from going on for ever.
pub(crate) struct AppFence {
    limit_ms: i64,
    shared: Arc<Shared>,
    pub(super) trial: Trial,
    /// Application code has run since the last look.
    entered: Cell<bool>,
}

#[derive(Default)]
struct Shared {
    /// Real time, whatever the runtime's clock: code that runs away does so under a frozen
    /// clock too.
    time: SystemClock,
    inside: AtomicBool,
    overtime: AtomicBool,
    /// Application code has prepared a statement that enqueues by plain SQL.
    enqueues: AtomicBool,
    deadline: AtomicI64,
    /// What runs, for whoever asks why the store is stuck.
    running: std::sync::Mutex<Option<(String, i64)>>,
}

/// Application code that sits in a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inside {
    pub(crate) what: String,
    /// For how long, in milliseconds.
    pub(crate) for_ms: i64,
}

/// A look at a fence from another thread.
#[derive(Clone)]
pub(crate) struct FenceView(Arc<Shared>);

impl FenceView {
    /// What application code sits in the transaction, and for how long.
    pub(crate) fn inside(&self) -> Option<Inside> {
        let running = self.0.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (what, since) = running.as_ref()?;
        let for_ms = self.0.time.monotonic().saturating_sub(*since);
        Some(Inside { what: what.clone(), for_ms })
    }
}

struct Leave<'f>(&'f AppFence);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Our own statements on behalf of application code, which goes on afterwards.
struct StepOut<'f>(&'f AppFence);

impl Drop for StepOut<'_> {
    fn drop(&mut self) {
        self.0.shared.inside.store(true, Ordering::Relaxed);
    }
}

impl AppFence {
    pub(super) fn new(limit_ms: i64) -> Self {
        let (shared, trial, entered) = (Arc::default(), Trial::default(), Cell::default());
        Self { limit_ms, shared, trial, entered }
    }

    pub(crate) fn view(&self) -> FenceView {
        FenceView(self.shared.clone())
    }

    /// Takes over a connection with the fence that is set up on it.
    pub(super) fn adopt(&mut self, spare: Spare) -> Connection {
        if let Some(FenceView(shared)) = spare.fence {
            self.shared = shared;
        }
        spare.conn
    }

    /// Sets the fence up on a connection, once: it asks only while application code runs.
    pub(super) fn install(&self, conn: Connection) -> rusqlite::Result<Connection> {
        let shared = self.shared.clone();
        conn.authorizer(Some(move |context: AuthContext<'_>| {
            let enqueues = AuthAction::Insert { table_name: "leasehold_enqueue" };
            if context.action == enqueues {
                shared.enqueues.store(true, Ordering::Relaxed);
            }
            if !shared.inside.load(Ordering::Relaxed) || allowed(&context) {
                Authorization::Allow
            } else {
                Authorization::Deny
            }
        }))?;
        let shared = self.shared.clone();
        conn.progress_handler(
            10_000,
            Some(move || {
                let over = shared.inside.load(Ordering::Relaxed)
                    && shared.time.monotonic() > shared.deadline.load(Ordering::Relaxed);
                if over {
                    shared.overtime.store(true, Ordering::Relaxed);
                }
                over
            }),
        )?;
        Ok(conn)
    }

    /// Whether application code has run since this was last asked.
    pub(super) fn was_entered(&self) -> bool {
        self.entered.replace(false)
    }

    fn enter(&self, what: &str) -> Leave<'_> {
        self.entered.set(true);
        let now = self.shared.time.monotonic();
        self.shared.deadline.store(now.saturating_add(self.limit_ms), Ordering::Relaxed);
        self.shared.overtime.store(false, Ordering::Relaxed);
        self.running(Some((what.to_owned(), now)));
        self.shared.inside.store(true, Ordering::Relaxed);
        Leave(self)
    }

    fn enqueues(&self) -> bool {
        self.shared.enqueues.load(Ordering::Relaxed)
    }

    fn step_out(&self) -> StepOut<'_> {
        self.shared.inside.store(false, Ordering::Relaxed);
        StepOut(self)
    }

    /// Answers whether the code ran into its limit.
    fn leave(&self) -> bool {
        self.shared.inside.store(false, Ordering::Relaxed);
        self.running(None);
        let late = self.shared.time.monotonic() > self.shared.deadline.load(Ordering::Relaxed);
        self.shared.overtime.swap(false, Ordering::Relaxed) || late
    }

    fn running(&self, now: Option<(String, i64)>) {
        *self.shared.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = now;
    }
}

/// Whether application code may do this.
fn allowed(context: &AuthContext<'_>) -> bool {
    let ours =
        |name: &str| name.get(..10).is_some_and(|start| start.eq_ignore_ascii_case("leasehold_"));
    // What a trigger of ours does on behalf of the application is our own doing.
    if context.accessor.is_some_and(ours) {
        return true;
    }
    match context.action {
        AuthAction::Transaction { .. }
        | AuthAction::Savepoint { .. }
        | AuthAction::Pragma { .. }
        | AuthAction::Attach { .. }
        | AuthAction::Detach { .. } => false,
        AuthAction::Insert { table_name: "leasehold_enqueue" } => true,
        AuthAction::Insert { table_name }
        | AuthAction::Delete { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::AlterTable { table_name, .. }
        | AuthAction::DropTable { table_name }
        | AuthAction::DropTrigger { table_name, .. }
        | AuthAction::DropIndex { table_name, .. }
        // A table or view of our name would be taken for ours, before ours if temporary.
        | AuthAction::CreateTable { table_name }
        | AuthAction::CreateTempTable { table_name }
        | AuthAction::CreateVtable { table_name, .. } => !ours(table_name),
        AuthAction::DropView { view_name }
        | AuthAction::CreateView { view_name }
        | AuthAction::CreateTempView { view_name } => !ours(view_name),
        AuthAction::CreateIndex { index_name: name, table_name }
        | AuthAction::CreateTempIndex { index_name: name, table_name }
        | AuthAction::CreateTrigger { trigger_name: name, table_name }
        | AuthAction::CreateTempTrigger { trigger_name: name, table_name } => {
            !ours(name) && !ours(table_name)
        }
        _ => true,
    }
}
