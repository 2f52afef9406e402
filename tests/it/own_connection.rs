//! Jobs enqueued on a connection of the application's own: there if and only if its transaction
//! commits.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::rusqlite::{Connection, TransactionBehavior};
use leasehold::testing::{Bench, BenchSettings};
use leasehold::{
    By, Client, Error, Job, JobId, NewJob, Refusal, Runtime, Scope, Status, StoreFault, Was,
};

use crate::support::{Act, Bystander, Signals, act, record};

const PATIENCE: Duration = Duration::from_secs(60);

/// A file with a table of the application's, a client with a frozen clock, and a bystander.
struct Shop {
    dir: tempfile::TempDir,
    path: PathBuf,
    app: Connection,
    client: Client,
    bystander: Bystander,
}

impl Shop {
    async fn open() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.db");
        let settings = BenchSettings { path: Some(path.clone()), ..BenchSettings::default() };
        let client = Bench::start(settings).await.unwrap().client;
        let app = Connection::open(&path).unwrap();
        app.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)", []).unwrap();
        let bystander = Bystander::enqueue(&client).await;
        Self { dir, path, app, client, bystander }
    }

    /// How many orders there are, and jobs besides the bystander.
    async fn there(&self) -> (i64, i64) {
        self.bystander.check().await;
        let app = Connection::open(&self.path).unwrap();
        let count = |sql| app.query_row(sql, [], |row| row.get(0)).unwrap();
        (
            count("SELECT count(*) FROM orders"),
            count("SELECT count(*) FROM leasehold_jobs WHERE kind <> 'bystander'"),
        )
    }
}

fn job() -> NewJob {
    NewJob::raw("invoice", None)
}

const ORDER: &str = "INSERT INTO orders DEFAULT VALUES";

#[tokio::test]
async fn a_job_is_there_if_and_only_if_the_applications_transaction_commits() {
    let mut shop = Shop::open().await;
    for (commits, expected) in [(true, (1, 1)), (false, (1, 1)), (true, (2, 2))] {
        let tx = shop.app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        tx.execute(ORDER, []).unwrap();
        let made = shop.client.enqueue_in(&tx, job().meta(leasehold::Json::of(&1).unwrap()));
        let made = made.unwrap();
        assert_eq!(made.was, Was::New);
        assert_eq!(shop.client.job(&made.id).await.unwrap(), None, "nobody sees it before");
        if commits {
            tx.commit().unwrap();
        } else {
            tx.rollback().unwrap();
        }
        let seen = shop.client.job(&made.id).await.unwrap();
        assert_eq!(seen.is_some(), commits);
        assert!(seen.is_none_or(|job| job.created_at == 1_000_000 && job.meta.is_some()));
        assert_eq!(shop.there().await, expected);
    }
    // What the store remembers of names was forgotten where it had to be.
    shop.client.enqueue(job()).await.unwrap();
    assert_eq!(shop.there().await, (2, 3));
}

#[tokio::test]
async fn a_refusal_leaves_the_applications_transaction_as_it_was() {
    let mut shop = Shop::open().await;
    shop.client.enqueue(job().id("known").lock_key("one")).await.unwrap();
    let acme = shop.client.scoped(Scope::tenant("acme"));
    let tx = shop.app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    tx.execute(ORDER, []).unwrap();
    for (bad, code) in [
        (NewJob::raw("Not a kind", None), "invalid"),
        (NewJob::raw("never_seen", None).delay(Duration::from_secs(1 << 33)), "invalid"),
        (job().reason("nobody_knows_it"), "unknown_reason"),
        (job().lock_key("one"), "lock_held"),
    ] {
        let refused = shop.client.enqueue_in(&tx, bad).unwrap_err();
        assert_eq!(refused.refusal().map(Refusal::code), Some(code));
    }
    let taken = acme.enqueue_in(&tx, job().id("known")).unwrap_err();
    assert_eq!(taken.refusal(), Some(&Refusal::IdTaken));
    let known = shop.client.enqueue_in(&tx, job().id("known")).unwrap();
    assert_eq!(known.was, Was::Existing { by: By::Id });
    let made = acme.enqueue_in(&tx, job()).unwrap();
    let names = "SELECT count(*) FROM leasehold_names WHERE name = 'never_seen'";
    assert_eq!(tx.query_row(names, [], |row| row.get(0)), Ok(0));
    tx.commit().unwrap();
    assert_eq!(shop.there().await, (1, 2));
    assert_eq!(record(&shop.client, &made.id).await.tenant.as_deref(), Some("acme"));
}

