//! The history that is cut off at every point, and in which every call on the disk fails once: a
//! runtime on a file, driven step by step on a frozen clock.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::{join, join_all};
use leasehold::rusqlite::Connection;
use leasehold::testing::Lab;
use leasehold::{
    BulkAction, BulkState, Client, Ctx, Durability, ErrorClass, Failed, FencedError, Filter, Job,
    JobResult, Json, Lease, ManualClock, NewBulk, NewJob, Operator, Outcome, Preset, Retry,
    Runtime, Settings, Status, TransactionError,
};
use serde::{Deserialize, Serialize};

use crate::book::{Book, What};

/// 2020-01-01 00:00 UTC.
pub const START: i64 = 1_577_836_800_000;
const DAY: Duration = Duration::from_hours(24);

/// Writes two rows of the application's, each with its own checkpoint; where it is told so, its
/// first attempt fails between the two.
#[derive(Serialize, Deserialize)]
struct Pay {
    fails: bool,
}

impl Job for Pay {
    const KIND: &'static str = "pay";

    fn settings() -> Settings {
        Settings::new().retry(Retry::fixed(Duration::from_secs(1)).no_jitter())
    }
}

async fn pay(job: Pay, ctx: Ctx<Book>) -> JobResult {
    let (book, id) = (ctx.state(), ctx.id().to_string());
    book.seen(What::Claimed(id.clone(), ctx.epoch()));
    let paid: i64 = ctx.checkpoint()?.unwrap_or_default();
    for n in paid + 1..=2 {
        let row = book.asks(What::Paid(id.clone(), n, ctx.epoch()));
        let saved = book.asks(What::Saved(id.clone(), n));
        let values = (id.clone(), n, ctx.epoch());
        let insert = move |tx: &mut leasehold::Tx<'_>| {
            tx.execute("INSERT INTO paid VALUES (?1, ?2, ?3)", values.clone()).map(|_| ())
        };
        match ctx.fenced_save(&n, insert).await {
            Ok(()) => [row, saved].into_iter().for_each(|place| book.yes(place)),
            Err(FencedError::Store(fault)) => {
                if book.trouble(&fault.clone().into()) {
                    book.no(row);
                }
                return Err(fault.into());
            }
            Err(other) => return Err(other.into()),
        }
        if job.fails && paid == 0 {
            Err("as it was told")?;
        }
    }
    book.asks(What::Settled(id, ctx.epoch(), "completed"));
    Ok(Outcome::done_with(&2))
}

fn by() -> Operator {
    Operator::named("op").because("a reason")
}

fn hand(id: impl Into<String>) -> NewJob {
    NewJob::raw("hand", Some(Json::of(&vec![1; 40]).unwrap())).id(id.into())
}

/// A runtime whose history is played.
pub struct Play {
    pub lab: Lab,
    pub book: Book,
    client: Client,
    path: PathBuf,
}

impl Play {
    /// Starts it; again where the disk fails at that moment.
    pub async fn start(
        path: &Path,
        book: &Book,
        clock: &ManualClock,
        durability: Durability,
    ) -> leasehold::Result<Self> {
        let mut seed = 1;
        let lab = loop {
            let builder = Runtime::builder(path).state(book.clone()).handle(pay);
            let builder = builder.durability(durability).slots(2).threads(1);
            match Lab::start_with(builder, clock.clone(), seed).await {
                Ok(lab) => break lab,
                Err(error) => {
                    book.trouble(&error);
                    seed += 1;
                    if book.disk().is_broken() {
                        return Err(error);
                    }
                }
            }
        };
        let (client, path, book) = (lab.client(), path.to_owned(), book.clone());
        Ok(Self { lab, book, client, path })
    }

    /// Lets all go on that can; not where nothing can any more.
    async fn quiet(&self) {
        tokio::select! {
            () = self.lab.settle() => {}
            () = self.book.disk().broken() => {}
        }
    }

    async fn wait(&self, duration: Duration) {
        self.lab.clock.advance(i64::try_from(duration.as_millis()).unwrap());
        self.quiet().await;
    }

    /// The application's own table, and a kind that is claimed by hand.
    pub async fn prepare(&self) {
        let table = async || {
            let sql = "CREATE TABLE IF NOT EXISTS paid (id TEXT, n INTEGER, epoch INTEGER)";
            let made = self.lab.runtime.transaction(move |tx| tx.execute(sql, []).map(|_| ()));
            match made.await {
                Err(TransactionError::Store(fault)) => Err(fault.into()),
                other => {
                    other.unwrap();
                    Ok(())
                }
            }
        };
        self.book.ask(&[], table).await;
        self.book.ask(&[], async || self.client.register("hand", Settings::new()).await).await;
    }

    async fn enqueue(&self, job: NewJob, id: &str) {
        let what = [What::Enqueued(id.to_owned())];
        self.book.ask(&what, async || self.client.enqueue(job.clone()).await.map(|_| ())).await;
    }

