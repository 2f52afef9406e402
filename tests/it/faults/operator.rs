//! K07: a cancel or a redrive that is decided on an old view of the job.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::testing::Lab;
use leasehold::{
    Client, Ctx, Failed, Hooks, Job, JobResult, Outcome, Redrive, Refusal, Retry, Runtime,
    Settings, Status, StopReason, Target,
};
use serde::{Deserialize, Serialize};

use super::{LEASE, PATIENCE, START, Talker, bench, by, hand, outcomes, place, scale, seconds};
use crate::support::{Act, Bystander, Signals, act, record};

fn third() -> std::time::Duration {
    std::time::Duration::from_millis((LEASE / 3).unsigned_abs())
}

/// A cancel just after a claim wrote `cancelled` over a row whose work went on. Here the request
/// lies on the row, and the holder hears of it with its next heartbeat.
#[tokio::test]
async fn k07_cancel_from_another_process_is_heard_with_the_next_heartbeat() {
    let (_dir, path) = place();
    let signals = Signals::default();
    let builder = Runtime::builder(&path).state(signals.clone()).handle(act).slots(4);
    let lab = Lab::start(builder).await.unwrap();
    let other = bench(&path, START).await;
    let bystander = Bystander::enqueue(&other.client).await;
    for id in ["a", "beside it"] {
        lab.enqueue(Act::UntilAsked.into_new().id(id)).await.unwrap();
    }
    lab.settle().await;
    assert_eq!(other.client.cancel("a", by()).await.unwrap(), Status::Running);
    lab.settle().await;
    let job = record(&other.client, &"a".into()).await;
    assert_eq!((job.status, job.cancel_requested_at), (Status::Running, Some(START)));
    assert!(signals.reasons().is_empty());
    lab.advance(third()).await;
    assert_eq!(signals.reasons(), [StopReason::Cancelled]);
    assert_eq!(record(&other.client, &"a".into()).await.status, Status::Cancelled);
    assert_eq!(lab.runtime.stats().in_flight, 1);
    let job = lab.job("beside it").await.unwrap();
    assert_eq!((job.status, job.epoch), (Status::Running, 1));
    bystander.check().await;
    lab.stop(seconds(5)).await;
}

/// The same report, round after round at any moment: a job never began, or was stopped, or had
/// ended first and the cancel was told so. What is cancelled never runs on.
#[tokio::test]
async fn k07_cancel_at_any_moment_leaves_no_work_running_behind_a_cancelled_row() {
    let (_dir, path) = place();
    let signals = Signals::default();
    let builder = Runtime::builder(&path).state(signals.clone()).handle(act).slots(2);
    let lab = Lab::start(builder).await.unwrap();
    let other = bench(&path, START).await;
    let bystander = Bystander::enqueue(&other.client).await;
    for round in 0..scale(60, 500) {
        let job = if round % 2 == 0 { Act::UntilAsked } else { Act::Done };
        let (id, before) = (format!("job-{round}"), signals.times());
        let enqueue = lab.enqueue(job.into_new().id(&*id));
        let cancel = async {
            // Any number of moments, another each round.
            for _ in 0..round * 7 % 40 {
                tokio::task::yield_now().await;
            }
            loop {
                match other.client.cancel(&*id, by()).await {
                    Err(error) if error.refusal() == Some(&Refusal::NotFound) => {}
                    answer => return answer,
                }
            }
        };
        let (_, answer) = tokio::join!(enqueue, cancel);
        lab.settle().await;
        lab.advance(third()).await;
        let job = record(&other.client, &(*id).into()).await;
        assert_eq!(lab.runtime.stats().in_flight, 0, "{id} runs on");
        let began = signals.times() - before;
        match answer {
            Ok(Status::Cancelled) => assert_eq!((job.status, began), (Status::Cancelled, 0)),
            Ok(_) => assert_eq!((job.status.is_live(), began), (false, 1)),
            Err(error) => {
                let refusal = Refusal::Terminal { status: Status::Completed, epoch: 1 };
                assert_eq!(error.refusal(), Some(&refusal));
                assert_eq!((job.status, began), (Status::Completed, 1));
            }
        }
    }
    bystander.check().await;
}

