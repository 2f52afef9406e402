//! Jobs through the whole runtime, on the real clock and a real file.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{
    Builder, Client, Ctx, Job, JobRecord, JobResult, Outcome, Retry, Runtime, Settings, Status,
    rusqlite,
};
use serde::{Deserialize, Serialize};

use crate::support::{child_folder, spawn_child};

#[derive(Serialize, Deserialize)]
struct Noop {
    n: u32,
}

impl Job for Noop {
    const KIND: &'static str = "noop";
    fn settings() -> Settings {
        Settings::new().retry(Retry::fixed(Duration::from_millis(1)).attempts(3))
    }
}

type Seen = Arc<Mutex<HashMap<u32, u32>>>;

async fn noop(job: Noop, ctx: Ctx<Seen>) -> JobResult {
    *ctx.state().lock().unwrap().entry(job.n).or_default() += 1;
    Ok(Outcome::Done)
}

async fn panics_every_third(job: Noop, ctx: Ctx<Seen>) -> JobResult {
    *ctx.state().lock().unwrap().entry(job.n).or_default() += 1;
    assert!(!job.n.is_multiple_of(3), "every third");
    Ok(Outcome::Done)
}

/// Runs a thousand jobs, eight at a time, to their ends.
async fn a_thousand(builder: Builder<Seen>) -> (Runtime, Vec<JobRecord>) {
    let runtime = builder.slots(8).start().await.unwrap();
    let jobs = (0..1_000).map(|n| Noop { n });
    let mut ended = Vec::new();
    for id in runtime.client().enqueue_many(jobs).await.unwrap() {
        ended.push(runtime.wait(id.unwrap().id, Duration::from_secs(60)).await.unwrap());
    }
    (runtime, ended)
}

#[tokio::test]
async fn a_thousand_jobs_at_eight_at_a_time_each_run_once() {
    let dir = tempfile::tempdir().unwrap();
    let seen = Seen::default();
    let builder = Runtime::builder(dir.path().join("jobs.db")).state(seen.clone());
    let (runtime, jobs) = a_thousand(builder.handle(noop)).await;
    for job in jobs {
        assert_eq!((job.status, job.attempts, job.epoch), (Status::Completed, 1, 1));
    }
    assert_eq!(seen.lock().unwrap().len(), 1_000);
    assert!(seen.lock().unwrap().values().all(|times| *times == 1));
    assert!(runtime.stop(Duration::from_secs(5)).await.drained);
}

#[tokio::test]
async fn a_thousand_jobs_of_which_every_third_panics_all_end() {
    let dir = tempfile::tempdir().unwrap();
    let seen = Seen::default();
    let builder = Runtime::builder(dir.path().join("jobs.db")).state(seen.clone());
    let (runtime, jobs) = a_thousand(builder.handle(panics_every_third)).await;
    for (n, job) in jobs.into_iter().enumerate() {
        let expected = if n % 3 == 0 { Status::Failed } else { Status::Completed };
        assert_eq!(job.status, expected, "{n}");
    }
    let counts = runtime.client().counts().await.unwrap();
    assert_eq!((counts.completed, counts.dead), (666, 334));
    assert_eq!(runtime.health().restarts, 0);
    assert!(runtime.health().is_healthy());
    assert!(runtime.stop(Duration::from_secs(5)).await.drained);
}

async fn asleep(_: Noop, ctx: Ctx) -> JobResult {
    ctx.sleep(Duration::from_millis(5)).await;
    Ok(Outcome::Done)
}

#[tokio::test]
async fn every_sort_of_handler_can_sleep_on_the_runtimes_clock() {
    let blocking = |job: Noop, ctx: Ctx| ctx.block_on(asleep(job, ctx.clone()));
    let here = tokio::runtime::Handle::current();
    let runtimes = [
        Runtime::in_memory().handle(asleep).start().await.unwrap(),
        Runtime::in_memory().handle_blocking(blocking).start().await.unwrap(),
        Runtime::in_memory().handlers_on(here).handle(asleep).start().await.unwrap(),
    ];
    for runtime in runtimes {
        let job = runtime.enqueue(Noop { n: 1 }).await.unwrap();
        let ended = runtime.wait(job.id, Duration::from_secs(10)).await.unwrap();
        assert_eq!((ended.status, ended.last_error), (Status::Completed, None));
        runtime.stop(Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn whoever_holds_a_runtime_hears_that_it_has_stopped() {
    let runtime = Runtime::in_memory().handle(asleep).start().await.unwrap();
    let other = runtime.clone();
    let (heard, stopped) = tokio::join!(runtime.stopped(), other.stop(Duration::from_secs(5)));
    assert!(stopped.drained);
    assert_eq!((&heard, &runtime.stopped().await), (&stopped, &stopped));
}

#[test]
fn a_file_that_somebody_writes_just_then_is_waited_for_when_it_is_opened_first() {
    for _ in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.db");
        let writer = rusqlite::Connection::open(&path).unwrap();
        writer.execute_batch("CREATE TABLE mine (n)").unwrap();
        writer.busy_timeout(Duration::from_secs(60)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for n in 0..50 {
                    writer.execute("INSERT INTO mine VALUES (?1)", [n]).unwrap();
                }
            });
            Client::open_blocking(&path).unwrap();
        });
    }
}

/// The child: a relative path, and a process that then goes to another folder.
#[test]
fn child_that_changes_its_folder() {
    let Some(folder) = child_folder() else { return };
    let other = folder.join("other");
    std::fs::create_dir(&other).unwrap();
    std::env::set_current_dir(&folder).unwrap();
    let runtime = Runtime::builder("jobs.db").state(Seen::default()).handle(noop);
    let faults = leasehold::testing::Faults::default();
    let runtime = runtime.faults(faults.clone()).start_blocking().unwrap();
    let client = Client::open_blocking("jobs.db").unwrap();
    std::env::set_current_dir(&other).unwrap();
    // The store opens the file again after this.
    runtime.quiet();
    faults.arm(leasehold::testing::Point::Commit, 1);
    let id = runtime.enqueue_blocking(Noop { n: 1 }).unwrap().id;
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(rt.block_on(client.job(id)).unwrap().unwrap().status, Status::Pending);
    assert_eq!(std::fs::read_dir(&other).unwrap().count(), 0);
    std::process::exit(7);
}

#[test]
fn a_relative_path_stays_the_same_file_although_the_process_changes_its_folder() {
    let dir = tempfile::tempdir().unwrap();
    let child = spawn_child("running::child_that_changes_its_folder", dir.path());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(7));
}
