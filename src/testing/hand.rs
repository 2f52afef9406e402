//! What a test does by hand, and looks at: one attempt, a lost lease, a crash, what was enqueued.

use crate::error::{Error, Refusal, Result, StoreFault};
use crate::filter::Filter;
use crate::job::{AttemptOutcome, Job, JobId, Status};
use crate::list::{Order, Paging};
use crate::record::JobRecord;
use crate::runtime::Runtime;
use crate::store::bench::Lose;
use crate::store::claim::Batch;
use crate::store::messages::ClaimById;

use super::Lab;

/// What one attempt came to.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Ran {
    /// How it ended; nothing where it still runs, and waits for the clock or for a signal.
    pub outcome: Option<AttemptOutcome>,
    /// The job after it: its result, its last error, when it is due again.
    pub job: JobRecord,
}

impl Lab {
    /// The jobs that meet a filter as they stand, in the order in which they were enqueued.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
    pub async fn jobs(&self, filter: &Filter) -> Result<Vec<JobRecord>> {
        let (client, mut jobs) = (self.client(), Vec::new());
        let mut paging = Paging::first(Order::Oldest, 1_000);
        loop {
            let page = self.within("jobs", client.list(filter, paging.clone())).await?;
            for job in page.jobs {
                jobs.extend(self.within("jobs", client.job(job.id)).await?);
            }
            match page.next {
                Some(cursor) => paging = paging.after(cursor),
                None => return Ok(jobs),
            }
        }
    }

    /// The jobs of a kind, whatever has become of them, in the order in which they were enqueued.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> leasehold::Result<()> {
    /// # use leasehold::testing::Lab;
    /// # use leasehold::{Job, Runtime};
    /// #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// struct Welcome { email: String }
    /// impl Job for Welcome { const KIND: &'static str = "welcome"; }
    ///
    /// let lab = Lab::start(Runtime::in_memory()).await?;
    /// let id = lab.enqueue(Welcome { email: "ada@example.com".into() }).await?;
    /// let welcome = Welcome { email: "ada@example.com".into() };
    /// assert_eq!(lab.enqueued::<Welcome>().await?, [(id, welcome)]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// A [`StoreFault`]; [`Error::Setup`] where a payload does not decode into `J`.
    pub async fn enqueued<J: Job>(&self) -> Result<Vec<(JobId, J)>> {
        let jobs = self.jobs(&Filter::new().kind(J::KIND)).await?;
        let typed = |job: JobRecord| {
            let payload = job.payload.as_ref().map_or("null", |json| json.as_str());
            let payload = serde_json::from_str(payload).map_err(|error| {
                Error::Setup(format!("the payload of {} does not decode: {error}", job.id))
            })?;
            Ok((job.id, payload))
        };
        jobs.into_iter().map(typed).collect()
    }

    /// Runs one attempt of a waiting job, due or not, while nothing else is claimed.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> leasehold::Result<()> {
    /// # use leasehold::testing::Lab;
    /// # use leasehold::{AttemptOutcome, Ctx, Job, JobResult, Outcome, Runtime, Status};
    /// # use std::time::Duration;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Welcome;
    /// # impl Job for Welcome { const KIND: &'static str = "welcome"; }
    /// async fn welcome(_: Welcome, ctx: Ctx) -> JobResult {
    ///     match ctx.attempt() {
    ///         1 => Err("the mail server is down")?,
    ///         _ => Ok(Outcome::Done),
    ///     }
    /// }
    ///
    /// let lab = Lab::start(Runtime::in_memory().handle(welcome)).await?;
    /// let id = lab.enqueue(Welcome.after(Duration::from_secs(3_600))).await?;
    /// let first = lab.run(&id).await?;
    /// assert_eq!(first.outcome, Some(AttemptOutcome::Retried));
    /// assert_eq!(first.job.last_error.as_deref(), Some("the mail server is down"));
    /// assert_eq!(first.job.run_at, leasehold::Clock::now(&lab.clock) + 750);
    /// assert_eq!(lab.run(&id).await?.job.status, Status::Completed);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], [`Refusal::Live`] for a running job, [`Refusal::Terminal`];
    /// [`Error::Setup`] where it has no handler here, or a limit is full;
    /// [`StoreFault::Stopped`] where the process has died, or its store waits for the clock.
    pub async fn run(&self, id: impl Into<JobId>) -> Result<Ran> {
        let session = self.runtime.session();
        let ran = self.answered(session, self.attempt(id.into()));
        self.within("run", ran).await.unwrap_or(Err(StoreFault::Stopped.into()))
    }

