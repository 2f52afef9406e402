//! What the writer remembers of the database between transactions.
//!
//! All of it can be read again, and is forgotten whenever another connection has written
//! (`PRAGMA data_version`) or a transaction of our own was rolled back.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use crate::bugs::{self, Bug};
use crate::error::StoreFault;
use crate::facts::Facts;
use crate::validate::Sizes;

use super::rows::read_text;
use super::statements as sql;

type Result<T> = std::result::Result<T, StoreFault>;

/// Names, kinds, pauses, limits and gates as last read.
#[derive(Default)]
pub(super) struct Cache {
    data_version: i64,
    ids: HashMap<Arc<str>, i64>,
    names: HashMap<i64, Arc<str>>,
    rules: Option<Rules>,
    /// The limit key at which a pass of the reaper has left off; a place, not a memory.
    pub(super) held_key: String,
}

/// What decides about claims, apart from the rows.
#[derive(Default)]
pub(super) struct Rules {
    pub(super) facts: HashMap<i64, Arc<Facts>>,
    /// Pairs of kind and queue that have had jobs.
    pub(super) lanes: HashSet<(i64, i64)>,
    pub(super) paused_queues: HashSet<String>,
    pub(super) paused_kinds: HashSet<String>,
    pub(super) queue_limits: HashMap<String, i64>,
    pub(super) key_limits: HashMap<String, i64>,
    pub(super) gates: HashMap<String, i64>,
    pub(super) sizes: Sizes,
}

impl Rules {
    /// The longest lease of all kinds.
    pub(super) fn longest_lease(&self) -> i64 {
        let bare = Facts::default().lease;
        self.facts.values().map(|facts| facts.lease).max().unwrap_or(bare).max(bare)
    }
}

impl Cache {
    /// Forgets everything if another connection has written since the last look; answers
    /// whether it has.
    pub(super) fn refresh(&mut self, conn: &Connection) -> Result<bool> {
        let version: i64 =
            conn.prepare_cached(sql::DATA_VERSION)?.query_row([], |row| row.get(0))?;
        let moved = version != self.data_version;
        if moved && !(bugs::on(Bug::StaleCache) && self.data_version != 0) {
            self.forget();
            self.data_version = version;
        }
        Ok(moved)
    }

    /// Forgets everything.
    pub(super) fn forget(&mut self) {
        let held_key = std::mem::take(&mut self.held_key);
        *self = Self { held_key, ..Self::default() };
    }

    /// Forgets the kinds, pauses, limits and gates, after one of them was written.
    pub(super) fn forget_rules(&mut self) {
        self.rules = None;
    }

    pub(super) fn name(&mut self, conn: &Connection, id: i64) -> Result<Arc<str>> {
        if let Some(name) = self.names.get(&id) {
            return Ok(name.clone());
        }
        let mut statement = conn.prepare_cached(sql::NAME_OF)?;
        let name = statement.query_row([id], |row| read_text(row, 0)).optional()?.flatten();
        // A row of plain SQL may name what is not there; it is seen, and others are not held up.
        Ok(self.remember(name.unwrap_or_else(|| format!("?{id}")).into(), id))
    }

    /// The number of a name that may be new.
    pub(super) fn id(&mut self, conn: &Connection, name: &str) -> Result<i64> {
        if let Some(id) = self.known_id(conn, name)? {
            return Ok(id);
        }
        conn.prepare_cached(sql::NAME_ADD)?.execute([name])?;
        let id = conn.last_insert_rowid();
        self.remember(name.into(), id);
        Ok(id)
    }

    /// The number of a name, if it has one.
    pub(super) fn known_id(&mut self, conn: &Connection, name: &str) -> Result<Option<i64>> {
        if let Some(id) = self.ids.get(name) {
            return Ok(Some(*id));
        }
        let id: Option<i64> =
            conn.prepare_cached(sql::NAME_ID)?.query_row([name], |row| row.get(0)).optional()?;
        if let Some(id) = id {
            self.remember(name.into(), id);
        }
        Ok(id)
    }

    fn remember(&mut self, name: Arc<str>, id: i64) -> Arc<str> {
        self.ids.insert(name.clone(), id);
        self.names.insert(id, name.clone());
        name
    }

    pub(super) fn rules(&mut self, conn: &Connection) -> Result<&mut Rules> {
        if self.rules.is_none() {
            self.rules = Some(read_rules(conn)?);
        }
        Ok(self.rules.get_or_insert_default())
    }
}

fn read_rules(conn: &Connection) -> Result<Rules> {
    let mut rules = Rules::default();
    let mut statement = conn.prepare_cached(sql::KINDS)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let text: String = row.get(1)?;
        let facts: Facts = serde_json::from_str(&text)
            .map_err(|error| StoreFault::Corrupt(format!("leasehold_kinds.facts: {error}")))?;
        rules.facts.insert(row.get(0)?, Arc::new(facts));
    }
    let mut statement = conn.prepare_cached(sql::LANES)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        rules.lanes.insert((row.get(0)?, row.get(1)?));
    }
    let mut statement = conn.prepare_cached(sql::PAUSES)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (scope, name): (String, String) = (row.get(0)?, row.get(1)?);
        let names =
            if scope == "queue" { &mut rules.paused_queues } else { &mut rules.paused_kinds };
        names.insert(name);
    }
    let mut statement = conn.prepare_cached(sql::LIMITS)?;
    let mut rows = statement.query(params![])?;
    while let Some(row) = rows.next()? {
        let scope: String = row.get(0)?;
        let limits = if scope == "queue" { &mut rules.queue_limits } else { &mut rules.key_limits };
        limits.insert(row.get(1)?, row.get(2)?);
    }
    let mut statement = conn.prepare_cached(sql::GATES)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        rules.gates.insert(row.get(0)?, row.get(1)?);
    }
    let mut statement = conn.prepare_cached(sql::STATE)?;
    for (name, bytes) in rules.sizes.parts() {
        let set: Option<i64> = statement.query_row([name], |row| row.get(0)).optional()?;
        if let Some(set) = set.and_then(|set| usize::try_from(set).ok()) {
            *bytes = set;
        }
    }
    Ok(rules)
}
