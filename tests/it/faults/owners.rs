//! K01: two owners for a moment, and the old one's write still counts.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use leasehold::testing::{Lab, Point};
use leasehold::{
    Client, Ctx, Failed, Job, JobResult, ManualClock, Outcome, Phase, Refusal, Runtime, Settings,
    Status,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Barrier;

use super::{
    LEASE, START, Talker, bench, by, hand, listen, outcomes, place, query, say, scale, seconds,
    whole,
};
use crate::support::{Bystander, Signals, act, child_folder, record};

/// The first holder overruns and fails late; the second runs on until it is asked.
#[derive(Serialize, Deserialize)]
struct Overrun;

impl Job for Overrun {
    const KIND: &'static str = "overrun";
}

async fn overrun(_: Overrun, ctx: Ctx<Signals>) -> JobResult {
    ctx.state().enter();
    if ctx.epoch() == 1 {
        ctx.state().entered(3).await;
        Err("too late")?;
    }
    ctx.cancelled().await;
    Ok(Outcome::Done)
}

/// A worker that overran its time wrote its failure by the id alone, and wiped the lock of the
/// second worker: a third began (`collectiveidea/delayed_job_active_record#193`).
#[tokio::test]
async fn k01_unfenced_owner_a_late_failure_of_the_first_holder_changes_nothing() {
    let (_dir, path) = place();
    let (signals, clock) = (Signals::default(), ManualClock::at(START));
    let start = |seed| {
        let builder = Runtime::builder(&path).no_owner_files().state(signals.clone());
        Lab::start_with(builder.handle(overrun), clock.clone(), seed)
    };
    let first = start(1).await.unwrap();
    let bystander = Bystander::enqueue(&first.client()).await;
    first.enqueue(Overrun.into_new().id("a")).await.unwrap();
    first.look().await;
    signals.entered(1).await;
    first.faults.arm(Point::Heartbeat, u32::MAX);
    first.runtime.quiet();
    let second = start(2).await.unwrap();
    clock.advance(LEASE + 1);
    second.settle().await;
    assert_eq!(signals.times(), 2, "the second holder runs");
    let before = second.job("a").await.unwrap();

    // The third to enter is this test: the first holder goes on, and fails.
    signals.enter();
    first.settle().await;
    second.settle().await;

    let after = second.job("a").await.unwrap();
    assert_eq!(format!("{after:?}"), format!("{before:?}"), "not a column has changed");
    assert_eq!((after.status, after.attempts, after.stalls), (Status::Running, 2, 1));
    assert_eq!(after.owner.as_deref(), Some(second.runtime.owner()));
    assert_eq!(after.lease_until, Some(START + LEASE + 1 + LEASE));
    let stats = first.runtime.stats();
    assert_eq!((stats.failures, stats.lost), (0, 1), "the first holder was told");
    assert_eq!(signals.times(), 3, "nobody has begun it a third time");
    // The loss, and what the first holder came with.
    assert_eq!(outcomes(&second.client(), "a").await, ["lost", "lost"]);
    bystander.check().await;
    second.client().cancel("a", by()).await.unwrap();
}

/// A reaper read what was overdue, then wrote by the id alone: a job that had completed in
/// between went back to be tried again (`riverqueue/river#1302`).
#[tokio::test]
async fn k01_unfenced_owner_a_pass_changes_nothing_that_was_settled_before_it() {
    let (_dir, path) = place();
    let here = bench(&path, START).await;
    // Another process, by whose clock every lease is over.
    let other = bench(&path, START + LEASE + 1).await;
    here.client.register("hand", Settings::new()).await.unwrap();
    here.client.enqueue(hand("completed")).await.unwrap();
    let lease = here.client.claim(&["hand"], "w1", 1).await.unwrap().remove(0);
    assert_eq!(other.client.job("completed").await.unwrap().unwrap().phase, Phase::Orphaned);
    lease.complete(Some(leasehold::Json::of(&1).unwrap())).await.unwrap();
    let before = whole(&here.client, "completed").await;
    assert_eq!(other.client.reap_once().await.unwrap().requeued, 0);
    assert_eq!(whole(&here.client, "completed").await, before);

    here.client.enqueue(hand("released")).await.unwrap();
    let lease = here.client.claim(&["hand"], "w1", 1).await.unwrap().remove(0);
    lease.release().await.unwrap();
    let second = other.client.claim(&["hand"], "w2", 1).await.unwrap().remove(0);
    let before = whole(&here.client, "released").await;
    assert_eq!(other.client.reap_once().await.unwrap().requeued, 0);
    assert_eq!(whole(&here.client, "released").await, before);
    let refused = lease.fail(Failed::transient("late")).await.unwrap_err();
    let superseded = Refusal::Superseded {
        held_epoch: lease.epoch(),
        current_epoch: second.epoch(),
        owner: Some("w2".into()),
    };
    assert_eq!(refused.refusal(), Some(&superseded));
    let after = here.client.job("released").await.unwrap();
    assert!(before.starts_with(&format!("{after:?}")), "only its history has grown");
    assert_eq!(second.complete(None).await.unwrap(), Status::Completed);
}

/// The same, with the pass held up between its decision and its commit: no write of a holder
/// gets in between, and none is lost without a word.
#[tokio::test]
async fn k01_unfenced_owner_nothing_is_settled_between_the_look_and_the_write_of_a_pass() {
    let (_dir, path) = place();
    let here = bench(&path, START).await;
    here.client.register("hand", Settings::new()).await.unwrap();
    let bystander = Bystander::enqueue(&here.client).await;
    here.client.enqueue(hand("a")).await.unwrap();
    let lease = here.client.claim(&["hand"], "w1", 1).await.unwrap().remove(0);
    let (signals, inside) = (Signals::default(), Signals::default());
    let (held, told) = (signals.clone(), inside.clone());
    let builder = Runtime::builder(&path).no_owner_files().state(signals.clone()).handle(act);
    // The application's sweeps run at the end of a pass, in its transaction.
    let builder = builder.sweep("holds the pass up", move |_, _| {
        told.enter();
        held.wait_for_gate();
        Ok(())
    });
    let late = ManualClock::at(START + LEASE + 1);
    let reaper = builder.clock(late).start().await.unwrap();
    inside.entered(1).await;
    let complete = tokio::spawn(async move { (lease.complete(None).await, lease) });
    signals.open();
    let (refused, _lease) = complete.await.unwrap();
    let refusal = refused.unwrap_err();
    assert_eq!(refusal.refusal(), Some(&Refusal::NotRunning { status: Status::Pending, epoch: 2 }));
    let job = record(&here.client, &"a".into()).await;
    assert_eq!((job.status, job.epoch, job.stalls, job.attempts), (Status::Pending, 2, 1, 1));
    bystander.check().await;
    reaper.stop(seconds(5)).await;
}

/// The same by chance: a pass and a completion at the same moment, in two processes' stores.
#[tokio::test]
async fn k01_unfenced_owner_a_pass_and_a_completion_at_once_have_one_winner() {
    let (_dir, path) = place();
    let here = bench(&path, START).await;
    let other = bench(&path, START + LEASE + 1).await;
    here.client.register("hand", Settings::new()).await.unwrap();
    let bystander = Bystander::enqueue(&here.client).await;
    for round in 0..scale(50, 2_000) {
        let id = format!("job-{round}");
        here.client.enqueue(hand(&id)).await.unwrap();
        let lease = here.client.claim_by_id(&*id, "w1").await.unwrap().unwrap();
        let (settled, pass) = tokio::join!(lease.complete(None), other.client.reap_once());
        let (job, requeued) = (record(&here.client, &id.into()).await, pass.unwrap().requeued);
        match settled {
            Ok(_) => assert_eq!((job.status, job.epoch, requeued), (Status::Completed, 1, 0)),
            Err(error) => {
                assert!(matches!(error.refusal(), Some(Refusal::NotRunning { .. })), "{error}");
                assert_eq!((job.status, job.epoch, requeued), (Status::Pending, 2, 1));
            }
        }
    }
    bystander.check().await;
}

/// The child: four claimers at a time on one file, until nothing is left.
#[test]
fn child_with_four_claimers() {
    let Some(folder) = child_folder() else { return };
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    rt.block_on(async {
        let client = Client::open(folder.join("jobs.db")).await.unwrap();
        say("ready");
        let batch: usize = listen().parse().unwrap();
        let started = Arc::new(Barrier::new(4));
        let claimers = (0..4).map(|n| {
            let (client, folder, started) = (client.clone(), folder.clone(), started.clone());
            tokio::spawn(async move {
                started.wait().await;
                let mut list = std::fs::OpenOptions::new();
                let mut list = list.append(true).open(folder.join("list")).unwrap();
                loop {
                    let leases = client.claim(&["hand"], &format!("w{n}"), batch).await.unwrap();
                    if leases.is_empty() {
                        return;
                    }
                    for lease in leases {
                        list.write_all(format!("{}\n", lease.job()).as_bytes()).unwrap();
                        lease.complete(None).await.unwrap();
                    }
                }
            })
        });
        for claimer in claimers.collect::<Vec<_>>() {
            claimer.await.unwrap();
        }
        say("done");
    });
}

async fn claimed_by_two_processes(jobs: usize, batch: usize) {
    let (dir, path) = place();
    let client = Client::open(&path).await.unwrap();
    client.register("hand", Settings::new()).await.unwrap();
    let bystander = Bystander::enqueue(&client).await;
    client.enqueue_many((0..jobs).map(|n| hand(&format!("job-{n}")))).await.unwrap();
    std::fs::write(dir.path().join("list"), "").unwrap();
    let test = "owners::child_with_four_claimers";
    let mut children = [(); 2].map(|()| Talker::start(test, dir.path()));
    for child in &mut children {
        child.hear("ready").unwrap();
    }
    for child in &mut children {
        child.tell(&batch.to_string());
    }
    for mut child in children {
        assert!(child.hear("done").is_some(), "a claimer met an error");
        assert_eq!(child.end(), Some(0));
    }
    let mut times = BTreeMap::<String, usize>::new();
    for line in std::fs::read_to_string(dir.path().join("list")).unwrap().lines() {
        *times.entry(line.to_owned()).or_default() += 1;
    }
    assert!(times.values().all(|times| *times == 1), "{times:?}");
    assert_eq!(times.len(), jobs);
    let done = "SELECT count(*) FROM leasehold_jobs \
                WHERE status = 'completed' AND attempts = 1 AND epoch = 1";
    assert_eq!(query::<i64>(&path, done), jobs as i64);
    bystander.check().await;
}

/// Two workers picked the same row, because the read and the lock were not in one write
/// transaction (`coleifer/huey#123`).
#[tokio::test]
async fn k01_unfenced_owner_two_processes_with_four_claimers_each_take_every_job_once() {
    claimed_by_two_processes(scale(200, 1_000), 1).await;
    claimed_by_two_processes(scale(1_000, 10_000), 10).await;
}

/// A token named the queue and not the claim (`OptimalBits/bull#308`).
#[tokio::test]
async fn k01_unfenced_owner_every_claim_has_a_token_of_its_own() {
    let (_dir, path) = place();
    let client = Client::open(&path).await.unwrap();
    client.register("hand", Settings::new()).await.unwrap();
    client.enqueue_many((0..100).map(|n| hand(&format!("job-{n}")))).await.unwrap();
    let tokens = "SELECT group_concat(hex(token)) FROM leasehold_job WHERE status = 1";
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..2 {
        let leases = client.claim(&["hand"], "w1", 100).await.unwrap();
        let found: String = query(&path, tokens);
        seen.extend(found.split(',').map(str::to_owned));
        for lease in leases {
            lease.release().await.unwrap();
        }
    }
    assert_eq!(seen.len(), 200, "one for each claim, also of the same job by the same owner");
}
