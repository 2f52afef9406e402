//! Leases: renewed while a handler runs, taken when its holder is gone, and never trusted past
//! their end.

use std::time::Duration;

use leasehold::testing::{Lab, Point};
use leasehold::{
    Ctx, FencedError, Job, JobId, JobResult, ManualClock, Operator, Outcome, Phase, Refusal,
    Runtime, SaveError, Settings, Status, StopReason, Target,
};
use serde::{Deserialize, Serialize};

use crate::support::{Act, Bystander, Signals, act};

const START: i64 = 1_577_836_800_000;

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

async fn lab(signals: &Signals) -> Lab {
    let builder = Runtime::in_memory().state(signals.clone()).handle(act).slots(4);
    Lab::start(builder).await.unwrap()
}

#[tokio::test]
async fn a_lease_is_renewed_every_third_of_it_while_the_handler_runs() {
    let signals = Signals::default();
    let lab = lab(&signals).await;
    let bystander = Bystander::enqueue(&lab.client()).await;
    let id = lab.enqueue(Act::Sleep(100_000)).await.unwrap();
    lab.settle().await;
    for _ in 0..9 {
        lab.advance(seconds(10)).await;
    }
    let job = lab.job(&id).await.unwrap();
    assert_eq!((job.phase, job.epoch), (Phase::Leased, 1));
    assert_eq!(job.heartbeat_at, Some(START + 90_000));
    assert_eq!(job.lease_until, Some(START + 120_000));
    assert_eq!(lab.runtime.stats().renewals, 9);
    lab.advance(seconds(10)).await;
    assert_eq!(lab.job(&id).await.unwrap().status, Status::Completed);
    bystander.check().await;
}

/// Moves the clock by a minute. The heart beats on another thread than the handler's: each
/// step waits until its beat shows in the store.
async fn a_minute_of_heartbeats(lab: &Lab, id: &JobId) {
    for step in 1..=6 {
        lab.clock.advance(10_000);
        let beat = Some(START + step * 10_000);
        while lab.job(id).await.unwrap().heartbeat_at != beat {
            lab.look().await;
        }
    }
}

#[tokio::test]
async fn a_handler_that_blocks_its_thread_keeps_its_lease() {
    let signals = Signals::default();
    let lab = lab(&signals).await;
    let id = lab.enqueue(Act::Block).await.unwrap();
    lab.look().await;
    signals.entered(1).await;
    a_minute_of_heartbeats(&lab, &id).await;
    assert_eq!(lab.job(&id).await.unwrap().epoch, 1);
    signals.open();
    lab.settle().await;
    assert_eq!(lab.job(&id).await.unwrap().status, Status::Completed);
}

#[tokio::test]
async fn a_worker_that_cannot_renew_stops_trusting_its_lease_before_it_ends() {
    let signals = Signals::default();
    let lab = lab(&signals).await;
    let id = lab.enqueue(Act::UntilAsked).await.unwrap();
    lab.settle().await;
    lab.faults.arm(Point::Heartbeat, u32::MAX);
    lab.advance(seconds(28)).await;
    assert!(signals.reasons().is_empty());
    lab.advance(seconds(1)).await;
    assert_eq!(signals.reasons(), [StopReason::Lost(Refusal::Expired { by_ms: 0 })]);
    // Nobody has taken the job, so what the handler hands back still lands.
    let job = lab.job(&id).await.unwrap();
    assert_eq!((job.seq, job.redrives), (1, 0));
}

#[tokio::test]
async fn at_the_limit_the_signal_fires_and_a_handler_that_hands_back_has_only_yielded() {
    let signals = Signals::default();
    let lab = lab(&signals).await;
    let id = lab.enqueue(Act::UntilAsked).await.unwrap();
    lab.settle().await;
    for _ in 0..60 {
        lab.advance(seconds(10)).await;
    }
    assert_eq!(signals.reasons(), [StopReason::TimedOut]);
    let job = lab.job(&id).await.unwrap();
    assert_eq!((job.seq, job.last_error), (1, None));
}

#[tokio::test]
async fn a_handler_that_ignores_its_limit_fails_with_timeout_and_its_slot_goes_on() {
    let signals = Signals::default();
    let builder = Runtime::in_memory().state(signals.clone()).handle(act).slots(1);
    let builder = builder.configure::<Act>(|settings| settings.timeout(seconds(60)));
    let lab = Lab::start(builder).await.unwrap();
    let bystander = Bystander::enqueue(&lab.client()).await;
    let hung = lab.enqueue(Act::Sleep(1_000_000).into_new().max_attempts(1)).await.unwrap();
    lab.settle().await;
    let next = lab.enqueue(Act::Done).await.unwrap();
    for _ in 0..6 {
        lab.advance(seconds(10)).await;
    }
    assert_eq!(lab.job(&hung).await.unwrap().status, Status::Running, "the grace has begun");
    lab.advance(seconds(5)).await;
    let job = lab.job(&hung).await.unwrap();
    assert_eq!((job.status, job.error_code.as_deref()), (Status::Failed, Some("timeout")));
    assert!(job.last_error.unwrap().contains("60000 ms"));
    assert_eq!(lab.job(&next).await.unwrap().status, Status::Completed);
    assert_eq!(lab.runtime.health().zombies, 0, "its task was dropped");
    bystander.check().await;
}

