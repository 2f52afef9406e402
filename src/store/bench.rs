//! What only tests ask for: every job at once, an empty database, and a lease that is lost.

use crate::error::{Error, Refusal, StoreFault};
use crate::job::{JobId, Status};
use crate::record::JobRecord;

use super::messages::Message;
use super::reaper::Pass;
use super::rows::read_hot;
use super::statements::{hot, whole};
use super::txn::Txn;

/// The tables that hold what has happened, the jobs first, whose deletion leaves traces in others.
const TABLES: [&str; 17] = [
    "job",
    "detail",
    "label",
    "payload",
    "result",
    "checkpoints",
    "attempts",
    "pauses",
    "gates",
    "starts",
    "actions",
    "totals",
    "state",
    "discards",
    "kept_keys",
    "bulks",
    "bulk_rows",
];

const ALL_JOBS: &str = concat!("SELECT ", hot!(), ", ", whole!(), "ORDER BY j.key");
/// How many columns `hot!` has.
const HOT: usize = 29;

/// Every job as it stands, in the order in which they came.
pub(crate) struct AllJobs;

impl Message for AllJobs {
    type Reply = Vec<JobRecord>;

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<Self::Reply, Error> {
        let conn = txn.conn;
        let mut statement = conn.prepare_cached(ALL_JOBS).map_err(StoreFault::from)?;
        let mut rows = statement.query([]).map_err(StoreFault::from)?;
        let mut jobs = Vec::new();
        while let Some(columns) = rows.next().map_err(StoreFault::from)? {
            let row = txn.named(read_hot(columns)?)?;
            jobs.push(txn.whole_record(row, columns, HOT)?);
        }
        Ok(jobs)
    }
}

/// Empties the database of all but kinds, limits and reasons.
pub(crate) struct Clear;

impl Message for Clear {
    type Reply = ();

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<(), Error> {
        for table in TABLES {
            let statement = format!("DELETE FROM leasehold_{table}");
            let statement = txn.conn.prepare_cached(&statement);
            statement.and_then(|mut one| one.execute([])).map_err(StoreFault::from)?;
        }
        txn.cache.forget();
        Ok(())
    }
}

/// Decides about a running job as the reaper does once its lease is lost.
pub(crate) struct Lose(pub(crate) JobId);

impl Message for Lose {
    type Reply = ();

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<(), Error> {
        let key = txn.find(&self.0)?.ok_or(Refusal::NotFound)?;
        let row = txn.load(key)?.ok_or(Refusal::NotFound)?;
        if row.status != Status::Running {
            return Err(Refusal::NotRunning { status: row.status, epoch: row.epoch }.into());
        }
        Ok(txn.decide(&row, false, &mut Pass::default())?)
    }
}
