//! K10: work that is between two places when its process dies, and progress that is lost.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::testing::{Lab, Point};
use leasehold::{
    Client, Ctx, Job, JobResult, Json, Outcome, Refusal, Retry, Runtime, SaveError, Settings,
    Status,
};
use serde::{Deserialize, Serialize};

use super::{LEASE, PATIENCE, START, Talker, bench, hand, place, query, say, scale, seconds};
use crate::support::{Bystander, child_folder, record};

/// As many as in the report.
const DUE: i64 = 503;

/// Writes its id into a list.
#[derive(Serialize, Deserialize)]
struct Listed;

impl Job for Listed {
    const KIND: &'static str = "listed";
}

async fn listed(_: Listed, ctx: Ctx<PathBuf>) -> JobResult {
    static TIMES: AtomicU32 = AtomicU32::new(0);
    let mut list = std::fs::OpenOptions::new().append(true).open(ctx.state())?;
    list.write_all(format!("{}\n", ctx.id()).as_bytes())?;
    say(&format!("ran {}", TIMES.fetch_add(1, Ordering::SeqCst) + 1));
    Ok(Outcome::Done)
}

/// Scheduled jobs whose time has come by every clock but the one that they were written by.
async fn due(folder: &Path) -> (Client, Bystander) {
    std::fs::write(folder.join("list"), "").unwrap();
    let client = bench(&folder.join("jobs.db"), START).await.client;
    let bystander = Bystander::enqueue(&client).await;
    let jobs = (0..DUE).map(|n| Listed.after(seconds(60)).id(format!("job-{n}")));
    client.enqueue_many(jobs).await.unwrap();
    assert_eq!(client.counts().await.unwrap().scheduled, DUE);
    (client, bystander)
}

/// Every job is there once, has completed, and has been in the list.
fn complete(folder: &Path) {
    let path = folder.join("jobs.db");
    let jobs = "SELECT count(DISTINCT id) FROM leasehold_jobs WHERE kind = 'listed'";
    assert_eq!(query::<i64>(&path, jobs), DUE);
    let jobs = "SELECT count(*) FROM leasehold_jobs WHERE kind = 'listed' AND status = 'completed'";
    assert_eq!(query::<i64>(&path, jobs), DUE);
    let mut times = BTreeMap::<String, usize>::new();
    for line in std::fs::read_to_string(folder.join("list")).unwrap().lines() {
        *times.entry(line.to_owned()).or_default() += 1;
    }
    assert_eq!(times.len() as i64, DUE, "each has run");
}

/// The child: serves the list until it is killed.
#[test]
fn child_that_serves_the_list() {
    let Some(folder) = child_folder() else { return };
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    rt.block_on(async {
        let builder = Runtime::builder(folder.join("jobs.db")).state(folder.join("list"));
        let _runtime = builder.handle(listed).slots(8).start().await.unwrap();
        std::future::pending::<()>().await;
    });
}

/// Tasks that had become due were taken from the schedule and then queued one by one: whoever
/// died in between lost the rest (`coleifer/huey#915`).
#[tokio::test]
async fn k10_handoff_a_kill_between_being_due_and_being_run_loses_no_job() {
    let rounds: &[u32] = if scale(0, 1) == 0 { &[1, 300] } else { &[1, 2, 100, 255, 257, 500] };
    for killed_after in rounds {
        let (dir, path) = place();
        let (_client, bystander) = due(dir.path()).await;
        let mut child = Talker::start("handoff::child_that_serves_the_list", dir.path());
        while child.hear("ran ").unwrap().parse::<u32>().unwrap() < *killed_after {}
        child.kill();
        let all = "SELECT count(*) FROM leasehold_job";
        assert_eq!(query::<i64>(&path, all), DUE + 1, "after {killed_after}");
        let builder = Runtime::builder(&path).state(dir.path().join("list")).handle(listed);
        let runtime = builder.slots(8).start().await.unwrap();
        for n in 0..DUE {
            runtime.wait(format!("job-{n}"), PATIENCE).await.unwrap();
        }
        runtime.stop(seconds(5)).await;
        complete(dir.path());
        // The runtime's clock is years ahead of the bystander's, which is only looked at.
        bystander.check().await;
    }
}

/// The same report: an error in between.
#[tokio::test]
async fn k10_handoff_an_error_between_being_due_and_being_run_loses_no_job() {
    for (point, times) in [(Point::Message, 7), (Point::Commit, 7)] {
        let (dir, path) = place();
        let (_client, bystander) = due(dir.path()).await;
        let builder = Runtime::builder(&path).state(dir.path().join("list"));
        let lab = Lab::start(builder.handle(listed).slots(8)).await.unwrap();
        eprintln!("{point:?}");
        lab.faults.arm(point, times);
        lab.advance(seconds(60)).await;
        // A settle whose answer was lost is sent again after a pause.
        while lab.client().counts().await.unwrap().completed < DUE {
            lab.advance(seconds(1)).await;
        }
        assert_eq!(lab.faults.left(point), 0, "{point:?} was met");
        complete(dir.path());
        bystander.check().await;
    }
}

/// Saves, dies, fails, and then says what was saved.
#[derive(Serialize, Deserialize)]
struct Resumes;

impl Job for Resumes {
    const KIND: &'static str = "resumes";

    fn settings() -> Settings {
        Settings::new().retry(Retry::fixed(Duration::from_millis(1)).no_jitter())
    }
}

