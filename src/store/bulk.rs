//! Operations on many jobs, worked off a slice a transaction: what is done, what was refused and
//! how far it has come land together.

use rusqlite::{OptionalExtension, Row as SqlRow, params};
use uuid::Uuid;

use crate::bulk::{Bulk, BulkAction, BulkOutcome, BulkState, NewBulk};
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, Refusal, StoreFault};
use crate::job::JobId;
use crate::list::{JobSummary, Order, Position};
use crate::operator::Operator;
use crate::scope::Scope;

use super::list::Scan;
use super::rows::word;
use super::statements as sql;
use super::txn::Txn;

type Result<T, E = StoreFault> = std::result::Result<T, E>;

/// Jobs acted on in one transaction, and looked at.
const SLICE: u32 = 100;
const LOOKED_AT: usize = 1_000;
/// The least pause between two slices, in milliseconds.
const PAUSE: i64 = 50;
/// A slice is never due so far ahead, in milliseconds.
const AHEAD: i64 = 60_000;
/// A slice whose hooks have taken so long ends with the job that it is at, as the transaction keeps
/// every other writer waiting, in milliseconds.
const LONG: i64 = 1_000;

/// An operation as it is worked off.
struct Working {
    bulk: Bulk,
    scope: Option<Scope>,
    last_key: i64,
    place: Option<Position>,
}

fn corrupt(what: &str, error: impl std::fmt::Display) -> StoreFault {
    StoreFault::Corrupt(format!("leasehold_bulks.{what}: {error}"))
}

fn read_state(row: &SqlRow<'_>) -> Result<BulkState> {
    Ok(word(row.get(8)?, BulkState::parse)?.unwrap_or(BulkState::Done))
}

fn read_scope(row: &SqlRow<'_>) -> Result<Option<Scope>> {
    let scope = Scope { tenant: row.get(4)?, organization: row.get(5)? };
    Ok(row.get::<_, bool>(3)?.then_some(scope))
}

fn read(row: &SqlRow<'_>) -> Result<Working> {
    let (action, filter): (String, String) = (row.get(1)?, row.get(2)?);
    let place: (Option<i64>, Option<i64>) = (row.get(13)?, row.get(14)?);
    Ok(Working {
        bulk: Bulk {
            id: row.get(0)?,
            action: serde_json::from_str(&action).map_err(|error| corrupt("action", error))?,
            filter: serde_json::from_str(&filter).map_err(|error| corrupt("filter", error))?,
            actor: row.get(6)?,
            reason: row.get(7)?,
            state: read_state(row)?,
            pace: row.get(9)?,
            started_at: row.get(10)?,
            finished_at: row.get(11)?,
            done: row.get(15)?,
            refused: row.get(16)?,
        },
        scope: read_scope(row)?,
        last_key: row.get(12)?,
        place: place.0.zip(place.1).map(|(at, key)| Position { at, key }),
    })
}

