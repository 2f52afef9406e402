//! Application code inside the transactions of a job: hooks, and the restricted view of the
//! transaction that such code gets.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use rusqlite::{CachedStatement, Connection, Params, Row};

use crate::kind::Settings;
use crate::new_job::{Enqueued, NewJob};
use crate::record::JobRecord;
use crate::scope::Scope;

/// Any error of the application.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// The transaction that a job's write is in, for the application's own statements.
///
/// Statements that begin, end or nest transactions, attach files, set pragmas or write to
/// leasehold's own tables are refused. What is written here lands together with the job's own
/// change, or not at all. The code has a time limit (5 s unless set) and must not block: while
/// it runs, no other job can be claimed or settled.
pub struct Tx<'c> {
    conn: &'c Connection,
    now: i64,
    jobs: &'c mut (dyn Enqueues + 'c),
    scope: Option<Scope>,
}

/// What a [`Tx`] enqueues jobs with.
pub(crate) trait Enqueues {
    fn enqueue(&mut self, job: &NewJob, scope: Option<&Scope>) -> crate::Result<Enqueued>;
}

/// The application's statements are kept prepared apart from ours: a text like one of ours
/// must not be run as ours was allowed to.
fn own(sql: &str) -> String {
    format!("/**/{sql}")
}

impl<'c> Tx<'c> {
    pub(crate) fn new(conn: &'c Connection, now: i64, jobs: &'c mut (dyn Enqueues + 'c)) -> Self {
        Self { conn, now, jobs, scope: None }
    }

    /// The jobs that are enqueued from here on are of this scope.
    pub(crate) fn within(&mut self, scope: Option<Scope>) {
        self.scope = scope;
    }

    /// Enqueues a job in this transaction: it is there if and only if what else is written here
    /// is, and is claimed after the commit.
    ///
    /// # Errors
    ///
    /// A [`Refusal`](crate::Refusal), after which the transaction may go on; a
    /// [`StoreFault`](crate::StoreFault), after which it may not.
    pub fn enqueue(&mut self, job: impl Into<NewJob>) -> crate::Result<Enqueued> {
        self.jobs.enqueue(&job.into(), self.scope.as_ref())
    }

    /// The time of the transaction, in UTC milliseconds on the runtime's clock.
    #[must_use]
    pub const fn now(&self) -> i64 {
        self.now
    }

    /// Runs a statement that returns no rows; answers how many rows it changed.
    ///
    /// # Errors
    ///
    /// Any SQLite error, a refusal of the restriction among them.
    pub fn execute(&self, sql: &str, params: impl Params) -> rusqlite::Result<usize> {
        self.prepare(sql)?.execute(params)
    }

    /// Runs a query for its first row.
    ///
    /// # Errors
    ///
    /// `QueryReturnedNoRows` where there is none; any SQLite error.
    pub fn query_row<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.prepare(sql)?.query_row(params, read)
    }

    /// Prepares a statement, or finds it prepared.
    ///
    /// # Errors
    ///
    /// Any SQLite error.
    pub fn prepare(&self, sql: &str) -> rusqlite::Result<CachedStatement<'c>> {
        self.conn.prepare_cached(&own(sql))
    }

    /// The rowid of the last insert.
    #[must_use]
    pub fn last_insert_rowid(&self) -> i64 {
        self.conn.last_insert_rowid()
    }
}

impl fmt::Debug for Tx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tx")
    }
}

