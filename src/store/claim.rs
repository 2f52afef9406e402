//! Claiming: due rows are turned, then the best of all served kinds are leased.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::params;

use crate::bugs::{self, Bug};
use crate::error::{Error, StoreFault};
use crate::events::What;
use crate::facts::Facts;
use crate::job::{JobId, Status};
use crate::json::Json;
use crate::rules::claim::{Claimant, Met, meet};
use crate::rules::row::{Lane, Row};
use crate::rules::{Change, Holder};
use crate::validate::Sizes;

use super::room::room_of;
use super::rows::{read_hot, read_id};
use super::statements as sql;
use super::txn::Txn;

type Result<T, E = StoreFault> = std::result::Result<T, E>;

/// Rows turned from scheduled to ready, or met without being taken, in one transaction.
pub(super) const TURNED_AT_MOST: usize = 256;

/// What somebody who claims can take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Want {
    pub(crate) owner: Arc<str>,
    pub(crate) kinds: Vec<Arc<str>>,
    pub(crate) limit: usize,
    /// How many jobs with stalls.
    pub(crate) suspects: usize,
    /// Free slots by queue and by kind, where they are fewer than `limit`; a queue that is
    /// not served has none.
    pub(crate) queues: Option<HashMap<Arc<str>, usize>>,
    pub(crate) per_kind: HashMap<Arc<str>, usize>,
    /// Only kinds whose hooks are in this process, where they have any: no other could be ended.
    pub(crate) to_the_end: bool,
}

/// One claimed job.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    pub(crate) key: i64,
    pub(crate) id: JobId,
    pub(crate) kind: Arc<str>,
    pub(crate) queue: Arc<str>,
    pub(crate) holder: Holder,
    pub(crate) attempt: i64,
    pub(crate) stalls: i64,
    pub(crate) commits: i64,
    pub(crate) seq: i64,
    pub(crate) restarts: i64,
    pub(crate) created_at: i64,
    pub(crate) payload: Option<Json>,
    /// The job's checkpoint, where it has ever saved one.
    pub(crate) checkpoint: Option<Json>,
    pub(crate) facts: Arc<Facts>,
    pub(crate) sizes: Sizes,
    /// The monotonic time of the transaction.
    pub(crate) monotonic: i64,
}

/// What a claim came to.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) claimed: Vec<Claimed>,
    /// There is more that could not be looked at in this transaction.
    pub(crate) more: bool,
    /// When the next scheduled job is due, where nothing more is to be had now.
    pub(crate) next_due: Option<i64>,
}

/// A row's place in the claim order.
type Place = (i64, i64, JobId);

/// The first row of a pair of kind and queue.
struct Head {
    place: Place,
    pair: Pair,
    lane: Lane,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Pair {
    pub(super) kind: i64,
    pub(super) queue: i64,
}

/// A claim as it goes on.
pub(super) struct Claiming<'w> {
    pub(super) want: &'w Want,
    pub(super) batch: Batch,
    /// Room by pair, kind and queue; counted down as rows are taken.
    pub(super) kinds: HashMap<i64, i64>,
    pub(super) queues: HashMap<i64, i64>,
    pub(super) limit_keys: HashMap<String, i64>,
    pub(super) suspects: usize,
    pub(super) met: usize,
}