impl Txn<'_> {
    /// Starts an operation.
    /// `minted` tells it from others, so that asking again after a lost answer starts no second.
    pub(super) fn start_bulk(
        &mut self,
        new: &NewBulk,
        minted: Uuid,
        by: &Operator,
    ) -> Result<i64, Error> {
        let known = {
            let mut statement = self.conn.prepare_cached(sql::BULK_MINTED)?;
            statement.query_row([minted.as_bytes()], |row| row.get(0)).optional()?
        };
        if let Some(known) = known {
            return Ok(known);
        }
        let text = |error: serde_json::Error| StoreFault::Sql(error.to_string());
        let action = serde_json::to_string(&new.action).map_err(text)?;
        let filter = serde_json::to_string(&new.filter).map_err(text)?;
        let scope = self.scope.clone();
        let (tenant, organization) =
            scope.as_ref().map(|scope| (&scope.tenant, &scope.organization)).unzip();
        self.conn.prepare_cached(sql::ADD_BULK)?.execute(params![
            action,
            filter,
            scope.is_some(),
            tenant,
            organization,
            by.actor,
            by.reason,
            new.pace,
            self.now,
            minted.as_bytes(),
        ])?;
        let n = self.conn.last_insert_rowid();
        let what = format!("bulk {}", new.action.action());
        self.record_many(by, &what, &format!("bulk {n}"), Some(&filter), 0)?;
        Ok(n)
    }

    /// Operations, the last started first: all that whoever asks may see. One of a newer version,
    /// which this code cannot read, is passed over.
    pub(super) fn bulks(&mut self, limit: usize) -> Result<Vec<Bulk>> {
        let mut statement = self.conn.prepare_cached(sql::BULKS)?;
        let mut rows = statement.query([i64::MAX])?;
        let mut bulks = Vec::new();
        while bulks.len() < limit
            && let Some(row) = rows.next()?
        {
            if self.sees(row)?
                && let Ok(working) = read(row)
            {
                bulks.push(working.bulk);
            }
        }
        Ok(bulks)
    }

    /// One of them.
    pub(super) fn bulk(&mut self, n: i64) -> Result<Option<Bulk>> {
        self.of_bulk(n, |row| read(row).map(|working| working.bulk))
    }

    fn of_bulk<R>(&self, n: i64, read: impl Fn(&SqlRow<'_>) -> Result<R>) -> Result<Option<R>> {
        let mut statement = self.conn.prepare_cached(sql::BULKS)?;
        let mut rows = statement.query([n])?;
        match rows.next()? {
            Some(row) if row.get::<_, i64>(0)? == n && self.sees(row)? => read(row).map(Some),
            _ => Ok(None),
        }
    }

    /// Whether whoever asks may see an operation.
    fn sees(&self, row: &SqlRow<'_>) -> Result<bool> {
        Ok(self.scope.is_none() || self.scope == read_scope(row)?)
    }

    pub(super) fn bulk_outcomes(
        &mut self,
        bulk: i64,
        after: i64,
        limit: usize,
    ) -> Result<Vec<BulkOutcome>> {
        if self.of_bulk(bulk, |_| Ok(()))?.is_none() {
            return Ok(Vec::new());
        }
        let mut statement = self.conn.prepare_cached(sql::BULK_ROWS)?;
        let mut rows = statement.query([bulk, after])?;
        let mut outcomes = Vec::new();
        while outcomes.len() < limit
            && let Some(row) = rows.next()?
        {
            outcomes.push(BulkOutcome {
                n: row.get(0)?,
                job: JobId::from(row.get::<_, String>(1)?),
                at: row.get(2)?,
                outcome: row.get(3)?,
                detail: row.get(4)?,
            });
        }
        Ok(outcomes)
    }

    /// Stops an operation, or lets it go on.
    pub(super) fn switch_bulk(
        &mut self,
        n: i64,
        to: BulkState,
        by: &Operator,
    ) -> Result<(), Error> {
        let found = self.of_bulk(n, read_state)?;
        let from = if to == BulkState::Stopped { BulkState::Running } else { BulkState::Stopped };
        if found != Some(from) {
            let state = found.map_or("not there", BulkState::as_str);
            let rule = format!("an operation that is {from}; this one is {state}");
            return Err(Refusal::invalid("bulk", n, rule).into());
        }
        self.conn.prepare_cached(sql::SWITCH_BULK)?.execute(params![n, to.as_str(), self.now])?;
        let what = if to == BulkState::Stopped { "stop bulk" } else { "resume bulk" };
        Ok(self.record_action(by, what, &format!("bulk {n}"), 1)?)
    }

    /// When the next slice of any operation is due.
    pub(super) fn next_bulk(&self) -> Result<Option<i64>> {
        let mut statement = self.conn.prepare_cached(sql::NEXT_BULK)?;
        let next: Option<i64> = statement.query_row([], |row| row.get(0)).optional()?;
        Ok(next.map(|at| if self.is_ahead(at) { self.now } else { at }))
    }

    /// Whether a slice is due at a time that no slice sets: the clock went back since.
    fn is_ahead(&self, due_at: i64) -> bool {
        due_at > self.now.saturating_add(AHEAD)
    }

    /// Works one slice of one operation off, where one is due; answers when the next is.
    pub(super) fn work_bulk(&mut self) -> Result<Option<i64>> {
        let Some(mut working) = self.due_bulk()? else {
            // What is due and not for this process is left to others.
            let mut statement = self.conn.prepare_cached(sql::LATER_BULK)?;
            return Ok(statement.query_row([self.now], |row| row.get(0)).optional()?);
        };
        self.scope.clone_from(&working.scope);
        let worked = self.slice(&mut working);
        self.scope = None;
        worked?;
        let next = self.next_bulk()?;
        Ok(next.map(|at| at.max(self.now.saturating_add(PAUSE))))
    }

    /// The first operation that is due and that this process can work on.
    fn due_bulk(&mut self) -> Result<Option<Working>> {
        let conn = self.conn;
        let mut statement = conn.prepare_cached(sql::DUE_BULKS)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let due_at: i64 = row.get(17)?;
            if due_at > self.now && !self.is_ahead(due_at) {
                continue;
            }
            match read(row) {
                Ok(working) if self.is_for_here(&working.bulk)? => return Ok(Some(working)),
                Ok(_) => {}
                // Of a newer version, whose processes can read it.
                Err(error) => log::debug!(error:% = error; "an operation on many jobs is left"),
            }
        }
        Ok(None)
    }

    /// Whether the kinds of an operation, where it names them, have the code that is asked here:
    /// else it is left to a process that has it.
    fn is_for_here(&mut self, bulk: &Bulk) -> Result<bool> {
        for kind in bulk.filter.kinds() {
            let facts = self.facts_by_name(kind)?;
            let here = match bulk.action {
                BulkAction::Cancel | BulkAction::Redrive(_) => !facts.hooks || self.has_hooks(kind),
                BulkAction::Delete => !facts.veto || self.veto(kind).is_some(),
                BulkAction::RunAgain => true,
            };
            if !here {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn slice(&mut self, working: &mut Working) -> Result<()> {
        let ended = working.bulk.filter.statuses().iter().all(|status| !status.is_live());
        let slice = working.bulk.pace.min(SLICE);
        let scan = Scan {
            order: if ended { Order::EndedOldest } else { Order::Oldest },
            after: working.place,
            last_key: working.last_key,
            limit: slice as usize,
            look_at: LOOKED_AT,
        };
        let found = self.scan(&working.bulk.filter, scan)?;
        let by =
            Operator { actor: working.bulk.actor.clone(), reason: working.bulk.reason.clone() };
        // Real time, whatever the runtime's clock.
        let clock = SystemClock::new();
        let (mut past_the_start, mut acted, mut more) = (false, 0, found.more);
        for (place, job) in &found.jobs {
            // What has ended since the start was live then, or ended again.
            past_the_start = ended && job.finished_at > Some(working.bulk.started_at);
            if past_the_start {
                break;
            }
            acted += i64::from(self.act(working, job, &by)?);
            if clock.monotonic() >= LONG {
                more = Some(*place);
                break;
            }
        }
        let (last_key, started_at) = (working.last_key, working.bulk.started_at);
        let is_past = |place: &Position| {
            if ended { past_the_start || place.at > started_at } else { place.key >= last_key }
        };
        let more = more.filter(|place| !is_past(place));
        let wait = (acted * 1_000 / i64::from(working.bulk.pace)).max(PAUSE);
        self.conn.prepare_cached(sql::ADVANCE_BULK)?.execute(params![
            working.bulk.id,
            more.map(|place| place.at),
            more.map(|place| place.key),
            working.bulk.done,
            working.bulk.refused,
            self.now.saturating_add(wait),
            more.is_none(),
            self.now,
        ])?;
        if more.is_none() {
            let what = format!("bulk {} done", working.bulk.action.action());
            let target = format!("bulk {}", working.bulk.id);
            self.record_action(&by, &what, &target, working.bulk.done)?;
        }
        Ok(())
    }

    /// Acts on one job; a refusal is its outcome. Answers whether it did: a job that has ended
    /// again, at an earlier time than before as the clock went back, is not acted on again.
    fn act(&mut self, working: &mut Working, job: &JobSummary, by: &Operator) -> Result<bool> {
        let id = &job.id;
        let known = params![working.bulk.id, id.to_string()];
        if self.conn.prepare_cached(sql::BULK_ROW_OF)?.exists(known)? {
            return Ok(false);
        }
        let acted = match working.bulk.action {
            BulkAction::Cancel => self.cancel(id, by).map(|_| None),
            BulkAction::Redrive(how) => self.redrive(id, how, by).map(|()| None),
            BulkAction::RunAgain => {
                let minted = JobId::minted(self.entropy.uuid(self.now));
                self.run_again(id, &minted, by).map(|new| Some(new.to_string()))
            }
            BulkAction::Delete => self.delete(id, by).map(|()| None),
        };
        let (outcome, detail) = match acted {
            Ok(detail) => {
                working.bulk.done += 1;
                ("done", detail)
            }
            Err(Error::Refused(refusal)) => {
                working.bulk.refused += 1;
                (refusal.code(), Some(refusal.to_string()))
            }
            Err(Error::Store(fault)) => return Err(fault),
            Err(other) => return Err(StoreFault::Sql(other.to_string())),
        };
        let row = params![working.bulk.id, id.to_string(), self.now, outcome, detail];
        self.conn.prepare_cached(sql::ADD_BULK_ROW)?.execute(row)?;
        Ok(true)
    }
}
