//! K11: `SQLite` that is locked by somebody else, or by a clean-up that takes its time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use leasehold::rusqlite::Connection;
use leasehold::{
    Client, Clock, Error, Job, ManualClock, Runtime, Settings, Status, StoreFault, Was,
};

use super::{PATIENCE, START, bench, by_hand, fill, hand, place, query, scale, seconds};
use crate::support::{Act, Bystander, Signals, act, record};

/// What users of the store and the one who locks it tell each other.
#[derive(Default)]
struct Told {
    done: AtomicU64,
    enough: AtomicBool,
}

/// One user of the store: enqueues with a key, claims, completes, and counts what it has done.
async fn reads_then_writes(client: Client, user: u64, told: Arc<Told>) {
    let kind = format!("kind-{user}");
    for round in 0.. {
        let job = leasehold::NewJob::raw(&*kind, None).dedup_key(format!("{user}-{round}"));
        let first = client.enqueue(job.clone()).await.unwrap();
        let second = client.enqueue(job).await.unwrap();
        assert_eq!((first.was, &second.id), (Was::New, &first.id));
        let lease = client.claim(&[&kind], "w", 1).await.unwrap().remove(0);
        lease.renew().await.unwrap();
        assert_eq!(lease.complete(None).await.unwrap(), Status::Completed);
        told.done.fetch_add(1, Ordering::SeqCst);
        if told.enough.load(Ordering::SeqCst) {
            return;
        }
    }
}

/// A transaction that began as a reader and then wrote was told `busy` at once: the timeout does
/// not hold for it (`vjt/grappa-irc#524`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k11_contention_a_lock_that_is_held_again_and_again_is_an_error_to_nobody() {
    let (_dir, path) = place();
    let clients = [bench(&path, START).await.client, bench(&path, START).await.client];
    let bystander = Bystander::enqueue(&clients[0]).await;
    let told = Arc::new(Told::default());
    let mut users = Vec::new();
    for (user, client) in (0..8).zip(clients.iter().cycle()) {
        client.register(&format!("kind-{user}"), Settings::new()).await.unwrap();
        users.push(tokio::spawn(reads_then_writes(client.clone(), user, told.clone())));
    }
    let conn = Connection::open(&path).unwrap();
    conn.busy_timeout(PATIENCE).unwrap();
    for _ in 0..scale(10, 300) {
        conn.execute_batch("BEGIN IMMEDIATE; CREATE TABLE IF NOT EXISTS mine (n)").unwrap();
        let before = told.done.load(Ordering::SeqCst);
        // Nobody can write now, and everybody can read.
        for _ in 0..50 {
            clients[0].counts().await.unwrap();
        }
        conn.execute_batch("COMMIT").unwrap();
        let failed = || users.iter().any(tokio::task::JoinHandle::is_finished);
        while told.done.load(Ordering::SeqCst) <= before && !failed() {
            tokio::task::yield_now().await;
        }
    }
    told.enough.store(true, Ordering::SeqCst);
    for user in users {
        user.await.unwrap();
    }
    let done = told.done.load(Ordering::SeqCst);
    assert_eq!(clients[0].counts().await.unwrap().completed, done as i64);
    bystander.check().await;
}

/// The same report: a lock that is held longer than anybody waits. The caller is told so, and
/// the job that ran in the meantime has not failed.
#[tokio::test]
async fn k11_contention_past_the_timeout_is_a_fault_of_its_own_and_fails_no_job() {
    let (_dir, path) = place();
    let signals = Signals::default();
    let builder = Runtime::builder(&path).state(signals.clone()).handle(act);
    let runtime = builder.start().await.unwrap();
    let client = runtime.client();
    client.enqueue(Act::Block.into_new().id("runs")).await.unwrap();
    signals.entered(1).await;
    let conn = Connection::open(&path).unwrap();
    conn.busy_timeout(PATIENCE).unwrap();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    signals.open();
    let busy = client.enqueue(hand("while it is locked")).await.unwrap_err();
    assert!(matches!(busy, Error::Store(StoreFault::Busy)), "{busy:?}");
    while runtime.health().is_healthy() {
        tokio::task::yield_now().await;
    }
    assert_eq!(record(&client, &"runs".into()).await.status, Status::Running, "it can be read");
    conn.execute_batch("COMMIT").unwrap();
    let job = runtime.wait("runs", PATIENCE).await.unwrap();
    assert_eq!((job.status, job.attempts, job.last_error), (Status::Completed, 1, None));
    assert!(client.job("while it is locked").await.unwrap().is_none(), "it has not landed");
    client.enqueue(hand("afterwards")).await.unwrap();
    while !runtime.health().is_healthy() {
        tokio::task::yield_now().await;
    }
    let stats = runtime.stats();
    assert_eq!((stats.completions, stats.failures, stats.lost), (1, 0, 0));
    runtime.stop(seconds(5)).await;
}

