//! Lists: which jobs, in which order, a page at a time.

use std::sync::Arc;

use crate::client::Client;
#[cfg(doc)]
use crate::error::StoreFault;
use crate::error::{Refusal, Result};
use crate::filter::Filter;
use crate::job::{Action, ErrorClass, JobId, Phase, State, Status, Verdict};
use crate::rules::table::{Allowed, allowed};
use crate::store::questions::List;
use crate::words::words;

/// The most jobs on a page.
const MOST: usize = 1_000;

/// A job as a list shows it: no payload, no result, and the beginning of its error.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct JobSummary {
    /// What names the job.
    pub id: JobId,
    /// The name of its handler.
    pub kind: Arc<str>,
    /// The queue it waits in.
    pub queue: Arc<str>,
    /// Whom it is for.
    pub tenant: Option<String>,
    /// Whom it is for, below the tenant.
    pub organization: Option<String>,
    /// Why it was enqueued.
    pub reason: Option<String>,
    /// What sort of thing it is about.
    pub subject_type: Option<String>,
    /// Which thing it is about.
    pub subject_id: Option<String>,
    /// The job that this one was made after, by an operator.
    pub copy_of: Option<JobId>,
    /// Where it stands, as stored.
    pub status: Status,
    /// Where it stands, at the time of the look.
    pub phase: Phase,
    /// Smaller goes first; a level is worth a minute of waiting.
    pub priority: i64,
    /// When it is due, in UTC milliseconds.
    pub run_at: i64,
    /// When it was enqueued, in UTC milliseconds.
    pub created_at: i64,
    /// When its row was last written, in UTC milliseconds.
    pub updated_at: i64,
    /// When it was first claimed, in UTC milliseconds.
    pub started_at: Option<i64>,
    /// When it ended, in UTC milliseconds.
    pub finished_at: Option<i64>,
    /// The epoch that names it.
    pub epoch: i64,
    /// Who held it.
    pub owner: Option<Arc<str>>,
    /// When the lease of its holder ends, in UTC milliseconds.
    pub lease_until: Option<i64>,
    /// Attempts since it last made progress.
    pub attempts: i64,
    /// How many it may have.
    pub max_attempts: i64,
    /// Attempts in a row that were lost or handed back without progress.
    pub stalls: i64,
    /// How often it was made to run again, by the reaper or an operator.
    pub redrives: i64,
    /// How far the work is, as the handler last said.
    pub progress_done: Option<i64>,
    /// How much there is to do.
    pub progress_total: Option<i64>,
    /// Names the job as long as its row is kept.
    pub idempotency_key: Option<String>,
    /// Names it while it is live.
    pub dedup_key: Option<String>,
    /// Only one live job may hold it.
    pub lock_key: Option<String>,
    /// Jobs with the same one share a limit.
    pub limit_key: Option<String>,
    /// Why it failed for good.
    pub verdict: Option<Verdict>,
    /// How its last error was to be treated.
    pub error_class: Option<ErrorClass>,
    /// The application's own code of its last error.
    pub error_code: Option<String>,
    /// The first 200 characters of `last_error`.
    pub last_error: Option<String>,
    /// When somebody asked for it to be cancelled, in UTC milliseconds.
    pub cancel_requested_at: Option<i64>,
    /// Since when it waits for a person, in UTC milliseconds.
    pub parked_at: Option<i64>,
}

impl JobSummary {
    /// What an action on it can come to.
    #[must_use]
    pub fn allowed(&self, action: Action) -> Allowed {
        allowed(State::of(self.status, self.verdict), action)
    }
}

words! {
    /// The order of a list.
    Order {
        /// The last enqueued first.
        Newest = "newest",
        /// The first enqueued first.
        Oldest = "oldest",
        /// Ended jobs alone, the last ended first.
        EndedNewest = "ended_newest",
        /// Ended jobs alone, the first ended first.
        EndedOldest = "ended_oldest",
    }
}

/// Which page of a list.
///
/// Jobs that come or go between two pages move no other from one page to the next: a page goes on
/// after the last job of the one before, whether that is still there or not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Paging {
    pub(crate) order: Order,
    pub(crate) limit: usize,
    pub(crate) after: Option<String>,
}

