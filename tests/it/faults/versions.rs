//! K13: old files, mixed versions, and many first starts at once.

use std::time::Duration;

use leasehold::testing::Lab;
use leasehold::{
    Client, Ctx, Hooks, Job, JobResult, ManualClock, NewJob, Outcome, Phase, Retry, Runtime,
    Settings, Status, Verdict, Waiting,
};
use serde::{Deserialize, Serialize};

use super::{LEASE, START, Talker, bench, by_hand, place, query, say, scale, seconds};
use crate::support::{Act, Bystander, Signals, act, child_folder, record};

/// After an upgrade the rows of the old version were ignored without a word (`que-rb/que#429`).
/// The file is of the first release, written out once and for all.
#[tokio::test]
async fn k13_versions_every_job_in_a_file_of_the_first_release_runs() {
    let (_dir, path) = place();
    by_hand(&path, leasehold::migrations()[0]);
    by_hand(&path, include_str!("release-0.1.sql"));
    let signals = Signals::default();
    let builder = Runtime::builder(&path).state(signals.clone()).handle(act);
    let clock = ManualClock::at(START + LEASE + 1);
    let lab = Lab::start_with(builder, clock, 1).await.unwrap();
    let before = format!("{:?}", lab.job("bystander").await.unwrap());
    lab.settle().await;
    lab.advance(seconds(24 * 3_600)).await;
    let minted = "016f5e66-e800-715c-8289-2ec2d0a91670";
    for (id, attempts, epoch) in [
        ("ready-1", 1, 1),
        ("ready-2", 1, 1),
        (minted, 1, 1),
        ("scheduled-1", 1, 1),
        ("scheduled-2", 1, 1),
        ("running", 2, 3),
        ("retrying", 2, 2),
    ] {
        let job = lab.job(id).await.unwrap();
        assert_eq!((job.status, job.attempts, job.epoch), (Status::Completed, attempts, epoch));
        assert_eq!(job.payload.unwrap().as_str(), "\"Done\"", "{id}");
    }
    assert_eq!(signals.times(), 7, "and what had completed has not run again");
    let job = lab.job("completed").await.unwrap();
    assert_eq!(job.result.unwrap().as_str(), r#"{"kept": 18446744073709551615}"#);
    assert_eq!(format!("{:?}", lab.job("bystander").await.unwrap()), before);
    assert_eq!(query::<String>(&path, "PRAGMA integrity_check"), "ok");
}

/// A kind that only some processes know.
#[derive(Serialize, Deserialize)]
struct Newer;

impl Job for Newer {
    const KIND: &'static str = "newer";

    fn settings() -> Settings {
        Settings::new().retry(Retry::fixed(Duration::from_secs(1)).attempts(2))
    }
}

async fn newer(_: Newer, ctx: Ctx<Signals>) -> JobResult {
    ctx.state().enter();
    Ok(Outcome::Done)
}

/// A worker that did not know a job's kind threw it away when it rescued it
/// (`riverqueue/river#1105`), or dropped it in a rolling deploy (`chrisguidry/docket#437`).
#[tokio::test]
async fn k13_versions_a_kind_that_is_not_known_here_is_neither_run_nor_ended_here() {
    let (_dir, path) = place();
    let clock = ManualClock::at(START);
    let old = Runtime::builder(&path).no_owner_files().state(Signals::default()).handle(act);
    let old = Lab::start_with(old, clock.clone(), 1).await.unwrap();
    let client = old.client();
    client.enqueue(NewJob::raw("newest", None).id("of nobody")).await.unwrap();
    client.enqueue(Newer.into_new().id("ready")).await.unwrap();
    client.enqueue(Newer.into_new().id("running").max_attempts(1)).await.unwrap();
    client.enqueue(Newer.into_new().id("lost")).await.unwrap();
    client.enqueue(Act::Done.into_new().id("known")).await.unwrap();
    assert_eq!(client.why_waiting("ready").await.unwrap().reason, Waiting::NotRegistered);
    // A process of the new version came, took two, and is gone.
    client.register(Newer::KIND, Newer::settings()).await.unwrap();
    for id in ["running", "lost"] {
        assert!(client.claim_by_id(id, "gone").await.unwrap().is_some());
    }
    for _ in 0..60 {
        old.advance(seconds(1)).await;
    }
    assert_eq!(old.job("known").await.unwrap().status, Status::Completed);
    for (id, phase, attempts) in
        [("of nobody", Phase::Ready, 0), ("ready", Phase::Ready, 0), ("lost", Phase::Ready, 1)]
    {
        let job = old.job(id).await.unwrap();
        assert_eq!((job.phase, job.attempts), (phase, attempts), "{id}");
    }
    // By the row, and not for want of a handler: its one attempt was spent.
    let job = old.job("running").await.unwrap();
    assert_eq!((job.phase, job.verdict), (Phase::Dead, Some(Verdict::AttemptsExhausted)));
    assert_eq!(client.counts().await.unwrap().kinds, {
        [("newest".to_owned(), 1), ("newer".to_owned(), 2)].into()
    });
    assert_eq!(client.why_waiting("of nobody").await.unwrap().reason, Waiting::NotRegistered);
    let signals = Signals::default();
    let new = Runtime::builder(&path).no_owner_files().state(signals.clone()).handle(newer);
    let new = Lab::start_with(new, clock, 2).await.unwrap();
    new.settle().await;
    for (id, attempts) in [("ready", 1), ("lost", 2)] {
        let job = new.job(id).await.unwrap();
        assert_eq!((job.status, job.attempts), (Status::Completed, attempts), "{id}");
    }
    assert_eq!((signals.times(), old.runtime.stats().claims), (2, 1));
}

/// The same report, for a kind whose end needs code that is not here.
#[tokio::test]
async fn k13_versions_a_job_whose_hooks_are_elsewhere_keeps_its_ending_until_they_are_here() {
    let (_dir, path) = place();
    let hooks = || Hooks::new().on_transition(|_, _| Ok(1)).on_redrive(|_, _| Ok(1));
    let clock = ManualClock::at(START);
    let start = |seed, hooked: bool| {
        let builder = Runtime::builder(&path).no_owner_files().state(Signals::default());
        let builder = builder.handle(newer);
        let builder = if hooked { builder.hooks::<Newer>(hooks()) } else { builder };
        Lab::start_with(builder, clock.clone(), seed)
    };
    let with_hooks = start(1, true).await.unwrap();
    with_hooks.runtime.quiet();
    let client = bench(&path, START).await.client;
    let bystander = Bystander::enqueue(&client).await;
    client.enqueue(Newer.into_new().id("a")).await.unwrap();
    assert!(client.cancel("a", super::by()).await.is_err(), "its hooks are in another process");
    client.reap_once().await.unwrap();
    assert_eq!(record(&client, &"a".into()).await.status, Status::Pending);
    with_hooks.settle().await;
    let job = record(&client, &"a".into()).await;
    assert_eq!((job.status, job.hooked_at), (Status::Cancelled, Some(START)));
    bystander.check().await;
}

/// The child: a first start, which enqueues a job of its own.
#[test]
fn child_that_starts_first() {
    let Some(folder) = child_folder() else { return };
    say("ready");
    let name = super::listen();
    let builder = Runtime::builder(folder.join("jobs.db")).state(Signals::default()).handle(act);
    let runtime = builder.start_blocking().unwrap();
    runtime.enqueue_blocking(Act::Done.into_new().id(&*name)).unwrap();
    let job = runtime.client().wait_blocking(&*name, super::PATIENCE).unwrap();
    assert_eq!(job.status, Status::Completed);
    say("done");
    // Stays until it is told to go, or is killed.
    super::listen();
    runtime.stop_blocking(seconds(5));
}

/// Two first starts on one file each decided what to migrate before either had written, and one
/// of them died (`ulsklyc/yuvomi#1331`).
#[test]
fn k13_versions_four_first_starts_at_once_all_start() {
    for round in 0..scale(6, 100) {
        let (dir, path) = place();
        if round % 2 == 1 {
            // A file of the application's, which has no jobs yet.
            by_hand(&path, "CREATE TABLE mine (n); INSERT INTO mine VALUES (1)");
        }
        let start = |_| Talker::start("versions::child_that_starts_first", dir.path());
        let mut children = [0, 1, 2, 3].map(start);
        for child in &mut children {
            child.hear("ready").unwrap();
        }
        for (child, n) in children.iter_mut().zip(0..) {
            child.tell(&format!("job-{n}"));
        }
        for child in &mut children {
            assert!(child.hear("done").is_some(), "round {round}");
        }
        for mut child in children {
            child.tell("go");
            assert_eq!(child.end(), Some(0));
        }
        let schemas = "SELECT count(*) || ' of version ' || max(version) FROM leasehold_schema";
        let newest = leasehold::migrations().len();
        assert_eq!(query::<String>(&path, schemas), format!("1 of version {newest}"));
        let done = "SELECT count(*) FROM leasehold_jobs WHERE status = 'completed'";
        assert_eq!(query::<i64>(&path, done), 4);
    }
}

/// The same at a bad moment: a first start that is killed leaves a file that the next can open.
#[tokio::test]
async fn k13_versions_a_first_start_that_is_killed_leaves_all_of_the_schema_or_nothing() {
    for round in 0..scale(10, 200) {
        let (dir, path) = place();
        let mut child = Talker::start("versions::child_that_starts_first", dir.path());
        child.hear("ready").unwrap();
        child.tell("a");
        // As soon as the file and its log have some size, another each round.
        let log = dir.path().join("jobs.db-wal");
        let size = |path| std::fs::metadata(path).map_or(0, |file| file.len());
        let enough = (round % 10) as u64 * 10_000;
        while size(&path) + size(&log) <= enough && child.child.try_wait().unwrap().is_none() {
            std::hint::spin_loop();
        }
        child.kill();
        let client = Client::open(&path).await.unwrap();
        client.enqueue(Act::Done.into_new().id("b")).await.unwrap();
        assert_eq!(query::<String>(&path, "PRAGMA integrity_check"), "ok");
    }
}
