//! Pages of lists: an index in the order that is asked for, looked through for what meets a
//! filter, so many rows at the most.

use rusqlite::{Row as SqlRow, params};

use crate::error::{Error, StoreFault};
use crate::filter::Filter;
use crate::job::{JobId, Status};
use crate::list::{JobSummary, Order, Page, Paging, Position};
use crate::rules::row::Row;

use super::rows::{read_hot, read_text, status_code, word};
use super::statements as sql;
use super::txn::Txn;

type Result<T, E = StoreFault> = std::result::Result<T, E>;

/// Rows that a page looks at, at the most.
const LOOKED_AT: usize = 5_000;
/// Characters of an error that a list shows.
const SHOWN: usize = 200;

/// How a list is looked through.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scan {
    pub(super) order: Order,
    pub(super) after: Option<Position>,
    /// Jobs with a higher key are not there.
    pub(super) last_key: i64,
    /// How many to find, and how many to look at.
    pub(super) limit: usize,
    pub(super) look_at: usize,
}

/// What was found, each with its place.
pub(super) struct Found {
    pub(super) jobs: Vec<(Position, JobSummary)>,
    /// The last place that was looked at, where there is more.
    pub(super) more: Option<Position>,
}

impl Txn<'_> {
    /// A page of a list.
    pub(super) fn page(&mut self, filter: &Filter, paging: &Paging) -> Result<Page, Error> {
        let order = paging.order;
        let mut named = serde_json::to_string(filter).unwrap_or_default();
        if let Some(scope) = &self.scope {
            named = format!("{named} {scope:?}");
        }
        let after = paging.after.as_ref().map(|cursor| Position::parse(cursor, order, &named));
        let scan = Scan {
            order,
            after: after.transpose()?,
            last_key: i64::MAX,
            limit: paging.limit,
            look_at: LOOKED_AT,
        };
        let found = self.scan(filter, scan)?;
        Ok(Page {
            jobs: found.jobs.into_iter().map(|(_, job)| job).collect(),
            next: found.more.map(|place| place.cursor(order, &named)),
        })
    }

    /// Looks through a list from a place on.
    pub(super) fn scan(&mut self, filter: &Filter, scan: Scan) -> Result<Found> {
        let (places, whole) = self.places(filter, scan)?;
        let mut jobs = Vec::new();
        let looked_at = places.len();
        for (n, place) in places.into_iter().enumerate() {
            let Some(job) = self.summary(place.key)? else { continue };
            let fits = place.key <= scan.last_key && self.is_in_scope(&job) && filter.matches(&job);
            if fits {
                jobs.push((place, job));
            }
            if jobs.len() == scan.limit || n + 1 == looked_at {
                let more = !(whole && n + 1 == looked_at);
                return Ok(Found { jobs, more: more.then_some(place) });
            }
        }
        Ok(Found { jobs, more: None })
    }

    fn is_in_scope(&self, job: &JobSummary) -> bool {
        self.scope.as_ref().is_none_or(|scope| {
            (&scope.tenant, &scope.organization) == (&job.tenant, &job.organization)
        })
    }

    /// The next places of a list, before its filter, by the narrowest index that has its order;
    /// and whether these are all that are left.
    fn places(&mut self, filter: &Filter, scan: Scan) -> Result<(Vec<Position>, bool)> {
        if !filter.ids().is_empty() {
            return self.named_places(filter, scan);
        }
        let statuses = filter.statuses();
        let down = match scan.order {
            Order::EndedNewest | Order::EndedOldest => return self.ended_places(filter, scan),
            Order::Newest => true,
            Order::Oldest => false,
        };
        let after = scan.after.map(|place| place.key);
        let after = after.unwrap_or(if down { i64::MAX } else { i64::MIN });
        if statuses == [Status::Running] {
            return self.running_places(scan, down, after);
        }
        let scope = self.scope.clone();
        let tenant = match (&scope, filter.one_tenant()) {
            (Some(scope), _) if scope.tenant.is_some() || scope.organization.is_some() => {
                Some((scope.tenant.as_deref(), scope.organization.as_deref()))
            }
            (_, Some((tenant, organization))) => Some((Some(tenant), Some(organization))),
            _ => None,
        };
        let mut places = Vec::new();
        let mut take = |rows: &mut rusqlite::Rows<'_>| -> Result<bool> {
            while let Some(row) = rows.next()? {
                if places.len() == scan.look_at {
                    return Ok(false);
                }
                places.push(Position { at: 0, key: row.get(0)? });
            }
            Ok(true)
        };
        let either = |newest, oldest| if down { newest } else { oldest };
        let whole = if let Some(subject) = filter.one_subject() {
            let statement = either(sql::SUBJECT_NEWEST, sql::SUBJECT_OLDEST);
            take(&mut self.conn.prepare_cached(statement)?.query(params![after, subject])?)
        } else if let Some((tenant, organization)) = tenant {
            let statement = either(sql::TENANT_NEWEST, sql::TENANT_OLDEST);
            let named = params![after, tenant, organization];
            take(&mut self.conn.prepare_cached(statement)?.query(named)?)
        } else {
            let statement = either(sql::NEWEST, sql::OLDEST);
            take(&mut self.conn.prepare_cached(statement)?.query([after])?)
        }?;
        Ok((places, whole))
    }

    /// Jobs that the filter names, put in order.
    fn named_places(&mut self, filter: &Filter, scan: Scan) -> Result<(Vec<Position>, bool)> {
        let by_end = matches!(scan.order, Order::EndedNewest | Order::EndedOldest);
        let down = matches!(scan.order, Order::EndedNewest | Order::Newest);
        let mut places = Vec::new();
        for id in filter.ids() {
            let Some(key) = self.find(id)? else { continue };
            let Some(row) = self.load(key)? else { continue };
            match row.finished_at {
                Some(at) if by_end => places.push(Position { at, key }),
                None if by_end => {}
                _ => places.push(Position { at: 0, key }),
            }
        }
        places.sort_unstable_by_key(|place| (place.at, place.key));
        places.dedup();
        if let Some(after) = scan.after.map(|place| (place.at, place.key)) {
            places.retain(|place| {
                let place = (place.at, place.key);
                if down { place < after } else { place > after }
            });
        }
        if down {
            places.reverse();
        }
        let whole = places.len() <= scan.look_at;
        places.truncate(scan.look_at);
        Ok((places, whole))
    }

    /// Running rows are few: all are read, and put in order.
    fn running_places(
        &mut self,
        scan: Scan,
        down: bool,
        after: i64,
    ) -> Result<(Vec<Position>, bool)> {
        let mut statement = self.conn.prepare_cached(sql::RUNNING)?;
        let mut keys: Vec<i64> =
            statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        keys.retain(|key| if down { *key < after } else { *key > after });
        keys.sort_unstable();
        if down {
            keys.reverse();
        }
        let whole = keys.len() <= scan.look_at;
        keys.truncate(scan.look_at);
        Ok((keys.into_iter().map(|key| Position { at: 0, key }).collect(), whole))
    }

    /// Ended rows are in order within a kind and a status: the lists of all are merged as far as
    /// each is known.
    fn ended_places(&mut self, filter: &Filter, scan: Scan) -> Result<(Vec<Position>, bool)> {
        let down = scan.order == Order::EndedNewest;
        let mut kinds = Vec::new();
        if filter.kinds().is_empty() {
            kinds.extend(self.kinds_ended()?);
        }
        for kind in filter.kinds() {
            kinds.extend(self.cache.known_id(self.conn, kind)?);
        }
        kinds.sort_unstable();
        kinds.dedup();
        let statuses: Vec<_> =
            filter.statuses().into_iter().filter(|status| !status.is_live()).collect();
        let lists = kinds.len() * statuses.len();
        let each = (scan.look_at / lists.max(1)).max(scan.limit.min(64)) + 1;
        let start = if down { i64::MAX } else { i64::MIN };
        let after = scan.after.unwrap_or(Position { at: start, key: start });
        let by_place = |place: &Position| {
            let (at, key) = (i128::from(place.at), i128::from(place.key));
            if down { (-at, -key) } else { (at, key) }
        };
        let mut places = Vec::new();
        // Up to here every list is known.
        let mut known: Option<Position> = None;
        for kind in &kinds {
            for status in &statuses {
                let list = self.ended_list(*kind, *status, down, after, each)?;
                if let Some(last) = list.last().filter(|_| list.len() == each)
                    && known.is_none_or(|known| by_place(last) < by_place(&known))
                {
                    known = Some(*last);
                }
                places.extend(list);
            }
        }
        places.sort_unstable_by_key(by_place);
        if let Some(known) = known {
            places.retain(|place| by_place(place) <= by_place(&known));
        }
        Ok((places, known.is_none()))
    }

    fn ended_list(
        &self,
        kind: i64,
        status: Status,
        down: bool,
        after: Position,
        most: usize,
    ) -> Result<Vec<Position>> {
        let statement = if down { sql::ENDED_NEWEST } else { sql::ENDED_AFTER };
        let mut statement = self.conn.prepare_cached(statement)?;
        let mut rows = statement.query([kind, status_code(status), after.at, after.key])?;
        let mut list = Vec::new();
        while list.len() < most
            && let Some(row) = rows.next()?
        {
            list.push(Position { key: row.get(0)?, at: row.get(1)? });
        }
        Ok(list)
    }

    /// A job as a list shows it.
    fn summary(&mut self, key: i64) -> Result<Option<JobSummary>> {
        let mut statement = self.conn.prepare_cached(sql::SUMMARY)?;
        let mut rows = statement.query([key])?;
        let Some(columns) = rows.next()? else { return Ok(None) };
        let row = self.named_briefly(read_hot(columns)?)?;
        Ok(Some(summary(&row, columns, self.now)?))
    }
}

