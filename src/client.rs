//! The client: enqueues, looks, and acts; runs nothing.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Refusal, Result, StoreFault};
use crate::host::{Host, HostConfig};
use crate::job::{JobId, Status, Waiting};
use crate::kind::Settings;
use crate::lease::Lease;
use crate::new_job::{Enqueued, NewJob};
use crate::record::{Attempt, Counts, JobRecord};
use crate::rules::operate::Redrive;
use crate::store::Place;
use crate::store::claim::{Claimed, Want};
use crate::store::messages::{
    Cancel, Claim, ClaimById, Delete, Enqueue, Pause, Reap, RedriveOne, Register, Resume, Sweep,
};
use crate::store::operator::{Operator, Target};
use crate::store::questions::{Attempts, CountAll, FindJob, WhyWaiting};
use crate::store::reaper::{Known, ReapReport};

/// How often an enqueue whose answer was lost is asked for.
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
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("path", &self.host.path).finish_non_exhaustive()
    }
}

impl Client {
    /// Opens a database, making it if it is not there, without running anything in it.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] where the file cannot be opened or written, is no database, or needs a
    /// newer leasehold.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        let opened = Host::start(HostConfig::new(Place::File(path.as_ref().to_owned())));
        let host = opened.await.unwrap_or(Err(StoreFault::Stopped.into()))?;
        Ok(Self { host })
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
        let mut asked = 1;
        loop {
            match self.host.store.ask(message()).await {
                Err(Error::Store(StoreFault::Unknown(_))) if asked < ASK_AGAIN => asked += 1,
                answer => return answer,
            }
        }
    }

    /// A job as it stands, with its payload and result.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
    pub async fn job(&self, id: impl Into<JobId>) -> Result<Option<JobRecord>> {
        self.host.store.read(FindJob(id.into())).await
    }

    /// A job's history: the attempts that did not simply succeed at the first try.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`]; a [`StoreFault`].
    pub async fn attempts(&self, id: impl Into<JobId>) -> Result<Vec<Attempt>> {
        self.host.store.read(Attempts(id.into())).await
    }

    /// How many jobs are in each phase, and how many wait by kind.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
    pub async fn counts(&self) -> Result<Counts> {
        self.host.store.read(CountAll).await
    }

    /// Why a pending job is not running, by the claim's own conditions.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], [`Refusal::Live`] for a running job, [`Refusal::Terminal`]; a
    /// [`StoreFault`].
    pub async fn why_waiting(&self, id: impl Into<JobId>) -> Result<Waiting> {
        self.host.store.read(WhyWaiting(id.into())).await
    }

    /// Waits until a job has ended, in whichever process, and answers it.
    ///
    /// # Errors
    ///
    /// [`Error::Deadline`] when it has not ended `deadline` from now; [`Refusal::NotFound`];
    /// a [`StoreFault`].
    pub async fn wait(&self, id: impl Into<JobId>, deadline: Duration) -> Result<JobRecord> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.host.control.spawn(self.host.clone().wait(id.into(), deadline, sender));
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

    /// Cancels a waiting job, or asks a running one to stop; answers `cancelled` or
    /// `running`.
    ///
    /// Specified in SEMANTICS.md, “Cancel, redrive, delete, sweep, retention”.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], [`Refusal::Terminal`], [`Refusal::HookFailed`]; a
    /// [`StoreFault`].
    pub async fn cancel(&self, id: impl Into<JobId>, by: Operator) -> Result<Status> {
        self.host.store.ask(Cancel { by, id: id.into() }).await
    }

    /// Makes an ended job live again.
    ///
    /// Specified in SEMANTICS.md, “Cancel, redrive, delete, sweep, retention”.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], [`Refusal::Live`], [`Refusal::NotRedrivable`],
    /// [`Refusal::NeedsForce`], [`Refusal::LockHeld`], [`Refusal::DedupHeld`],
    /// [`Refusal::EpochMoved`], [`Refusal::HookFailed`]; a [`StoreFault`].
    pub async fn redrive(&self, id: impl Into<JobId>, how: Redrive, by: Operator) -> Result<()> {
        self.host.store.ask(RedriveOne { by, id: id.into(), how }).await
    }

    /// Deletes an ended job with all that hangs on it.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], [`Refusal::Live`]; a [`StoreFault`].
    pub async fn delete(&self, id: impl Into<JobId>, by: Operator) -> Result<()> {
        self.host.store.ask(Delete { by, id: id.into() }).await
    }

    /// Deletes at most `limit` jobs that ended before `settled_before` (UTC milliseconds),
    /// oldest first; answers how many.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
    pub async fn sweep(&self, settled_before: i64, limit: usize, by: Operator) -> Result<u64> {
        self.host.store.ask(Sweep { by, settled_before, limit }).await
    }

    /// Pauses a queue or a kind: no more claims; what runs goes on.
    ///
    /// # Errors
    ///
    /// [`Refusal::Invalid`] for a name that cannot be one; a [`StoreFault`].
    pub async fn pause(&self, target: Target, by: Operator) -> Result<()> {
        self.host.store.ask(Pause { by, target }).await
    }

    /// Lets a queue or a kind go on.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
    pub async fn resume(&self, target: Target, by: Operator) -> Result<()> {
        self.host.store.ask(Resume { by, target }).await
    }

    /// Writes a kind's settings down for every process, the last registration winning. A
    /// runtime does this for the kinds that it handles.
    ///
    /// # Errors
    ///
    /// [`Refusal::Invalid`] naming the setting; a [`StoreFault`].
    pub async fn register(&self, kind: &str, mut settings: Settings) -> Result<()> {
        settings.facts.hooks = self.host.hooked.contains(kind);
        let kinds = vec![(kind.to_owned(), settings)];
        self.host.store.ask(Register { kinds, ..Register::default() }).await
    }

    /// Limits how many jobs of a queue run at a time, over all processes.
    ///
    /// # Errors
    ///
    /// [`Refusal::Invalid`]; a [`StoreFault`].
    pub async fn limit_queue(&self, queue: &str, running: u32) -> Result<()> {
        self.limit("queue", queue, running).await
    }

    /// Limits how many jobs with a limit key run at a time, over all processes.
    ///
    /// # Errors
    ///
    /// [`Refusal::Invalid`]; a [`StoreFault`].
    pub async fn limit_key(&self, key: &str, running: u32) -> Result<()> {
        self.limit("limit_key", key, running).await
    }

    async fn limit(&self, scope: &'static str, name: &str, running: u32) -> Result<()> {
        let limits = vec![(scope, name.to_owned(), running.into())];
        self.host.store.ask(Register { limits, ..Register::default() }).await
    }

    /// Adds a reason to the registry, or changes its label.
    ///
    /// # Errors
    ///
    /// [`Refusal::Invalid`]; a [`StoreFault`].
    pub async fn register_reason(&self, id: &str, label: &str) -> Result<()> {
        let reasons = vec![(id.to_owned(), label.to_owned())];
        self.host.store.ask(Register { reasons, ..Register::default() }).await
    }

    /// Runs one pass of the reaper: ends what is owed an ending, takes lost leases, removes
    /// what is past retention. Judges by the runtime's clock.
    ///
    /// Specified in SEMANTICS.md, “The reaper”.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
    pub async fn reap_once(&self) -> Result<ReapReport> {
        Ok(self.host.store.ask(Reap(Known::default())).await?.report)
    }

    /// Claims at most `limit` due jobs of these kinds by hand; nothing renews the leases but
    /// their holder.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
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
            let batch = self.host.store.ask(Claim(Want { limit, ..want.clone() })).await?;
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
        Ok(self.host.store.ask(message).await?.map(|claimed| self.lease(claimed)))
    }

    fn lease(&self, claimed: Claimed) -> Lease {
        Lease::new(self.clone(), claimed)
    }
}
