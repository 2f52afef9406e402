//! K03: attempts that are not counted, or counted where there was none; a row that cannot run
//! and holds up all others.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use leasehold::{
    Client, Ctx, Job, JobResult, Outcome, Retry, Runtime, Settings, Status, Verdict, rusqlite,
};
use serde::{Deserialize, Serialize};

use super::{
    PATIENCE, START, Talker, bench, by_hand, hand, outcomes, place, query, say, scale, seconds,
};
use crate::support::{Bystander, child_folder, record};

/// Takes its process down, or does not.
#[derive(Serialize, Deserialize)]
enum Work {
    Abort,
    Good,
}

impl Job for Work {
    const KIND: &'static str = "work";

    fn settings() -> Settings {
        Settings::new().retry(Retry::fixed(Duration::from_millis(1)).no_jitter())
    }
}

async fn work(job: Work, ctx: Ctx<PathBuf>) -> JobResult {
    if matches!(job, Work::Abort) {
        let mut list = std::fs::OpenOptions::new().append(true).open(ctx.state())?;
        writeln!(list, "{}", ctx.epoch())?;
        std::process::abort();
    }
    Ok(Outcome::Done)
}

/// The child: serves until all jobs have ended, or it is aborted by one of them.
#[test]
fn child_that_jobs_abort() {
    let Some(folder) = child_folder() else { return };
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    rt.block_on(async {
        let builder = Runtime::builder(folder.join("jobs.db")).state(folder.join("list"));
        let runtime = builder.handle(work).start().await.unwrap();
        for id in ["fatal", "good-1", "good-2", "good-3"] {
            runtime.wait(id, PATIENCE).await.unwrap();
        }
        say("done");
        runtime.stop(seconds(5)).await;
    });
}

/// A job that aborts its process, with so many attempts: how it ends, and after how many deaths.
async fn fatal(max_attempts: i64, deaths: i64, verdict: Verdict) {
    let (dir, path) = place();
    std::fs::write(dir.path().join("list"), "").unwrap();
    let client = Client::open(&path).await.unwrap();
    let bystander = Bystander::enqueue(&client).await;
    client.enqueue(Work::Abort.into_new().id("fatal").max_attempts(max_attempts)).await.unwrap();
    let good = (1..=3).map(|n| Work::Good.into_new().id(format!("good-{n}")));
    client.enqueue_many(good).await.unwrap();
    for death in 1.. {
        let mut child = Talker::start("attempts::child_that_jobs_abort", dir.path());
        if child.hear("done").is_some() {
            assert_eq!((death, child.end()), (deaths + 1, Some(0)));
            break;
        }
        assert!(death <= deaths, "it was begun once more");
        let attempts = "SELECT attempts FROM leasehold_jobs WHERE id = 'fatal'";
        assert_eq!(query::<i64>(&path, attempts), death, "counted when it was claimed");
    }
    let job = record(&client, &"fatal".into()).await;
    assert_eq!((job.status, job.verdict, job.attempts), (Status::Failed, Some(verdict), deaths));
    let error = job.last_error.unwrap();
    assert!(error.contains("holder") && error.contains(&deaths.to_string()), "{error}");
    assert_eq!(outcomes(&client, "fatal").await, vec!["lost"; usize::try_from(deaths).unwrap()]);
    let list = std::fs::read_to_string(dir.path().join("list")).unwrap();
    assert_eq!(list.lines().count() as i64, deaths);
    for n in 1..=3 {
        let job = record(&client, &format!("good-{n}").into()).await;
        assert_eq!(job.status, Status::Completed, "beside it all others ran");
    }
    bystander.check().await;
}

/// Only failures that were handled counted: a job that killed its process was ground again and
/// again, each time as if it were new (`vectorize-io/hindsight#2675`).
#[tokio::test]
async fn k03_attempts_a_job_that_aborts_its_process_is_begun_as_often_as_it_may_be() {
    fatal(3, 3, Verdict::AttemptsExhausted).await;
}

/// Requeued orphans had no limit of their own (`oluciano/NexJob#143`): here the fourth loss in a
/// row is the last, however many attempts are left.
#[tokio::test]
async fn k03_attempts_a_job_that_aborts_its_process_is_parked_although_attempts_are_left() {
    fatal(20, 4, Verdict::Poison).await;
}

/// One row whose attempts were spent could be claimed, which broke a constraint and rolled the
/// whole batch back, again and again (`oban-bg/oban#652`).
#[tokio::test]
async fn k03_attempts_a_row_that_cannot_run_fails_no_batch() {
    let (_dir, path) = place();
    let lab = bench(&path, START).await;
    lab.client.register("hand", Settings::new()).await.unwrap();
    let bystander = Bystander::enqueue(&lab.client).await;
    let good = scale(50, 5_000);
    let mut ids: Vec<_> = (0..good).map(|n| format!("good-{n}")).collect();
    ids.insert(good / 2, "spent".to_owned());
    ids.insert(0, "first of all".to_owned());
    lab.client.enqueue_many(ids.iter().map(|id| hand(id))).await.unwrap();
    by_hand(
        &path,
        "UPDATE leasehold_job SET attempts = max_attempts WHERE id IN ('spent', 'first of all')",
    );
    // Nobody can even write a row that may have no attempt at all.
    let none = rusqlite::Connection::open(&path).unwrap();
    let none = none.execute("UPDATE leasehold_job SET max_attempts = 0 WHERE id = 'good-1'", []);
    assert!(none.unwrap_err().to_string().contains("CHECK constraint"), "and it is refused");
    let mut claimed = 0;
    loop {
        let leases = lab.client.claim(&["hand"], "w1", 10).await.unwrap();
        if leases.is_empty() {
            break;
        }
        claimed += leases.len();
        for lease in leases {
            lease.complete(None).await.unwrap();
        }
    }
    assert_eq!(claimed, good);
    for id in ["spent", "first of all"] {
        let job = record(&lab.client, &id.into()).await;
        assert_eq!((job.status, job.verdict), (Status::Failed, Some(Verdict::AttemptsExhausted)));
        assert_eq!((job.attempts, job.epoch), (20, 0), "{id} was never begun");
        assert!(job.last_error.unwrap().contains("20"));
    }
    assert_eq!(lab.client.counts().await.unwrap().completed, good as i64);
    bystander.check().await;
}

/// To put a job off cost an attempt, so that jobs died of waiting (`contribsys/faktory#99`).
#[tokio::test]
async fn k03_attempts_to_put_a_job_off_costs_none() {
    let (_dir, path) = place();
    let lab = bench(&path, START).await;
    lab.client.register("hand", Settings::new()).await.unwrap();
    let bystander = Bystander::enqueue(&lab.client).await;
    lab.client.enqueue(hand("a").max_attempts(1)).await.unwrap();
    for round in 1..=scale(30, 3_000) {
        let lease = lab.client.claim(&["hand"], "w1", 1).await.unwrap().remove(0);
        match round % 3 {
            0 => lease.snooze(seconds(1)).await.unwrap(),
            1 => lease.release().await.unwrap(),
            _ => lease.interrupt().await.unwrap(),
        };
        lab.clock.advance(1_000);
        let job = record(&lab.client, &"a".into()).await;
        assert_eq!((job.attempts, job.stalls, job.epoch), (0, 0, round as i64));
    }
    let lease = lab.client.claim(&["hand"], "w1", 1).await.unwrap().remove(0);
    assert_eq!(lease.complete(None).await.unwrap(), Status::Completed);
    bystander.check().await;
}
