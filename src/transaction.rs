//! Jobs in the application's own transactions: by a closure on the store's connection, or on a
//! connection of the application's.

use std::fmt::{self, Display};
use std::sync::{Arc, Mutex, PoisonError};

use crate::client::Client;
use crate::context::Ctx;
use crate::error::{Error, FencedError, Refusal, Result, StoreFault};
use crate::hooks::Tx;
use crate::job::JobId;
use crate::new_job::{Enqueued, NewJob};
use crate::scope::Scope;
use crate::store::messages::{Code, Transact};

/// Why a transaction did not land.
#[derive(Debug)]
#[non_exhaustive]
pub enum TransactionError<E> {
    /// The store is in trouble, or the closure panicked or took too long. Nothing was written,
    /// but for [`StoreFault::Unknown`]: then it may have been.
    Store(StoreFault),
    /// The closure's own error; what it wrote was rolled back.
    Application(E),
}

impl<E: Display> Display for TransactionError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(fault) => fault.fmt(f),
            Self::Application(error) => error.fmt(f),
        }
    }
}

impl<E: Display + fmt::Debug> std::error::Error for TransactionError<E> {}

/// Application code that may be run again, and what its last run answered: kept here, so that
/// it is not lost with the answer of the commit.
pub(crate) struct Rerun<F, R, E> {
    code: Arc<Mutex<F>>,
    answer: Arc<Mutex<Option<std::result::Result<R, E>>>>,
}

