//! The stop: bounded whatever handlers do, and honest about what it left behind.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold::testing::{Lab, Point};
use leasehold::{Ctx, JobResult, Outcome, Runtime, Status, StopReason};

use crate::support::{Act, Bystander, Signals, act, child_folder, record, spawn_child};

const GRACE: Duration = Duration::from_millis(200);

/// For stops that end by themselves, however busy the machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Far above what a stop may take beyond its grace, so that a busy machine does not matter.
const BOUND: Duration = Duration::from_secs(5);

fn blocks(_: Act, ctx: Ctx<Signals>) -> JobResult {
    ctx.state().enter();
    ctx.state().wait_for_gate();
    Ok(Outcome::Done)
}

#[tokio::test]
async fn a_stop_returns_whatever_handlers_do_and_names_those_that_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let signals = Signals::default();
    let runtime = Runtime::builder(dir.path().join("jobs.db"))
        .state(signals.clone())
        .handle(act)
        .slots(8)
        .start()
        .await
        .unwrap();
    let client = runtime.client();
    let bystander = Bystander::enqueue(&client).await;
    let mut stuck = BTreeSet::new();
    // Two that block; one that spins is in a process of its own, below.
    for job in [Act::Block, Act::Block] {
        stuck.insert(runtime.enqueue(job).await.unwrap().id);
    }
    // So that no other is started on their threads.
    signals.entered(2).await;
    let never_wakes = runtime.enqueue(Act::Hang).await.unwrap().id;
    let asked = runtime.enqueue(Act::UntilAsked).await.unwrap().id;
    signals.entered(4).await;

    let report = tokio::time::timeout(GRACE + BOUND, runtime.stop(GRACE)).await.unwrap();

    assert!(!report.drained);
    let left: BTreeSet<_> = report.in_flight.iter().map(|left| left.job.clone()).collect();
    assert_eq!(left, stuck);
    assert!(report.in_flight.iter().all(|left| &*left.kind == "act"));
    assert!(report.in_flight.iter().all(|left| left.running_for >= GRACE));
    assert_eq!((report.handed_back, &report.stuck_in_store), (2, &None));
    for id in &stuck {
        let job = record(&client, id).await;
        assert_eq!((job.status, job.attempts), (Status::Running, 1));
    }
    // Cut off at the deadline: as if it had never been claimed.
    let job = record(&client, &never_wakes).await;
    assert_eq!((job.status, job.attempts, job.stalls, job.seq), (Status::Pending, 0, 0, 0));
    let job = record(&client, &asked).await;
    assert_eq!((job.status, job.attempts, job.interruptions), (Status::Pending, 0, 1));
    assert_eq!(signals.reasons(), [StopReason::Stopping]);
    bystander.check().await;

    // What ends after the stop changes nothing any more.
    signals.open();
    let again = runtime.stop(Duration::ZERO).await;
    assert_eq!(again, report, "a second stop joins the first");
}

#[tokio::test]
async fn a_blocking_handler_that_does_not_end_keeps_its_row_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let signals = Signals::default();
    let runtime = Runtime::builder(dir.path().join("jobs.db"))
        .state(signals.clone())
        .handle_blocking(blocks)
        .start()
        .await
        .unwrap();
    let client = runtime.client();
    let id = runtime.enqueue(Act::Done).await.unwrap().id;
    signals.entered(1).await;
    let report = tokio::time::timeout(GRACE + BOUND, runtime.stop(GRACE)).await.unwrap();
    assert_eq!(report.in_flight.len(), 1);
    assert_eq!(report.in_flight[0].job, id);
    signals.open();
    assert_eq!(record(&client, &id).await.status, Status::Running);
}

#[tokio::test]
async fn a_stop_returns_although_application_code_never_leaves_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let signals = Signals::default();
    let runtime = Runtime::builder(dir.path().join("jobs.db"))
        .state(signals.clone())
        .handle(act)
        .code_limit(Duration::from_millis(1))
        .start()
        .await
        .unwrap();
    let id = runtime.enqueue(Act::StickInStore).await.unwrap().id;
    signals.entered(1).await;
    while runtime.health().is_healthy() {
        tokio::task::yield_now().await;
    }
    let troubles = runtime.health().troubles;
    assert!(troubles[0].contains("stuck in a fenced write of kind act"), "{troubles:?}");
    let report = tokio::time::timeout(GRACE + BOUND, runtime.stop(GRACE)).await.unwrap();
    assert_eq!(report.in_flight.iter().map(|left| &left.job).collect::<Vec<_>>(), [&id]);
    let what = report.stuck_in_store.unwrap();
    assert!(what.contains("act") && what.contains(&id.to_string()), "{what}");
    signals.open();
}

#[tokio::test]
async fn a_wait_ends_at_its_deadline_although_the_store_does_not_answer() {
    let signals = Signals::default();
    let builder = Runtime::in_memory().state(signals.clone()).handle(act);
    let runtime = builder.start().await.unwrap();
    let id = runtime.enqueue(Act::StickInStore).await.unwrap().id;
    signals.entered(1).await;
    let wait = runtime.wait(&id, Duration::from_millis(10));
    let waited = tokio::time::timeout(BOUND, wait).await;
    signals.open();
    assert!(matches!(waited.unwrap(), Err(leasehold::Error::Deadline { id: late }) if late == id));
}

