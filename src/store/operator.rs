//! What operators do: cancel, redrive, delete, pause, sweep; each recorded with who and why.

use std::collections::BTreeMap;

use rusqlite::{OptionalExtension, params};

use crate::bugs::{self, Bug};
use crate::error::{Error, Refusal, StoreFault};
use crate::job::{JobId, Status};
use crate::kind::Settings;
use crate::new_job::NewJob;
use crate::operator::{Done, Operator, Paused, Target};
use crate::record::JobRecord;
use crate::rules::operate::{Redrive, cancel, delete, redrive, run_again};
use crate::rules::row::Row;
use crate::rules::text;
use crate::validate::{self, Sizes};

use super::holder::matched;
use super::rows::status_code;
use super::statements as sql;
use super::txn::{AfterHook, Txn};

impl Txn<'_> {
    pub(super) fn job(&mut self, id: &JobId) -> Result<Row, Error> {
        let key = self.find(id)?.ok_or(Refusal::NotFound)?;
        Ok(self.load(key)?.ok_or(Refusal::NotFound)?)
    }

    /// Refuses what is about more than the scope of whoever asks.
    pub(super) fn whole(&self, call: &'static str) -> Result<(), Refusal> {
        if self.scope.is_some() { Err(Refusal::OutOfScope { call }) } else { Ok(()) }
    }

    pub(super) fn record_action(
        &mut self,
        by: &Operator,
        action: &str,
        target: &str,
        count: i64,
    ) -> Result<(), StoreFault> {
        self.record_many(by, action, target, None, count)
    }

    /// The same, of an action that may be on all that meet a filter.
    pub(super) fn record_many(
        &mut self,
        by: &Operator,
        action: &str,
        target: &str,
        filter: Option<&str>,
        count: i64,
    ) -> Result<(), StoreFault> {
        let action = params![self.now, by.actor, action, target, by.reason, count, filter];
        self.conn.prepare_cached(sql::ADD_ACTION)?.execute(action)?;
        Ok(())
    }

    /// What operators have done, the last first, before number `before`.
    pub(super) fn actions(&self, before: i64, limit: usize) -> Result<Vec<Done>, StoreFault> {
        let mut statement = self.conn.prepare_cached(sql::ACTIONS)?;
        let mut rows = statement.query([before])?;
        let mut actions = Vec::new();
        while actions.len() < limit
            && let Some(row) = rows.next()?
        {
            actions.push(Done {
                n: row.get(0)?,
                at: row.get(1)?,
                by: Operator { actor: row.get(2)?, reason: row.get(5)? },
                action: row.get(3)?,
                target: row.get(4)?,
                filter: row.get(6)?,
                count: row.get(7)?,
            });
        }
        Ok(actions)
    }

    /// The registry of reasons.
    pub(super) fn reasons(&self) -> Result<BTreeMap<String, String>, StoreFault> {
        let mut statement = self.conn.prepare_cached(sql::REASONS)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// What is paused, by whom and since when.
    pub(super) fn pauses(&self) -> Result<Vec<Paused>, StoreFault> {
        let mut statement = self.conn.prepare_cached(sql::PAUSES)?;
        let mut rows = statement.query([])?;
        let mut pauses = Vec::new();
        while let Some(row) = rows.next()? {
            let (scope, name): (String, String) = (row.get(0)?, row.get(1)?);
            let target = if scope == "queue" { Target::Queue(name) } else { Target::Kind(name) };
            let by = Operator { actor: row.get(3)?, reason: row.get(4)? };
            pauses.push(Paused { target, at: row.get(2)?, by });
        }
        Ok(pauses)
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
        if !facts.hooks && !here || bugs::on(Bug::RedriveSkipsHook) {
            self.record_action(by, "redrive", &id.to_string(), 1)?;
            self.write(&row, &change)?;
            return Ok(self.hook_after(&row, AfterHook::Redrive)?);
        }
        if !here {
            let error = format!("the hooks of kind {} are in another process", row.kind);
            let failures = row.detail.hook_failures;
            return Err(Refusal::HookFailed { error, failures }.into());
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
            failed.detail.hook_failures = failed.detail.hook_failures.saturating_add(1);
            failed.updated_at = row.updated_at;
            self.write_row(&row, &failed)?;
            let error = match error {
                Error::Refused(Refusal::HookFailed { error, .. }) => error,
                other => other.to_string(),
            };
            let failures = failed.detail.hook_failures;
            return Err(Refusal::HookFailed { error, failures }.into());
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
        self.ask_veto(&row)?;
        self.record_action(by, "delete", &id.to_string(), 1)?;
        Ok(self.remove(row.key, &row.kind, row.status)?)
    }

    /// What a kind has to say about deletes, where its code is in this process.
    pub(super) fn veto(&self, kind: &str) -> Option<crate::hooks::Agreeing> {
        self.settings.hooks.get(kind).and_then(|hooks| hooks.veto.clone())
    }

    /// Asks the kind whether a job may be deleted, where it wants to be asked.
    fn ask_veto(&mut self, row: &Row) -> Result<(), Error> {
        let Some(veto) = self.veto(&row.kind) else {
            if !self.facts_by_name(&row.kind)?.veto {
                return Ok(());
            }
            let error = format!("the code of kind {} is in another process; ask there", row.kind);
            return Err(Refusal::Vetoed { error }.into());
        };
        let Some(record) = self.record(row.key)? else { return Ok(()) };
        let what = format!("on_delete of kind {}, job {}", row.kind, row.id);
        let asked = self.contained(|txn| {
            txn.application(&what, |tx| {
                veto(&record, tx)
                    .map_err(|error| Refusal::Vetoed { error: text::of(&error) }.into())
            })
        });
        match asked {
            Err(Error::Store(fault)) if is_application(&fault) => {
                Err(Refusal::Vetoed { error: fault.to_string() }.into())
            }
            answer => answer,
        }
    }

    /// Makes a new job like an ended one, which stays as it is.
    pub(super) fn run_again(
        &mut self,
        id: &JobId,
        minted: &JobId,
        by: &Operator,
    ) -> Result<JobId, Error> {
        if self.find_anyone(minted)?.is_some() {
            return Ok(minted.clone()); // Asked again after a lost answer.
        }
        let row = self.job(id)?;
        run_again(&row)?;
        let Some(old) = self.record(row.key)? else { return Err(Refusal::NotFound.into()) };
        if let Some(held) = self.held_keys(row.key)? {
            return Err(held.into());
        }
        self.insert(&NewJob::like(&old), minted)?;
        self.record_action(by, "run_again", &id.to_string(), 1)?;
        Ok(minted.clone())
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
        self.whole("sweep")?;
        let mut found = Vec::new();
        for kind in self.kinds_ended()? {
            for status in [Status::Completed, Status::Failed, Status::Cancelled] {
                let before = settled_before + i64::from(bugs::on(Bug::SweepOffByOne));
                for (key, finished_at) in self.ended(kind, status, before, limit)? {
                    found.push((finished_at, key, kind, status));
                }
            }
        }
        found.sort_unstable_by_key(|(finished_at, key, ..)| (*finished_at, *key));
        found.truncate(limit);
        for (_, key, kind, status) in &found {
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
        self.whole("pause")?;
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
        self.whole("resume")?;
        let (scope, name) = target.parts();
        self.conn.prepare_cached(sql::DROP_PAUSE)?.execute([scope, name])?;
        self.cache.forget_rules();
        self.effects.work = true;
        Ok(self.record_action(by, "resume", &format!("{scope} {name}"), 1)?)
    }

    /// Writes a kind's facts, the last registration winning.
    pub(super) fn register(&mut self, kind: &str, settings: &Settings) -> Result<(), Error> {
        settings.facts.check(kind)?;
        let id = self.cache.id(self.conn, kind)?;
        let old = self.facts(id)?;
        let mut facts = settings.facts.clone();
        if let Some(old) = old.as_ref().filter(|_| !settings.says_hooks) {
            // Another process has its hooks: they hold although this one has none.
            (facts.hooks, facts.veto) = (old.hooks, old.veto);
            if old.hooks {
                log::warn!(kind:% = kind; "a kind has hooks that are not in this process");
            }
        }
        match old {
            Some(old) if *old == facts => return Ok(()),
            Some(old) => {
                log::warn!(kind:% = kind; "the settings of a kind changed: {old:?} to {facts:?}");
            }
            None => {}
        }
        let text = serde_json::to_string(&facts)
            .map_err(|error| Error::Setup(format!("settings of kind {kind}: {error}")))?;
        self.conn.prepare_cached(sql::PUT_KIND)?.execute(params![id, text, self.now])?;
        if !bugs::on(Bug::StaleFacts) {
            self.cache.forget_rules();
        }
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
        match scope {
            "queue" => validate::name("queue", name)?,
            _ => validate::key(scope, name, self.sizes()?)?,
        }
        self.conn.prepare_cached(sql::PUT_LIMIT)?.execute(params![scope, name, running])?;
        self.cache.forget_rules();
        self.effects.work = true;
        Ok(self.free_held(name)?)
    }

    /// Sets how large what is given may be.
    pub(super) fn put_sizes(&mut self, mut sizes: Sizes) -> Result<(), Error> {
        sizes.check()?;
        let mut statement = self.conn.prepare_cached(sql::PUT_STATE)?;
        for (name, bytes) in sizes.parts() {
            statement.execute(params![name, i64::try_from(*bytes).unwrap_or(i64::MAX)])?;
        }
        self.cache.forget_rules();
        Ok(())
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
