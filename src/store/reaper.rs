//! A pass of the reaper: endings that are owed, leases that are lost, rows past retention.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rusqlite::OptionalExtension;

use crate::bugs::{self, Bug};
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, StoreFault};
use crate::job::Status;
use crate::owner::Alive;
use crate::rules::reap::{Judge, finish, reap};
use crate::rules::row::Row;

use super::holder::hook_failed;
use super::rows::read_text;
use super::statements as sql;
use super::txn::Txn;

/// Rows decided in one pass, of each sort.
pub(super) const BATCH: usize = 100;
/// A pass whose hooks have taken so long asks no more of them, as the transaction keeps every other
/// writer waiting, in milliseconds.
const LONG: i64 = 1_000;
/// How long an ending may be owed before nobody is thought to serve it, in milliseconds.
const SERVED_WITHIN: i64 = 60_000;

/// What a pass of the reaper did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReapReport {
    /// Rows looked at closely: owed an ending, or with a lost lease.
    pub scanned: u64,
    /// Ended as cancelled.
    pub cancelled: u64,
    /// Made to wait for another attempt.
    pub requeued: u64,
    /// Ended as failed.
    pub failed: u64,
    /// Ended as failed, for a person to look at.
    pub parked: u64,
    /// Removed by retention.
    pub swept: u64,
    /// Rows whose decision could not land.
    pub errors: u64,
}

/// A running row as a pass saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sighting {
    pub(crate) key: i64,
    pub(crate) epoch: i64,
    pub(crate) heartbeat_at: i64,
}

/// What is known outside of the database when a pass starts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// Owners on this host whose lock is held: their leases are lost only once confirmed.
    pub(crate) alive: HashSet<Arc<str>>,
    /// Owners on this host whose lock is free: the process is gone, and so are its leases.
    pub(crate) dead: HashSet<Arc<str>>,
    /// To ask about an owner whom nobody knew when the locks were looked at: it may have started
    /// since, and the clock have jumped.
    pub(crate) newcomers: Option<Alive>,
    /// Rows of owners alive that have shown no sign of life for a whole lease.
    pub(crate) confirmed: HashSet<Sighting>,
    /// The last pass left rows past retention, so this one goes on with them.
    pub(crate) unswept: bool,
}

/// What a pass came to.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    pub(crate) report: ReapReport,
    /// When the next lease ends.
    pub(crate) next_lease: Option<i64>,
    /// Rows that look lost, of owners that are alive, with the length of their lease.
    pub(crate) doubtful: HashMap<Sighting, i64>,
    /// Dead owners that still have rows.
    pub(crate) undecided: HashSet<Arc<str>>,
    /// A batch was full.
    pub(crate) more: bool,
    /// Rows past retention are left.
    pub(crate) unswept: bool,
    /// Kinds with jobs that are owed an ending which nobody serves, and how many.
    pub(crate) unserved: Vec<(Arc<str>, i64)>,
    /// When a slice of an operation on many jobs is due.
    pub(crate) next_bulk: Option<i64>,
}