type Matching =
    Arc<dyn Fn(&JobRecord, &mut Tx<'_>) -> std::result::Result<usize, BoxError> + Send + Sync>;
pub(crate) type Agreeing =
    Arc<dyn Fn(&JobRecord, &mut Tx<'_>) -> std::result::Result<(), BoxError> + Send + Sync>;
type After = Arc<dyn Fn(&JobRecord) + Send + Sync>;

/// A kind's hooks: application code that runs inside the transaction in which one of its jobs
/// ends or comes back, so that a row of the application's agrees with the job or neither
/// changes.
///
/// A hook that matches no row, fails or panics has not agreed: the transaction is rolled back. A
/// completion is then a failed attempt, and the handler runs again by the kind's policy, with all
/// that it does outside of the database. Any other ending is tried again by the next pass of the
/// reaper, up to twenty times, without the handler.
///
/// ```
/// use leasehold::Hooks;
///
/// let hooks = Hooks::new()
///     .on_transition(|job, tx| {
///         let sql = "UPDATE orders SET state = ?2 WHERE id = ?1";
///         Ok(tx.execute(sql, (&job.subject_id, job.status.as_str()))?)
///     })
///     .on_redrive(|job, tx| {
///         Ok(tx.execute("UPDATE orders SET state = 'open' WHERE id = ?1", [&job.subject_id])?)
///     });
/// # let _ = hooks;
/// ```
///
/// Specified in SEMANTICS.md, “Hooks”.
#[derive(Clone, Default)]
#[must_use]
pub struct Hooks {
    pub(crate) on_transition: Option<Matching>,
    pub(crate) on_cancel: Option<Agreeing>,
    pub(crate) on_redrive: Option<Matching>,
    pub(crate) veto: Option<Agreeing>,
    pub(crate) after_transition: Option<After>,
    pub(crate) after_redrive: Option<After>,
}

impl Hooks {
    /// No hooks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs in the transaction that ends the job; answers how many rows agreed. Needs
    /// [`Hooks::on_redrive`] beside it.
    pub fn on_transition<F>(mut self, hook: F) -> Self
    where
        F: Fn(&JobRecord, &mut Tx<'_>) -> std::result::Result<usize, BoxError>
            + Send
            + Sync
            + 'static,
    {
        self.on_transition = Some(Arc::new(hook));
        self
    }

    /// Runs in the transaction that ends the job as cancelled, before
    /// [`Hooks::on_transition`].
    pub fn on_cancel<F>(mut self, hook: F) -> Self
    where
        F: Fn(&JobRecord, &mut Tx<'_>) -> std::result::Result<(), BoxError> + Send + Sync + 'static,
    {
        self.on_cancel = Some(Arc::new(hook));
        self
    }

    /// Runs in the transaction that makes the job live again; answers how many rows agreed.
    pub fn on_redrive<F>(mut self, hook: F) -> Self
    where
        F: Fn(&JobRecord, &mut Tx<'_>) -> std::result::Result<usize, BoxError>
            + Send
            + Sync
            + 'static,
    {
        self.on_redrive = Some(Arc::new(hook));
        self
    }

    /// Asked before an operator deletes one of the kind's jobs: an error keeps it, and its text is
    /// the reason. A sweep and retention do not ask.
    pub fn on_delete<F>(mut self, veto: F) -> Self
    where
        F: Fn(&JobRecord, &mut Tx<'_>) -> std::result::Result<(), BoxError> + Send + Sync + 'static,
    {
        self.veto = Some(Arc::new(veto));
        self
    }

    /// Runs after the commit that ended the job, at most once.
    pub fn after_transition(mut self, hook: impl Fn(&JobRecord) + Send + Sync + 'static) -> Self {
        self.after_transition = Some(Arc::new(hook));
        self
    }

    /// Runs after the commit that made the job live again, at most once.
    pub fn after_redrive(mut self, hook: impl Fn(&JobRecord) + Send + Sync + 'static) -> Self {
        self.after_redrive = Some(Arc::new(hook));
        self
    }

    /// Whether an ending asks any of them.
    pub(crate) fn in_transaction(&self) -> bool {
        self.on_transition.is_some() || self.on_cancel.is_some() || self.on_redrive.is_some()
    }

    /// Writes into a kind's settings what its hooks ask for.
    pub(crate) fn note(hooks: Option<&Self>, settings: &mut Settings) {
        settings.facts.hooks = hooks.is_some_and(Self::in_transaction);
        settings.facts.veto = hooks.is_some_and(|hooks| hooks.veto.is_some());
        settings.says_hooks = hooks.is_some();
    }

    pub(crate) fn check(&self, kind: &str) -> Result<(), crate::Error> {
        if self.on_transition.is_some() && self.on_redrive.is_none() {
            return Err(crate::Error::Setup(format!(
                "kind {kind} has on_transition without on_redrive, so a redrive would leave the \
                 application's row behind; add on_redrive"
            )));
        }
        Ok(())
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks")
            .field("on_transition", &self.on_transition.is_some())
            .field("on_cancel", &self.on_cancel.is_some())
            .field("on_redrive", &self.on_redrive.is_some())
            .finish_non_exhaustive()
    }
}