#[tokio::test]
async fn a_handler_that_blocks_past_its_limit_is_a_zombie_and_its_slot_moves_on() {
    let signals = Signals::default();
    let builder = Runtime::in_memory().state(signals.clone()).handle(act).slots(1).threads(1);
    let builder = builder.configure::<Act>(|settings| settings.timeout(seconds(60)));
    let lab = Lab::start(builder.max_zombies(0)).await.unwrap();
    let blocked = lab.enqueue(Act::Block.into_new().max_attempts(1)).await.unwrap();
    lab.look().await;
    signals.entered(1).await;
    let next = lab.enqueue(Act::Done).await.unwrap();
    a_minute_of_heartbeats(&lab, &blocked).await;
    lab.clock.advance(5_000);
    while lab.job(&blocked).await.unwrap().status != Status::Failed {
        lab.look().await;
    }
    assert_eq!(lab.runtime.health().zombies, 0, "its task is given a moment to be dropped");
    lab.clock.advance(1_000);
    while lab.runtime.health().zombies == 0 {
        lab.look().await;
    }
    let health = lab.runtime.health();
    assert!(health.troubles[0].contains("block their threads"), "{health:?}");
    // Its thread is the only one; a job that waits for it gets another.
    while lab.job(&next).await.unwrap().status != Status::Completed {
        lab.clock.advance(100);
        lab.look().await;
    }
    let job = lab.job(&blocked).await.unwrap();
    assert_eq!((job.status, job.error_code.as_deref()), (Status::Failed, Some("timeout")));
    signals.open();
    while lab.runtime.health().zombies > 0 {
        tokio::task::yield_now().await;
    }
    assert!(lab.runtime.health().is_healthy());
    assert_eq!(lab.job(&blocked).await.unwrap().status, Status::Failed, "its end changes nothing");
}

#[tokio::test]
async fn a_cancel_fires_the_signal_of_a_job_that_runs_here_at_once() {
    let signals = Signals::default();
    let lab = lab(&signals).await;
    let bystander = Bystander::enqueue(&lab.client()).await;
    let id = lab.enqueue(Act::UntilAsked).await.unwrap();
    let other = lab.enqueue(Act::Sleep(1_000)).await.unwrap();
    lab.settle().await;
    let status = lab.client().cancel(&id, Operator::named("ann")).await.unwrap();
    assert_eq!(status, Status::Running);
    lab.settle().await;
    assert_eq!(signals.reasons(), [StopReason::Cancelled]);
    let job = lab.job(&id).await.unwrap();
    assert_eq!((job.status, job.finished_at), (Status::Cancelled, Some(START)));
    assert_eq!(lab.job(&other).await.unwrap().status, Status::Running);
    bystander.check().await;
}

#[tokio::test]
async fn jobs_that_have_lost_their_holders_run_one_at_a_time_beside_all_others() {
    let signals = Signals::default();
    let lab = lab(&signals).await;
    let client = lab.client();
    let kind = || Target::Kind("act".into());
    client.pause(kind(), Operator::named("test")).await.unwrap();
    let mut suspects = Vec::new();
    for _ in 0..3 {
        let id = lab.enqueue(Act::Sleep(1_000)).await.unwrap();
        assert!(client.claim_by_id(&id, "gone").await.unwrap().is_some());
        suspects.push(id);
    }
    lab.advance(Duration::from_millis(30_001)).await;
    let clean = lab.enqueue(Act::Sleep(1_000)).await.unwrap();
    client.resume(kind(), Operator::named("test")).await.unwrap();
    lab.settle().await;
    for ended in 0..3 {
        let mut running = 0;
        for id in &suspects {
            let job = lab.job(id).await.unwrap();
            running += usize::from(job.status == Status::Running);
            assert_eq!(job.stalls, 1);
        }
        assert_eq!(running, 1, "after {ended} have ended");
        let clean = lab.job(&clean).await.unwrap().status;
        assert_eq!(clean == Status::Running, ended == 0, "it waits for nobody");
        lab.advance(seconds(1)).await;
    }
    assert_eq!(client.counts().await.unwrap().completed, 4);
}

#[tokio::test]
async fn a_lab_comes_to_rest_while_a_settle_waits_to_be_sent_again() {
    let signals = Signals::default();
    let lab = lab(&signals).await;
    let id = lab.enqueue(Act::Sleep(1_000)).await.unwrap();
    lab.settle().await;
    lab.faults.arm(Point::Commit, 5);
    lab.advance(seconds(1)).await;
    assert_eq!(lab.runtime.stats().completions, 0, "its answer was lost");
    while lab.runtime.stats().in_flight > 0 {
        lab.advance(seconds(5)).await;
    }
    assert_eq!((lab.faults.left(Point::Commit), lab.runtime.stats().completions), (0, 1));
    assert_eq!(lab.job(&id).await.unwrap().status, Status::Completed);
}