impl Txn<'_> {
    /// One pass.
    pub(super) fn reap(&mut self, known: &Known) -> Result<Pass, StoreFault> {
        let mut pass = Pass::default();
        let lost = self.lost(known, &mut pass)?;
        let owed = self.owed()?;
        pass.more = lost.len() >= BATCH || owed.len() >= BATCH;
        let (first, then): (Vec<_>, Vec<_>) = owed
            .into_iter()
            .map(|row| (row, true))
            .chain(lost.into_iter().map(|row| (row, false)))
            .partition(|(row, _)| row.detail.cancel_requested_at.is_some());
        // Real time, whatever the runtime's clock.
        let clock = SystemClock::new();
        for (row, owed) in first.into_iter().chain(then) {
            if clock.monotonic() >= LONG && self.has_hooks(&row.kind) {
                pass.more = true;
                continue;
            }
            pass.report.scanned += 1;
            self.decide(&row, owed, &mut pass)?;
        }
        self.free_held_keys()?;
        pass.report.errors += self.application_sweeps()?;
        let (discarded, more) = self.discard()?;
        let swept = self.retention(known.unswept)?;
        pass.report.swept = (discarded + swept) as u64;
        pass.unswept = more || swept >= BATCH;
        self.conn.prepare_cached(sql::DROP_KEPT_KEYS)?.execute([self.now])?;
        pass.next_bulk = self.next_bulk()?;
        pass.unserved = self.unserved()?;
        Ok(pass)
    }

    /// Rows that are owed an ending, least recently tried first: only kinds with hooks have
    /// any, and only those whose code is here can be ended.
    fn owed(&mut self) -> Result<Vec<Row>, StoreFault> {
        let mut owed = Vec::new();
        let kinds: Vec<_> = self.settings.hooks.keys().cloned().collect();
        for kind in kinds {
            let Some(kind) = self.cache.known_id(self.conn, &kind)? else { continue };
            let mut keys: Vec<i64> = Vec::new();
            {
                let mut statement = self.conn.prepare_cached(sql::OWED)?;
                let mut rows = statement.query([kind])?;
                while keys.len() < BATCH
                    && let Some(row) = rows.next()?
                {
                    keys.push(row.get(0)?);
                }
            }
            for key in keys {
                owed.extend(self.load(key)?);
            }
        }
        owed.sort_by_key(|row| row.detail.hook_tried_at);
        owed.truncate(BATCH);
        Ok(owed)
    }

    /// Kinds without hooks here, with rows that have been owed an ending for so long that no other
    /// process can have them either: it would have tried.
    fn unserved(&mut self) -> Result<Vec<(Arc<str>, i64)>, StoreFault> {
        let since = self.now.saturating_sub(SERVED_WITHIN);
        let mut owed: Vec<(i64, i64)> = Vec::new();
        {
            let mut statement = self.conn.prepare_cached(sql::OWED_SINCE)?;
            let mut rows = statement.query([since])?;
            while let Some(row) = rows.next()? {
                owed.push((row.get(0)?, row.get(1)?));
            }
        }
        let mut unserved = Vec::new();
        for (kind, jobs) in owed {
            let kind = self.cache.name(self.conn, kind)?;
            if !self.has_hooks(&kind) && self.facts_by_name(&kind)?.hooks {
                unserved.push((kind, jobs));
            }
        }
        Ok(unserved)
    }

    /// Running rows whose lease is lost, and the end of the next lease.
    fn lost(&mut self, known: &Known, pass: &mut Pass) -> Result<Vec<Row>, StoreFault> {
        let longest = self.cache.rules(self.conn)?.longest_lease();
        let judge = Judge { now: self.now, grace: self.settings.grace, longest };
        let mut seen: Vec<(Sighting, Option<i64>, Option<i64>)> = Vec::new();
        {
            let mut statement = self.conn.prepare_cached(sql::RUNNING)?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let heartbeat_at = row.get::<_, Option<i64>>(3)?.unwrap_or_default();
                let sighting = Sighting { key: row.get(0)?, epoch: row.get(2)?, heartbeat_at };
                seen.push((sighting, row.get(1)?, row.get(4)?));
            }
        }
        let mut lost = Vec::new();
        for (sighting, owner, lease_until) in seen {
            let owner = match owner {
                Some(owner) => Some(self.cache.name(self.conn, owner)?),
                None => None,
            };
            let is = |owners: &HashSet<Arc<str>>| {
                owner.as_ref().is_some_and(|owner| owners.contains(owner))
            };
            let over = judge.is_over(lease_until);
            if let Some(owner) = owner.as_ref().filter(|_| is(&known.dead)) {
                pass.undecided.insert(owner.clone());
            }
            if !over && !is(&known.dead) {
                let until = lease_until.unwrap_or(i64::MAX);
                pass.next_lease = Some(pass.next_lease.unwrap_or(i64::MAX).min(until));
                continue;
            }
            let Some(row) = self.load(sighting.key)? else { continue };
            if row.is_owed() {
                continue;
            }
            let newcomer = || match (&owner, &known.newcomers) {
                (Some(owner), Some(alive)) if !is(&known.dead) => alive.is(owner),
                _ => false,
            };
            let doubtful = !known.confirmed.contains(&sighting);
            if doubtful && (is(&known.alive) || newcomer()) {
                let lease = self.facts_by_name(&row.kind)?.lease;
                pass.doubtful.insert(sighting, lease);
                continue;
            }
            if lost.len() < BATCH {
                lost.push(row);
            }
        }
        Ok(lost)
    }

    pub(super) fn decide(
        &mut self,
        row: &Row,
        owed: bool,
        pass: &mut Pass,
    ) -> Result<(), StoreFault> {
        let facts = self.facts_by_name(&row.kind)?;
        let mut change = if owed { finish(row, self.now) } else { reap(row, &facts, self.now) };
        if bugs::on(Bug::ReaperSettles) && !change.row.status.is_live() {
            change.row.settled_epoch = Some(row.epoch);
        }
        let outcome = if change.row.status.is_live() || bugs::on(Bug::ReaperSkipsHooks) {
            self.write(row, &change).map_err(Error::from)
        } else {
            self.end(row, &facts, &change)
        };
        match outcome {
            Ok(()) => {}
            Err(Error::Refused(_)) => {
                pass.report.errors += 1;
                return Ok(());
            }
            Err(Error::Store(fault)) => return Err(fault),
            Err(other) => return Err(StoreFault::Sql(other.to_string())),
        }
        let report = &mut pass.report;
        let parked = match self.load(row.key)? {
            Some(after) => after.detail.parked_at.is_some(),
            None => false,
        };
        match change.row.status {
            Status::Cancelled => report.cancelled += 1,
            Status::Failed if parked => report.parked += 1,
            Status::Failed => report.failed += 1,
            Status::Pending | Status::Running | Status::Completed => report.requeued += 1,
        }
        Ok(())
    }

    /// Looks again at limit keys that hold rows back, a few a pass, in turn: what frees a
    /// place brings rows back by itself, and this mends what was changed by hand.
    fn free_held_keys(&mut self) -> Result<(), StoreFault> {
        for _ in 0..20 {
            let next: Option<String> = self
                .conn
                .prepare_cached(sql::NEXT_HELD_KEY)?
                .query_row([&self.cache.held_key], |row| read_text(row, 0))
                .optional()?
                .flatten();
            let last = next.is_none();
            if let Some(key) = &next {
                self.free_held(key)?;
            }
            self.cache.held_key = next.unwrap_or_default();
            if last {
                break;
            }
        }
        Ok(())
    }

    /// Runs the application's own sweeps, each contained; answers how many failed.
    fn application_sweeps(&mut self) -> Result<u64, StoreFault> {
        let mut failed = 0;
        for (name, sweep) in self.settings.sweeps.clone() {
            let now = self.now;
            let swept = self.contained(|txn| {
                txn.application(&format!("sweep {name}"), |tx| {
                    sweep(tx, now).map_err(|error| hook_failed(&error))
                })
            });
            match swept {
                Ok(()) => {}
                Err(Error::Store(fault)) if !super::operator::is_application(&fault) => {
                    return Err(fault);
                }
                Err(error) => {
                    log::error!(sweep:% = name, error:% = error; "a sweep failed");
                    failed += 1;
                }
            }
        }
        Ok(failed)
    }
}
