//! K12: the log that grows, and files that cannot be written.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::rusqlite::Connection;
use leasehold::{
    Client, Durability, Error, Job, Json, ManualClock, NewJob, Runtime, Status, StoreFault,
};

use super::{PATIENCE, START, place, query, scale, seconds};
use crate::support::{Act, Bystander, Signals, act};

const MIB: u64 = 1 << 20;

fn size(path: &Path, suffix: &str) -> u64 {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    std::fs::metadata(name).map_or(0, |file| file.len())
}

/// Readers that overlapped never let the log be written back, and it grew to 1.7 GB
/// (`superseriousbusiness/gotosocial#2808`). Here readers of ours hold nothing past their answer,
/// health shows the size, and the log is written back as soon as somebody else's reader ends.
#[tokio::test]
async fn k12_log_that_a_reader_holds_is_shown_and_written_back_once_the_reader_ends() {
    let (_dir, path) = place();
    let clock = ManualClock::at(START);
    let builder = Runtime::builder(&path).state(Signals::default()).handle(act);
    let runtime = builder.clock(clock.clone()).start().await.unwrap();
    let client = runtime.client();
    let bystander = Bystander::enqueue(&client).await;
    let large = Json::of(&"x".repeat(100_000)).unwrap();
    let write = async |n: u32| {
        for _ in 0..n {
            let job = NewJob::raw("large", Some(large.clone()));
            client.enqueue(job).await.unwrap();
            client.counts().await.unwrap();
        }
    };
    write(60).await;
    // All of it can be written back and cut off: no read of ours is open.
    assert_eq!(query::<i64>(&path, "PRAGMA wal_checkpoint(TRUNCATE)"), 0);
    assert_eq!(size(&path, "-wal"), 0);

    let reader = Connection::open(&path).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM leasehold_jobs").unwrap();
    let before = size(&path, "");
    write(60).await;
    passes(&client, &clock, || runtime.health().log_bytes > 5 * MIB).await;
    let grown = size(&path, "-wal");
    assert!(grown > 5 * MIB, "{grown}");
    assert!(size(&path, "") < before + 5 * MIB, "the reader still sees the file as it was");

    reader.execute_batch("COMMIT").unwrap();
    passes(&client, &clock, || size(&path, "") > before + 5 * MIB).await;
    write(60).await;
    let after = size(&path, "-wal");
    assert!(after <= grown, "it is written anew from its start: {after} after {grown}");
    bystander.check().await;
    runtime.stop(seconds(5)).await;
    assert_eq!(size(&path, "-wal"), 0, "and a stop cuts it off");
}

/// Writes one mebibyte.
async fn write_some(client: &Client) {
    let large = Json::of(&"x".repeat(100_000)).unwrap();
    let jobs = (0..10).map(|_| NewJob::raw("large", Some(large.clone())));
    client.enqueue_many(jobs).await.unwrap();
}

/// Begins to read, and sees the file as it is now from then on.
fn snapshot(conn: &Connection) {
    conn.execute_batch("BEGIN; SELECT count(*) FROM leasehold_schema").unwrap();
}

