//! What is shown of jobs: a whole record, and its history.

use rusqlite::OptionalExtension;

use crate::error::StoreFault;
use crate::job::{AttemptOutcome, JobId};
use crate::json::Json;
use crate::record::{Attempt, JobRecord};

use super::rows::read_text;
use super::statements as sql;
use super::txn::Txn;

type Result<T> = std::result::Result<T, StoreFault>;

impl Txn<'_> {
    /// The whole record of a job, its texts included.
    pub(super) fn record(&mut self, key: i64) -> Result<Option<JobRecord>> {
        let Some(row) = self.load(key)? else { return Ok(None) };
        let payload = self.text(sql::PAYLOAD, key)?;
        let result = self.text(sql::RESULT, key)?;
        let mut statement = self.conn.prepare_cached(sql::RECORD)?;
        let mut rows = statement.query([key])?;
        let Some(columns) = rows.next()? else { return Ok(None) };
        let (phase, detail) = (row.phase(self.now), row.detail);
        Ok(Some(JobRecord {
            id: row.id,
            kind: row.kind,
            queue: row.queue,
            tenant: read_text(columns, 4)?,
            organization: read_text(columns, 5)?,
            reason: read_text(columns, 6)?,
            subject_type: read_text(columns, 7)?,
            subject_id: read_text(columns, 8)?,
            meta: read_text(columns, 9)?.map(Json::stored),
            trace_context: read_text(columns, 10)?,
            copy_of: read_text(columns, 11)?.map(JobId::from),
            payload,
            result,
            progress_done: detail.progress_done,
            progress_total: detail.progress_total,
            idempotency_key: read_text(columns, 1)?,
            dedup_key: read_text(columns, 2)?,
            lock_key: read_text(columns, 3)?,
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
        }))
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