    /// Many at a time, which share a commit.
    async fn enqueue_together(&self, ids: &[&str]) {
        join_all(ids.iter().map(|id| self.enqueue(hand(*id), id))).await;
    }

    /// A job for the runtime, and what has become of it.
    async fn pay(&self, id: &str, fails: bool) {
        self.enqueue(NewJob::from(Pay { fails }).id(id), id).await;
        self.quiet().await;
        if fails {
            self.wait(Duration::from_secs(1)).await;
        }
        self.seen(id).await;
    }

    /// What a read shows is so.
    async fn seen(&self, id: &str) {
        if self.book.disk().is_broken() {
            return;
        }
        let shown = self.book.ask(&[], async || self.client.job(id).await).await.flatten();
        if let Some(job) = shown.filter(|job| !job.status.is_live()) {
            self.book.seen(What::Settled(id.to_owned(), job.epoch, job.status.as_str()));
        }
    }

    async fn claim(&self, limit: usize) -> Vec<Lease> {
        let claim = async || self.client.claim(&["hand"], "by-hand", limit).await;
        let leases = self.book.ask(&[], claim).await.unwrap_or_default();
        for lease in &leases {
            self.book.seen(What::Claimed(lease.job().to_string(), lease.epoch()));
        }
        leases
    }

    async fn settle(
        &self,
        lease: &Lease,
        status: &'static str,
        call: impl AsyncFn() -> leasehold::Result<Status>,
    ) {
        let what = [What::Settled(lease.job().to_string(), lease.epoch(), status)];
        self.book.ask(&what, call).await;
    }

    async fn complete(&self, lease: &Lease) {
        self.settle(lease, "completed", async || lease.complete(Json::of(&1).ok()).await).await;
    }

    /// Somebody else's connection writes the log back.
    pub fn checkpoint(&self, mode: &str) {
        if self.book.disk().is_broken() {
            return;
        }
        // Where the disk fails it just fails: it is tried again with the next commit.
        if let Ok(conn) = Connection::open(&self.path) {
            let sql = format!("PRAGMA wal_checkpoint({mode})");
            let _failed = conn.query_row(&sql, [], |_| Ok(()));
        }
    }

    /// Fills the log until `SQLite` is about to write it back.
    pub async fn fill_log(&self) {
        /// From so many pages on it does.
        const FULL: usize = 1_000;
        let disk = self.book.disk();
        self.checkpoint("TRUNCATE");
        self.enqueue_together(&["first"]).await;
        let lease = self.claim(1).await.remove(0);
        let (mut pages, mut step) = (0, 0);
        while pages + 2 * step < FULL {
            let before = disk.log_pages(0).0;
            lease.progress(1, None).await.unwrap();
            pages = disk.log_pages(0).0;
            step = step.max(pages.saturating_sub(before));
        }
        self.complete(&lease).await;
    }

    /// Goes on until it has, and a little further.
    pub async fn write_back(&self) {
        const MOST: usize = 20;
        let disk = self.book.disk();
        let begin = disk.len();
        for n in 0..MOST {
            if disk.log_pages(begin).1 {
                break;
            }
            let id = format!("hand-{n}");
            self.enqueue(hand(&id), &id).await;
        }
        for lease in self.claim(2).await {
            self.complete(&lease).await;
        }
    }

    /// All of it but the start and the stop.
    pub async fn go_on(&self) {
        self.by_hand().await;
        self.pay("pay-1", false).await;
        self.checkpoint("PASSIVE");
        self.pay("pay-2", true).await;
        self.operators().await;
        self.checkpoint("RESTART");
        self.enqueue_together(&["late-1", "late-2", "late-3"]).await;
        self.many().await;
        self.retention().await;
        self.checkpoint("TRUNCATE");
        self.enqueue_together(&["last-1", "last-2"]).await;
    }

    /// Leases held by hand, and every way to let go of one.
    async fn by_hand(&self) {
        self.enqueue_together(&["hand-1", "hand-2", "hand-3", "hand-4", "hand-5"]).await;
        let leases = self.claim(4).await;
        if let Some(first) = leases.first() {
            let what = [What::Saved(first.job().to_string(), 1)];
            let save = async || first.checkpoint("", Json::of(&1).unwrap()).await;
            self.book.ask(&what, save).await;
            self.book.ask(&[], async || first.renew().await.map(|_| ())).await;
            self.complete(first).await;
        }
        if let [_, second, third, fourth] = &leases[..] {
            let transient = async || second.fail(Failed::transient("not yet")).await;
            let cancel = async || self.client.cancel(third.job(), by()).await.map(|_| ());
            join(self.settle(second, "pending", transient), self.book.ask(&[], cancel)).await;
            self.settle(third, "cancelled", async || third.cancelled().await).await;
            let class = ErrorClass::Terminal;
            let terminal =
                async || fourth.fail(Failed { class, ..Failed::transient("never") }).await;
            self.settle(fourth, "failed", terminal).await;
        }
    }

