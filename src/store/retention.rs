//! Retention: ended rows that are kept no longer, and records that are.

use rusqlite::{OptionalExtension, params};

use crate::bugs::{self, Bug};
use crate::error::StoreFault;
use crate::job::Status;

use super::reaper::BATCH;
use super::rows::status_code;
use super::statements as sql;
use super::txn::Txn;

/// The least time between two runs, in milliseconds.
const EVERY: i64 = 60_000;
/// How long the record of operators' actions, and what operations on many jobs came to, are kept.
const ACTIONS_KEPT: i64 = 365 * super::DAY;
const BULKS_KEPT: i64 = 30 * super::DAY;

impl Txn<'_> {
    /// Removes rows past their time, a slice at a time; starts anew at most once a minute.
    pub(super) fn retention(&mut self, go_on: bool) -> Result<usize, StoreFault> {
        let last: Option<i64> = self
            .conn
            .prepare_cached(sql::STATE)?
            .query_row(["last_retention"], |row| row.get(0))
            .optional()?;
        if !go_on && last.is_some_and(|last| (last..last + EVERY).contains(&self.now)) {
            return Ok(0);
        }
        self.conn.prepare_cached(sql::PUT_STATE)?.execute(params!["last_retention", self.now])?;
        for (statement, kept_for) in [
            (sql::DROP_OLD_ACTIONS, ACTIONS_KEPT),
            (sql::DROP_OLD_BULK_ROWS, BULKS_KEPT),
            (sql::DROP_OLD_BULKS, BULKS_KEPT),
        ] {
            self.conn.prepare_cached(statement)?.execute([self.now.saturating_sub(kept_for)])?;
        }
        let (keep, kinds) = (self.settings.retention, self.kinds_ended()?);
        let mut left = BATCH;
        for (status, keep) in [
            (Status::Completed, keep.completed),
            (Status::Cancelled, keep.cancelled),
            (
                Status::Failed,
                if bugs::on(Bug::FailedSweptEarly) { keep.cancelled } else { keep.failed },
            ),
        ] {
            left -= self.sweep_status(&kinds, status, keep.unwrap_or(i64::MAX), left)?;
        }
        Ok(BATCH - left)
    }

    /// Removes rows of one status that are older than their kind, or else `keep`, allows.
    fn sweep_status(
        &mut self,
        kinds: &[i64],
        status: Status,
        keep: i64,
        limit: usize,
    ) -> Result<usize, StoreFault> {
        let mut removed = 0;
        for kind in kinds.iter().copied() {
            let facts = self.facts(kind)?.unwrap_or_default();
            let own = match status {
                Status::Completed => facts.keep.completed,
                Status::Cancelled => facts.keep.cancelled,
                _ => facts.keep.failed,
            };
            let horizon = self.now.saturating_sub(own.unwrap_or(keep));
            let found = self.ended(kind, status, horizon, limit - removed)?;
            let name = self.cache.name(self.conn, kind)?;
            for (key, _) in &found {
                self.remove(*key, &name, status)?;
            }
            removed += found.len();
        }
        Ok(removed)
    }

    /// Removes completed jobs of kinds that are deleted on success; answers how many, and whether
    /// there may be more.
    pub(super) fn discard(&mut self) -> Result<(usize, bool), StoreFault> {
        let mut found: Vec<(i64, Option<i64>)> = Vec::new();
        {
            let mut statement = self.conn.prepare_cached(sql::DISCARDS)?;
            let mut rows = statement.query([])?;
            while found.len() < BATCH
                && let Some(row) = rows.next()?
            {
                found.push((row.get(0)?, row.get(1)?));
            }
        }
        let mut removed = 0;
        for (key, kind) in &found {
            self.conn.prepare_cached(sql::DROP_DISCARD)?.execute([key])?;
            // Where it was redriven meanwhile, it is to be seen again.
            if let Some(kind) = kind {
                let kind = self.cache.name(self.conn, *kind)?;
                self.remove(*key, &kind, Status::Completed)?;
                removed += 1;
            }
        }
        Ok((removed, found.len() >= BATCH))
    }

    /// Kinds of which jobs have ended that are still there.
    pub(super) fn kinds_ended(&self) -> Result<Vec<i64>, StoreFault> {
        let mut statement = self.conn.prepare_cached(sql::NEXT_ENDED_KIND)?;
        let mut kinds = Vec::new();
        loop {
            let after = kinds.last().copied().unwrap_or(i64::MIN);
            match statement.query_row([after], |row| row.get(0)).optional()? {
                Some(kind) => kinds.push(kind),
                None => return Ok(kinds),
            }
        }
    }

    /// The first rows of a kind that ended in this way before a horizon, oldest first: their keys
    /// and when they ended.
    pub(super) fn ended(
        &self,
        kind: i64,
        status: Status,
        before: i64,
        limit: usize,
    ) -> Result<Vec<(i64, i64)>, StoreFault> {
        let mut found = Vec::new();
        let mut statement = self.conn.prepare_cached(sql::ENDED)?;
        let mut rows = statement.query([kind, status_code(status), before])?;
        while found.len() < limit
            && let Some(row) = rows.next()?
        {
            found.push((row.get(0)?, row.get(1)?));
        }
        Ok(found)
    }
}