/// Has the reaper make its passes until it is so.
async fn passes(client: &Client, clock: &ManualClock, is_so: impl Fn() -> bool) {
    let passing = async {
        while !is_so() {
            clock.advance(1_000);
            client.counts().await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, passing).await.expect("it never came to that");
}

/// The same report: no reader stays, but there is never none.
#[tokio::test]
async fn k12_log_of_readers_that_overlap_all_the_time_stays_small() {
    let (_dir, path) = place();
    let clock = ManualClock::at(START);
    let builder = Runtime::builder(&path).state(Signals::default()).handle(act);
    let runtime = builder.durability(Durability::Normal).clock(clock.clone()).start().await;
    let (runtime, over) = (runtime.unwrap(), Arc::new(AtomicBool::new(false)));
    let client = runtime.client();
    let bystander = Bystander::enqueue(&client).await;
    let (ours, ends) = (path.clone(), over.clone());
    let reader = std::thread::spawn(move || {
        let mut conns = [Connection::open(&ours).unwrap(), Connection::open(&ours).unwrap()];
        snapshot(&conns[0]);
        while !ends.load(Ordering::SeqCst) {
            snapshot(&conns[1]);
            for _ in 0..1_000 {
                let all = "SELECT count(*) FROM leasehold_schema";
                conns[1].prepare_cached(all).unwrap().query_row([], |_| Ok(())).unwrap();
            }
            conns[0].execute_batch("COMMIT").unwrap();
            conns.swap(0, 1);
        }
    });
    let (mut most, mut written) = (0, 0);
    for _ in 0..scale(20, 200) {
        for _ in 0..8 {
            write_some(&client).await;
        }
        written += 8 * MIB;
        most = most.max(size(&path, "-wal"));
        // Until a pass has seen to it.
        let seen_to = || runtime.health().log_bytes.max(size(&path, "-wal")) <= 32 * MIB;
        passes(&client, &clock, seen_to).await;
    }
    over.store(true, Ordering::SeqCst);
    reader.join().unwrap();
    assert!(most < 48 * MIB, "{most} bytes of log for {written}");
    bystander.check().await;
    runtime.stop(seconds(5)).await;
}

/// The same report: what a long read has made of the log does not stay for ever.
#[tokio::test]
async fn k12_log_that_became_huge_is_cut_off_once_the_reader_ends() {
    let (_dir, path) = place();
    let clock = ManualClock::at(START);
    let builder = Runtime::builder(&path).state(Signals::default()).handle(act);
    let runtime = builder.durability(Durability::Normal).clock(clock.clone()).start().await;
    let (runtime, reader) = (runtime.unwrap(), Connection::open(&path).unwrap());
    let client = runtime.client();
    let bystander = Bystander::enqueue(&client).await;
    snapshot(&reader);
    for _ in 0..40 {
        write_some(&client).await;
    }
    passes(&client, &clock, || runtime.health().log_bytes > 40 * MIB).await;
    assert!(runtime.health().is_healthy(), "jobs go on");
    reader.execute_batch("COMMIT").unwrap();
    passes(&client, &clock, || runtime.health().log_bytes < MIB).await;
    assert!(size(&path, "-wal") < MIB);
    bystander.check().await;
    runtime.stop(seconds(5)).await;
}

/// A file system that is taken away with the test.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let this = Self(dir);
        this.mount(&["-t", "tmpfs", "leasehold-test"]).then_some(this)
    }

    fn mount(&self, options: &[&str]) -> bool {
        let mount = Command::new("mount").args(options).arg(self.0.path()).output();
        mount.is_ok_and(|output| output.status.success())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

/// Starts what cannot be started; answers the fault, whose text names the file.
async fn refused(path: &Path) -> StoreFault {
    let builder = Runtime::builder(path).state(Signals::default()).handle(act);
    match builder.start().await.unwrap_err() {
        error @ Error::Open { .. } => {
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
            let Error::Open { fault, .. } = error else { unreachable!() };
            fault
        }
        other => panic!("{other:?}"),
    }
}

/// A database that could only be read was opened without complaint, and then every change of a
/// job failed, hundreds a session (`dcc-mcp/dcc-mcp-core#2474`).
#[tokio::test]
async fn k12_file_on_a_mount_that_may_only_be_read_is_refused_at_the_start() {
    let Some(mounted) = Mounted::new() else {
        println!("no file system can be mounted here: not tested");
        return;
    };
    let path = mounted.0.path().join("jobs.db");
    let start = || Runtime::builder(&path).state(Signals::default()).handle(act).start();
    let runtime = start().await.unwrap();
    let id = runtime.enqueue(Act::Done.into_new().delay(seconds(3_600))).await.unwrap().id;
    runtime.stop(seconds(5)).await;
    drop(runtime);
    let mut left = 1_000_000;
    while !mounted.mount(&["-o", "remount,ro"]) {
        // Its last descriptor is about to be closed.
        left -= 1;
        assert!(left > 0);
    }
    for _ in 0..2 {
        let fault = refused(&path).await;
        assert!(matches!(fault, StoreFault::ReadOnly | StoreFault::Io(_)), "{fault:?}");
    }
    assert!(mounted.mount(&["-o", "remount,rw"]));
    let runtime = start().await.unwrap();
    assert_eq!(runtime.client().job(&id).await.unwrap().unwrap().status, Status::Pending);
    runtime.stop(seconds(5)).await;
}

/// The same report: the files beside the database cannot be made.
#[tokio::test]
async fn k12_file_whose_log_cannot_be_made_is_refused_at_the_start() {
    for beside in ["-shm", "-wal"] {
        let (dir, path) = place();
        let start = || Runtime::builder(&path).state(Signals::default()).handle(act).start();
        // A copy of a database, without a log.
        let (_other, original) = place();
        let runtime = Runtime::builder(&original).state(Signals::default()).handle(act);
        let runtime = runtime.start().await.unwrap();
        let id = runtime.enqueue(Act::Done).await.unwrap().id;
        runtime.wait(&id, PATIENCE).await.unwrap();
        runtime.stop(seconds(5)).await;
        let copy = path.to_str().unwrap();
        Connection::open(&original).unwrap().execute("VACUUM INTO ?1", [copy]).unwrap();
        Connection::open(copy).unwrap().pragma_update(None, "journal_mode", "wal").unwrap();
        let blocked = dir.path().join(format!("jobs.db{beside}"));
        std::fs::create_dir(&blocked).unwrap();
        let before = std::fs::read(&path).unwrap();
        let fault = refused(&path).await;
        let expected = matches!(fault, StoreFault::ReadOnly | StoreFault::Io(_));
        assert!(expected, "{beside}: {fault:?}");
        assert!(std::fs::read(&path).unwrap() == before, "{beside}: nothing was written");
        std::fs::remove_dir(&blocked).unwrap();
        let runtime = start().await.unwrap();
        assert_eq!(runtime.client().job(&id).await.unwrap().unwrap().status, Status::Completed);
        runtime.stop(seconds(5)).await;
    }
}