    async fn attempt(&self, id: JobId) -> Result<Ran> {
        let (session, client) = (self.runtime.session(), self.client());
        let job = client.job(&id).await?.ok_or(Refusal::NotFound)?;
        if !session.starters.contains_key(&job.kind) {
            return Err(Error::Setup(format!("kind {} has no handler here", job.kind)));
        }
        let owner = session.owner.clone();
        let Some(claimed) = session.host.store.ask(ClaimById { id: id.clone(), owner }).await?
        else {
            let why = client.why_waiting(&id).await?;
            return Err(Error::Setup(format!("job {id} cannot be claimed: {}", why.reason)));
        };
        let epoch = claimed.holder.epoch;
        let next_due = session.next_due();
        session.take(Batch { claimed: vec![claimed], more: true, next_due });
        let moves = || {
            let mut moving = session.moving().into_iter();
            moving.any(|run| run.claimed.id == id && run.claimed.holder.epoch == epoch)
        };
        while moves() || self.clock.is_ringing() {
            tokio::task::yield_now().await;
        }
        session.host.listening.after.idle().await;
        let job = client.job(&id).await?.ok_or(Refusal::NotFound)?;
        let history = client.attempts(&id).await?;
        let noted = history.iter().rev().find(|one| one.epoch == epoch).map(|one| one.outcome);
        let completed = job.status == Status::Completed && job.settled_epoch == Some(epoch);
        let outcome = noted.or(completed.then_some(AttemptOutcome::Completed));
        Ok(Ran { outcome, job })
    }

    /// Takes a running job away from its attempt, as the reaper does with a lease that is lost:
    /// what the attempt writes from here on is refused, and at its next renewal, or its next write,
    /// it is told. The job is tried again.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`]; [`Refusal::NotRunning`]; a [`StoreFault`].
    pub async fn lose(&self, id: impl Into<JobId>) -> Result<()> {
        let lost = self.runtime.session().host.store.ask(Lose(id.into()));
        self.within("lose", lost).await
    }

    /// The process dies, if it has not yet, and another starts on the same database: handlers are
    /// dropped where they wait, nothing is settled or released, and its lock is free. The next
    /// [`Lab::settle`] finds that out and takes its jobs back.
    ///
    /// What `Builder::state` was given outlives it, as the world outside does; the clock and what
    /// is armed stay as they are. A database in memory is kept. A handler that blocks its thread
    /// cannot be cut off; its writes are refused.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> leasehold::Result<()> {
    /// # use leasehold::testing::{Lab, Point};
    /// # use leasehold::{Ctx, Job, JobResult, Outcome, Runtime, Status};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Import;
    /// # impl Job for Import { const KIND: &'static str = "import"; }
    /// async fn import(_: Import, ctx: Ctx) -> JobResult {
    ///     let first: u32 = ctx.checkpoint()?.unwrap_or(0);
    ///     for part in first..3 {
    ///         ctx.save(&(part + 1)).await?;
    ///     }
    ///     Ok(Outcome::done_with(&first))
    /// }
    ///
    /// let mut lab = Lab::start(Runtime::in_memory().handle(import)).await?;
    /// let id = lab.enqueue(Import).await?;
    /// lab.faults.arm_after(Point::AfterWrite, 1, 1);
    /// lab.settle().await;
    /// assert!(lab.has_died());
    /// lab.crash().await?;
    /// lab.settle().await;
    /// let job = lab.job(&id).await?;
    /// assert_eq!((job.status, job.result.unwrap().as_str()), (Status::Completed, "2"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Builder::start`](crate::Builder::start).
    pub async fn crash(&mut self) -> Result<()> {
        self.within("crash", self.runtime.die()).await;
        if self.runtime.session().host.path.is_none() {
            self.gone.push(self.runtime.session().owner.clone());
        }
        self.faults.revive();
        let started = Runtime::start(self.parts.clone());
        self.runtime = self.within("crash", started).await?;
        self.group.add(&self.runtime);
        Ok(())
    }
}