/// A job that tries to write after its lease has gone to somebody else.
#[derive(Serialize, Deserialize)]
struct Late;

impl Job for Late {
    const KIND: &'static str = "late";
    fn settings() -> Settings {
        Settings::new().lease(seconds(30))
    }
}

async fn late(_: Late, ctx: Ctx<Signals>) -> JobResult {
    let signals = ctx.state();
    signals.enter();
    if ctx.epoch() > 1 {
        return Ok(Outcome::done_with("the second holder"));
    }
    signals.entered(2).await;
    let saved = ctx.save(&1).await;
    let fenced = ctx.fenced(|_| Ok::<_, std::io::Error>(())).await;
    assert!(matches!(saved, Err(SaveError::Lost(_))), "{saved:?}");
    // After the first refusal the store is not even asked.
    assert!(matches!(fenced, Err(FencedError::Lost(Refusal::Revoked))), "{fenced:?}");
    assert!(ctx.should_yield());
    signals.note(ctx.cancelled().await);
    Ok(Outcome::done_with("the first holder"))
}

#[tokio::test]
async fn the_first_holder_of_a_job_that_was_taken_writes_nothing_more() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.db");
    let signals = Signals::default();
    let clock = ManualClock::at(START);
    let start = |seed| {
        // Without lock files the second runtime goes by the lease alone, as on another host.
        let builder = Runtime::builder(&path).no_owner_files().state(signals.clone());
        Lab::start_with(builder.handle(late), clock.clone(), seed)
    };
    let first = start(1).await.unwrap();
    let id = first.enqueue(Late).await.unwrap();
    first.look().await;
    signals.entered(1).await;
    first.faults.arm(Point::Heartbeat, u32::MAX);
    let second = start(2).await.unwrap();
    first.runtime.quiet();
    let bystander = Bystander::enqueue(&first.client()).await;
    clock.advance(30_001);
    second.settle().await;
    let job = second.job(&id).await.unwrap();
    assert_eq!((job.status, job.epoch, job.stalls), (Status::Completed, 3, 1));
    assert_eq!(job.result.unwrap().as_str(), r#""the second holder""#);
    first.settle().await;
    assert!(matches!(signals.reasons()[..], [StopReason::Lost(_)]), "{:?}", signals.reasons());
    let job = second.job(&id).await.unwrap();
    assert_eq!(job.result.unwrap().as_str(), r#""the second holder""#);
    assert_eq!((first.runtime.stats().completions, first.runtime.stats().lost), (0, 1));
    // What the first came with is kept for who wonders.
    let history = second.client().attempts(&id).await.unwrap();
    let mut outcomes: Vec<_> = history.iter().map(|attempt| attempt.outcome.as_str()).collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["completed", "lost", "lost"]);
    let late =
        history.iter().find(|attempt| attempt.error.as_ref().is_some_and(|e| e.contains("it had")));
    let late = late.expect("the late result is in the history");
    assert_eq!((late.epoch, late.owner.as_ref(), late.claimed_at), (1, None, None));
    bystander.check().await;
}

#[tokio::test]
async fn a_step_of_the_wall_clock_takes_no_lease_from_a_holder_that_lives() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.db");
    let signals = Signals::default();
    let runtime = Runtime::builder(&path)
        .state(signals.clone())
        .handle(act)
        .clock(SteppedClock::default())
        .start()
        .await
        .unwrap();
    let id = runtime.enqueue(Act::Block).await.unwrap().id;
    signals.entered(1).await;
    // An hour forward: by the wall clock the lease is long over.
    STEP.store(3_600_000, std::sync::atomic::Ordering::SeqCst);
    let passes = runtime.stats().renewals;
    while runtime.stats().renewals == passes {
        tokio::task::yield_now().await;
    }
    let job = runtime.client().job(&id).await.unwrap().unwrap();
    assert_eq!((job.status, job.epoch, job.redrives), (Status::Running, 1, 0));
    signals.open();
    let job = runtime.wait(&id, seconds(60)).await.unwrap();
    assert_eq!((job.status, job.epoch), (Status::Completed, 1));
}

static STEP: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(0);

/// The system's clock with its wall clock set forward, monotonic time running on tenfold so
/// that heartbeats come soon.
#[derive(Default)]
struct SteppedClock(leasehold::SystemClock);

impl leasehold::Clock for SteppedClock {
    fn now(&self) -> i64 {
        self.0.now() + STEP.load(std::sync::atomic::Ordering::SeqCst)
    }

    fn monotonic(&self) -> i64 {
        self.0.monotonic() * 10
    }

    fn sleep(&self, duration: Duration) -> leasehold::Sleep {
        self.0.sleep(duration / 10)
    }
}
