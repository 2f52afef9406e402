//! What operators do: cancel, redrive, delete, pause, sweep; each recorded with who and why.

use rusqlite::{OptionalExtension, params};

use crate::error::{Error, Refusal, StoreFault};
use crate::job::{JobId, Status, Waiting};
use crate::kind::Settings;
use crate::record::{Counts, JobRecord};
use crate::rules::operate::{Redrive, cancel, delete, redrive, why_waiting};
use crate::rules::row::Row;
use crate::validate;

use super::holder::matched;
use super::rows::{read_status, status_code};
use super::statements as sql;
use super::txn::{AfterHook, Txn};

/// Who acts, and why.
#[derive(Clone, Debug, Default)]
pub struct Operator {
    /// Who.
    pub actor: String,
    /// Why, where it was said.
    pub reason: Option<String>,
}

impl Operator {
    /// Somebody who gives no reason.
    #[must_use]
    pub fn named(actor: impl Into<String>) -> Self {
        Self { actor: actor.into(), reason: None }
    }

    /// The reason.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }
}

/// What is paused and resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// All kinds of a queue.
    Queue(String),
    /// One kind.
    Kind(String),
}

impl Target {
    fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Queue(name) => ("queue", name),
            Self::Kind(name) => ("kind", name),
        }
    }
}

