//! The writes of a job's holder: settles, renewals, commits; and the one way in which a job
//! ends, hooks included.

use rusqlite::params;

use crate::bugs::{self, Bug};
use crate::error::{Error, Refusal, StoreFault};
use crate::events::What;
use crate::facts::Facts;
use crate::hooks::Hooks;
use crate::job::{Action, AttemptOutcome, Status};
use crate::json::Json;
use crate::rules::row::{Row, WriteMark};
use crate::rules::settle::{Refused, settle, touch};
use crate::rules::settle::{Settle, commit, fence, hook_refused, hooks_spent, is_repeat, renew};
use crate::rules::{Change, Gate, History, Holder};
use crate::validate;

use super::messages::Code;
use super::operator::is_application;
use super::rows::read_text;
use super::statements as sql;
use super::txn::{AfterHook, Txn};

/// Which attempt writes, and the number of the write within it.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) key: i64,
    pub(crate) holder: Holder,
    pub(crate) number: u32,
}

/// A write of a holder that is not a settle.
#[derive(Clone, Debug)]
pub(crate) enum Save {
    /// A checkpoint, a step, or both of a fenced write and a checkpoint.
    Checkpoint { key: String, value: Json },
    /// How far the work is.
    Progress { done: i64, total: Option<i64> },
    /// A fenced write alone.
    Nothing,
    /// The handler of a job that was claimed ahead has been entered: takes the mark off.
    #[allow(dead_code, reason = "nothing is claimed ahead yet; the protocol has a place for it")]
    Started,
}

/// What a save came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Saved {
    /// The lease was extended by it.
    pub(crate) extended: bool,
    pub(crate) commits: i64,
    pub(crate) monotonic: i64,
    /// It had landed before, and nothing was run again.
    pub(crate) repeated: bool,
}

