//! K09: a panic of a handler, a loop or a transaction after which the rest runs on half dead.

use std::time::Duration;

use futures_util::FutureExt;
use leasehold::testing::{Faults, Lab, Point};
use leasehold::{
    Ctx, FencedError, Job, JobResult, ManualClock, Outcome, Policy, Runtime, Status, StoreFault,
    rusqlite,
};
use serde::{Deserialize, Serialize};

use super::{PATIENCE, Talker, by_hand, place, query, say, seconds};
use crate::support::{Act, Bystander, Signals, act, child_folder};

/// Every sort of panic that a handler can have.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Panics {
    Str,
    Text,
    Value,
    AfterAnAwait,
    InATransaction,
    No,
}

impl Job for Panics {
    const KIND: &'static str = "panics";
}

async fn panics(job: Panics, ctx: Ctx) -> JobResult {
    match job {
        Panics::Str => panic!("a str"),
        Panics::Text => panic!("{} {job:?}", "a String"),
        Panics::Value => std::panic::panic_any(7),
        Panics::AfterAnAwait => {
            ctx.sleep(Duration::from_millis(1)).await;
            panic!("after an await")
        }
        Panics::InATransaction => {
            let written = ctx.fenced(|tx| -> rusqlite::Result<()> {
                tx.execute("INSERT INTO mine VALUES (1)", [])?;
                panic!("in a transaction")
            });
            match written.await {
                Err(FencedError::Store(StoreFault::Panicked(text))) => Err(text)?,
                other => Err(format!("{other:?}"))?,
            }
        }
        Panics::No => Ok(Outcome::Done),
    }
}

#[derive(Serialize, Deserialize)]
struct Blocking;

impl Job for Blocking {
    const KIND: &'static str = "blocking";
}

fn blocking(_: Blocking, _: Ctx) -> JobResult {
    panic!("in a blocking closure")
}

/// A panic in one handler took the whole worker down, and no later job was run
/// (`apalis-dev/apalis#639`).
#[tokio::test]
async fn k09_panic_of_any_sort_is_a_failed_attempt_and_the_one_slot_goes_on() {
    let builder = Runtime::in_memory().handle(panics).handle_blocking(blocking).slots(1).threads(1);
    let lab = Lab::start(builder).await.unwrap();
    let bystander = Bystander::enqueue(&lab.client()).await;
    let bad = [Panics::Str, Panics::Text, Panics::Value, Panics::AfterAnAwait];
    let mut ids = Vec::new();
    for job in bad {
        ids.push(lab.enqueue(job.into_new().max_attempts(1)).await.unwrap());
    }
    ids.push(lab.enqueue(Blocking.into_new().max_attempts(1)).await.unwrap());
    let mut good = Vec::new();
    for _ in 0..5 {
        good.push(lab.enqueue(Panics::No).await.unwrap());
    }
    lab.settle().await;
    lab.advance(Duration::from_millis(1)).await;
    let said = [
        "panicked: a str",
        "panicked: a String Text",
        "panicked with a value that is no text",
        "panicked: after an await",
        "panicked: in a blocking closure",
    ];
    for (id, said) in ids.iter().zip(said) {
        let job = lab.job(id).await.unwrap();
        assert_eq!((job.status, job.last_error.as_deref()), (Status::Failed, Some(said)));
        assert_eq!((job.epoch, job.lease_until), (1, None), "its lease was given back");
    }
    for id in good {
        let job = lab.job(&id).await.unwrap();
        assert_eq!((job.status, job.epoch), (Status::Completed, 1));
    }
    let (stats, health) = (lab.runtime.stats(), lab.runtime.health());
    assert_eq!((stats.in_flight, stats.failures, stats.lost), (0, 5, 0));
    assert_eq!((health.restarts, health.zombies), (0, 0));
    bystander.check().await;
}