/// The child: every sort of stuck handler, a stop, and the end of `main`.
#[test]
fn child_with_stuck_handlers() {
    let Some(folder) = child_folder() else { return };
    let signals = Signals::default();
    let runtime = Runtime::builder(folder.join("jobs.db"))
        .state(signals.clone())
        .handle(act)
        .slots(8)
        .start_blocking()
        .unwrap();
    for job in [Act::Block, Act::Spin, Act::Hang, Act::StickInStore] {
        runtime.enqueue_blocking(job).unwrap();
    }
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(signals.entered(4));
    let report = runtime.stop_blocking(GRACE);
    println!("left {}", report.in_flight.len());
    std::process::exit(7);
}

#[test]
fn a_process_whose_handlers_are_stuck_can_exit() {
    let dir = tempfile::tempdir().unwrap();
    let child = spawn_child("stopping::child_with_stuck_handlers", dir.path());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    let said = String::from_utf8(output.stdout).unwrap();
    // The one that never wakes was dropped, but the store cannot take its release.
    assert!(said.contains("left 4"), "{said}");
}

#[tokio::test]
async fn a_start_after_a_stop_goes_on_where_the_first_left_off() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.db");
    let signals = Signals::default();
    let start = || Runtime::builder(&path).state(signals.clone()).handle(act).slots(1).start();
    let first = start().await.unwrap();
    let id = first.enqueue(Act::UntilAsked).await.unwrap().id;
    let waiting = first.enqueue(Act::Done).await.unwrap().id;
    signals.entered(1).await;
    assert!(first.stop(PATIENCE).await.drained);
    assert_eq!(record(&first.client(), &waiting).await.attempts, 0);
    let second = start().await.unwrap();
    assert_ne!(first.owner(), second.owner());
    signals.entered(2).await;
    second.client().cancel(&id, leasehold::Operator::named("test")).await.unwrap();
    let job = second.wait(&id, Duration::from_secs(30)).await.unwrap();
    assert_eq!(job.status, Status::Cancelled);
    assert_eq!(second.wait(&waiting, Duration::from_secs(30)).await.unwrap().attempts, 1);
    assert!(second.stop(PATIENCE).await.drained);
    let files = std::fs::read_dir(dir.path().join("jobs.db-leasehold")).unwrap();
    let names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    assert_eq!(names, ["ballast"], "an orderly stop leaves no lock file behind");
    let log = std::fs::metadata(dir.path().join("jobs.db-wal")).map_or(0, |file| file.len());
    assert_eq!(log, 0, "and all is in the database file itself");
}

#[tokio::test]
async fn dropping_the_last_handle_stops_without_blocking() {
    let dir = tempfile::tempdir().unwrap();
    let signals = Signals::default();
    let builder = Runtime::builder(dir.path().join("jobs.db"));
    let runtime = builder.state(signals.clone()).handle(act).start().await.unwrap();
    let client = runtime.client();
    let id = runtime.enqueue(Act::UntilAsked).await.unwrap().id;
    signals.entered(1).await;
    drop(runtime);
    while record(&client, &id).await.status != Status::Pending {
        tokio::task::yield_now().await;
    }
    assert_eq!(record(&client, &id).await.interruptions, 1);
}

#[tokio::test]
async fn a_quiet_runtime_claims_no_more_and_lets_what_runs_go_on() {
    let signals = Signals::default();
    let builder = Runtime::in_memory().state(signals.clone()).handle(act).slots(2);
    let lab = Lab::start(builder).await.unwrap();
    let first = lab.enqueue(Act::Sleep(1_000)).await.unwrap();
    lab.settle().await;
    lab.runtime.quiet();
    let second = lab.enqueue(Act::Done).await.unwrap();
    lab.advance(Duration::from_secs(1)).await;
    assert_eq!(lab.job(&first).await.unwrap().status, Status::Completed);
    assert_eq!(lab.job(&second).await.unwrap().attempts, 0);
    assert_eq!(signals.times(), 1);
}

#[tokio::test]
async fn a_lab_stops_while_a_settle_waits_to_be_sent_again() {
    let builder = Runtime::in_memory().state(Signals::default()).handle(act);
    let lab = Lab::start(builder).await.unwrap();
    // Its end falls between two ticks, and so does the time when it is sent again.
    let id = lab.enqueue(Act::Sleep(10)).await.unwrap();
    lab.settle().await;
    lab.faults.arm(Point::Commit, 1);
    lab.advance(Duration::from_millis(10)).await;
    let report = tokio::time::timeout(PATIENCE, lab.stop(Duration::from_secs(5))).await.unwrap();
    assert!(report.drained);
    assert_eq!(lab.job(&id).await.unwrap().status, Status::Completed);
}

/// The child: runtimes come and go, and the process is as before.
#[cfg(target_os = "linux")]
#[test]
fn child_that_counts_its_threads() {
    let Some(folder) = child_folder() else { return };
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    for _ in 0..3 {
        let builder = Runtime::builder(folder.join("jobs.db")).state(Signals::default());
        let runtime = builder.handle(act).start_blocking().unwrap();
        let id = runtime.enqueue_blocking(Act::Done).unwrap().id;
        let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let job = rt.block_on(runtime.wait(id, Duration::from_secs(30))).unwrap();
        assert_eq!(job.status, Status::Completed);
        assert!(runtime.stop_blocking(PATIENCE).drained);
    }
    let gone = async {
        while threads() > before {
            tokio::task::yield_now().await;
        }
    };
    let rt = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let gone = rt.block_on(async { tokio::time::timeout(2 * BOUND, gone).await });
    assert!(gone.is_ok(), "{} threads, and {before} before", threads());
    std::process::exit(7);
}

#[cfg(target_os = "linux")]
#[test]
fn runtimes_that_have_stopped_leave_no_thread_behind() {
    let dir = tempfile::tempdir().unwrap();
    let child = spawn_child("stopping::child_that_counts_its_threads", dir.path());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(7));
}
