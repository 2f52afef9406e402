//! The disk: what is kept beside the database, and what happens when there is no room.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold::testing::Lab;
use leasehold::{
    Checkpoints, Client, Ctx, Error, Job, JobResult, ManualClock, Migrate, Outcome, Runtime,
    Status, StoreFault,
};
use serde::{Deserialize, Serialize};

use crate::support::{Act, Signals, act, child_folder, spawn_child};

const PATIENCE: Duration = Duration::from_secs(60);

/// A file system of one mebibyte, where this process may mount one.
struct Tiny(tempfile::TempDir);

impl Tiny {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=2m", "leasehold-test"])
            .arg(dir.path())
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then_some(Self(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// Waits until it is told, then is done.
#[derive(Serialize, Deserialize)]
struct Waits;

impl Job for Waits {
    const KIND: &'static str = "waits";
}

async fn waits(_: Waits, ctx: Ctx<Signals>) -> JobResult {
    ctx.state().enter();
    // The last is the test itself.
    let others = if ctx.id().to_string().starts_with("first-") { 60 } else { 1 };
    ctx.state().entered(others + 1).await;
    Ok(Outcome::Done)
}

#[tokio::test]
async fn on_a_full_disk_running_work_still_settles_and_all_goes_on_when_there_is_room() {
    let Some(tiny) = Tiny::mount() else {
        println!("no file system can be mounted here: not tested");
        return;
    };
    let signals = Signals::default();
    let runtime = Runtime::builder(tiny.path().join("jobs.db"))
        .state(signals.clone())
        .handle(waits)
        .start()
        .await
        .unwrap();
    let id = runtime.enqueue(Waits).await.unwrap().id;
    signals.entered(1).await;
    let ballast = tiny.path().join("jobs.db-leasehold/ballast");
    while !ballast.exists() {
        tokio::task::yield_now().await;
    }
    // Somebody else fills the disk to the last byte.
    let filling = tiny.path().join("somebody-elses");
    let mut file = std::fs::File::create(&filling).unwrap();
    while std::io::Write::write(&mut file, &[1; 512]).is_ok_and(|written| written > 0) {}
    signals.enter();
    // The job settles in what the ballast leaves, although nothing else could be written.
    let job = runtime.wait(&id, PATIENCE).await.unwrap();
    assert_eq!((job.status, job.attempts), (Status::Completed, 1));
    // In the end nothing can be enqueued, and it says why.
    let mut jobs = 0;
    let full = loop {
        match runtime.enqueue(leasehold::NewJob::raw("later", None)).await {
            Ok(_) if jobs < 100_000 => jobs += 1,
            other => break other,
        }
    };
    assert!(matches!(full, Err(Error::Store(StoreFault::Full))), "{full:?} after {jobs}");
    while runtime.health().is_healthy() {
        runtime.enqueue(leasehold::NewJob::raw("later", None)).await.unwrap_err();
    }
    drop(file);
    std::fs::remove_file(&filling).unwrap();
    let id = runtime.enqueue(Waits).await.unwrap().id;
    assert_eq!(runtime.wait(id, PATIENCE).await.unwrap().status, Status::Completed);
    while !runtime.health().is_healthy() {
        tokio::task::yield_now().await;
    }
    let counts = runtime.client().counts().await.unwrap();
    assert_eq!((counts.ready, counts.completed), (jobs, 2), "what was acknowledged is there");
}

#[tokio::test]
async fn nothing_is_kept_beside_the_database_where_that_is_switched_off() {
    let dir = tempfile::tempdir().unwrap();
    let builder = Runtime::builder(dir.path().join("jobs.db")).state(Signals::default());
    let runtime = builder.handle(act).no_owner_files().no_ballast().start().await.unwrap();
    let id = runtime.enqueue(Act::Done).await.unwrap().id;
    runtime.wait(id, PATIENCE).await.unwrap();
    assert!(!dir.path().join("jobs.db-leasehold").exists());
}

#[tokio::test]
async fn a_log_that_somebody_else_writes_back_is_left_to_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.db");
    let builder = Runtime::builder(&path).state(Signals::default()).handle(act);
    let runtime = builder.checkpoints(Checkpoints::Never).start().await.unwrap();
    let id = runtime.enqueue(Act::Done).await.unwrap().id;
    runtime.wait(id, PATIENCE).await.unwrap();
    runtime.stop(Duration::from_secs(5)).await;
    assert!(std::fs::metadata(dir.path().join("jobs.db-wal")).unwrap().len() > 0);
}

#[tokio::test]
async fn a_schema_that_the_application_migrates_is_not_touched_until_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.db");
    let start = || {
        let builder = Runtime::builder(&path).state(Signals::default()).handle(act);
        builder.migrate(Migrate::Require).start()
    };
    let refused = start().await.unwrap_err();
    assert!(refused.to_string().contains("run the migrations"), "{refused}");
    let conn = rusqlite::Connection::open(&path).unwrap();
    let tables: i64 =
        conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
    assert_eq!(tables, 0);
    for step in leasehold::migrations() {
        conn.execute_batch(step).unwrap();
    }
    let runtime = start().await.unwrap();
    let id = runtime.enqueue(Act::Done).await.unwrap().id;
    assert_eq!(runtime.wait(id, PATIENCE).await.unwrap().status, Status::Completed);
}

#[tokio::test]
async fn anyone_can_read_the_queue() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.db");
    let client = Client::open(&path).await.unwrap();
    let id = client.enqueue(Act::Done.into_new().tenant("t")).await.unwrap().id;
    let conn = rusqlite::Connection::open(&path).unwrap();
    let row = conn.query_row(
        "SELECT id, kind, queue, status, payload, tenant, attempts, lease_until \
         FROM leasehold_jobs",
        [],
        |row| {
            let text = |n| row.get::<_, String>(n);
            Ok((text(0)?, text(1)?, text(2)?, text(3)?, text(4)?, text(5)?, row.get(6)?))
        },
    );
    let (shown, kind, queue, status, payload, tenant, attempts): (_, _, _, _, _, _, i64) =
        row.unwrap();
    assert_eq!(shown, id.to_string());
    assert_eq!((&*kind, &*queue, &*status, &*tenant), ("act", "default", "pending", "t"));
    assert_eq!((&*payload, attempts), (r#""Done""#, 0));
    let columns = conn.prepare("SELECT * FROM leasehold_jobs").unwrap();
    assert!(!columns.column_names().iter().any(|name| name.contains("token")));
}

#[tokio::test]
async fn a_sweep_of_the_applications_own_runs_in_every_pass_and_harms_no_other() {
    let signals = Signals::default();
    let lab = Lab::start(
        Runtime::in_memory()
            .state(signals)
            .handle(act)
            .sweep("broken", |tx, _| {
                tx.execute("INSERT INTO seen VALUES (-1)", [])?;
                Err("broken as ever".into())
            })
            .sweep("panics", |_, _| panic!("in a sweep"))
            .sweep("seen", |tx, now| {
                tx.execute("CREATE TABLE IF NOT EXISTS seen (at INTEGER)", [])?;
                tx.execute("INSERT INTO seen VALUES (?1)", [now])?;
                Ok(())
            }),
    )
    .await
    .unwrap();
    let report = lab.client().reap_once().await.unwrap();
    assert_eq!((report.errors, report.scanned), (2, 0));
    let id = lab.enqueue(Act::Done).await.unwrap();
    lab.settle().await;
    assert_eq!(lab.job(id).await.unwrap().status, Status::Completed);
    assert!(lab.runtime.health().is_healthy());
}

/// What was logged, from `info` on.
struct Kept(std::sync::Mutex<Vec<String>>);

static KEPT: Kept = Kept(std::sync::Mutex::new(Vec::new()));

impl log::Log for Kept {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Info
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.lock().unwrap().push(format!("{} {}", record.level(), record.args()));
        }
    }