#[tokio::test]
async fn a_job_of_which_a_part_cannot_be_written_is_not_there_at_all() {
    let mut shop = Shop::open().await;
    let with_payload = || NewJob::raw("invoice", Some(leasehold::Json::of(&1).unwrap()));
    let no = "CREATE TRIGGER no BEFORE INSERT ON leasehold_payload
              BEGIN SELECT RAISE(ABORT, 'not this one'); END";
    shop.app.execute(no, []).unwrap();
    let tx = shop.app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    tx.execute(ORDER, []).unwrap();
    let fault = shop.client.enqueue_in(&tx, with_payload()).unwrap_err();
    assert!(matches!(&fault, Error::Store(StoreFault::Sql(text)) if text == "not this one"));
    assert_eq!(shop.client.enqueue_in(&tx, job()).unwrap().was, Was::New);
    tx.commit().unwrap();
    assert_eq!(shop.there().await, (1, 1));
    // Nor in a transaction of the store's, whose closure goes on as if nothing had been.
    let landed = shop.client.transaction(move |tx| {
        tx.execute(ORDER, [])?;
        let fault = tx.enqueue(with_payload()).unwrap_err();
        assert!(matches!(&fault, Error::Store(StoreFault::Sql(_))), "{fault}");
        tx.enqueue(job())
    });
    assert_eq!(landed.await.unwrap().was, Was::New);
    assert_eq!(shop.there().await, (2, 2));
}

/// Set where somebody has waited for the lock; the application's own code, as it has a thread.
static WAITED: AtomicBool = AtomicBool::new(false);

#[tokio::test]
async fn a_transaction_that_has_not_begun_to_write_waits_for_the_lock_and_then_writes() {
    let mut shop = Shop::open().await;
    let other = Connection::open(&shop.path).unwrap();
    other.execute_batch(&format!("BEGIN IMMEDIATE; {ORDER}")).unwrap();
    shop.app.busy_timeout(Duration::ZERO).unwrap();
    let tx = shop.app.unchecked_transaction().unwrap();
    let busy = shop.client.enqueue_in(&tx, job()).unwrap_err();
    assert!(matches!(busy, Error::Store(StoreFault::Busy)), "{busy}");
    drop(tx);
    // Called while another has the lock; answers whether to go on waiting.
    shop.app
        .busy_handler(Some(|_| {
            WAITED.store(true, Ordering::SeqCst);
            true
        }))
        .unwrap();
    let release = std::thread::spawn(move || {
        while !WAITED.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        other.execute_batch("COMMIT").unwrap();
    });
    let tx = shop.app.transaction().unwrap();
    let made = shop.client.enqueue_in(&tx, job());
    WAITED.store(true, Ordering::SeqCst);
    release.join().unwrap();
    assert_eq!(made.unwrap().was, Was::New);
    tx.commit().unwrap();
    assert_eq!(shop.there().await, (1, 1));
}

