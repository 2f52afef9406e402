//! Every question to the store. Runs on a read-only connection where there is one.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::bulk::{Bulk, BulkOutcome};
use crate::error::{Error, Refusal};
use crate::filter::Filter;
use crate::job::JobId;
use crate::json::Json;
use crate::list::{Page, Paging};
use crate::operator::{Done, Paused};
use crate::record::{Attempt, Counts, JobRecord, Totals, Why};

use super::messages::Message;
use super::txn::Txn;

/// A job as it stands.
pub(crate) struct FindJob(pub(crate) JobId);

impl Message for FindJob {
    type Reply = Option<JobRecord>;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Self::Reply, Error> {
        match txn.find(&self.0)? {
            Some(key) => Ok(txn.record(key)?),
            None => Ok(None),
        }
    }
}

/// A job's history.
pub(crate) struct Attempts(pub(crate) JobId);

impl Message for Attempts {
    type Reply = Vec<Attempt>;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Self::Reply, Error> {
        let key = txn.find(&self.0)?.ok_or(Refusal::NotFound)?;
        Ok(txn.attempts(key)?)
    }
}

/// A page of a list.
pub(crate) struct List {
    pub(crate) filter: Filter,
    pub(crate) paging: Paging,
}

impl Message for List {
    type Reply = Page;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Page, Error> {
        txn.page(&self.filter, &self.paging)
    }
}

/// Operations on many jobs, or one.
pub(crate) struct Bulks {
    pub(crate) one: Option<i64>,
    pub(crate) limit: usize,
}

impl Message for Bulks {
    type Reply = Vec<Bulk>;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Self::Reply, Error> {
        Ok(match self.one {
            Some(n) => txn.bulk(n)?.into_iter().collect(),
            None => txn.bulks(self.limit)?,
        })
    }
}

/// What an operation on many jobs came to for each.
pub(crate) struct Outcomes {
    pub(crate) bulk: i64,
    pub(crate) after: i64,
    pub(crate) limit: usize,
}

impl Message for Outcomes {
    type Reply = Vec<BulkOutcome>;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Self::Reply, Error> {
        Ok(txn.bulk_outcomes(self.bulk, self.after, self.limit)?)
    }
}

/// What is paused.
pub(crate) struct Pauses;

impl Message for Pauses {
    type Reply = Vec<Paused>;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Self::Reply, Error> {
        Ok(txn.pauses()?)
    }
}

/// The registry of reasons.
pub(crate) struct Reasons;

impl Message for Reasons {
    type Reply = BTreeMap<String, String>;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Self::Reply, Error> {
        Ok(txn.reasons()?)
    }
}

/// What operators have done.
pub(crate) struct Actions {
    pub(crate) before: i64,
    pub(crate) limit: usize,
}

impl Message for Actions {
    type Reply = Vec<Done>;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Self::Reply, Error> {
        txn.whole("actions")?;
        Ok(txn.actions(self.before, self.limit)?)
    }
}

/// How many jobs there are.
pub(crate) struct CountAll;

impl Message for CountAll {
    type Reply = Counts;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Counts, Error> {
        Ok(txn.counts()?)
    }
}

/// How many have ever ended, by kind.
pub(crate) struct AllTotals;

impl Message for AllTotals {
    type Reply = BTreeMap<String, Totals>;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Self::Reply, Error> {
        txn.whole("totals")?;
        Ok(txn.totals()?)
    }
}

/// Why a pending job is not running.
pub(crate) struct WhyWaiting(pub(crate) JobId);

impl Message for WhyWaiting {
    type Reply = Why;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Why, Error> {
        txn.why_waiting(&self.0)
    }
}

/// All saved values of a job as an attempt of this epoch sees them.
pub(crate) struct Checkpoints {
    pub(crate) key: i64,
    pub(crate) epoch: i64,
}

impl Message for Checkpoints {
    type Reply = Vec<(String, Json)>;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Self::Reply, Error> {
        Ok(txn.checkpoints(self.key, self.epoch)?)
    }
}

/// One of them.
pub(crate) struct Checkpoint {
    pub(crate) key: i64,
    pub(crate) name: String,
    pub(crate) epoch: i64,
}

impl Message for Checkpoint {
    type Reply = Option<Json>;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Self::Reply, Error> {
        Ok(txn.checkpoint(self.key, &self.name, self.epoch)?)
    }
}

/// Whether a claim of these kinds would find something.
pub(crate) struct LookForWork(pub(crate) Vec<Arc<str>>);

/// What a look for work has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) now: bool,
    /// When the next scheduled job of any kind is due.
    pub(crate) next_due: Option<i64>,
}

impl Message for LookForWork {
    type Reply = Work;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Work, Error> {
        Ok(txn.work(&self.0)?)
    }
}
