//! The client: enqueues, looks, and acts; runs nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Refusal, Result, StoreFault};
use crate::host::{Host, HostConfig};
use crate::job::JobId;
use crate::lease::Lease;
use crate::new_job::{Enqueued, NewJob};
use crate::record::{Attempt, Counts, JobRecord, Totals, Why};
use crate::scope::Scope;
use crate::store::Place;
use crate::store::claim::{Claimed, Want};
use crate::store::messages::{Claim, ClaimById, Enqueue, Message, Scoped};
use crate::store::questions::{AllTotals, Attempts, CountAll, FindJob, WhyWaiting};

/// How often a new job whose answer was lost is asked for.
const ASK_AGAIN: u32 = 5;

/// A handle on the jobs of a database: enqueues, looks, acts. Cheap to clone.
///
/// ```
/// # fn main() -> leasehold::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// use leasehold::{Client, Job};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Welcome { email: String }
/// impl Job for Welcome { const KIND: &'static str = "welcome"; }
///
/// let client = Client::open_blocking(dir.path().join("jobs.db"))?;
/// let welcome = Welcome { email: "ada@example.com".into() };
/// let first = client.enqueue_blocking(welcome.into_new().id("welcome-ada"))?;
/// assert_eq!(first.id.to_string(), "welcome-ada");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    pub(crate) host: Arc<Host>,
    pub(crate) scope: Option<Scope>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Client");
        shown.field("path", &self.host.path).field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) const fn new(host: Arc<Host>) -> Self {
        Self { host, scope: None }
    }

    /// The same, for one tenant or organization alone: other jobs are not there for it, what it
    /// enqueues is theirs, and what is about the whole database is refused as
    /// [`Refusal::OutOfScope`].
    ///
    /// Specified in SEMANTICS.md, “Scopes”.
    #[must_use]
    pub fn scoped(&self, scope: Scope) -> Self {
        Self { host: self.host.clone(), scope: Some(scope) }
    }

    /// Sends a message to the store, with the scope.
    pub(crate) async fn ask<M: Message>(&self, message: M) -> Result<M::Reply> {
        self.host.store.ask(Scoped { scope: self.scope.clone(), message }).await
    }

    /// The same of a message that may be asked again where its answer was lost: what it makes has
    /// an id that was minted once.
    pub(crate) async fn ask_again<M: Message>(&self, message: impl Fn() -> M) -> Result<M::Reply> {
        let mut asked = 1;
        let mut lost = None;
        loop {
            match (self.ask(message()).await, lost.take()) {
                (Err(Error::Store(fault @ StoreFault::Unknown(_))), _) if asked < ASK_AGAIN => {
                    asked += 1;
                    lost = Some(fault);
                }
                // That it did not land this time says nothing of the time before.
                (Err(Error::Store(_)), Some(before)) => return Err(before.into()),
                (answer, _) => return answer,
            }
        }
    }

    /// Asks a question, with the scope.
    pub(crate) async fn read<M: Message>(&self, message: M) -> Result<M::Reply> {
        self.host.store.read(Scoped { scope: self.scope.clone(), message }).await
    }

    /// Opens a database, making it if it is not there, without running anything in it.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] where the file cannot be opened or written, is no database, or needs a
    /// newer leasehold.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        let opened = Host::start(HostConfig::new(Place::File(path.as_ref().to_owned())));
        let host = opened.await.unwrap_or(Err(StoreFault::Stopped.into()))?;
        Ok(Self::new(host))
    }

    /// [`Client::open`] for code that is not async.
    ///
    /// # Errors
    ///
    /// As [`Client::open`].
    pub fn open_blocking(path: impl AsRef<Path>) -> Result<Self> {
        crate::block_on(Self::open(path))
    }

    /// Enqueues a job; when this answers, it is in the database.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] where a field breaks a rule or the lock is held; a [`StoreFault`].
    pub async fn enqueue(&self, job: impl Into<NewJob>) -> Result<Enqueued> {
        let mut answers = self.enqueue_items(vec![job.into()]).await?;
        match answers.pop() {
            Some(answer) => Ok(answer?),
            None => Err(StoreFault::Stopped.into()),
        }
    }

    /// [`Client::enqueue`] for code that is not async; not to be called from async code.
    ///
    /// # Errors
    ///
    /// As [`Client::enqueue`].
    pub fn enqueue_blocking(&self, job: impl Into<NewJob>) -> Result<Enqueued> {
        crate::block_on(self.enqueue(job))
    }

    /// Enqueues many jobs in one transaction. A refusal is one item's answer and stops no
    /// other.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`]: then none of them is known to be there.
    pub async fn enqueue_many<J: Into<NewJob>>(
        &self,
        jobs: impl IntoIterator<Item = J>,
    ) -> Result<Vec<std::result::Result<Enqueued, Refusal>>> {
        self.enqueue_items(jobs.into_iter().map(Into::into).collect()).await
    }

    /// A lost answer is asked for again: the ids are minted once.
    async fn enqueue_items(
        &self,
        jobs: Vec<NewJob>,
    ) -> Result<Vec<std::result::Result<Enqueued, Refusal>>> {
        let now = self.host.clock.now();
        let minted = |_: &NewJob| JobId::minted(self.host.entropy.uuid(now));
        let jobs: Vec<_> = jobs.into_iter().map(|job| (minted(&job), job)).collect();
        let message = || Enqueue(jobs.iter().map(|(id, job)| (job.clone(), id.clone())).collect());
        self.ask_again(message).await
    }

    /// A job as it stands, with its payload and result.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
    pub async fn job(&self, id: impl Into<JobId>) -> Result<Option<JobRecord>> {
        self.read(FindJob(id.into())).await
    }

    /// A job's history: the attempts that did not simply succeed at the first try.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`]; a [`StoreFault`].
    pub async fn attempts(&self, id: impl Into<JobId>) -> Result<Vec<Attempt>> {
        self.read(Attempts(id.into())).await
    }

    /// How many jobs are in each phase, and how many wait by kind.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
    pub async fn counts(&self) -> Result<Counts> {
        self.read(CountAll).await
    }

    /// How many jobs of each kind have ever ended. What a sweep, retention or an operator removed
    /// stays counted.
    ///
    /// # Errors
    ///
    /// [`Refusal::OutOfScope`]; a [`StoreFault`].
    pub async fn totals(&self) -> Result<BTreeMap<String, Totals>> {
        self.read(AllTotals).await
    }

    /// Why a pending job is not running, by the claim's own conditions: the first reason, what it
    /// is about, and until when where that is known.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], [`Refusal::Live`] for a running job, [`Refusal::Terminal`]; a
    /// [`StoreFault`].
    pub async fn why_waiting(&self, id: impl Into<JobId>) -> Result<Why> {
        self.read(WhyWaiting(id.into())).await
    }

    /// Waits until a job has ended, in whichever process, and answers it.
    ///
    /// # Errors
    ///
    /// [`Error::Deadline`] when it has not ended `deadline` from now; [`Refusal::NotFound`];
    /// a [`StoreFault`].
    pub async fn wait(&self, id: impl Into<JobId>, deadline: Duration) -> Result<JobRecord> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.host.home.spawn(self.host.clone().wait(
            (id.into(), self.scope.clone()),
            deadline,
            sender,
        ));
        receiver.await.unwrap_or(Err(StoreFault::Stopped.into()))
    }

    /// [`Client::wait`] for code that is not async.
    ///
    /// # Errors
    ///
    /// As [`Client::wait`].
    pub fn wait_blocking(&self, id: impl Into<JobId>, deadline: Duration) -> Result<JobRecord> {
        crate::block_on(self.wait(id, deadline))
    }

    /// Claims at most `limit` due jobs of these kinds by hand; nothing renews the leases but
    /// their holder.
    ///
    /// # Errors
    ///
    /// [`Refusal::OutOfScope`] of a scoped client; a [`StoreFault`].
    pub async fn claim(&self, kinds: &[&str], owner: &str, limit: usize) -> Result<Vec<Lease>> {
        if kinds.is_empty() || limit == 0 {
            return Ok(Vec::new());
        }
        let want = Want {
            owner: owner.into(),
            kinds: kinds.iter().map(|kind| Arc::from(*kind)).collect(),
            limit,
            suspects: usize::MAX,
            ..Want::default()
        };
        let mut leases = Vec::new();
        loop {
            let limit = limit - leases.len();
            let batch = self.ask(Claim(Want { limit, ..want.clone() })).await?;
            let more = batch.more;
            leases.extend(batch.claimed.into_iter().map(|claimed| self.lease(claimed)));
            if !more || leases.len() == want.limit {
                return Ok(leases);
            }
        }
    }

    /// Claims one job, early if need be and through a pause; answers nothing where it cannot
    /// be taken.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
    pub async fn claim_by_id(&self, id: impl Into<JobId>, owner: &str) -> Result<Option<Lease>> {
        let message = ClaimById { id: id.into(), owner: owner.into() };
        Ok(self.ask(message).await?.map(|claimed| self.lease(claimed)))
    }

    fn lease(&self, claimed: Claimed) -> Lease {
        Lease::new(self.clone(), claimed)
    }
}
