//! Rows in and out of the database.

use std::sync::Arc;

use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{OptionalExtension, Row as SqlRow, ToSql, params};
use uuid::Uuid;

use crate::error::StoreFault;
use crate::events::JobEvent;
use crate::job::{JobId, Status};
use crate::rules::row::{Detail, Lane, Row, WriteMark};
use crate::rules::{Change, History};

use super::statements as sql;
use super::txn::Txn;

type Result<T> = std::result::Result<T, StoreFault>;

/// An id as it is stored: a UUID's 16 bytes, or the caller's text.
pub(super) struct StoredId<'a>(pub(super) &'a JobId);

impl ToSql for StoredId<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match (self.0.as_uuid(), self.0.given()) {
            (Some(uuid), _) => ToSqlOutput::Owned(Value::Blob(uuid.as_bytes().to_vec())),
            (None, text) => ToSqlOutput::Borrowed(text.unwrap_or_default().into()),
        })
    }
}

pub(super) fn read_id(row: &SqlRow<'_>, column: usize) -> Result<JobId> {
    match row.get_ref(column)? {
        ValueRef::Blob(bytes) => match Uuid::from_slice(bytes) {
            Ok(uuid) => Ok(JobId::minted(uuid)),
            Err(error) => Err(StoreFault::Corrupt(format!("a job's id: {error}"))),
        },
        other => Ok(JobId::new(&shown(other).unwrap_or_default())),
    }
}

/// A text as it can be read: `SQLite` does not see to it that a text is UTF-8, and a row that
/// plain SQL has written must not keep others from being read.
pub(super) fn read_text(row: &SqlRow<'_>, column: usize) -> rusqlite::Result<Option<String>> {
    Ok(shown(row.get_ref(column)?))
}

fn shown(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            Some(String::from_utf8_lossy(bytes).into_owned())
        }
    }
}

const STATUSES: [Status; 5] =
    [Status::Pending, Status::Running, Status::Completed, Status::Failed, Status::Cancelled];

pub(super) fn status_code(status: Status) -> i64 {
    let at = STATUSES.iter().position(|each| *each == status).unwrap_or_default();
    i64::try_from(at).unwrap_or_default()
}

pub(super) fn read_status(code: i64) -> Result<Status> {
    let known = usize::try_from(code).ok().and_then(|n| STATUSES.get(n)).copied();
    known.ok_or_else(|| StoreFault::Corrupt(format!("a job's status is {code}")))
}