impl Txn<'_> {
    /// Leases at most `want.limit` jobs.
    pub(super) fn claim(&mut self, want: &Want) -> Result<Batch> {
        let mut claiming = Claiming {
            want,
            batch: Batch::default(),
            kinds: HashMap::new(),
            queues: HashMap::new(),
            limit_keys: HashMap::new(),
            suspects: want.suspects,
            met: 0,
        };
        if want.limit == 0 || want.kinds.is_empty() {
            return Ok(claiming.batch);
        }
        claiming.batch.more = self.turn_due()?;
        let pairs = self.open_pairs(&mut claiming)?;
        if !pairs.is_empty() {
            self.take_in_order(&mut claiming, &pairs)?;
        }
        let mut batch = claiming.batch;
        if batch.claimed.len() < want.limit && !batch.more {
            let mut statement = self.conn.prepare_cached(sql::NEXT_DUE)?;
            let mut rows = statement.query([])?;
            batch.next_due = rows.next()?.map(|row| row.get(0)).transpose()?;
        }
        self.effects.work = false;
        Ok(batch)
    }

    /// Turns rows whose time has come; answers whether there may be more.
    fn turn_due(&mut self) -> Result<bool> {
        let mut due: Vec<(i64, i64)> = Vec::new();
        {
            let mut statement = self.conn.prepare_cached(sql::DUE)?;
            let early = if bugs::on(Bug::ClaimedEarly) { 1_000 } else { 0 };
            let mut rows = statement.query([self.now + early])?;
            while due.len() < TURNED_AT_MOST
                && let Some(row) = rows.next()?
            {
                due.push((row.get(0)?, row.get(1)?));
            }
        }
        for (key, stalls) in &due {
            self.set_lane(*key, if *stalls > 0 { Lane::Suspect } else { Lane::Ready })?;
        }
        Ok(due.len() == TURNED_AT_MOST)
    }

    /// Takes rows from the pair whose head is best, until another's head is better.
    fn take_in_order(&mut self, claiming: &mut Claiming<'_>, pairs: &[Pair]) -> Result<()> {
        let mut heads = self.all_heads(claiming, pairs)?;
        while claiming.batch.claimed.len() < claiming.want.limit {
            heads.sort_by(|a, b| b.place.cmp(&a.place));
            if bugs::on(Bug::PriorityIgnored) {
                heads.sort_by_key(|head| std::cmp::Reverse(head.place.1));
            }
            let Some(head) = heads.pop() else { break };
            let next = heads.last().filter(|_| !bugs::on(Bug::PriorityIgnored));
            let bound = next.map(|next| next.place.clone());
            let moved = self.take_from(claiming, &head, bound.as_ref())?;
            if claiming.met >= TURNED_AT_MOST {
                claiming.batch.more = true;
                break;
            }
            let room = claiming.room(head.pair, head.lane);
            if moved {
                heads = self.all_heads(claiming, pairs)?;
            } else if room > 0 && claiming.batch.claimed.len() < claiming.want.limit {
                heads.extend(self.heads(head.lane, &[head.pair])?);
            }
        }
        Ok(())
    }

    /// The heads of both lanes, of all pairs that have room left.
    fn all_heads(&mut self, claiming: &Claiming<'_>, pairs: &[Pair]) -> Result<Vec<Head>> {
        let mut heads = Vec::new();
        for lane in [Lane::Ready, Lane::Suspect] {
            let mut open = pairs.to_vec();
            open.retain(|pair| claiming.room(*pair, lane) > 0);
            if !open.is_empty() {
                heads.extend(self.heads(lane, &open)?);
            }
        }
        Ok(heads)
    }

    fn heads(&mut self, lane: Lane, pairs: &[Pair]) -> Result<Vec<Head>> {
        let list: Vec<[i64; 2]> = pairs.iter().map(|pair| [pair.kind, pair.queue]).collect();
        let list = serde_json::to_string(&list).unwrap_or_default();
        let statement = if lane == Lane::Suspect { sql::SUSPECT_HEADS } else { sql::READY_HEADS };
        let mut statement = self.conn.prepare_cached(statement)?;
        let mut rows = statement.query([list])?;
        let mut heads = Vec::new();
        while let Some(row) = rows.next()? {
            let pair = Pair { kind: row.get(1)?, queue: row.get(2)? };
            let place = (row.get(3)?, row.get(4)?, read_id(row, 5)?);
            heads.push(Head { place, pair, lane });
        }
        Ok(heads)
    }

    /// Takes rows of one pair, up to where another pair's head comes first; stops, and answers
    /// so, where a row that it met has made way for others.
    fn take_from(
        &mut self,
        claiming: &mut Claiming<'_>,
        head: &Head,
        bound: Option<&Place>,
    ) -> Result<bool> {
        let statement = if head.lane == Lane::Suspect { sql::SUSPECTS } else { sql::READY };
        let free = claiming.want.limit - claiming.batch.claimed.len();
        let room = claiming.room(head.pair, head.lane).min(room_of(free));
        let mut found = Vec::new();
        {
            let mut statement = self.conn.prepare_cached(statement)?;
            let mut rows = statement.query(params![head.pair.kind, head.pair.queue])?;
            while room_of(found.len()) < room
                && let Some(row) = rows.next()?
            {
                let place = (row.get(29)?, row.get(7)?, read_id(row, 1)?);
                if bound.is_some_and(|bound| place > *bound) {
                    break;
                }
                found.push(read_hot(row)?);
            }
        }
        for raw in found {
            let row = self.named(raw)?;
            if self.meet_row(claiming, head, &row)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Answers whether rows that the limit of the row's key had held back may have come up.
    fn meet_row(&mut self, claiming: &mut Claiming<'_>, head: &Head, row: &Row) -> Result<bool> {
        if let Some(key) = &row.limit_key
            && !row.is_owed()
            && self.key_room(claiming, key)? <= 0
        {
            claiming.met += 1;
            self.set_lane(row.key, Lane::Held)?;
            return Ok(false);
        }
        let Some(facts) = self.facts(head.pair.kind)? else { return Ok(false) };
        let owner = claiming.want.owner.clone();
        let by = Claimant { token: self.token(&owner), owner, early: false };
        match meet(row, &facts, by, self.now) {
            Met::Taken(new) => {
                let claimed = self.lease(row, &new, facts)?;
                claiming.took(head, row);
                claiming.batch.claimed.push(claimed);
                return Ok(false);
            }
            Met::Ended(change) => self.end_met(row, &facts, &change)?,
            Met::NotDue => {
                self.set_lane(row.key, Lane::Scheduled)?;
                if let Some(key) = &row.limit_key {
                    self.free_held(key)?;
                }
            }
        }
        claiming.met += 1;
        Ok(row.limit_key.is_some())
    }

    /// What proves a claim.
    fn token(&self, owner: &str) -> [u8; 16] {
        let mut token = self.entropy.bytes();
        if bugs::on(Bug::FencedByOwner) {
            token.fill(owner.bytes().fold(0, u8::wrapping_add));
        }
        token
    }

    /// Ends a row that a claim met; where its hooks do not agree it stays owed.
    fn end_met(&mut self, row: &Row, facts: &Facts, change: &Change) -> Result<()> {
        match self.end(row, facts, change) {
            Ok(()) | Err(Error::Refused(_)) => {
                // Out of the claims' way until the next pass has tried again.
                if self.load(row.key)?.is_some_and(|row| row.is_owed()) {
                    self.set_lane(row.key, Lane::Held)?;
                }
                Ok(())
            }
            Err(Error::Store(fault)) => Err(fault),
            Err(other) => Err(StoreFault::Sql(other.to_string())),
        }
    }

    /// Writes the lease and reads what its holder needs.
    fn lease(&mut self, row: &Row, new: &Row, facts: Arc<Facts>) -> Result<Claimed> {
        self.write_row(row, new)?;
        self.happened(What::Claimed, new, None);
        if let Some(rate) = facts.rate {
            let kind = self.cache.id(self.conn, &row.kind)?;
            let old = self.now.saturating_sub(rate.window);
            self.conn.prepare_cached(sql::DROP_STARTS)?.execute([kind, old])?;
            self.conn.prepare_cached(sql::ADD_START)?.execute([kind, self.now])?;
        }
        let checkpoint = match row.commits {
            0 => None,
            _ => self.checkpoint(row.key, "", new.epoch)?,
        };
        Ok(Claimed {
            key: row.key,
            id: row.id.clone(),
            kind: row.kind.clone(),
            queue: row.queue.clone(),
            holder: Holder { token: new.token.unwrap_or_default(), epoch: new.epoch },
            attempt: new.attempts,
            stalls: row.stalls,
            commits: row.commits,
            seq: row.seq,
            restarts: row.detail.restarts,
            created_at: row.created_at,
            payload: self.text(sql::PAYLOAD, row.key)?,
            checkpoint,
            facts,
            sizes: self.sizes()?,
            monotonic: self.monotonic,
        })
    }

    /// Claims one job by its id, early if need be and through a pause.
    pub(super) fn claim_by_id(
        &mut self,
        id: &JobId,
        owner: &Arc<str>,
    ) -> Result<Option<Claimed>, Error> {
        let Some(key) = self.find(id)? else { return Ok(None) };
        let Some(row) = self.load(key)? else { return Ok(None) };
        let failed = row.status == Status::Failed && bugs::on(Bug::TerminalClaimed);
        if row.status != Status::Pending && !failed {
            return Ok(None);
        }
        if self.around(&row)?.ignoring_pauses().first().is_some() {
            return Ok(None);
        }
        let Some(kind) = self.cache.known_id(self.conn, &row.kind)? else { return Ok(None) };
        let Some(facts) = self.facts(kind)? else { return Ok(None) };
        let by = Claimant { owner: owner.clone(), token: self.token(owner), early: true };
        match meet(&row, &facts, by, self.now) {
            Met::Taken(new) => Ok(Some(self.lease(&row, &new, facts)?)),
            Met::Ended(change) => {
                self.end_met(&row, &facts, &change)?;
                Ok(None)
            }
            Met::NotDue => Ok(None),
        }
    }
}

impl Claiming<'_> {
    fn room(&self, pair: Pair, lane: Lane) -> i64 {
        let kind = self.kinds.get(&pair.kind).copied().unwrap_or(i64::MAX);
        let queue = self.queues.get(&pair.queue).copied().unwrap_or(i64::MAX);
        let alone = lane == Lane::Suspect && !bugs::on(Bug::SuspectsTogether);
        let suspects = if alone { room_of(self.suspects) } else { i64::MAX };
        kind.min(queue).min(suspects)
    }

    fn took(&mut self, head: &Head, row: &Row) {
        for room in [
            self.kinds.get_mut(&head.pair.kind),
            self.queues.get_mut(&head.pair.queue),
            row.limit_key.as_ref().and_then(|key| self.limit_keys.get_mut(key)),
        ]
        .into_iter()
        .flatten()
        {
            *room -= 1;
        }
        if head.lane == Lane::Suspect {
            self.suspects = self.suspects.saturating_sub(1);
        }
    }
}