/// Ignores that it is asked to stop, and then does this.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Then {
    Fail,
    Succeed,
    Panic,
    Yield,
    Snooze,
}

impl Job for Then {
    const KIND: &'static str = "then";

    fn settings() -> Settings {
        Settings::new().retry(Retry::standard().no_jitter())
    }
}

async fn then(job: Then, ctx: Ctx<Signals>) -> JobResult {
    let signals = ctx.state();
    signals.note(ctx.cancelled().await);
    match job {
        Then::Fail => Err("it had to fail")?,
        Then::Succeed => Ok(Outcome::done_with("all the same")),
        Then::Panic => panic!("at the worst moment"),
        Then::Yield => Ok(Outcome::Yield),
        Then::Snooze => Ok(Outcome::Snooze(seconds(60))),
    }
}

/// A cancel was accepted, and then the worker's end was written over it, with another try to
/// follow. Here the end of the attempt is a cancel, except where the work is done.
#[tokio::test]
async fn k07_cancel_that_was_accepted_is_undone_by_no_end_but_a_success() {
    let ends = Arc::new(AtomicU32::new(0));
    let count = ends.clone();
    let hooks = Hooks::new().after_transition(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let signals = Signals::default();
    let builder = Runtime::in_memory().state(signals.clone()).handle(then).hooks::<Then>(hooks);
    let lab = Lab::start(builder).await.unwrap();
    let bystander = Bystander::enqueue(&lab.client()).await;
    let cases = [Then::Fail, Then::Succeed, Then::Panic, Then::Yield, Then::Snooze];
    for (case, ended) in cases.into_iter().zip(1..) {
        let id = lab.enqueue(case).await.unwrap();
        lab.settle().await;
        lab.client().cancel(&id, by()).await.unwrap();
        lab.settle().await;
        let job = lab.job(&id).await.unwrap();
        let expected =
            if matches!(case, Then::Succeed) { Status::Completed } else { Status::Cancelled };
        assert_eq!((job.status, job.epoch), (expected, 1), "{case:?}");
        assert_eq!(job.cancel_requested_by.as_deref(), Some("test"), "{case:?}");
        lab.advance(seconds(3_600)).await;
        assert_eq!(lab.job(&id).await.unwrap(), job, "{case:?}: there is no retry");
        assert_eq!(ends.load(Ordering::SeqCst), ended, "{case:?} has ended once");
    }
    bystander.check().await;
}

/// The same report: the holder is killed before it could hear of the request.
#[tokio::test]
async fn k07_cancel_request_outlives_its_holder_and_the_job_is_not_begun_again() {
    let (dir, path) = place();
    let client = Client::open(&path).await.unwrap();
    client.register("hand", Settings::new()).await.unwrap();
    client.enqueue(hand("by hand")).await.unwrap();
    let bystander = Bystander::enqueue(&client).await;
    let mut child = Talker::start("stuck::child_that_holds_two_jobs", dir.path());
    child.hear("holds").unwrap();
    assert_eq!(client.cancel("in a runtime", by()).await.unwrap(), Status::Running);
    child.kill();
    let signals = Signals::default();
    let builder = Runtime::builder(&path).state(signals.clone()).handle(act);
    let runtime = builder.start().await.unwrap();
    let job = runtime.wait("in a runtime", PATIENCE).await.unwrap();
    assert_eq!((job.status, job.epoch, signals.times()), (Status::Cancelled, 1, 0));
    assert_eq!(outcomes(&client, "in a runtime").await, ["cancelled"]);
    bystander.check().await;
    runtime.stop(seconds(5)).await;
}

/// A cancel was ignored in some states (`MassTransit/MassTransit#5526`), and no limit nor cancel
/// reached some jobs at all (`activepieces/activepieces#15130`).
#[tokio::test]
async fn k07_cancel_reaches_a_job_in_every_state_in_which_it_can_wait() {
    let (_dir, path) = place();
    let lab = bench(&path, START).await;
    let client = &lab.client;
    for kind in ["hand", "paused"] {
        client.register(kind, Settings::new()).await.unwrap();
    }
    client.limit_key("none", 0).await.unwrap();
    client.pause(Target::Kind("paused".into()), by()).await.unwrap();
    let other = |id: &str, kind: &str| leasehold::NewJob::raw(kind, None).id(id);
    let jobs = [
        hand("orphaned"),
        hand("retrying"),
        hand("scheduled").delay(seconds(9)),
        hand("held back").limit_key("none"),
        other("paused", "paused"),
        other("of nobody", "unknown"),
    ];
    client.enqueue_many(jobs).await.unwrap();
    let bystander = Bystander::enqueue(client).await;
    let leases = client.claim(&["hand"], "w1", 9).await.unwrap();
    assert_eq!(leases.len(), 2);
    let retrying = leases.iter().find(|lease| lease.job().to_string() == "retrying").unwrap();
    retrying.fail(Failed::transient("again")).await.unwrap();
    lab.clock.advance(LEASE + 1);
    client.enqueue(hand("ready")).await.unwrap();
    for id in ["scheduled", "held back", "paused", "of nobody", "ready", "retrying"] {
        assert_eq!(client.cancel(id, by()).await.unwrap(), Status::Cancelled, "{id}");
    }
    assert_eq!(client.cancel("orphaned", by()).await.unwrap(), Status::Running);
    assert_eq!(client.reap_once().await.unwrap().cancelled, 1);
    assert_eq!(client.counts().await.unwrap().cancelled, 7);
    bystander.check().await;
}

/// An operator's word and a holder's at the same moment, from two processes: either order is
/// right, and nothing else.
#[tokio::test]
async fn k07_operators_and_holders_at_once_come_to_one_end() {
    let (_dir, path) = place();
    let here = bench(&path, START).await.client;
    let other = bench(&path, START).await.client;
    here.register("hand", Settings::new()).await.unwrap();
    let bystander = Bystander::enqueue(&here).await;
    for round in 0..scale(40, 1_000) {
        let id = format!("job-{round}");
        here.enqueue(hand(&id)).await.unwrap();
        let lease = here.claim_by_id(&*id, "w1").await.unwrap().unwrap();
        let failed = lease.fail(Failed::transient("again"));
        let (failed, cancelled) = tokio::join!(failed, other.cancel(&*id, by()));
        let orders = [(Status::Pending, Status::Cancelled), (Status::Cancelled, Status::Running)];
        assert!(orders.contains(&(failed.unwrap(), cancelled.unwrap())));
        assert_eq!(record(&here, &(*id).into()).await.status, Status::Cancelled);
        // Two operators who both want it to run again, after the same look.
        let expecting = Redrive::default().expecting(1);
        let (one, two) =
            tokio::join!(here.redrive(&*id, expecting, by()), other.redrive(&*id, expecting, by()));
        assert_eq!(usize::from(one.is_ok()) + usize::from(two.is_ok()), 1);
        let job = record(&here, &(*id).into()).await;
        assert_eq!((job.status, job.epoch, job.redrives), (Status::Pending, 2, 1));
        // And one who deletes while another claims.
        let (deleted, claimed) =
            tokio::join!(other.delete(&*id, by()), here.claim_by_id(&*id, "w"));
        assert_eq!(deleted.unwrap_err().refusal().unwrap().code(), "live");
        claimed.unwrap().unwrap().complete(None).await.unwrap();
    }
    bystander.check().await;
}