impl Txn<'_> {
    fn job(&mut self, id: &JobId) -> Result<Row, Error> {
        let key = self.find(id)?.ok_or(Refusal::NotFound)?;
        Ok(self.load(key)?.ok_or(Refusal::NotFound)?)
    }

    fn record_action(
        &mut self,
        by: &Operator,
        action: &str,
        target: &str,
        count: i64,
    ) -> Result<(), StoreFault> {
        self.conn
            .prepare_cached(sql::ADD_ACTION)?
            .execute(params![self.now, by.actor, action, target, by.reason, count])?;
        Ok(())
    }

    /// Cancels a waiting job, or asks a running one to stop; answers the status after it.
    pub(super) fn cancel(&mut self, id: &JobId, by: &Operator) -> Result<Status, Error> {
        let row = self.job(id)?;
        let change = cancel(&row, &by.actor, self.now)?;
        self.record_action(by, "cancel", &id.to_string(), 1)?;
        if change.row.status.is_live() {
            self.write(&row, &change)?;
        } else {
            let facts = self.facts_by_name(&row.kind)?;
            self.end(&row, &facts, &change)?;
        }
        Ok(change.row.status)
    }

    /// Makes an ended job live again.
    pub(super) fn redrive(&mut self, id: &JobId, how: Redrive, by: &Operator) -> Result<(), Error> {
        let row = self.job(id)?;
        let held = self.held_keys(row.key)?;
        let change = redrive(&row, how, held, self.now)?;
        let facts = self.facts_by_name(&row.kind)?;
        let here = self.has_hooks(&row.kind);
        if !facts.hooks && !here {
            self.record_action(by, "redrive", &id.to_string(), 1)?;
            self.write(&row, &change)?;
            return Ok(self.hook_after(&row, AfterHook::Redrive)?);
        }
        if !here {
            let error = format!("the hooks of kind {} are in another process", row.kind);
            return Err(Refusal::HookFailed { error }.into());
        }
        let outcome = self.contained(|txn| {
            txn.write(&row, &change)?;
            txn.redrive_hook(&row)
        });
        if let Err(error) = outcome {
            if matches!(&error, Error::Store(fault) if !is_application(fault)) {
                return Err(error);
            }
            let mut failed = row.clone();
            failed.detail.hook_failures += 1;
            failed.updated_at = row.updated_at;
            self.write_row(&row, &failed)?;
            return Err(Refusal::HookFailed { error: error.to_string() }.into());
        }
        Ok(self.record_action(by, "redrive", &id.to_string(), 1)?)
    }

    /// Which of a job's keys another live job holds.
    fn held_keys(&mut self, key: i64) -> Result<Option<Refusal>, StoreFault> {
        let Some(job) = self.record(key)?.filter(|job| !job.status.is_live()) else {
            return Ok(None);
        };
        if let Some(by) = self.other_holder(sql::BY_LOCK_KEY, job.lock_key.as_ref(), &job)? {
            return Ok(Some(Refusal::LockHeld { by }));
        }
        let by = self.other_holder(sql::BY_DEDUP_KEY, job.dedup_key.as_ref(), &job)?;
        Ok(by.map(|by| Refusal::DedupHeld { by }))
    }

    fn redrive_hook(&mut self, row: &Row) -> Result<(), Error> {
        let Some(hooks) = self.settings.hooks.get(&row.kind).cloned() else { return Ok(()) };
        let Some(record) = self.record(row.key)? else { return Ok(()) };
        if let Some(hook) = &hooks.on_redrive {
            let what = format!("on_redrive of kind {}, job {}", row.kind, row.id);
            self.application(&what, |tx| matched(hook(&record, tx)))?;
        }
        Ok(self.hook_after(row, AfterHook::Redrive)?)
    }

    fn other_holder(
        &mut self,
        statement: &str,
        key: Option<&String>,
        job: &JobRecord,
    ) -> Result<Option<JobId>, StoreFault> {
        let Some(key) = key else { return Ok(None) };
        let mut statement = self.conn.prepare_cached(statement)?;
        let row: Option<i64> = statement
            .query_row(params![key, job.tenant, job.organization], |row| row.get(0))
            .optional()?;
        row.map(|row| self.id_of(row)).transpose()
    }

    /// Deletes an ended job with all that hangs on it.
    pub(super) fn delete(&mut self, id: &JobId, by: &Operator) -> Result<(), Error> {
        let row = self.job(id)?;
        delete(&row)?;
        self.record_action(by, "delete", &id.to_string(), 1)?;
        Ok(self.remove(row.key, &row.kind, row.status)?)
    }

    pub(super) fn remove(
        &mut self,
        key: i64,
        kind: &str,
        status: Status,
    ) -> Result<(), StoreFault> {
        let kind = self.cache.id(self.conn, kind)?;
        self.conn.prepare_cached(sql::DELETE_JOB)?.execute([key])?;
        self.conn.prepare_cached(sql::ADD_TOTAL)?.execute([kind, status_code(status)])?;
        Ok(())
    }

    /// Deletes jobs that ended before a horizon, oldest first; answers how many.
    pub(super) fn sweep(
        &mut self,
        settled_before: i64,
        limit: usize,
        by: &Operator,
    ) -> Result<u64, Error> {
        let mut found = Vec::new();
        {
            let mut statement = self.conn.prepare_cached(sql::ENDED_OLDEST)?;
            let mut rows = statement.query([settled_before])?;
            while found.len() < limit
                && let Some(row) = rows.next()?
            {
                found.push((row.get(0)?, row.get(1)?, read_status(row.get(2)?)?));
            }
        }
        for (key, kind, status) in &found {
            let kind = self.cache.name(self.conn, *kind)?;
            self.remove(*key, &kind, *status)?;
        }
        if !found.is_empty() {
            let target = format!("ended before {settled_before}");
            self.record_action(
                by,
                "sweep",
                &target,
                i64::try_from(found.len()).unwrap_or(i64::MAX),
            )?;
        }
        Ok(found.len() as u64)
    }

    /// Pauses a queue or a kind.
    pub(super) fn pause(&mut self, target: &Target, by: &Operator) -> Result<(), Error> {
        let (scope, name) = target.parts();
        validate::name(if scope == "queue" { "queue" } else { "kind" }, name)?;
        self.conn
            .prepare_cached(sql::PUT_PAUSE)?
            .execute(params![scope, name, self.now, by.actor, by.reason])?;
        self.cache.forget_rules();
        Ok(self.record_action(by, "pause", &format!("{scope} {name}"), 1)?)
    }

    /// Lets a queue or a kind go on.
    pub(super) fn resume(&mut self, target: &Target, by: &Operator) -> Result<(), Error> {
        let (scope, name) = target.parts();
        self.conn.prepare_cached(sql::DROP_PAUSE)?.execute([scope, name])?;
        self.cache.forget_rules();
        self.effects.work = true;
        Ok(self.record_action(by, "resume", &format!("{scope} {name}"), 1)?)
    }

    /// Why a pending job is not running, by the claim's own conditions.
    pub(super) fn why_waiting(&mut self, id: &JobId) -> Result<Waiting, Error> {
        let row = self.job(id)?;
        let around = self.around(&row)?;
        Ok(why_waiting(&row, around, self.now)?)
    }

    pub(super) fn counts(&mut self) -> Result<Counts, StoreFault> {
        let mut counts = Counts::default();
        let failed: i64 = self.conn.prepare_cached(sql::COUNTS)?.query_row([self.now], |row| {
            counts.scheduled = row.get(0)?;
            counts.retrying = row.get(1)?;
            counts.ready = row.get(2)?;
            counts.leased = row.get(3)?;
            counts.orphaned = row.get(4)?;
            counts.completed = row.get(5)?;
            counts.cancelled = row.get(6)?;
            row.get(7)
        })?;
        counts.parked = self.conn.prepare_cached(sql::PARKED)?.query_row([], |row| row.get(0))?;
        counts.dead = failed - counts.parked;
        let mut statement = self.conn.prepare_cached(sql::PENDING_BY_KIND)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            counts.kinds.insert(row.get(0)?, row.get(1)?);
        }
        Ok(counts)
    }

    /// Writes a kind's facts, the last registration winning.
    pub(super) fn register(&mut self, kind: &str, settings: &Settings) -> Result<(), Error> {
        let facts = &settings.facts;
        facts.check(kind)?;
        let id = self.cache.id(self.conn, kind)?;
        match self.facts(id)? {
            Some(old) if *old == *facts => return Ok(()),
            Some(old) => {
                log::warn!(kind:% = kind; "the settings of a kind changed: {old:?} to {facts:?}");
            }
            None => {}
        }
        let text = serde_json::to_string(facts)
            .map_err(|error| Error::Setup(format!("settings of kind {kind}: {error}")))?;
        self.conn.prepare_cached(sql::PUT_KIND)?.execute(params![id, text, self.now])?;
        self.cache.forget_rules();
        self.effects.work = true;
        Ok(())
    }

    /// Limits how many jobs of a queue or a limit key run at a time.
    pub(super) fn put_limit(
        &mut self,
        scope: &'static str,
        name: &str,
        running: i64,
    ) -> Result<(), Error> {
        validate::key(scope, name)?;
        self.conn.prepare_cached(sql::PUT_LIMIT)?.execute(params![scope, name, running])?;
        self.cache.forget_rules();
        self.effects.work = true;
        Ok(self.free_held(name)?)
    }

    /// Adds a reason to the registry, or changes its label.
    pub(super) fn put_reason(&mut self, id: &str, label: &str) -> Result<(), Error> {
        let good = (2..=48).contains(&id.len())
            && id.starts_with(|c: char| c.is_ascii_lowercase())
            && id.bytes().all(|c| {
                c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'_' | b'.' | b'-')
            });
        if !good {
            let rule = "2 to 48 characters of a-z, 0-9, '_', '.' and '-', the first a letter";
            return Err(Refusal::invalid("reason", id, rule).into());
        }
        self.conn.prepare_cached(sql::PUT_REASON)?.execute([id, label])?;
        Ok(())
    }
}

pub(super) fn is_application(fault: &StoreFault) -> bool {
    use StoreFault::{Application, Panicked, TimedOut};
    matches!(fault, Panicked(_) | TimedOut | Application(_))
}
