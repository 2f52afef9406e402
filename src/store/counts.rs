//! How many jobs there are, and how many there have been: live ones by the indexes that claims
//! use, ended ones from an index alone.

use rusqlite::params;

use crate::error::StoreFault;
use crate::job::{Phase, Status};
use crate::record::{Counts, Totals};
use crate::scope::Scope;

use super::rows::{read_status, read_text};
use super::statements as sql;
use super::txn::Txn;

type Result<T> = std::result::Result<T, StoreFault>;

/// The phases in the order of their numbers in `COUNT_SCOPED`.
const PHASES: [Phase; 9] = [
    Phase::Scheduled,
    Phase::Retrying,
    Phase::Ready,
    Phase::Leased,
    Phase::Orphaned,
    Phase::Completed,
    Phase::Cancelled,
    Phase::Dead,
    Phase::Parked,
];

impl Txn<'_> {
    pub(super) fn counts(&mut self) -> Result<Counts> {
        if let Some(scope) = self.scope.clone() {
            return self.counts_of(&scope);
        }
        let mut counts = Counts::default();
        let mut statement = self.conn.prepare_cached(sql::COUNT_PENDING)?;
        let mut rows = statement.query([self.now])?;
        while let Some(row) = rows.next()? {
            let kind = read_text(row, 0)?.unwrap_or_default();
            for (column, phase) in [(1, Phase::Scheduled), (2, Phase::Retrying), (3, Phase::Ready)]
            {
                counts.add(&kind, phase, row.get(column)?);
            }
        }
        let (leased, running): (i64, i64) = self
            .conn
            .prepare_cached(sql::COUNT_RUNNING)?
            .query_row([self.now], |row| Ok((row.get(0)?, row.get(1)?)))?;
        (counts.leased, counts.orphaned) = (leased, running - leased);
        counts.parked =
            self.conn.prepare_cached(sql::COUNT_PARKED)?.query_row([], |row| row.get(0))?;
        for (_, status, n) in self.count_ended()? {
            match status {
                Status::Completed => counts.completed += n,
                Status::Cancelled => counts.cancelled += n,
                _ => counts.dead += n,
            }
        }
        counts.dead -= counts.parked;
        Ok(counts)
    }

    fn counts_of(&mut self, scope: &Scope) -> Result<Counts> {
        let mut counts = Counts::default();
        let mut statement = self.conn.prepare_cached(sql::COUNT_SCOPED)?;
        let mut rows = statement.query(params![self.now, scope.tenant, scope.organization])?;
        while let Some(row) = rows.next()? {
            let kind = read_text(row, 0)?.unwrap_or_default();
            let (number, n): (u8, i64) = (row.get(1)?, row.get(2)?);
            if let Some(phase) = PHASES.get(usize::from(number)) {
                counts.add(&kind, *phase, n);
            }
        }
        Ok(counts)
    }

    /// Ended jobs that are still there: kind, status, how many.
    fn count_ended(&self) -> Result<Vec<(i64, Status, i64)>> {
        let mut ended = Vec::new();
        let mut statement = self.conn.prepare_cached(sql::COUNT_ENDED)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            ended.push((row.get(0)?, read_status(row.get(1)?)?, row.get(2)?));
        }
        Ok(ended)
    }

    /// All that ever ended, by kind: what is there and what was removed.
    pub(super) fn totals(&mut self) -> Result<std::collections::BTreeMap<String, Totals>> {
        let mut found = self.count_ended()?;
        let mut statement = self.conn.prepare_cached(sql::TOTALS)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            found.push((row.get(0)?, read_status(row.get(1)?)?, row.get(2)?));
        }
        let mut totals = std::collections::BTreeMap::<String, Totals>::new();
        for (kind, status, n) in found {
            let kind = self.cache.name(self.conn, kind)?;
            let of_kind = totals.entry(kind.to_string()).or_default();
            match status {
                Status::Completed => of_kind.completed += n,
                Status::Cancelled => of_kind.cancelled += n,
                _ => of_kind.failed += n,
            }
        }
        Ok(totals)
    }
}