impl Txn<'_> {
    /// Ends an attempt; answers the job's status after it.
    pub(super) fn settle(&mut self, write: &Write, how: &Settle) -> Result<Status, Error> {
        if let Settle::Complete(result) = how {
            validate::result(result.as_ref(), self.sizes()?)?;
        }
        let row = self.load(write.key)?;
        let mark = WriteMark::new(&write.holder.token, write.number);
        if let Some(row) = &row
            && (row.last_write == mark || is_repeat(row, &write.holder, how))
        {
            return Ok(row.status);
        }
        let row = match fence(row.as_ref(), &write.holder, how.action()) {
            Ok(row) => row.clone(),
            Err(refusal) => {
                if let Some(row) = &row {
                    self.note_refused(write, how, &refusal)?;
                    let late = Row { epoch: write.holder.epoch, ..row.clone() };
                    self.happened(What::Lost, &late, Some(AttemptOutcome::Lost));
                }
                return Err(refusal.into());
            }
        };
        let facts = self.facts_by_name(&row.kind)?;
        let entropy = self.entropy;
        let mut change = settle(&row, &facts, how, self.now, &mut || entropy.unit());
        change.row.last_write = mark;
        if change.row.status.is_live() {
            self.write(&row, &change)?;
        } else {
            self.end(&row, &facts, &change)?;
            if change.row.status == Status::Completed && facts.delete_on_success {
                self.conn.prepare_cached(sql::ADD_DISCARD)?.execute([row.key])?;
            }
        }
        Ok(change.row.status)
    }

    /// Keeps what a late holder came with in the job's history.
    fn note_refused(
        &mut self,
        write: &Write,
        how: &Settle,
        refusal: &Refusal,
    ) -> Result<(), StoreFault> {
        let what = match how {
            Settle::Complete(Some(result)) => format!("completed with {result}"),
            Settle::Complete(None) => "completed".to_owned(),
            Settle::Fail(failure) => format!("failed: {}", failure.error),
            other => format!("{other:?}").to_lowercase(),
        };
        if bugs::on(Bug::LateForgotten) {
            return Ok(());
        }
        let text = crate::rules::text::stored(Some(&format!("{refusal}; it had {what}")));
        let entry = History { outcome: AttemptOutcome::Lost, error: Some(text) };
        self.add_late(write.key, write.holder.epoch, &entry)
    }

    /// Writes an ending, its hooks in the same transaction. Where they do not agree, the
    /// decision is kept on the row, or lands without them once they have failed too often.
    pub(super) fn end(&mut self, row: &Row, facts: &Facts, change: &Change) -> Result<(), Error> {
        let here = self.has_hooks(&row.kind);
        if !facts.hooks && !here {
            self.write(row, change)?;
            return Ok(self.hook_after(row, AfterHook::Transition)?);
        }
        if !here {
            let error = format!("the hooks of kind {} are in another process", row.kind);
            return self.keep_decision(row, facts, change, Refused { error: &error, asked: false });
        }
        let failed = match self.contained(|txn| txn.end_with_hooks(row, change)) {
            Ok(()) => return Ok(()),
            Err(Error::Refused(_)) if bugs::on(Bug::DisagreementIgnored) => {
                return Ok(self.write(row, change)?);
            }
            Err(Error::Refused(Refusal::HookFailed { error, .. })) => error,
            Err(Error::Store(fault)) if is_application(&fault) => fault.to_string(),
            Err(other) => return Err(other),
        };
        if hooks_spent(row)
            && !bugs::on(Bug::HooksUnbounded)
            && change.row.status != Status::Completed
        {
            let mut last = change.clone();
            last.row.detail.hook_failures = last.row.detail.hook_failures.saturating_add(1);
            last.row.detail.hook_tried_at = Some(self.now);
            if last.row.status == Status::Failed {
                last.row.detail.parked_at = Some(self.now);
            }
            self.write(row, &last)?;
            self.effects.unhooked.push(format!(
                "job {} of kind {} ended without its hook, which failed too often: {failed}",
                row.id, row.kind
            ));
            return Ok(self.hook_after(row, AfterHook::Transition)?);
        }
        self.keep_decision(row, facts, change, Refused { error: &failed, asked: true })
    }

    /// Keeps an ending that did not land on the row, and refuses the call.
    fn keep_decision(
        &mut self,
        row: &Row,
        facts: &Facts,
        change: &Change,
        refused: Refused<'_>,
    ) -> Result<(), Error> {
        let entropy = self.entropy;
        let mut kept =
            hook_refused(row, facts, &change.row, refused, self.now, &mut || entropy.unit());
        kept.row.last_write = change.row.last_write;
        self.write(row, &kept)?;
        let failures = kept.row.detail.hook_failures;
        Err(Refusal::HookFailed { error: refused.error.to_owned(), failures }.into())
    }

    fn end_with_hooks(&mut self, row: &Row, change: &Change) -> Result<(), Error> {
        let mut agreed = change.clone();
        agreed.row.detail.hooked_at = Some(self.now);
        self.write(row, &agreed)?;
        let Some(hooks) = self.settings.hooks.get(&row.kind).cloned() else { return Ok(()) };
        let Some(record) = self.record(row.key)? else { return Ok(()) };
        let what = |hook: &str| format!("{hook} of kind {}, job {}", row.kind, row.id);
        if record.status == Status::Cancelled
            && let Some(hook) = &hooks.on_cancel
        {
            self.application(&what("on_cancel"), |tx| {
                hook(&record, tx).map_err(|error| hook_failed(&error))
            })?;
        }
        if let Some(hook) = &hooks.on_transition {
            self.application(&what("on_transition"), |tx| matched(hook(&record, tx)))?;
        }
        Ok(self.hook_after(row, AfterHook::Transition)?)
    }

    /// Whether a kind's hooks that an ending asks are in this process.
    pub(super) fn has_hooks(&self, kind: &str) -> bool {
        self.settings.hooks.get(kind).is_some_and(Hooks::in_transaction)
    }

    /// Has a kind's hook run after the commit, where it has one.
    pub(super) fn hook_after(&mut self, row: &Row, which: AfterHook) -> Result<(), StoreFault> {
        let Some(hooks) = self.settings.hooks.get(&row.kind) else { return Ok(()) };
        let wanted = match which {
            AfterHook::Transition => hooks.after_transition.is_some(),
            AfterHook::Redrive => hooks.after_redrive.is_some(),
        };
        if wanted {
            let hooks = hooks.clone();
            let record = self.record(row.key)?;
            self.effects.after.extend(record.map(|record| (hooks, which, record)));
        }
        Ok(())
    }

    pub(super) fn set_gate(&mut self, kind: &str, gate: Gate) -> Result<(), StoreFault> {
        let facts = self.facts_by_name(kind)?;
        let Some(provider) = &facts.provider else { return Ok(()) };
        let known = self.cache.rules(self.conn)?.gates.contains_key(provider);
        match gate {
            Gate::CloseUntil(until) => {
                if bugs::on(Bug::GateShortened) {
                    self.conn.prepare_cached(sql::OPEN_GATE)?.execute([provider])?;
                }
                self.conn.prepare_cached(sql::CLOSE_GATE)?.execute(params![provider, until])?;
            }
            Gate::Open if known => {
                self.conn.prepare_cached(sql::OPEN_GATE)?.execute([provider])?;
            }
            Gate::Open => return Ok(()),
        }
        self.effects.work = true;
        self.cache.forget_rules();
        Ok(())
    }

    /// Extends a lease. `trusted`: the holder's own monotonic deadline has not passed.
    /// Answers the new end, and whether a cancel is requested.
    pub(super) fn renew(&mut self, write: &Write, trusted: bool) -> Result<(i64, bool), Error> {
        let row = self.load(write.key)?;
        let row = fence(row.as_ref(), &write.holder, Action::Renew)?;
        let facts = self.facts_by_name(&row.kind)?;
        let until = renew(row, &facts, trusted, self.now)?;
        self.extend(write, until)?;
        Ok((until, row.detail.cancel_requested_at.is_some()))
    }

    fn extend(&mut self, write: &Write, until: i64) -> Result<(), StoreFault> {
        let mut statement = self.conn.prepare_cached(sql::RENEW)?;
        statement.execute(params![write.key, write.holder.token, until, self.now])?;
        Ok(())
    }

    /// A write of a holder that is not a settle, with application code in it where there is
    /// any. The code is not run where the write had landed before.
    pub(super) fn save(
        &mut self,
        write: &Write,
        save: &Save,
        code: Option<&mut Code>,
    ) -> Result<Saved, Error> {
        if let Save::Checkpoint { key, value } = save {
            let sizes = self.sizes()?;
            if !key.is_empty() {
                validate::key("key", key, sizes)?;
            }
            validate::checkpoint(value, sizes)?;
        }
        let row = self.load(write.key)?;
        let mark = WriteMark::new(&write.holder.token, write.number);
        if let Some(row) = &row
            && row.last_write == mark
            && !bugs::on(Bug::WriteRepeated)
        {
            return Ok(self.saved(row, true));
        }
        let row = fence(row.as_ref(), &write.holder, Action::Save)?.clone();
        let facts = self.facts_by_name(&row.kind)?;
        let mut new = match save {
            Save::Checkpoint { key, .. } => commit(&row, &facts, key.is_empty(), self.now),
            Save::Progress { .. } | Save::Nothing | Save::Started => touch(&row, &facts, self.now),
        };
        new.last_write = mark;
        if let Save::Progress { done, total } = save {
            new.detail.progress_done = Some(*done);
            new.detail.progress_total = *total;
        }
        let land = |txn: &mut Self| -> Result<(), Error> {
            txn.write_row(&row, &new)?;
            if let Save::Checkpoint { key, value } = save {
                txn.put_checkpoint(write.key, key, new.epoch, value)?;
            }
            Ok(())
        };
        match code {
            None => land(self)?,
            Some(code) => {
                let (epoch, number) = (row.epoch, write.number);
                let what = format!(
                    "a fenced write of kind {}, job {}, attempt {epoch}, write {number}",
                    row.kind, row.id
                );
                self.contained(|txn| {
                    land(txn)?;
                    txn.application(&what, |tx| code(tx))
                })?;
            }
        }
        Ok(self.saved(&new, false))
    }

    fn saved(&self, row: &Row, repeated: bool) -> Saved {
        Saved {
            extended: !repeated && row.heartbeat_at == Some(self.now),
            commits: row.commits,
            monotonic: self.monotonic,
            repeated,
        }
    }

    fn put_checkpoint(
        &mut self,
        job: i64,
        key: &str,
        epoch: i64,
        value: &Json,
    ) -> Result<(), StoreFault> {
        let mut statement = self.conn.prepare_cached(sql::PUT_CHECKPOINT)?;
        statement.execute(params![job, key, epoch, value.as_str()])?;
        Ok(())
    }

    /// A saved value as an attempt of `epoch` sees it.
    pub(super) fn checkpoint(
        &mut self,
        job: i64,
        key: &str,
        epoch: i64,
    ) -> Result<Option<Json>, StoreFault> {
        use rusqlite::OptionalExtension;
        let mut statement = self.conn.prepare_cached(sql::CHECKPOINT)?;
        let text =
            statement.query_row(params![job, key, epoch], |row| read_text(row, 0)).optional()?;
        Ok(text.flatten().map(Json::stored))
    }

    /// All saved values as an attempt of `epoch` sees them.
    pub(super) fn checkpoints(
        &mut self,
        job: i64,
        epoch: i64,
    ) -> Result<Vec<(String, Json)>, StoreFault> {
        let epoch = if bugs::on(Bug::CheckpointsOfLater) { i64::MAX } else { epoch };
        let mut statement = self.conn.prepare_cached(sql::CHECKPOINTS)?;
        let mut rows = statement.query([job, epoch])?;
        let mut values = Vec::new();
        while let Some(row) = rows.next()? {
            let text = |column| Ok::<_, StoreFault>(read_text(row, column)?.unwrap_or_default());
            values.push((text(0)?, Json::stored(text(1)?)));
        }
        Ok(values)
    }
}

/// A hook's answer; whoever asked it counts the failures.
pub(super) fn hook_failed(error: &crate::hooks::BoxError) -> Error {
    Refusal::HookFailed { error: crate::rules::text::of(error), failures: 0 }.into()
}

pub(super) fn matched(answer: Result<usize, crate::hooks::BoxError>) -> Result<(), Error> {
    match answer {
        Ok(0) => Err(hook_failed(&"it matched no row".into())),
        Ok(_) => Ok(()),
        Err(error) => Err(hook_failed(&error)),
    }
}
