//! Single faults whose moment is known.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::testing::{Faults, Lab, Point};
use leasehold::{
    Client, Ctx, FencedError, Job, JobResult, Json, NewJob, Outcome, Runtime, Settings, Status,
    StoreFault,
};
use serde::{Deserialize, Serialize};

use crate::disk::{Disk, How, Plan, Sort, Then};
use crate::faults::base;
use crate::platter::lay_out;
use crate::{block_on, folder};

/// From now on, calls fail.
const fn failing(how: How) -> Plan {
    Plan { at: 0, how, then: Then::ForEver }
}

/// Writes once; the commit lands, its answer is lost, and then no file can be opened any more.
#[derive(Serialize, Deserialize)]
struct Unlucky;

impl Job for Unlucky {
    const KIND: &'static str = "unlucky";
}

#[derive(Clone)]
struct Bad {
    disk: Arc<Disk>,
    faults: Faults,
    answer: Arc<Mutex<Option<StoreFault>>>,
}

async fn unlucky(_: Unlucky, ctx: Ctx<Bad>) -> JobResult {
    let Bad { disk, faults, answer } = ctx.state().clone();
    let ours = disk.clone();
    faults.arm(Point::Commit, 1);
    let written = ctx.fenced(move |tx| {
        ours.plan(Some(failing(How::Open)));
        tx.execute("CREATE TABLE written (n INTEGER)", []).map(|_| ())
    });
    if let Err(FencedError::Store(fault)) = written.await {
        *answer.lock().unwrap() = Some(fault);
    }
    disk.pause(true);
    Ok(Outcome::Done)
}

#[test]
fn a_write_whose_answer_was_lost_is_not_said_to_have_failed_where_asking_again_fails() {
    let dir = folder();
    let path = dir.path().join("jobs.db");
    let disk = Disk::of(&path);
    let (faults, answer) = (Faults::default(), Arc::default());
    let bad = Bad { disk: disk.clone(), faults: faults.clone(), answer: Arc::clone(&answer) };
    block_on(async {
        let builder = Runtime::builder(&path).state(bad).handle(unlucky).faults(faults);
        let lab = Lab::start(builder).await.unwrap();
        let id = lab.enqueue(Unlucky).await.unwrap();
        lab.settle().await;
        assert_eq!(lab.job(&id).await.unwrap().status, Status::Completed);
        lab.stop(Duration::from_secs(5)).await;
    });
    disk.let_go();
    let answer = answer.lock().unwrap().take();
    assert!(matches!(answer, Some(StoreFault::Unknown(_))), "{answer:?}");
    let conn = leasehold::rusqlite::Connection::open(&path).unwrap();
    conn.query_row("SELECT count(*) FROM written", [], |_| Ok(())).unwrap();
}

#[test]
fn a_connection_on_which_the_log_could_not_be_written_back_is_replaced() {
    let dir = folder();
    let path = dir.path().join("jobs.db");
    let disk = Disk::of(&path);
    block_on(async {
        let lab = Lab::start(Runtime::builder(&path)).await.unwrap();
        let client = lab.client();
        client.register("hand", Settings::new()).await.unwrap();
        // More than the log may have before each pass of the reaper writes it back.
        let large = Json::of(&"x".repeat(900 << 10)).unwrap();
        let many = (0..6).map(|_| NewJob::raw("hand", Some(large.clone())));
        client.enqueue_many(many).await.unwrap();
        client.enqueue(NewJob::raw("hand", None)).await.unwrap();
        disk.plan(Some(failing(How::Sync)));
        tokio::select! {
            () = lab.advance(Duration::from_secs(1)) => {}
            () = disk.broken() => {}
        }
        assert!(disk.is_broken(), "nothing was written back");
        disk.pause(true);
        client.enqueue(NewJob::raw("hand", None)).await.unwrap();
        assert_eq!((disk.failed_to_sync(), disk.reused()), (true, 0));
        lab.stop(Duration::from_secs(5)).await;
        lab.clock.advance(1_000);
    });
    disk.let_go();
}

#[test]
fn an_open_proves_that_the_file_can_be_written_and_synced() {
    let dir = folder();
    let path = lay_out(&base(), dir.path(), "jobs.db");
    let disk = Disk::of(&path);
    let client = block_on(Client::open(&path)).unwrap();
    let calls = disk.calls();
    assert!(calls.contains(&Sort::Write) && calls.contains(&Sort::Sync), "{calls:?}");
    drop(client);
    disk.let_go();
}