async fn resumes(_: Resumes, ctx: Ctx) -> JobResult {
    let Some(saved) = ctx.checkpoint::<u32>()? else {
        ctx.save(&15).await?;
        std::process::abort();
    };
    match ctx.attempt() {
        // The claim of the attempt that saved, and this one.
        2 => Err("before its first save")?,
        _ => Ok(Outcome::done_with(&(saved, ctx.idempotency_key()))),
    }
}

/// The child: saves a checkpoint, and aborts.
#[test]
fn child_that_saves_and_dies() {
    let Some(folder) = child_folder() else { return };
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    rt.block_on(async {
        let builder = Runtime::builder(folder.join("jobs.db")).handle(resumes);
        let _runtime = builder.start().await.unwrap();
        std::future::pending::<()>().await;
    });
}

/// After a resume, a failure before the first new save stored an empty cursor over the earlier
/// progress (`Shopify/maintenance_tasks#1036`).
#[tokio::test]
async fn k10_checkpoint_outlives_a_crash_and_an_attempt_that_fails_before_its_first_save() {
    let (dir, path) = place();
    let client = Client::open(&path).await.unwrap();
    let bystander = Bystander::enqueue(&client).await;
    client.enqueue(Resumes.into_new().id("a")).await.unwrap();
    let child = Talker::start("handoff::child_that_saves_and_dies", dir.path());
    assert_eq!(child.end(), None, "it was aborted");
    let saved = "SELECT value FROM leasehold_checkpoints";
    assert_eq!(query::<String>(&path, saved), "15");
    let runtime = Runtime::builder(&path).handle(resumes).start().await.unwrap();
    let job = runtime.wait("a", PATIENCE).await.unwrap();
    assert_eq!((job.status, job.attempts), (Status::Completed, 3));
    assert_eq!(job.last_error.as_deref(), Some("before its first save"));
    assert_eq!(job.result.unwrap().as_str(), r#"[15,"a:1"]"#);
    bystander.check().await;
    runtime.stop(seconds(5)).await;
}

/// The same report: an old attempt that saves late, over what the new one has saved.
#[tokio::test]
async fn k10_checkpoint_of_an_attempt_that_has_lost_its_job_is_refused() {
    let (_dir, path) = place();
    let lab = bench(&path, START).await;
    lab.client.register("hand", Settings::new()).await.unwrap();
    let bystander = Bystander::enqueue(&lab.client).await;
    lab.client.enqueue(hand("a")).await.unwrap();
    let number = |n: i32| Json::of(&n).unwrap();
    let of = |n: i32| [(String::new(), number(n))];
    let first = lab.client.claim_by_id("a", "w1").await.unwrap().unwrap();
    first.checkpoint("", number(15)).await.unwrap();
    lab.clock.advance(LEASE + 1);
    lab.client.reap_once().await.unwrap();
    let second = lab.client.claim_by_id("a", "w2").await.unwrap().unwrap();
    let superseded = Refusal::Superseded {
        held_epoch: first.epoch(),
        current_epoch: second.epoch(),
        owner: Some("w2".into()),
    };
    for expected in [15, 18] {
        let refused = first.checkpoint("", number(10)).await.unwrap_err();
        assert_eq!(refused.refusal(), Some(&superseded));
        assert_eq!(second.load().await.unwrap(), of(expected));
        second.checkpoint("", number(18)).await.unwrap();
    }
    let job = record(&lab.client, &"a".into()).await;
    assert_eq!(job.last_committed_at, Some(START + LEASE + 1));
    bystander.check().await;
}

/// Saves what cannot be saved, and reads what was saved as something else.
#[derive(Serialize, Deserialize)]
struct Strange;

impl Job for Strange {
    const KIND: &'static str = "strange";
}

async fn strange(_: Strange, ctx: Ctx) -> JobResult {
    if ctx.checkpoint::<i64>().is_ok_and(|saved| saved.is_none()) {
        ctx.save(&15).await?;
    }
    for value in ["x".repeat(1 << 20), "[".repeat(129) + &"]".repeat(129)] {
        let json = if value.starts_with('[') {
            serde_json::value::RawValue::from_string(value)?
        } else {
            serde_json::value::to_raw_value(&value)?
        };
        let refused = ctx.save(&json).await;
        assert!(matches!(refused, Err(SaveError::Value(_))), "{refused:?}");
    }
    assert!(matches!(ctx.save(&f64::NAN).await, Err(SaveError::Value(_))));
    let saved: Option<String> = ctx.checkpoint()?;
    Ok(Outcome::done_with(&saved))
}

/// The same report: a checkpoint that cannot be kept or read is an error, and no start from
/// zero.
#[tokio::test]
async fn k10_checkpoint_that_cannot_be_kept_or_read_is_an_error_and_the_last_one_stays() {
    let (_dir, path) = place();
    let lab = Lab::start(Runtime::builder(&path).handle(strange)).await.unwrap();
    let bystander = Bystander::enqueue(&lab.client()).await;
    let id = lab.enqueue(Strange.into_new().max_attempts(3)).await.unwrap();
    lab.settle().await;
    for _ in 0..3 {
        lab.advance(seconds(10)).await;
    }
    let job = lab.job(&id).await.unwrap();
    assert_eq!((job.status, job.attempts), (Status::Failed, 3));
    let error = job.last_error.unwrap();
    assert!(error.starts_with("the checkpoint does not decode"), "{error}");
    let saved = "SELECT group_concat(value) FROM leasehold_checkpoints";
    assert_eq!(query::<String>(&path, saved), "15");
    bystander.check().await;
}