    fn flush(&self) {}
}

/// Moves the clock on until it is so.
async fn until(client: &Client, clock: &ManualClock, mut is_so: impl FnMut() -> bool) {
    let moving = async {
        while !is_so() {
            clock.advance(100);
            client.counts().await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, moving).await.expect("it never came to that");
}

/// The child, whose log is its own: many jobs run when the disk becomes full, and it stays so.
#[test]
fn child_on_a_full_disk() {
    let Some(folder) = child_folder() else { return };
    log::set_logger(&KEPT).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt.block_on(async {
        let (signals, clock) = (Signals::default(), ManualClock::at(1_577_836_800_000));
        let builder = Runtime::builder(folder.join("jobs.db")).state(signals.clone());
        let builder = builder.handle(waits).handle_blocking(blocks).slots(60);
        let runtime = builder.clock(clock.clone()).start().await.unwrap();
        let client = runtime.client();
        client
            .enqueue_many((0..50).map(|n| Waits.into_new().id(format!("first-{n}"))))
            .await
            .unwrap();
        client
            .enqueue_many((0..10).map(|n| Blocks.into_new().id(format!("late-{n}"))))
            .await
            .unwrap();
        signals.entered(60).await;
        until(&client, &clock, || folder.join("jobs.db-leasehold/ballast").exists()).await;
        let mut filling = std::fs::File::create(folder.join("somebody-elses")).unwrap();
        while std::io::Write::write(&mut filling, &[1; 512]).is_ok_and(|written| written > 0) {}
        // Those that end now find room in what the ballast leaves, all of them.
        signals.enter();
        until(&client, &clock, || runtime.stats().completions == 50).await;
        // Then there is none any more, for ten minutes; ten jobs end in them.
        let full = loop {
            if let Err(full) = client.enqueue(leasehold::NewJob::raw("later", None)).await {
                break full;
            }
        };
        assert!(matches!(full, Error::Store(StoreFault::Full)), "{full:?}");
        let before = KEPT.0.lock().unwrap().len();
        signals.open();
        for _ in 0..600 {
            clock.advance(1_000);
            client.counts().await.unwrap();
            // What is refused writes nothing, and is no sign that there is room.
            client.enqueue(leasehold::NewJob::raw("Upper", None)).await.unwrap_err();
            client.cancel("nowhere", leasehold::Operator::named("ann")).await.unwrap_err();
        }
        let lines = KEPT.0.lock().unwrap().split_off(before);
        println!("\n{}", lines.join("\n"));
        assert!(lines.len() <= 20, "{} lines in ten minutes that were all alike", lines.len());
        assert!(!runtime.health().is_healthy());
        drop(filling);
        std::fs::remove_file(folder.join("somebody-elses")).unwrap();
        until(&client, &clock, || runtime.stats().in_flight == 0).await;
        until(&client, &clock, || runtime.health().is_healthy()).await;
        let stats = runtime.stats();
        assert_eq!((stats.completions, stats.lost), (60, 0), "{stats:?}");
        let counts = client.counts().await.unwrap();
        assert_eq!((counts.completed, counts.leased), (60, 0));
        std::process::exit(7);
    });
}

/// A job that blocks its thread until the gate opens.
#[derive(Serialize, Deserialize)]
struct Blocks;

impl Job for Blocks {
    const KIND: &'static str = "blocks";

    fn settings() -> leasehold::Settings {
        leasehold::Settings::new().no_timeout()
    }
}

fn blocks(_: Blocks, ctx: Ctx<Signals>) -> JobResult {
    ctx.state().enter();
    ctx.state().wait_for_gate();
    Ok(Outcome::Done)
}

#[test]
fn a_disk_that_stays_full_is_told_of_once_and_all_that_ran_settles_when_there_is_room() {
    let Some(tiny) = Tiny::mount() else {
        println!("no file system can be mounted here: not tested");
        return;
    };
    let child = spawn_child("disk::child_on_a_full_disk", tiny.path());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(7), "{said}");
}
