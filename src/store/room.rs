//! Room: what pauses, limits, rates and gates leave for a claim, and rows that a full limit
//! key holds back.

use std::sync::Arc;

use rusqlite::params;

use crate::bugs::{self, Bug};
use crate::error::StoreFault;
use crate::facts::Facts;
use crate::rules::operate::Surroundings;
use crate::rules::row::{Lane, Row};

use super::claim::{Claiming, Pair, TURNED_AT_MOST, Want};
use super::statements as sql;
use super::txn::Txn;

type Result<T, E = StoreFault> = std::result::Result<T, E>;

/// A number of free slots, however large, as room that is counted down.
pub(super) fn room_of(slots: usize) -> i64 {
    i64::try_from(slots).unwrap_or(i64::MAX)
}

impl Txn<'_> {
    /// Brings back the best rows that were held by a limit key, as many as it has room for of
    /// each pair of kind and queue: whoever claims next may not serve the best of them. Suspects do
    /// not count there, as it may have no room for one.
    pub(super) fn free_held(&mut self, key: &str) -> Result<()> {
        let room = self.limit_key_room(key)?;
        if room <= 0 {
            return Ok(());
        }
        let mut back: Vec<(i64, i64)> = Vec::new();
        let mut pair = Pair { kind: i64::MIN, queue: i64::MIN };
        while back.len() < TURNED_AT_MOST
            && let Some(next) = self.next_held_pair(key, pair)?
        {
            pair = next;
            let mut statement = self.conn.prepare_cached(sql::HELD)?;
            let mut rows = statement.query(params![key, pair.kind, pair.queue])?;
            let (mut others, mut suspects, mut looked) = (room, room, 0);
            while others > 0
                && looked < TURNED_AT_MOST
                && back.len() < TURNED_AT_MOST
                && let Some(row) = rows.next()?
            {
                looked += 1;
                let (key, stalls): (i64, i64) = (row.get(0)?, row.get(1)?);
                let left = if stalls > 0 { &mut suspects } else { &mut others };
                if *left > 0 {
                    *left -= 1;
                    back.push((key, stalls));
                }
            }
        }
        for (row, stalls) in &back {
            self.set_lane(*row, if *stalls > 0 { Lane::Suspect } else { Lane::Ready })?;
        }
        self.effects.work |= !back.is_empty();
        Ok(())
    }

    /// The next pair of kind and queue that has rows held by a limit key.
    fn next_held_pair(&self, key: &str, after: Pair) -> Result<Option<Pair>> {
        let mut statement = self.conn.prepare_cached(sql::NEXT_HELD_PAIR)?;
        let mut rows = statement.query(params![key, after.kind, after.queue])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        Ok(Some(Pair { kind: row.get(0)?, queue: row.get(1)? }))
    }

    /// How many more jobs of a limit key may run.
    pub(super) fn key_room(&mut self, claiming: &mut Claiming<'_>, key: &str) -> Result<i64> {
        if let Some(room) = claiming.limit_keys.get(key) {
            return Ok(*room);
        }
        let room = self.limit_key_room(key)?;
        claiming.limit_keys.insert(key.to_owned(), room);
        Ok(room)
    }

    fn limit_key_room(&mut self, key: &str) -> Result<i64> {
        match self.cache.rules(self.conn)?.key_limits.get(key).copied() {
            Some(limit) => {
                let more = i64::from(bugs::on(Bug::KeyLimitOffByOne));
                Ok(limit + more - self.count(sql::RUNNING_OF_KEY, key)?)
            }
            None => Ok(i64::MAX),
        }
    }

    fn count(&self, statement: &str, of: impl rusqlite::ToSql) -> Result<i64> {
        Ok(self.conn.prepare_cached(statement)?.query_row([of], |row| row.get(0))?)
    }

    /// The pairs of the wanted kinds from which rows may be taken now.
    pub(super) fn open_pairs(&mut self, claiming: &mut Claiming<'_>) -> Result<Vec<Pair>> {
        let mut open = Vec::new();
        for name in &claiming.want.kinds {
            let Some(kind) = self.cache.known_id(self.conn, name)? else { continue };
            let room = self.kind_room(claiming.want, kind, name)?;
            claiming.kinds.insert(kind, room);
            if room <= 0 {
                continue;
            }
            let lanes: Vec<i64> = {
                let rules = self.cache.rules(self.conn)?;
                rules.lanes.iter().filter(|pair| pair.0 == kind).map(|pair| pair.1).collect()
            };
            for queue in lanes {
                let room = match claiming.queues.get(&queue) {
                    Some(room) => *room,
                    None => self.queue_room(claiming.want, queue)?,
                };
                claiming.queues.insert(queue, room);
                if room > 0 {
                    open.push(Pair { kind, queue });
                }
            }
        }
        Ok(open)
    }

    /// How many more jobs of a kind may run: registration, pause, limit, rate and gate.
    fn kind_room(&mut self, want: &Want, kind: i64, name: &Arc<str>) -> Result<i64> {
        let around = self.around_kind(kind, name)?;
        if around.first().is_some() {
            return Ok(0);
        }
        let Some(facts) = self.facts(kind)? else { return Ok(0) };
        if want.to_the_end && facts.hooks && !self.has_hooks(name) {
            return Ok(0);
        }
        let mut room = match want.per_kind.get(name) {
            Some(free) => room_of(*free),
            None => i64::MAX,
        };
        if let Some(mut limit) = facts.concurrency {
            limit += i64::from(bugs::on(Bug::KindLimitOffByOne));
            room = room.min(limit - self.count(sql::RUNNING_OF_KIND, kind)?);
        }
        if let Some(rate) = facts.rate {
            room = room.min(rate.starts - self.starts(kind, rate.window)?);
        }
        Ok(room)
    }

    fn queue_room(&mut self, want: &Want, queue: i64) -> Result<i64> {
        let name = self.cache.name(self.conn, queue)?;
        let mut room = match &want.queues {
            None => i64::MAX,
            Some(served) => served.get(&name).map_or(0, |free| room_of(*free)),
        };
        let rules = self.cache.rules(self.conn)?;
        if rules.paused_queues.contains(&*name) && !bugs::on(Bug::PauseIgnored) {
            return Ok(0);
        }
        if let Some(limit) = rules.queue_limits.get(&*name).copied() {
            room = room.min(limit - self.count(sql::RUNNING_OF_QUEUE, queue)?);
        }
        Ok(room)
    }

    pub(super) fn facts(&mut self, kind: i64) -> Result<Option<Arc<Facts>>> {
        Ok(self.cache.rules(self.conn)?.facts.get(&kind).cloned())
    }

    /// The facts of a kind, or a bare row's where nobody has registered it.
    pub(super) fn facts_by_name(&mut self, kind: &str) -> Result<Arc<Facts>> {
        match self.cache.known_id(self.conn, kind)? {
            Some(kind) => Ok(self.facts(kind)?.unwrap_or_default()),
            None => Ok(Arc::default()),
        }
    }

    fn starts(&self, kind: i64, window: i64) -> Result<i64> {
        let longer = i64::from(bugs::on(Bug::RateOffByOne));
        let (since, until) = (self.now.saturating_sub(window), self.now.saturating_add(window));
        let since = since.saturating_sub(longer);
        let mut statement = self.conn.prepare_cached(sql::STARTS)?;
        Ok(statement.query_row([kind, since, until], |row| row.get(0))?)
    }

    /// What stands around the pending jobs of a kind, apart from their queue and limit key.
    pub(super) fn around_kind(&mut self, kind: i64, name: &str) -> Result<Surroundings> {
        let now = self.now;
        let Some(facts) = self.facts(kind)? else { return Ok(Surroundings::default()) };
        let mut around = Surroundings { registered: true, ..Surroundings::default() };
        let rules = self.cache.rules(self.conn)?;
        around.kind_paused = rules.paused_kinds.contains(name);
        if let Some(provider) = &facts.provider {
            around.rate_limited = rules.gates.get(provider).is_some_and(|until| *until > now);
        }
        if let Some(limit) = facts.concurrency {
            around.limit_full = self.count(sql::RUNNING_OF_KIND, kind)? >= limit;
        }
        if let Some(rate) = facts.rate {
            around.rate_limited |= self.starts(kind, rate.window)? >= rate.starts;
        }
        Ok(around)
    }

    /// Whether the limit of a row's kind has no room.
    pub(super) fn kind_is_full(&mut self, row: &Row) -> Result<bool> {
        let limit = self.facts_by_name(&row.kind)?.concurrency;
        let Some(kind) = self.cache.known_id(self.conn, &row.kind)? else { return Ok(false) };
        match limit {
            Some(limit) => Ok(self.count(sql::RUNNING_OF_KIND, kind)? >= limit),
            None => Ok(false),
        }
    }

    /// Whether the limit of a row's queue has no room.
    pub(super) fn queue_is_full(&mut self, row: &Row) -> Result<bool> {
        let limit = self.cache.rules(self.conn)?.queue_limits.get(&*row.queue).copied();
        let Some(queue) = self.cache.known_id(self.conn, &row.queue)? else { return Ok(false) };
        match limit {
            Some(limit) => Ok(self.count(sql::RUNNING_OF_QUEUE, queue)? >= limit),
            None => Ok(false),
        }
    }

    /// The same, with the queue and the limit key of one row.
    pub(super) fn around(&mut self, row: &Row) -> Result<Surroundings> {
        let Some(kind) = self.cache.known_id(self.conn, &row.kind)? else {
            return Ok(Surroundings::default());
        };
        let mut around = self.around_kind(kind, &row.kind)?;
        let rules = self.cache.rules(self.conn)?;
        around.queue_paused = rules.paused_queues.contains(&*row.queue);
        around.limit_full |= self.queue_is_full(row)?;
        if let Some(key) = &row.limit_key {
            around.limit_full |= self.limit_key_room(key)? <= 0;
        }
        Ok(around)
    }
}