#[tokio::test]
async fn a_transaction_that_has_read_before_another_wrote_is_busy_and_may_be_begun_again() {
    let mut shop = Shop::open().await;
    for attempt in 0..2 {
        let tx = shop.app.transaction().unwrap();
        if attempt == 0 {
            let orders: i64 =
                tx.query_row("SELECT count(*) FROM orders", [], |row| row.get(0)).unwrap();
            assert_eq!(orders, 0);
            shop.client.enqueue(job()).await.unwrap();
        }
        match (attempt, shop.client.enqueue_in(&tx, job())) {
            (0, Err(Error::Store(StoreFault::Busy))) => {}
            (1, Ok(made)) => {
                assert_eq!(made.was, Was::New);
                tx.commit().unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(shop.there().await, (0, 2));
}

#[tokio::test]
async fn a_connection_to_another_file_is_refused_before_anything_is_written() {
    let shop = Shop::open().await;
    let other = Shop::open().await;
    let attached = Connection::open(other.dir.path().join("main.db")).unwrap();
    attached.execute("ATTACH ?1 AS shop", [shop.path.to_str().unwrap()]).unwrap();
    let memory = Connection::open_in_memory().unwrap();
    for mut conn in [other.app, memory, attached] {
        let tx = conn.transaction().unwrap();
        let refused = shop.client.enqueue_in(&tx, job()).unwrap_err();
        let text = refused.to_string();
        assert!(matches!(refused, Error::Setup(_)), "{text}");
        assert!(text.contains("connect to the same file"), "{text}");
    }
    // A runtime in memory has no file that another connection could be to.
    let client = Bench::start(BenchSettings::default()).await.unwrap().client;
    let mut memory = Connection::open_in_memory().unwrap();
    let tx = memory.transaction().unwrap();
    assert!(matches!(client.enqueue_in(&tx, job()), Err(Error::Setup(_))));
    assert_eq!(shop.there().await, (0, 0));
}

#[tokio::test]
async fn the_same_file_by_another_name_is_the_same_file() {
    let shop = Shop::open().await;
    let link = shop.dir.path().join("link.db");
    std::os::unix::fs::symlink(&shop.path, &link).unwrap();
    let mut app = Connection::open(&link).unwrap();
    let tx = app.transaction().unwrap();
    assert_eq!(shop.client.enqueue_in(&tx, job()).unwrap().was, Was::New);
    tx.commit().unwrap();
    assert_eq!(shop.there().await, (0, 1));
}

#[tokio::test]
async fn two_files_that_are_gone_are_not_the_same_file() {
    let (shop, mut other) = (Shop::open().await, Shop::open().await);
    let tx = other.app.transaction().unwrap();
    for path in [&shop.path, &other.path] {
        std::fs::rename(path, path.with_extension("gone")).unwrap();
    }
    assert!(matches!(shop.client.enqueue_in(&tx, job()), Err(Error::Setup(_))));
}

#[tokio::test]
async fn a_schema_that_this_code_does_not_know_is_left_alone() {
    let mut shop = Shop::open().await;
    let newer = "UPDATE leasehold_schema SET version = 99, oldest_compatible = 99";
    shop.app.execute(newer, []).unwrap();
    let tx = shop.app.transaction().unwrap();
    let refused = shop.client.enqueue_in(&tx, job()).unwrap_err();
    assert!(matches!(refused, Error::Store(StoreFault::TooNew { oldest_compatible: 99 })));
    tx.execute(ORDER, []).unwrap();
    tx.commit().unwrap();
    assert_eq!(shop.there().await, (1, 0));
    // A file that has lost its tables is damaged, and says so.
    shop.app.execute_batch("DROP VIEW leasehold_jobs; DROP TABLE leasehold_schema").unwrap();
    let tx = shop.app.transaction().unwrap();
    let refused = shop.client.enqueue_in(&tx, job()).unwrap_err();
    assert!(matches!(refused, Error::Store(StoreFault::Corrupt(_))), "{refused}");
}

#[tokio::test]
async fn a_runtime_hears_of_the_commit_and_runs_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shop.db");
    let builder = Runtime::builder(&path).state(Signals::default()).handle(act);
    let runtime = builder.start().await.unwrap();
    let bystander = Bystander::enqueue(&runtime.client()).await;
    let mut app = Connection::open(&path).unwrap();
    let mut ids = Vec::<JobId>::new();
    for job in [Act::Done.into_new(), Act::Done.after(Duration::from_millis(1))] {
        let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        ids.push(runtime.client().enqueue_in(&tx, job).unwrap().id);
        tx.commit().unwrap();
    }
    for id in ids {
        let ended = runtime.wait(id, PATIENCE).await.unwrap();
        assert_eq!((ended.status, ended.epoch), (Status::Completed, 1));
    }
    bystander.check().await;
}
