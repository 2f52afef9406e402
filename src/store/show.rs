//! What is shown of jobs: a whole record, and its history.

use rusqlite::{OptionalExtension, Row as SqlRow};

use crate::error::StoreFault;
use crate::job::{AttemptOutcome, JobId};
use crate::json::Json;
use crate::record::{Attempt, JobRecord};
use crate::rules::row::Row;

use super::rows::read_text;
use super::statements as sql;
use super::txn::Txn;

type Result<T> = std::result::Result<T, StoreFault>;

impl Txn<'_> {
    /// The whole record of a job, its texts included.
    pub(super) fn record(&mut self, key: i64) -> Result<Option<JobRecord>> {
        let Some(row) = self.load(key)? else { return Ok(None) };
        let mut statement = self.conn.prepare_cached(sql::RECORD)?;
        let mut rows = statement.query([key])?;
        rows.next()?.map(|columns| self.whole_record(row, columns, 0)).transpose()
    }

    /// A row with the columns of `whole!` that begin at one.
    pub(super) fn whole_record(
        &self,
        row: Row,
        columns: &SqlRow<'_>,
        at: usize,
    ) -> Result<JobRecord> {
        let (phase, detail) = (row.phase(self.now), row.detail);
        let text = |column: usize| read_text(columns, at + column);
        Ok(JobRecord {
            id: row.id,
            kind: row.kind,
            queue: row.queue,
            tenant: text(3)?,
            organization: text(4)?,
            reason: text(5)?,
            subject_type: text(6)?,
            subject_id: text(7)?,
            meta: text(8)?.map(Json::stored),
            trace_context: text(9)?,
            copy_of: text(10)?.map(JobId::from),
            payload: text(11)?.map(Json::stored),
            result: text(12)?.map(Json::stored),
            progress_done: detail.progress_done,
            progress_total: detail.progress_total,
            idempotency_key: text(0)?,
            dedup_key: text(1)?,
            lock_key: text(2)?,
            limit_key: row.limit_key,
            status: row.status,
            phase,
            priority: row.priority,
            run_at: row.run_at,
            created_at: row.created_at,
            epoch: row.epoch,
            owner: row.owner,
            lease_until: row.lease_until,
            heartbeat_at: row.heartbeat_at,
            attempts: row.attempts,
            max_attempts: row.max_attempts,
            stalls: row.stalls,
            seq: row.seq,
            redrives: detail.redrives,
            interruptions: detail.interruptions,
            rate_limit_hits: detail.rate_limit_hits,
            rate_limited_at: detail.rate_limited_at,
            hook_failures: detail.hook_failures,
            last_committed_at: row.last_committed_at,
            verdict: detail.verdict,
            error_class: detail.error_class,
            error_code: detail.error_code,
            last_error: detail.last_error,
            cancel_requested_at: detail.cancel_requested_at,
            cancel_requested_by: detail.cancel_requested_by,
            parked_at: detail.parked_at,
            settled_epoch: row.settled_epoch,
            hooked_at: detail.hooked_at,
            updated_at: row.updated_at,
            started_at: row.started_at,
            finished_at: row.finished_at,
        })
    }

    /// The text of a side table.
    pub(super) fn text(&mut self, statement: &str, key: i64) -> Result<Option<Json>> {
        let mut statement = self.conn.prepare_cached(statement)?;
        let text = statement.query_row([key], |row| read_text(row, 0)).optional()?;
        Ok(text.flatten().map(Json::stored))
    }

    /// A job's history, oldest first.
    pub(super) fn attempts(&mut self, key: i64) -> Result<Vec<Attempt>> {
        let mut statement = self.conn.prepare_cached(sql::ATTEMPTS)?;
        let mut rows = statement.query([key])?;
        let mut attempts = Vec::new();
        while let Some(row) = rows.next()? {
            attempts.push(Attempt {
                epoch: row.get(0)?,
                owner: read_text(row, 1)?.map(Into::into),
                claimed_at: row.get(2)?,
                ended_at: row.get(3)?,
                outcome: read_text(row, 4)?
                    .and_then(|word| AttemptOutcome::parse(&word))
                    .unwrap_or(AttemptOutcome::Unknown),
                error: read_text(row, 5)?,
            });
        }
        Ok(attempts)
    }
}