fn summary(row: &Row, columns: &SqlRow<'_>, now: i64) -> Result<JobSummary> {
    // After the columns of `hot!`.
    const FIRST: usize = 29;
    let text = |n: usize| read_text(columns, FIRST + n);
    let parked_at: Option<i64> = columns.get(FIRST + 18)?;
    let mut shown = row.clone();
    shown.detail.parked_at = parked_at;
    let last_error = text(16)?.map(|error| error.chars().take(SHOWN).collect());
    Ok(JobSummary {
        id: row.id.clone(),
        kind: row.kind.clone(),
        queue: row.queue.clone(),
        tenant: text(0)?,
        organization: text(1)?,
        idempotency_key: text(2)?,
        dedup_key: text(3)?,
        lock_key: text(4)?,
        reason: text(5)?,
        subject_type: text(6)?,
        subject_id: text(7)?,
        copy_of: text(8)?.map(JobId::from),
        redrives: columns.get::<_, Option<i64>>(FIRST + 9)?.unwrap_or_default(),
        progress_done: columns.get(FIRST + 10)?,
        progress_total: columns.get(FIRST + 11)?,
        verdict: word(text(12)?, crate::job::Verdict::parse)?,
        error_class: word(text(13)?, crate::job::ErrorClass::parse)?,
        error_code: text(14)?,
        cancel_requested_at: columns.get(FIRST + 15)?,
        last_error,
        owner: text(17)?.map(Into::into),
        parked_at,
        status: row.status,
        phase: shown.phase(now),
        priority: row.priority,
        run_at: row.run_at,
        created_at: row.created_at,
        updated_at: row.updated_at,
        started_at: row.started_at,
        finished_at: row.finished_at,
        epoch: row.epoch,
        lease_until: row.lease_until,
        attempts: row.attempts,
        max_attempts: row.max_attempts,
        stalls: row.stalls,
        limit_key: row.limit_key.clone(),
    })
}