/// What begins a transaction that may later find that it cannot write.
fn deferred(text: &str) -> usize {
    let begins = text.match_indices("\"BEGIN").map(|(at, _)| &text[at + 6..]);
    let late = begins.filter(|rest| !rest.starts_with(" IMMEDIATE")).count();
    let calls = [".transaction()", "unchecked_transaction", "TransactionBehavior::Deferred"];
    late + calls.iter().map(|call| text.matches(call).count()).sum::<usize>()
}

fn sources(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else {
            found.push((path.display().to_string(), std::fs::read_to_string(path).unwrap()));
        }
    }
    found
}

/// The same report, in the source: no transaction of ours begins as a reader.
#[test]
fn k11_contention_no_transaction_that_writes_begins_as_a_reader() {
    let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(sources.iter().any(|(_, text)| text.contains("\"BEGIN IMMEDIATE")), "it is looked at");
    for (path, text) in sources {
        // Its connections can only read.
        let reads = path.ends_with("store/reads.rs");
        assert_eq!(deferred(&text), usize::from(reads), "{path}");
    }
    for bad in ["conn.execute(\"BEGIN\")", "\"BEGIN DEFERRED\"", "conn.transaction()?"] {
        assert_eq!(deferred(bad), 1, "{bad}");
    }
}

/// A sweep of old rows kept the write lock for twenty minutes at a time, and every other writer
/// lost its data (`basicallysource/sorter-v2#330`).
#[tokio::test]
async fn k11_contention_a_million_old_rows_go_in_slices_between_which_jobs_run() {
    let (_dir, path) = place();
    let clock = ManualClock::at(START);
    let old = scale(3_000, 1_000_000);
    {
        let first = bench(&path, START).await;
        first.client.register(Act::KIND, Act::settings()).await.unwrap();
    }
    fill(&path, Act::KIND, old, START - 8 * 24 * 3_600_000);
    let builder = Runtime::builder(&path).state(Signals::default()).handle(act);
    let runtime = builder.clock(clock.clone()).start().await.unwrap();
    let bystander = Bystander::enqueue(&runtime.client()).await;
    let left = "SELECT EXISTS (SELECT 1 FROM leasehold_job \
                WHERE status = 2 AND finished_at < 1577800000000)";
    let mut ran = 0;
    while query::<i64>(&path, left) > 0 {
        clock.advance(200);
        let id = runtime.enqueue(Act::Done).await.unwrap().id;
        let job = runtime.wait(id, PATIENCE).await.unwrap();
        assert_eq!((job.status, job.attempts), (Status::Completed, 1));
        ran += 1;
    }
    let counts = runtime.client().counts().await.unwrap();
    assert_eq!(counts.completed, ran, "what has ended now is kept");
    let removed = "SELECT sum(removed) FROM leasehold_totals";
    assert_eq!(query::<i64>(&path, removed), old as i64, "and what is gone stays counted");
    assert!(runtime.health().is_healthy());
    assert!(clock.now() > START);
    bystander.check().await;
    runtime.stop(seconds(5)).await;
}

/// A clean-up that fails says so where somebody looks, and holds up no job.
#[tokio::test]
async fn k11_contention_a_clean_up_that_fails_is_seen_and_jobs_go_on() {
    let (_dir, path) = place();
    {
        let first = bench(&path, START).await;
        first.client.register(Act::KIND, Act::settings()).await.unwrap();
    }
    fill(&path, Act::KIND, 10, START);
    by_hand(
        &path,
        "CREATE TRIGGER mine BEFORE DELETE ON leasehold_job WHEN old.id GLOB 'old-*'
         BEGIN SELECT raise(ABORT, 'these are kept'); END",
    );
    let builder = Runtime::builder(&path).state(Signals::default()).handle(act);
    let runtime = builder.start().await.unwrap();
    while runtime.health().is_healthy() {
        tokio::task::yield_now().await;
    }
    let troubles = runtime.health().troubles;
    assert!(troubles.iter().any(|trouble| trouble.contains("these are kept")), "{troubles:?}");
    let id = runtime.enqueue(Act::Done).await.unwrap().id;
    assert_eq!(runtime.wait(id, PATIENCE).await.unwrap().status, Status::Completed);
    by_hand(&path, "DROP TRIGGER mine");
    while query::<i64>(&path, "SELECT count(*) FROM leasehold_job") > 1 {
        tokio::task::yield_now().await;
    }
    runtime.stop(seconds(5)).await;
}