/// A supervisor does not bring an actor back after a panic, and whoever sent to it later found
/// its mailbox closed (`actix/actix#158`). Here each loop comes back while jobs flow.
#[tokio::test]
async fn k09_panic_of_each_loop_in_turn_while_jobs_flow_loses_none() {
    let (_dir, path) = place();
    let faults = Faults::default();
    let builder = Runtime::builder(&path).state(Signals::default()).handle(act).slots(4);
    let runtime = builder.faults(faults.clone()).start().await.unwrap();
    let bystander = Bystander::enqueue(&runtime.client()).await;
    // While something runs, every loop has something to do.
    let running = runtime.enqueue(Act::UntilAsked).await.unwrap().id;
    let points = [Point::Worker, Point::Reaper, Point::Supervisor, Point::Store];
    for (point, restarts) in points.into_iter().zip(1..) {
        faults.arm(point, 1);
        let flow = (0..25).map(|_| runtime.enqueue(Act::Done));
        let flow = futures_util::future::join_all(flow).await;
        for id in flow {
            let job = runtime.wait(id.unwrap().id, PATIENCE).await.unwrap();
            assert_eq!((job.status, job.attempts), (Status::Completed, 1), "{point:?}");
        }
        while faults.left(point) > 0 || runtime.health().restarts < restarts {
            tokio::task::yield_now().await;
        }
        assert!(runtime.health().is_healthy(), "{point:?}: {:?}", runtime.health());
    }
    runtime.client().cancel(&running, super::by()).await.unwrap();
    let job = runtime.wait(&running, PATIENCE).await.unwrap();
    assert_eq!((job.status, job.epoch), (Status::Cancelled, 1));
    bystander.check().await;
    assert!(runtime.stop(seconds(5)).await.drained);
}

/// The child: a loop that cannot be mended, and a policy for that.
#[test]
fn child_whose_reaper_panics_for_ever() {
    let Some(folder) = child_folder() else { return };
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    rt.block_on(async {
        let (faults, clock) = (Faults::default(), ManualClock::at(0));
        faults.arm(Point::Reaper, u32::MAX);
        let builder = Runtime::builder(folder.join("jobs.db")).state(Signals::default());
        let builder = builder.handle(act).faults(faults).clock(clock.clone());
        let _runtime = builder.when_unhealthy(Policy::Abort).start().await.unwrap();
        say("runs");
        loop {
            clock.advance(100);
            tokio::task::yield_now().await;
        }
    });
}

/// The same report: a runtime that cannot be mended does not stay half dead where it is told
/// not to.
#[test]
fn k09_panic_again_and_again_ends_the_process_where_the_policy_says_so() {
    let (dir, _path) = place();
    let mut child = Talker::start("panicking::child_whose_reaper_panics_for_ever", dir.path());
    child.hear("runs").unwrap();
    assert_eq!(child.end(), None, "it was aborted");
}

/// A connection that was dropped during a panic went back into its pool with the transaction
/// open, and the next user went on in it (`sfackler/r2d2#31`).
#[tokio::test]
async fn k09_panic_lost_commit_and_dropped_future_leave_no_transaction_open() {
    let (_dir, path) = place();
    let lab = Lab::start(Runtime::builder(&path).handle(panics)).await.unwrap();
    let client = lab.client();
    by_hand(&path, "CREATE TABLE mine (n INTEGER)");
    let bystander = Bystander::enqueue(&client).await;
    let mut jobs = 0;
    for round in 0..3 {
        match round {
            0 => {
                let job = Panics::InATransaction.into_new().max_attempts(1);
                let id = lab.enqueue(job).await.unwrap();
                lab.settle().await;
                let error = lab.job(&id).await.unwrap().last_error;
                assert_eq!(error.as_deref(), Some("panicked: in a transaction"));
            }
            1 => {
                lab.faults.arm(Point::Commit, 1);
                lab.enqueue(Panics::No).await.unwrap();
                assert_eq!(lab.faults.left(Point::Commit), 0);
                jobs += 1;
            }
            _ => {
                // It is on its way to the store when nobody waits for it any more.
                assert!(client.enqueue(Panics::No.into_new().id("gone")).now_or_never().is_none());
            }
        }
        // Others can write, from within and from without, and see nothing half done.
        by_hand(&path, "BEGIN IMMEDIATE; CREATE TABLE IF NOT EXISTS yours (n); COMMIT");
        assert_eq!(query::<i64>(&path, "SELECT count(*) FROM mine"), 0);
        let id = lab.enqueue(Panics::No).await.unwrap();
        jobs += 1;
        lab.settle().await;
        assert_eq!(lab.job(&id).await.unwrap().status, Status::Completed, "round {round}");
        bystander.check().await;
    }
    let gone = i64::from(client.job("gone").await.unwrap().is_some());
    assert_eq!(client.counts().await.unwrap().completed, jobs + gone, "all of it, or nothing");
    assert_eq!(lab.runtime.health().restarts, 0);
}