impl<F, R, E> Rerun<F, R, E>
where
    F: FnMut(&mut Tx<'_>) -> std::result::Result<R, E> + Send + 'static,
    R: Send + 'static,
    E: Send + 'static,
{
    pub(crate) fn new(code: F) -> Self {
        Self { code: Arc::new(Mutex::new(code)), answer: Arc::default() }
    }

    /// The code as a message takes it along. Its own error rolls back as `Revoked`.
    pub(crate) fn code(&self, scope: Option<Scope>) -> Code {
        let (answer, code) = (self.answer.clone(), self.code.clone());
        Box::new(move |tx| {
            tx.within(scope.clone());
            let mut code = code.lock().unwrap_or_else(PoisonError::into_inner);
            let result = code(tx);
            let failed = result.is_err();
            *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            if failed { Err(Refusal::Revoked.into()) } else { Ok(()) }
        })
    }

    /// What the last run answered.
    pub(crate) fn answer(&self) -> Option<std::result::Result<R, E>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Client {
    /// Runs statements of the application and enqueues jobs in one transaction: all of it lands,
    /// or nothing. The closure may run more than once, and commits at most once; see [`Tx`] for
    /// what it may do.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # use leasehold::{Client, Job, NewJob};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Invoice { order: i64 }
    /// # impl Job for Invoice { const KIND: &'static str = "invoice"; }
    /// let client = Client::open(dir.path().join("shop.db")).await?;
    /// let order = client
    ///     .transaction(|tx| {
    ///         tx.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)", [])?;
    ///         tx.execute("INSERT INTO orders DEFAULT VALUES", [])?;
    ///         let order = tx.last_insert_rowid();
    ///         tx.enqueue(Invoice { order })?;
    ///         Ok::<_, leasehold::Error>(order)
    ///     })
    ///     .await?;
    /// assert_eq!(order, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// Specified in SEMANTICS.md, “Enqueue and keys”.
    ///
    /// # Errors
    ///
    /// The closure's own error; trouble of the store.
    pub async fn transaction<F, R, E>(&self, code: F) -> Result<R, TransactionError<E>>
    where
        F: FnMut(&mut Tx<'_>) -> Result<R, E> + Send + 'static,
        R: Send + 'static,
        E: Send + 'static,
    {
        let rerun = Rerun::new(code);
        let name = format!("transaction {}", self.host.entropy.uuid(self.host.clock.now()));
        let asked = self.host.store.ask(Transact { name, code: rerun.code(self.scope.clone()) });
        match (asked.await, rerun.answer()) {
            (Ok(()), Some(Ok(value))) => Ok(value),
            (Err(Error::Refused(Refusal::Revoked)), Some(Err(error))) => {
                Err(TransactionError::Application(error))
            }
            (Err(Error::Store(fault)), _) => Err(TransactionError::Store(fault)),
            (Err(other), _) => Err(TransactionError::Store(StoreFault::Sql(other.to_string()))),
            (Ok(()), _) => Err(TransactionError::Store(StoreFault::Stopped)),
        }
    }

    /// Enqueues a job in a transaction on a connection of the application's own to the same file:
    /// the job exists if and only if that transaction commits, and is as durable as that
    /// connection's `synchronous` makes it. Whoever runs jobs on the file hears of the commit.
    ///
    /// Begin it with [`rusqlite::TransactionBehavior::Immediate`], or enqueue before anything is
    /// read: a transaction that has read cannot always be made to write.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("shop.db");
    /// # use leasehold::{rusqlite, Client, NewJob};
    /// let client = Client::open(&path).await?;
    /// let mut conn = rusqlite::Connection::open(&path)?;
    /// let tx = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    /// tx.execute_batch("CREATE TABLE orders (id INTEGER); INSERT INTO orders VALUES (1)")?;
    /// let job = client.enqueue_in(&tx, NewJob::raw("invoice", None))?;
    /// tx.commit()?;
    /// assert!(client.job(job.id).await?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// Specified in SEMANTICS.md, “Enqueue and keys”.
    ///
    /// # Errors
    ///
    /// A [`Refusal`], after which the transaction stands as before; a [`StoreFault`];
    /// [`Error::Setup`] where the connection is to another file.
    pub fn enqueue_in(
        &self,
        tx: &rusqlite::Transaction<'_>,
        job: impl Into<NewJob>,
    ) -> Result<Enqueued> {
        self.same_file(tx)?;
        let minted = JobId::minted(self.host.entropy.uuid(self.host.clock.now()));
        let (clock, entropy) = (&*self.host.clock, &*self.host.entropy);
        crate::store::enqueue_in(tx, clock, entropy, self.scope.as_ref(), (&job.into(), &minted))
    }

    fn same_file(&self, tx: &rusqlite::Transaction<'_>) -> Result<()> {
        let canonical = |path: &std::path::Path| path.canonicalize().ok();
        let theirs = tx.path().filter(|path| !path.is_empty()).map(std::path::Path::new);
        let same = match (&self.host.path, theirs) {
            (Some(ours), Some(theirs)) => {
                canonical(ours).is_some_and(|ours| canonical(theirs) == Some(ours))
            }
            _ => false,
        };
        if same {
            return Ok(());
        }
        let shown = |path: Option<&std::path::Path>| {
            path.map_or_else(|| "memory".to_owned(), |path| path.display().to_string())
        };
        Err(Error::Setup(format!(
            "the transaction is on {}, and this client on {}; connect to the same file",
            shown(theirs),
            shown(self.host.path.as_deref())
        )))
    }
}

impl<S> Ctx<S> {
    /// Enqueues a job that lands only if this attempt still holds its own, and at most once however
    /// often an answer was lost. For several at once, or with statements beside them, see
    /// [`Tx::enqueue`] in [`Ctx::fenced`].
    ///
    /// # Errors
    ///
    /// [`FencedError::Lost`] where the job is somebody else's; trouble of the store; the
    /// [`Refusal`] of the new job. Nothing was written then.
    pub async fn enqueue(&self, job: impl Into<NewJob>) -> Result<Enqueued, FencedError<Refusal>> {
        let job = job.into();
        match self.fenced(move |tx| tx.enqueue(job.clone())).await {
            Ok(enqueued) => Ok(enqueued),
            Err(FencedError::Application(Error::Refused(refusal))) => {
                Err(FencedError::Application(refusal))
            }
            Err(FencedError::Application(Error::Store(fault)) | FencedError::Store(fault)) => {
                Err(FencedError::Store(fault))
            }
            Err(FencedError::Application(other)) => {
                Err(FencedError::Store(StoreFault::Sql(other.to_string())))
            }
            Err(FencedError::Lost(refusal)) => Err(FencedError::Lost(refusal)),
        }
    }
}