impl Paging {
    /// The first page, of at most `limit` jobs, 1 to 1000.
    pub fn first(order: Order, limit: usize) -> Self {
        Self { order, limit, after: None }
    }

    /// The page after the one that had this in [`Page::next`].
    pub fn after(mut self, cursor: impl Into<String>) -> Self {
        self.after = Some(cursor.into());
        self
    }
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Page {
    /// The jobs, in the order that was asked for.
    pub jobs: Vec<JobSummary>,
    /// Where the next page begins; nothing at the end. A page looks at 5000 jobs at the most, so
    /// where few meet the filter it may show none and still not be the last.
    pub next: Option<String>,
}

/// A place in a list: the job after which a page begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// When it ended, in the orders that go by that.
    pub(crate) at: i64,
    pub(crate) key: i64,
}

impl Position {
    /// The cursor, opaque to whoever gets it; of use with the same filter and order alone.
    pub(crate) fn cursor(self, order: Order, filter: &str) -> String {
        let key = self.key.cast_unsigned();
        format!("{order}-{:016x}-{:016x}-{key:016x}", mark(filter), self.at.cast_unsigned())
    }

    pub(crate) fn parse(
        cursor: &str,
        order: Order,
        filter: &str,
    ) -> std::result::Result<Self, Refusal> {
        let rule = "the `next` of a page with the same filter and order";
        let wrong = || Refusal::invalid("cursor", cursor, rule);
        let numbers = cursor.strip_prefix(order.as_str()).ok_or_else(wrong)?;
        let mut parts = numbers.split('-').skip(1).map(|part| {
            let number = u64::from_str_radix(part, 16).ok();
            number.filter(|_| part.len() == 16 && !part.starts_with('+')).ok_or_else(wrong)
        });
        let mut next = || parts.next().ok_or_else(wrong)?;
        let (seen, at, key) = (next()?, next()?, next()?);
        let place = Self { at: at.cast_signed(), key: key.cast_signed() };
        if parts.next().is_some() || seen != mark(filter) || place.cursor(order, filter) != cursor {
            return Err(wrong());
        }
        Ok(place)
    }
}

/// A number that tells filters apart.
fn mark(filter: &str) -> u64 {
    filter.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Client {
    /// A page of the jobs that meet a filter.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> leasehold::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # use leasehold::{Client, Filter, NewJob, Order, Paging, Phase};
    /// let client = Client::open(dir.path().join("jobs.db")).await?;
    /// client.enqueue(NewJob::raw("mail", None)).await?;
    /// let filter = Filter::new().phase(Phase::Ready).kind("mail");
    /// let page = client.list(&filter, Paging::first(Order::Newest, 50)).await?;
    /// assert_eq!((page.jobs.len(), page.next), (1, None));
    /// # Ok(()) }
    /// ```
    ///
    /// Specified in SEMANTICS.md, “Lists and bulk operations”.
    ///
    /// # Errors
    ///
    /// [`Refusal::Invalid`] for a limit out of range, or a cursor of another list; a
    /// [`StoreFault`].
    pub async fn list(&self, filter: &Filter, paging: Paging) -> Result<Page> {
        if !(1..=MOST).contains(&paging.limit) {
            let rule = format!("from 1 to {MOST}");
            return Err(Refusal::invalid("limit", paging.limit, rule).into());
        }
        self.read(List { filter: filter.clone(), paging }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_of_use_in_its_own_list_alone() {
        let place = Position { at: -5, key: i64::MAX };
        let cursor = place.cursor(Order::EndedNewest, "{}");
        assert_eq!(Position::parse(&cursor, Order::EndedNewest, "{}"), Ok(place));
        for (cursor, order, filter) in [
            (&*cursor, Order::Newest, "{}"),
            (&*cursor, Order::EndedNewest, r#"{"kind":["mail"]}"#),
            ("abc", Order::Newest, "{}"),
            ("", Order::Newest, "{}"),
            (&format!("{cursor}-0000000000000000"), Order::EndedNewest, "{}"),
            (&cursor.to_uppercase(), Order::EndedNewest, "{}"),
            (&cursor[..cursor.len() - 1], Order::EndedNewest, "{}"),
        ] {
            let refused = Position::parse(cursor, order, filter).unwrap_err();
            assert_eq!(refused.code(), "invalid", "{cursor:?}");
        }
    }
}
