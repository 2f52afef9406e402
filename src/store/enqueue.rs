//! Enqueuing: the keys in their order, then the row.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use crate::bugs::{self, Bug};
use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::error::{Error, Refusal, StoreFault};
use crate::events::{JobEvent, What};
use crate::facts::Facts;
use crate::job::{By, JobId, Status};
use crate::new_job::{Enqueued, NewJob, Was};
use crate::rules::row::Lane;
use crate::scope::Scope;
use crate::validate::{self, Sizes};

use super::StoreSettings;
use super::cache::Cache;
use super::engine::known_schema;
use super::rows::{StoredId, read_id};
use super::statements as sql;
use super::txn::{AppFence, Effects, Txn};

/// Enqueues in a transaction of the application's own, on its own connection.
pub(crate) fn enqueue_in(
    conn: &Connection,
    clock: &dyn Clock,
    entropy: &dyn Entropy,
    scope: Option<&Scope>,
    (job, minted): (&NewJob, &JobId),
) -> Result<Enqueued, Error> {
    // Before anything is read, so that a transaction which has not begun to write can.
    let locked = conn.prepare_cached(sql::TAKE_LOCK).and_then(|mut lock| lock.execute([]));
    match locked.map_err(StoreFault::from) {
        Err(StoreFault::Busy) => return Err(StoreFault::Busy.into()),
        locked => known_schema(conn).and(locked)?,
    };
    let (settings, fence) = (StoreSettings::default(), AppFence::new(0));
    let mut txn = Txn {
        conn,
        cache: &mut Cache::default(),
        now: clock.now(),
        monotonic: clock.monotonic(),
        entropy,
        settings: &settings,
        fence: &fence,
        effects: Effects::default(),
        scope: scope.cloned(),
    };
    txn.contained(|txn| txn.enqueue(job, minted))
}