    /// What operators do to one job.
    async fn operators(&self) {
        let cancelled = [What::Settled("hand-5".into(), 0, "cancelled")];
        let cancel = async || self.client.cancel("hand-5", by()).await.map(|_| ());
        self.book.ask(&cancelled, cancel).await;
        let redrive = async || self.client.redrive("hand-4", Preset::Redrive, by()).await;
        self.book.ask(&[What::Redriven("hand-4".into(), 1)], redrive).await;
        for lease in self.claim(2).await {
            self.complete(&lease).await;
        }
        let again = async || self.client.run_again("hand-1", by()).await.map(|_| ());
        self.book.ask(&[What::Copied("hand-1".into())], again).await;
        let delete = async || self.client.delete("hand-5", by()).await;
        self.book.ask(&[What::Gone("hand-5".into())], delete).await;
    }

    /// An operation on many jobs.
    async fn many(&self) {
        let late = ["late-1", "late-2", "late-3"];
        let filter = late.into_iter().fold(Filter::new(), |filter, id| filter.id(id.into()));
        let bulk = NewBulk::new(BulkAction::Cancel, filter);
        let start = async || self.client.start_bulk(bulk.clone(), by()).await;
        let Some(n) = self.book.ask(&[What::BulkStarted], start).await else { return };
        let ended = late.map(|id| What::Settled(id.to_owned(), 0, "cancelled"));
        let ended: Vec<_> = ended.into_iter().map(|what| self.book.asks(what)).collect();
        let done = self.book.asks(What::BulkDone);
        self.book.ask(&[], async || self.client.reap_once().await.map(|_| ())).await;
        self.quiet().await;
        if self.book.disk().is_broken() {
            return;
        }
        let shown = self.book.ask(&[], async || self.client.bulk(n).await).await.flatten();
        if shown.is_some_and(|bulk| bulk.state == BulkState::Done && bulk.done == 3) {
            ended.into_iter().chain([done]).for_each(|place| self.book.yes(place));
        }
    }

    /// Ended jobs whose time is over go.
    async fn retention(&self) {
        let gone = [
            "hand-1", "hand-2", "hand-3", "hand-4", "late-1", "late-2", "late-3", "pay-1", "pay-2",
        ];
        let gone = gone.map(|id| (id, self.book.asks(What::Gone(id.to_owned()))));
        self.wait(8 * DAY).await;
        self.book.ask(&[], async || self.client.reap_once().await.map(|_| ())).await;
        for (id, place) in gone {
            if self.book.disk().is_broken() {
                return;
            }
            let shown = self.book.ask(&[], async || self.client.job(id).await).await;
            if shown.is_some_and(|job| job.is_none()) {
                self.book.yes(place);
            }
        }
    }

    /// While nothing can be written nothing is said to be done, and health says why.
    pub async fn is_denied(&self) -> Vec<String> {
        let mut found = Vec::new();
        let place = self.book.asks(What::Enqueued("denied".into()));
        match self.client.enqueue(hand("denied")).await {
            Ok(_) => found.push("enqueued on a disk that cannot be written".to_owned()),
            Err(error) => {
                if self.book.trouble(&error) {
                    self.book.no(place);
                }
            }
        }
        if self.lab.runtime.health().is_healthy() {
            found.push("healthy on a disk that cannot be written".to_owned());
        }
        found
    }

    /// With the disk well again all goes on, without a start: every job comes to its end.
    pub async fn finish(&self) -> Vec<String> {
        const ROUNDS: usize = 40;
        let mut found = Vec::new();
        let place = self.book.asks(What::Enqueued("well".into()));
        match self.client.enqueue(hand("well")).await {
            Ok(_) => self.book.yes(place),
            Err(error) => found.push(format!("an error on a disk that is well: {error}")),
        }
        for _ in 0..ROUNDS {
            self.quiet().await;
            for lease in self.claim(100).await {
                self.complete(&lease).await;
            }
            match self.client.counts().await {
                Ok(counts) if counts.live() == 0 => break,
                Ok(_) => self.wait(Duration::from_mins(1)).await,
                Err(error) => found.push(format!("an error on a disk that is well: {error}")),
            }
        }
        let left = self.client.counts().await.map(|counts| counts.live());
        if !matches!(left, Ok(0)) {
            found.push(format!("jobs that do not end: {left:?}"));
        }
        let health = self.lab.runtime.health();
        if !health.is_healthy() {
            found.push(format!("unhealthy on a disk that is well: {:?}", health.troubles));
        }
        found.extend(health.last_restart.map(|error| format!("a panic: {error}")));
        found
    }

    /// The stop, which ends with the log written back.
    pub async fn stop(self) {
        self.lab.stop(Duration::from_secs(5)).await;
        // Loops that sleep on the clock see that all is over.
        self.lab.clock.advance(1_000);
    }
}
