//! K08: a stop that one deaf handler holds up, or that leaves places taken behind.

use std::time::Duration;

use leasehold::{Client, Ctx, Job, JobResult, Json, Outcome, Runtime, Settings, Status};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use super::{PATIENCE, Talker, by, listen, place, say, seconds};
use crate::support::{Act, Bystander, Signals, act, child_folder, record};

/// Saves how far it is, then works until it is asked to stop.
#[derive(Serialize, Deserialize)]
struct Cooperative;

impl Job for Cooperative {
    const KIND: &'static str = "cooperative";

    fn settings() -> Settings {
        Settings::new().concurrency(1)
    }
}

async fn cooperative(_: Cooperative, ctx: Ctx<Signals>) -> JobResult {
    if ctx.checkpoint::<u32>()?.is_none() {
        ctx.save(&7).await?;
    }
    ctx.state().enter();
    ctx.cancelled().await;
    Ok(Outcome::Yield)
}

/// Blocks the thread that it has.
#[derive(Serialize, Deserialize)]
struct Blocks;

impl Job for Blocks {
    const KIND: &'static str = "blocks";
}

fn blocks(_: Blocks, ctx: Ctx<Signals>) -> JobResult {
    ctx.state().enter();
    ctx.state().wait_for_gate();
    Ok(Outcome::Done)
}

/// The child: a handler that listens, one that waits for ever, and one that blocks its thread;
/// each SIGTERM asks for a stop.
#[test]
fn child_with_deaf_handlers() {
    let Some(folder) = child_folder() else { return };
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = rt.block_on(async {
        let signals = Signals::default();
        let builder = Runtime::builder(folder.join("jobs.db")).state(signals.clone());
        let builder = builder.handle(act).handle(cooperative).handle_blocking(blocks);
        let runtime = builder.slots(8).start().await.unwrap();
        runtime.enqueue(Cooperative.into_new().id("listens")).await.unwrap();
        runtime.enqueue(Act::Hang.into_new().id("waits")).await.unwrap();
        runtime.enqueue(Blocks.into_new().id("blocks")).await.unwrap();
        signals.entered(3).await;
        let mut term = signal(SignalKind::terminate()).unwrap();
        say("ready");
        term.recv().await;
        let stop = runtime.stop(Duration::from_millis(200));
        let again = async {
            term.recv().await;
            say("again");
            runtime.stop(Duration::from_secs(100_000)).await
        };
        tokio::select! { report = stop => report, report = again => report }
    });
    let left: Vec<_> = report.in_flight.iter().map(|left| left.job.to_string()).collect();
    say(&format!("left {} {}", left.join(" "), report.handed_back));
    std::process::exit(3);
}

/// A stop with a deadline waited for a handler that never looked, and left the job running
/// (`riverqueue/river#78`). Told again, it does not begin its time anew.
#[tokio::test]
async fn k08_shutdown_ends_by_its_deadline_whatever_handlers_do_and_however_often_it_is_asked_for()
{
    for signals in [1, 2] {
        let (dir, path) = place();
        let client = Client::open(&path).await.unwrap();
        let bystander = Bystander::enqueue(&client).await;
        let mut child = Talker::start("shutdown::child_with_deaf_handlers", dir.path());
        child.hear("ready").unwrap();
        child.signal("TERM");
        if signals == 2 {
            child.signal("TERM");
        }
        let report = child.hear("left").unwrap();
        assert_eq!(report, "blocks 2", "what was abandoned is named, two were handed back");
        assert_eq!(child.end(), Some(3));
        for (id, interruptions) in [("listens", 1), ("waits", 0)] {
            let job = record(&client, &id.into()).await;
            let expected = (Status::Pending, 0, interruptions);
            assert_eq!((job.status, job.attempts, job.interruptions), expected, "{id}");
        }
        let job = record(&client, &"blocks".into()).await;
        assert_eq!((job.status, job.attempts, job.epoch), (Status::Running, 1, 1));
        let saved = client.claim_by_id("listens", "w").await.unwrap().unwrap();
        assert_eq!(saved.load().await.unwrap(), [(String::new(), Json::of(&7).unwrap())]);
        saved.complete(None).await.unwrap();
        client.cancel("waits", by()).await.unwrap();
        // Its process is gone, so the next start takes what it had to leave.
        let gate = Signals::default();
        gate.open();
        let next = Runtime::builder(&path).state(gate).handle_blocking(blocks);
        let next = next.start().await.unwrap();
        let job = next.wait("blocks", PATIENCE).await.unwrap();
        assert_eq!((job.status, job.attempts, job.stalls), (Status::Completed, 2, 1));
        bystander.check().await;
        next.stop(seconds(5)).await;
    }
}

/// The child: one job at a time, until a signal, or until the runtime is dropped.
#[test]
fn child_that_hands_back() {
    let Some(folder) = child_folder() else { return };
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt.block_on(async {
        let signals = Signals::default();
        let builder = Runtime::builder(folder.join("jobs.db")).state(signals.clone());
        let builder = builder.handle(cooperative).slots(1).stop_on_signals();
        let runtime = builder.start().await.unwrap();
        signals.entered(1).await;
        say("runs");
        if listen() == "drop" {
            let client = runtime.client();
            drop(runtime);
            while record(&client, &"a".into()).await.status == Status::Running {}
        } else {
            assert!(runtime.stopped().await.drained);
        }
    });
    std::process::exit(3);
}

/// On SIGTERM the way out skipped the books: rows stayed picked, and with one place in all
/// nothing else was ever taken (`janbjorge/pgqueuer#630`).
#[tokio::test]
async fn k08_shutdown_hands_back_at_no_cost_and_the_place_is_free_at_the_next_start() {
    let (dir, path) = place();
    let client = Client::open(&path).await.unwrap();
    client.enqueue(Cooperative.into_new().id("a").max_attempts(1)).await.unwrap();
    let bystander = Bystander::enqueue(&client).await;
    for (how, times) in ["TERM", "INT", "drop", "TERM"].into_iter().zip(1..) {
        let mut child = Talker::start("shutdown::child_that_hands_back", dir.path());
        child.hear("runs").unwrap();
        let job = record(&client, &"a".into()).await;
        assert_eq!((job.status, job.epoch), (Status::Running, times), "{how}");
        child.tell(how);
        if how != "drop" {
            child.signal(how);
        }
        assert_eq!(child.end(), Some(3), "{how}");
        let job = record(&client, &"a".into()).await;
        assert_eq!((job.status, job.attempts, job.stalls), (Status::Pending, 0, 0), "{how}");
        assert_eq!((job.interruptions, job.redrives, job.epoch), (times, 0, times), "{how}");
        assert!(job.run_at <= job.updated_at, "{how}: it is due at once");
    }
    bystander.check().await;
}