impl Txn<'_> {
    /// Enqueues a job, or finds the one that its keys name. `minted` is the id of a new job
    /// whose caller gave none, so that asking again after a lost answer makes no second one.
    pub(super) fn enqueue(&mut self, job: &NewJob, minted: &JobId) -> Result<Enqueued, Error> {
        match self.scope.as_ref().map(|scope| scope.put_on(job)).transpose()? {
            Some(scoped) => self.enqueue_as_given(&scoped, minted),
            None => self.enqueue_as_given(job, minted),
        }
    }

    fn enqueue_as_given(&mut self, job: &NewJob, minted: &JobId) -> Result<Enqueued, Error> {
        let sizes = self.sizes()?;
        validate::new_job(job, sizes)?;
        self.run_at(job)?;
        if let Some(reason) = &job.reason {
            self.known_reason(reason)?;
        }
        let id = job.id.as_ref().unwrap_or(minted);
        if let Some(existing) = self.existing(job, id)? {
            return Ok(existing);
        }
        if let Some(lock) = &job.lock_key
            && let Some(by) = self.lock_holder(lock, job)?
        {
            return Err(Refusal::LockHeld { by }.into());
        }
        self.insert(job, id)?;
        self.keep_keys(job, id)?;
        Ok(Enqueued { id: id.clone(), was: Was::New })
    }

    /// How large what is given may be.
    pub(super) fn sizes(&mut self) -> Result<Sizes, StoreFault> {
        Ok(self.cache.rules(self.conn)?.sizes)
    }

    fn known_reason(&mut self, reason: &str) -> Result<(), Error> {
        let mut statement = self.conn.prepare_cached(sql::REASON)?;
        let known = statement.exists([reason])?;
        if known { Ok(()) } else { Err(Refusal::UnknownReason { reason: reason.into() }.into()) }
    }

    /// The job that an id, an idempotency key or a dedup key names, asked in this order.
    fn existing(&mut self, job: &NewJob, id: &JobId) -> Result<Option<Enqueued>, Error> {
        let found = |id, by| Some(Enqueued { id, was: Was::Existing { by } });
        if self.find_anyone(id)?.is_some() {
            if self.find(id)?.is_none() && !bugs::on(Bug::ScopeIgnored) {
                return Err(Refusal::IdTaken.into());
            }
            // An id that was minted for this very call is there because the call is asked
            // again after its answer was lost: the job is the caller's own new one.
            let was = if job.id.is_some() { Was::Existing { by: By::Id } } else { Was::New };
            return Ok(Some(Enqueued { id: id.clone(), was }));
        }
        for (by, key, statement) in [
            (By::IdempotencyKey, &job.idempotency_key, sql::BY_IDEMPOTENCY_KEY),
            (By::DedupKey, &job.dedup_key, sql::BY_DEDUP_KEY),
        ] {
            let Some(key) = key else { continue };
            if let Some(id) = self.key_holder(statement, key, job)? {
                if bugs::on(Bug::KeysForgotten) && by == By::IdempotencyKey {
                    continue;
                }
                return Ok(found(id, by));
            }
            if let Some(id) = self.kept_key(by, key, job)? {
                return Ok(found(id, by));
            }
        }
        Ok(None)
    }

    /// The job that had a key last, where the key outlives it.
    fn kept_key(&mut self, by: By, key: &str, job: &NewJob) -> Result<Option<JobId>, StoreFault> {
        let mut statement = self.conn.prepare_cached(sql::KEPT_KEY)?;
        let longer = self.now - i64::from(bugs::on(Bug::KeptKeyOffByOne));
        let named = params![by.as_str(), key, job.tenant, job.organization, longer];
        let mut rows = statement.query(named)?;
        rows.next()?.map(|row| read_id(row, 0)).transpose()
    }

    /// Writes down the keys that are to stay taken for a time.
    fn keep_keys(&mut self, job: &NewJob, id: &JobId) -> Result<(), Error> {
        for (by, key, field, period) in [
            (By::IdempotencyKey, &job.idempotency_key, "keep_key_for", job.keep_key_for),
            (By::DedupKey, &job.dedup_key, "unique_for", job.unique_for),
        ] {
            let for_ever = key.is_some() && by == By::DedupKey && bugs::on(Bug::DedupKept);
            let period = period.or(for_ever.then(|| Duration::from_hours(1)));
            let Some(period) = period else { continue };
            let until = self.now.saturating_add(validate::duration(field, period)?);
            self.conn.prepare_cached(sql::KEEP_KEY)?.execute(params![
                by.as_str(),
                key,
                job.tenant,
                job.organization,
                StoredId(id),
                until,
            ])?;
        }
        Ok(())
    }

    fn lock_holder(&mut self, lock: &str, job: &NewJob) -> Result<Option<JobId>, StoreFault> {
        if bugs::on(Bug::LockIgnoresTenant) {
            let nobody = NewJob { tenant: None, organization: None, ..job.clone() };
            return self.key_holder(sql::BY_LOCK_KEY, lock, &nobody);
        }
        self.key_holder(sql::BY_LOCK_KEY, lock, job)
    }

    fn key_holder(
        &mut self,
        statement: &str,
        key: &str,
        job: &NewJob,
    ) -> Result<Option<JobId>, StoreFault> {
        let mut statement = self.conn.prepare_cached(statement)?;
        let row: Option<i64> = statement
            .query_row(params![key, job.tenant, job.organization], |row| row.get(0))
            .optional()?;
        row.map(|row| self.id_of(row)).transpose()
    }

    /// The id of a row.
    pub(super) fn id_of(&mut self, key: i64) -> Result<JobId, StoreFault> {
        let mut statement = self.conn.prepare_cached(sql::LOAD)?;
        let mut rows = statement.query([key])?;
        match rows.next()? {
            Some(row) => read_id(row, 1),
            None => Err(StoreFault::Corrupt(format!("row {key} is gone inside a transaction"))),
        }
    }

    pub(super) fn insert(&mut self, job: &NewJob, id: &JobId) -> Result<(), Error> {
        let kind = self.cache.id(self.conn, &job.kind)?;
        let facts = self.cache.rules(self.conn)?.facts.get(&kind).cloned();
        let bare = Facts::default();
        let facts = facts
            .as_deref()
            .or_else(|| job.defaults.as_ref().map(|settings| &settings.facts))
            .unwrap_or(&bare);
        let queue = self.cache.id(self.conn, &facts.queue)?;
        let run_at = self.run_at(job)?;
        let lane = if run_at > self.now { Lane::Scheduled } else { Lane::Ready };
        self.conn.prepare_cached(sql::INSERT)?.execute(params![
            StoredId(id),
            kind,
            queue,
            lane as i64,
            job.priority,
            run_at,
            self.now,
            job.max_attempts.unwrap_or(facts.max_attempts),
            job.tenant,
            job.organization,
            job.idempotency_key,
            job.dedup_key,
            job.lock_key,
            job.limit_key,
        ])?;
        let key = self.conn.last_insert_rowid();
        self.insert_beside(job, key)?;
        self.note_lane(kind, queue)?;
        self.effects.work |= lane == Lane::Ready;
        if self.settings.events.is_heard() {
            self.effects.events.push(JobEvent {
                what: What::Enqueued,
                id: id.clone(),
                kind: self.cache.name(self.conn, kind)?,
                epoch: 0,
                status: Status::Pending,
                outcome: None,
                at: self.now,
            });
        }
        Ok(())
    }

    fn run_at(&self, job: &NewJob) -> Result<i64, Refusal> {
        let Some(delay) = job.delay else { return Ok(job.run_at.unwrap_or(self.now)) };
        let run_at = self.now.saturating_add(validate::duration("delay", delay)?);
        if run_at < validate::END_OF_TIME {
            return Ok(run_at);
        }
        let rule = "short enough to end before the year 2200";
        Err(Refusal::invalid("delay", format!("{delay:?}"), rule))
    }

    /// The rows of the side tables, where there is anything to keep in them.
    fn insert_beside(&mut self, job: &NewJob, key: i64) -> Result<(), StoreFault> {
        if let Ok(Some(payload)) = &job.payload {
            let mut statement = self.conn.prepare_cached(sql::INSERT_PAYLOAD)?;
            statement.execute(params![key, payload.as_str()])?;
        }
        let labelled = job.reason.is_some()
            || job.subject_type.is_some()
            || job.subject_id.is_some()
            || job.meta.is_some()
            || job.trace_context.is_some()
            || job.copy_of.is_some();
        if labelled {
            let mut statement = self.conn.prepare_cached(sql::INSERT_LABEL)?;
            statement.execute(params![
                key,
                job.reason,
                job.subject_type,
                job.subject_id,
                job.meta.as_ref().map(crate::json::Json::as_str),
                job.trace_context,
                job.copy_of.as_ref().map(ToString::to_string),
            ])?;
        }
        Ok(())
    }

    /// Remembers that a kind has jobs in a queue.
    fn note_lane(&mut self, kind: i64, queue: i64) -> Result<(), StoreFault> {
        if self.cache.rules(self.conn)?.lanes.insert((kind, queue)) {
            self.conn.prepare_cached(sql::INSERT_LANE)?.execute([kind, queue])?;
        }
        Ok(())
    }
}