pub(super) fn word<T>(
    text: Option<String>,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>> {
    match text {
        None => Ok(None),
        Some(text) => match parse(&text) {
            Some(value) => Ok(Some(value)),
            None => Err(StoreFault::Corrupt(format!("unknown word {text:?} in a job's row"))),
        },
    }
}

/// A row whose names and details have not been looked up yet.
pub(super) struct Raw {
    row: Row,
    kind: i64,
    queue: i64,
    owner: Option<i64>,
    detailed: bool,
}

/// Reads the columns of `hot!`.
pub(super) fn read_hot(row: &SqlRow<'_>) -> Result<Raw> {
    let nothing: Arc<str> = Arc::from("");
    Ok(Raw {
        kind: row.get(2)?,
        queue: row.get(3)?,
        owner: row.get(17)?,
        detailed: row.get(28)?,
        row: Row {
            key: row.get(0)?,
            id: read_id(row, 1)?,
            kind: nothing.clone(),
            queue: nothing,
            status: read_status(row.get(4)?)?,
            priority: row.get(5)?,
            run_at: row.get(6)?,
            created_at: row.get(7)?,
            updated_at: row.get(8)?,
            started_at: row.get(9)?,
            finished_at: row.get(10)?,
            attempts: row.get(11)?,
            max_attempts: row.get(12)?,
            epoch: row.get(13)?,
            stalls: row.get(14)?,
            seq: row.get(15)?,
            token: row.get(16)?,
            owner: None,
            lease_until: row.get(18)?,
            heartbeat_at: row.get(19)?,
            settled_epoch: row.get(20)?,
            last_committed_at: row.get(21)?,
            commit_epoch: row.get(22)?,
            commits: row.get(23)?,
            last_write: WriteMark {
                holder: row.get(24)?,
                number: u32::try_from(row.get::<_, i64>(25)?).unwrap_or(u32::MAX),
            },
            ahead: row.get(26)?,
            limit_key: read_text(row, 27)?,
            detail: Detail::default(),
        },
    })
}

impl Txn<'_> {
    /// The key of a job's row, where whoever asks may see it.
    pub(super) fn find(&mut self, id: &JobId) -> Result<Option<i64>> {
        let Some(scope) = &self.scope else { return self.find_anyone(id) };
        let mut statement = self.conn.prepare_cached(sql::FIND_SCOPED)?;
        let named = params![StoredId(id), scope.tenant, scope.organization];
        Ok(statement.query_row(named, |row| row.get(0)).optional()?)
    }

    /// The key of a job's row, whoever's it is.
    pub(super) fn find_anyone(&mut self, id: &JobId) -> Result<Option<i64>> {
        let mut statement = self.conn.prepare_cached(sql::FIND)?;
        Ok(statement.query_row([StoredId(id)], |row| row.get(0)).optional()?)
    }

    /// A job's row by its key.
    pub(super) fn load(&mut self, key: i64) -> Result<Option<Row>> {
        let raw = {
            let mut statement = self.conn.prepare_cached(sql::LOAD)?;
            let mut rows = statement.query([key])?;
            rows.next()?.map(read_hot).transpose()?
        };
        raw.map(|raw| self.named(raw)).transpose()
    }

    /// Looks up the names of a raw row's kind and queue.
    pub(super) fn named_briefly(&mut self, raw: Raw) -> Result<Row> {
        let mut row = raw.row;
        row.kind = self.cache.name(self.conn, raw.kind)?;
        row.queue = self.cache.name(self.conn, raw.queue)?;
        Ok(row)
    }

    /// Looks up what a raw row lacks.
    pub(super) fn named(&mut self, raw: Raw) -> Result<Row> {
        let (owner, detailed) = (raw.owner, raw.detailed);
        let mut row = self.named_briefly(raw)?;
        if let Some(owner) = owner {
            row.owner = Some(self.cache.name(self.conn, owner)?);
        }
        if detailed {
            row.detail = self.detail(row.key)?;
        }
        Ok(row)
    }

    fn detail(&mut self, key: i64) -> Result<Detail> {
        let mut statement = self.conn.prepare_cached(sql::DETAIL)?;
        let mut rows = statement.query([key])?;
        let Some(row) = rows.next()? else { return Ok(Detail::default()) };
        Ok(Detail {
            verdict: word(row.get(0)?, crate::job::Verdict::parse)?,
            error_class: word(row.get(1)?, crate::job::ErrorClass::parse)?,
            error_code: read_text(row, 2)?,
            last_error: read_text(row, 3)?,
            cancel_requested_at: row.get(4)?,
            cancel_requested_by: read_text(row, 5)?,
            parked_at: row.get(6)?,
            hooked_at: row.get(7)?,
            hook_failures: row.get(8)?,
            hook_tried_at: row.get(9)?,
            redrives: row.get(10)?,
            interruptions: row.get(11)?,
            rate_limit_hits: row.get(12)?,
            rate_limited_at: row.get(13)?,
            progress_done: row.get(14)?,
            progress_total: row.get(15)?,
            restarts: row.get(16)?,
        })
    }

    /// Writes a change of a row that was read in this transaction, guarded by what was read.
    pub(super) fn write(&mut self, old: &Row, change: &Change) -> Result<()> {
        let new = &change.row;
        self.write_row(old, new)?;
        if new.status == Status::Completed {
            if let Some(result) = &change.result {
                let mut statement = self.conn.prepare_cached(sql::PUT_RESULT)?;
                statement.execute(params![new.key, result.as_str()])?;
            }
        } else if old.status == Status::Completed {
            self.conn.prepare_cached(sql::DROP_RESULT)?.execute([new.key])?;
        }
        if change.drop_checkpoints && old.last_committed_at.is_some() {
            self.conn.prepare_cached(sql::DROP_CHECKPOINTS)?.execute([new.key])?;
        }
        if let Some(history) = &change.history {
            self.add_history(new.key, old.epoch, history)?;
        }
        if let Some(gate) = change.gate {
            self.set_gate(&new.kind, gate)?;
        }
        self.effects.note(old, new, self.now);
        if self.settings.events.is_heard() {
            let event = JobEvent::of(old, new, change.history.as_ref(), self.now);
            self.effects.events.extend(event);
        }
        // A place is free, or the row whose turn it was will not take it.
        let left = old.status == Status::Running || !new.status.is_live();
        if left
            && new.status != Status::Running
            && let Some(key) = &new.limit_key
        {
            self.free_held(key)?;
        }
        Ok(())
    }

    /// Writes a row alone.
    pub(super) fn write_row(&mut self, old: &Row, new: &Row) -> Result<()> {
        let detailed = new.detail != Detail::default();
        let owed_at = new.is_owed().then(|| new.detail.hook_tried_at.unwrap_or(new.updated_at));
        let owner = match &new.owner {
            Some(owner) => Some(self.cache.id(self.conn, owner)?),
            None => None,
        };
        let claimed = new.status == Status::Running && old.status == Status::Pending;
        let changed = self.conn.prepare_cached(sql::UPDATE)?.execute(params![
            old.key,
            status_code(old.status),
            old.epoch,
            old.token,
            status_code(new.status),
            new.lane(self.now).map(|lane| lane as i64),
            new.run_at,
            new.updated_at,
            new.started_at,
            new.finished_at,
            new.attempts,
            new.max_attempts,
            new.epoch,
            new.stalls,
            new.seq,
            new.token,
            owner,
            new.lease_until,
            new.heartbeat_at,
            new.settled_epoch,
            new.last_committed_at,
            new.commit_epoch,
            new.commits,
            new.last_write.holder,
            new.last_write.number,
            new.ahead,
            owed_at,
            detailed,
            claimed,
        ])?;
        if changed != 1 {
            let what = format!("job {} changed inside a transaction", old.id);
            return Err(StoreFault::Corrupt(what));
        }
        self.write_detail(&old.detail, new)
    }

    fn write_detail(&mut self, old: &Detail, new: &Row) -> Result<()> {
        let detail = &new.detail;
        if detail == old {
            return Ok(());
        }
        if *detail == Detail::default() {
            self.conn.prepare_cached(sql::DELETE_DETAIL)?.execute([new.key])?;
            return Ok(());
        }
        self.conn.prepare_cached(sql::UPSERT_DETAIL)?.execute(params![
            new.key,
            detail.verdict.map(crate::job::Verdict::as_str),
            detail.error_class.map(crate::job::ErrorClass::as_str),
            detail.error_code,
            detail.last_error,
            detail.cancel_requested_at,
            detail.cancel_requested_by,
            detail.parked_at,
            detail.hooked_at,
            detail.hook_failures,
            detail.hook_tried_at,
            detail.redrives,
            detail.interruptions,
            detail.rate_limit_hits,
            detail.rate_limited_at,
            detail.progress_done,
            detail.progress_total,
            detail.restarts,
        ])?;
        Ok(())
    }

    /// Adds to a job's history, which keeps the last hundred entries.
    pub(super) fn add_history(&mut self, key: i64, epoch: i64, entry: &History) -> Result<()> {
        let (outcome, error) = (entry.outcome.as_str(), &entry.error);
        let entry = params![key, epoch, self.now, outcome, error];
        self.conn.prepare_cached(sql::INSERT_ATTEMPT)?.execute(entry)?;
        if epoch > 50 {
            self.conn.prepare_cached(sql::TRIM_ATTEMPTS)?.execute([key])?;
        }
        Ok(())
    }

    /// Adds what a holder came with after its lease was another's. Who it was is not in the
    /// row any more.
    pub(super) fn add_late(&mut self, key: i64, epoch: i64, entry: &History) -> Result<()> {
        let (outcome, error) = (entry.outcome.as_str(), &entry.error);
        let entry = params![key, epoch, self.now, outcome, error];
        self.conn.prepare_cached(sql::INSERT_LATE)?.execute(entry)?;
        self.conn.prepare_cached(sql::TRIM_ATTEMPTS)?.execute([key])?;
        Ok(())
    }

    /// Moves a pending row to another lane.
    pub(super) fn set_lane(&mut self, key: i64, lane: Lane) -> Result<()> {
        self.conn.prepare_cached(sql::SET_LANE)?.execute(params![key, lane as i64])?;
        Ok(())
    }
}
