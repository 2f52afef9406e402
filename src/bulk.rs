//! Operations on many jobs: first a preview, then a durable operation that goes on a slice at a
//! time, whatever restarts, until it is done or stopped.

use serde::{Deserialize, Serialize};

use crate::client::Client;
#[cfg(doc)]
use crate::error::StoreFault;
use crate::error::{Refusal, Result};
use crate::filter::Filter;
use crate::job::{Action, JobId};
use crate::list::{JobSummary, Order, Paging};
use crate::operator::Operator;
use crate::rules::operate::Redrive;
use crate::rules::table::Allowed;
use crate::store::messages::{StartBulk, SwitchBulk};
use crate::store::questions::{Bulks, Outcomes};
use crate::words::words;

/// What is done to each job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BulkAction {
    /// As [`Client::cancel`].
    Cancel,
    /// As [`Client::redrive`].
    Redrive(Redrive),
    /// As [`Client::run_again`].
    RunAgain,
    /// As [`Client::delete`].
    Delete,
}

impl BulkAction {
    /// What the table of actions calls it.
    #[must_use]
    pub const fn action(&self) -> Action {
        match self {
            Self::Cancel => Action::Cancel,
            Self::Redrive(_) => Action::Redrive,
            Self::RunAgain => Action::RunAgain,
            Self::Delete => Action::Delete,
        }
    }
}

/// An operation on many jobs, to be started.
///
/// ```
/// use leasehold::{BulkAction, Filter, NewBulk, Phase, Redrive};
///
/// let dead = Filter::new().kind("mail").phase(Phase::Dead);
/// let again = NewBulk::new(BulkAction::Redrive(Redrive::default()), dead).pace(20);
/// # let _ = again;
/// ```
///
/// Specified in SEMANTICS.md, “Lists and bulk operations”.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct NewBulk {
    pub(crate) action: BulkAction,
    pub(crate) filter: Filter,
    pub(crate) pace: u32,
}

impl NewBulk {
    /// The fastest pace.
    const FASTEST: u32 = 10_000;

    /// An action on all jobs that meet a filter, a hundred a second.
    pub fn new(action: BulkAction, filter: Filter) -> Self {
        Self { action, filter, pace: 100 }
    }

    /// How many jobs a second, at the most; 1 to 10 000.
    pub fn pace(mut self, a_second: u32) -> Self {
        self.pace = a_second;
        self
    }

    pub(crate) fn check(&self) -> std::result::Result<(), Refusal> {
        if self.filter.is_empty() {
            let rule = "at least one condition; by a time from 0 on it means all jobs";
            return Err(Refusal::invalid("filter", "empty", rule));
        }
        if !(1..=Self::FASTEST).contains(&self.pace) {
            let rule = format!("from 1 to {} jobs a second", Self::FASTEST);
            return Err(Refusal::invalid("pace", self.pace, rule));
        }
        Ok(())
    }
}

/// What an operation would meet, if it were started now.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Preview {
    /// Jobs that meet the filter.
    pub matching: u64,
    /// Those of them whose state allows the action, as far as their row tells.
    pub allowed: u64,
    /// The ten that were enqueued last.
    pub samples: Vec<JobSummary>,
}

words! {
    /// How an operation on many jobs is doing.
    BulkState {
        /// It goes on.
        Running = "running",
        /// Somebody stopped it; it can be resumed.
        Stopped = "stopped",
        /// It has met every job.
        Done = "done",
    }
}

/// An operation on many jobs, as it stands.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Bulk {
    /// Its number.
    pub id: i64,
    /// What is done to each job.
    pub action: BulkAction,
    /// Which jobs, as it was when it was started.
    pub filter: Filter,
    /// Who started it.
    pub actor: String,
    /// Why.
    pub reason: Option<String>,
    /// How it is doing.
    pub state: BulkState,
    /// Jobs a second, at the most.
    pub pace: u32,
    /// When it was started, in UTC milliseconds.
    pub started_at: i64,
    /// When it was done, in UTC milliseconds.
    pub finished_at: Option<i64>,
    /// Jobs to which it was done.
    pub done: i64,
    /// Jobs that refused it.
    pub refused: i64,
}

