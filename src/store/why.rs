//! Why a pending job is not running: the claim's own conditions, with the name of what holds it.

use rusqlite::OptionalExtension;

use crate::error::{Error, StoreFault};
use crate::job::{JobId, Waiting};
use crate::record::Why;
use crate::rules::operate::why_waiting;
use crate::rules::row::Row;

use super::statements as sql;
use super::txn::Txn;

impl Txn<'_> {
    /// Why a pending job is not running, by the claim's own conditions.
    pub(super) fn why_waiting(&mut self, id: &JobId) -> Result<Why, Error> {
        let row = self.job(id)?;
        let around = self.around(&row)?;
        let reason = why_waiting(&row, around, self.now)?;
        let (by, until) = match reason {
            Waiting::Scheduled => (None, Some(row.run_at)),
            Waiting::NotRegistered | Waiting::KindPaused => (Some(kind(&row)), None),
            Waiting::QueuePaused => (Some(queue(&row)), None),
            Waiting::LimitFull => (self.full_limit(&row)?, None),
            Waiting::RateLimited => self.closed_gate(&row)?,
            Waiting::Next => (None, None),
        };
        Ok(Why { reason, by, until })
    }

    /// The first limit that has no room.
    fn full_limit(&mut self, row: &Row) -> Result<Option<String>, StoreFault> {
        if self.kind_is_full(row)? {
            return Ok(Some(kind(row)));
        }
        if self.queue_is_full(row)? {
            return Ok(Some(queue(row)));
        }
        Ok(row.limit_key.as_ref().map(|key| format!("limit_key {key}")))
    }

    /// The gate or the rate that lets none through, and until when.
    fn closed_gate(&mut self, row: &Row) -> Result<(Option<String>, Option<i64>), StoreFault> {
        let facts = self.facts_by_name(&row.kind)?;
        let rules = self.cache.rules(self.conn)?;
        if let Some(provider) = &facts.provider
            && let Some(until) = rules.gates.get(provider).copied().filter(|at| *at > self.now)
        {
            return Ok((Some(format!("provider {provider}")), Some(until)));
        }
        let Some(rate) = facts.rate else { return Ok((None, None)) };
        let Some(number) = self.cache.known_id(self.conn, &row.kind)? else {
            return Ok((None, None));
        };
        // Of as many starts as are allowed, the first to leave the window frees a place.
        let mut statement = self.conn.prepare_cached(sql::START_BEFORE)?;
        let last = self.now.saturating_add(rate.window);
        let frees: Option<i64> =
            statement.query_row([number, last, rate.starts - 1], |row| row.get(0)).optional()?;
        Ok((Some(kind(row)), frees.map(|at| at.saturating_add(rate.window))))
    }
}

fn kind(row: &Row) -> String {
    format!("kind {}", row.kind)
}

fn queue(row: &Row) -> String {
    format!("queue {}", row.queue)
}