/// What an operation came to for one job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkOutcome {
    /// Its number within all outcomes, to go on from.
    pub n: i64,
    /// The job.
    pub job: JobId,
    /// When, in UTC milliseconds.
    pub at: i64,
    /// `done`, or the code of the refusal.
    pub outcome: String,
    /// The new job's id where one was made, or the refusal's text.
    pub detail: Option<String>,
}

/// Operations on many jobs.
impl Client {
    /// Looks at what an operation would meet, and changes nothing. Reads all that meets the
    /// filter, a page at a time.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
    pub async fn preview(&self, action: BulkAction, filter: &Filter) -> Result<Preview> {
        let mut preview = Preview::default();
        let mut paging = Paging::first(Order::Newest, 1_000);
        loop {
            let page = self.list(filter, paging).await?;
            for job in page.jobs {
                preview.matching += 1;
                let may = match (job.allowed(action.action()), action) {
                    (Allowed::To(_) | Allowed::Gone, _) => true,
                    (Allowed::With(option, _), BulkAction::Redrive(how)) => how.allows(option),
                    _ => false,
                };
                preview.allowed += u64::from(may);
                if preview.samples.len() < 10 {
                    preview.samples.push(job);
                }
            }
            let Some(next) = page.next else { return Ok(preview) };
            paging = Paging::first(Order::Newest, 1_000).after(next);
        }
    }

    /// Starts an operation on many jobs and answers its number. Whichever runtime is there works
    /// it off, a slice at a time, at its pace: the first job that was enqueued first, or that ended
    /// first where the filter asks for ended jobs alone. Jobs that were enqueued, or ended, after
    /// the start are not touched. What each job came to is kept for 30 days.
    ///
    /// # Errors
    ///
    /// [`Refusal::Invalid`] for a filter without a condition, or a pace out of range; a
    /// [`StoreFault`].
    pub async fn start_bulk(&self, bulk: NewBulk, by: Operator) -> Result<i64> {
        bulk.check()?;
        let minted = self.host.entropy.uuid(self.host.clock.now());
        self.ask_again(|| StartBulk { by: by.clone(), bulk: bulk.clone(), minted }).await
    }

    /// The operations on many jobs, the last started first, at most `limit`.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
    pub async fn bulks(&self, limit: usize) -> Result<Vec<Bulk>> {
        self.read(Bulks { one: None, limit }).await
    }

    /// One of them.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
    pub async fn bulk(&self, id: i64) -> Result<Option<Bulk>> {
        Ok(self.read(Bulks { one: Some(id), limit: 1 }).await?.pop())
    }

    /// What an operation came to for each job, in the order of its work: at most `limit`, after
    /// the one with number `after`, which is 0 for the first page.
    ///
    /// # Errors
    ///
    /// A [`StoreFault`].
    pub async fn bulk_outcomes(
        &self,
        id: i64,
        after: i64,
        limit: usize,
    ) -> Result<Vec<BulkOutcome>> {
        self.read(Outcomes { bulk: id, after, limit }).await
    }

    /// Stops a running operation. What it has done stays done.
    ///
    /// # Errors
    ///
    /// [`Refusal::Invalid`] where it is not running; a [`StoreFault`].
    pub async fn stop_bulk(&self, id: i64, by: Operator) -> Result<()> {
        self.ask(SwitchBulk { by, id, to: BulkState::Stopped }).await
    }

    /// Lets a stopped operation go on where it was stopped.
    ///
    /// # Errors
    ///
    /// [`Refusal::Invalid`] where it was not stopped; a [`StoreFault`].
    pub async fn resume_bulk(&self, id: i64, by: Operator) -> Result<()> {
        self.ask(SwitchBulk { by, id, to: BulkState::Running }).await
    }
}
