//! The instruments that tests of handlers are written with: each does what it says, and no other
//! job changes.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold::testing::{Lab, Point};
use leasehold::{
    AttemptOutcome, Builder, Clock, Ctx, Error, FencedError, Filter, Job, JobError, JobRecord,
    JobResult, Outcome, Phase, Refusal, Retry, Runtime, SaveError, Settings, Status, StopReason,
    StoreFault,
};
use serde::{Deserialize, Serialize};

use crate::support::{Act, Bystander, Signals, act};

const SECOND: Duration = Duration::from_secs(1);

/// A job of which each attempt does the next of these things, and the last again and again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Script(Vec<Do>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Do {
    Done(u32),
    Fail,
    GiveUp,
    Defer,
    Yield,
    Snooze,
    Cancelled,
    Sleep,
    /// Saves so many times.
    Save(u32),
    /// Waits until it is asked to stop, and then saves.
    Listen,
    /// Dies.
    Die,
    /// Never ends, and waits for nothing that a clock could bring.
    Hang,
}

impl Job for Script {
    const KIND: &'static str = "script";
    fn settings() -> Settings {
        Settings::new().retry(Retry::fixed(Duration::from_secs(2)).no_jitter().attempts(5))
    }
}

/// What is outside of the process, and outlives it.
#[derive(Clone, Default)]
struct World {
    faults: leasehold::testing::Faults,
    log: Arc<Mutex<Vec<String>>>,
}

impl World {
    fn say(&self, what: impl Into<String>) {
        self.log.lock().unwrap().push(what.into());
    }

    fn said(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}

/// Says when it is dropped.
struct Dropped(World);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.say("dropped");
    }
}

async fn play(job: Script, ctx: Ctx<World>) -> JobResult {
    let world = ctx.state().clone();
    let nth = usize::try_from(ctx.epoch() - 1).unwrap_or(0).min(job.0.len() - 1);
    match job.0[nth] {
        Do::Done(n) => Ok(Outcome::done_with(&n)),
        Do::Fail => Err("as it was told")?,
        Do::GiveUp => Err(JobError::give_up("for good")),
        Do::Defer => Err(JobError::rate_limited("too many", Some(Duration::from_secs(40)))),
        Do::Yield => Ok(Outcome::Yield),
        Do::Snooze => Ok(Outcome::Snooze(Duration::from_secs(7))),
        Do::Cancelled => Ok(Outcome::Cancelled),
        Do::Sleep => {
            ctx.sleep(Duration::from_secs(3)).await;
            Ok(Outcome::Done)
        }
        Do::Save(times) => {
            let _dropped = Dropped(world.clone());
            let first: u32 = ctx.checkpoint()?.unwrap_or(0);
            world.say(format!("from {first}"));
            for n in first..times {
                match ctx.save(&(n + 1)).await {
                    Ok(()) => world.say(format!("saved {}", n + 1)),
                    Err(error) => {
                        world.say(format!("{error:?}"));
                        return Err(error.into());
                    }
                }
            }
            Ok(Outcome::Done)
        }
        Do::Listen => {
            let reason = ctx.cancelled().await;
            world.say(format!("asked to stop: {}", matches!(reason, StopReason::Lost(_))));
            let saved = ctx.save(&1).await;
            let lost = matches!(saved, Err(SaveError::Lost(_)));
            let fenced = ctx.fenced(|_| Ok::<(), std::fmt::Error>(())).await;
            let refused = matches!(fenced, Err(FencedError::Lost(_)));
            world.say(format!("lost: {lost} {refused}"));
            Ok(Outcome::Done)
        }
        Do::Die => {
            let _dropped = Dropped(world.clone());
            world.say("dies");
            world.faults.die().await;
            world.say("goes on");
            Ok(Outcome::Done)
        }
        Do::Hang => std::future::pending().await,
    }
}

fn on(builder: Builder, world: &World) -> Builder<World> {
    builder.faults(world.faults.clone()).state(world.clone()).handle(play).slots(4)
}

/// A lab and what is around it.
struct Rig {
    lab: Lab,
    world: World,
    bystander: Bystander,
    dir: Option<tempfile::TempDir>,
}

impl Rig {
    async fn start(file: Option<()>) -> Self {
        let world = World::default();
        let dir = file.map(|()| tempfile::tempdir().unwrap());
        let builder = match &dir {
            Some(dir) => Runtime::builder(dir.path().join("jobs.db")),
            None => Runtime::in_memory(),
        };
        let lab = Lab::start(on(builder, &world)).await.unwrap();
        let bystander = Bystander::enqueue(&lab.client()).await;
        Self { lab, world, bystander, dir }
    }

    fn builder(&self) -> Builder {
        Runtime::builder(self.dir.as_ref().unwrap().path().join("jobs.db"))
    }

    /// The bystander, as a client of the process that runs now sees it.
    async fn check(&self) {
        self.bystander.check_by(&self.lab.client()).await;
    }
}

/// Does the same on a file and in memory.
async fn on_both<F: Future<Output = ()>>(test: impl Fn(Rig) -> F) {
    for file in [Some(()), None] {
        test(Rig::start(file).await).await;
    }
}

// ---------------------------------------------------------------------------------------------
// One attempt

#[tokio::test]
async fn nothing_is_claimed_before_it_is_asked_for() {
    on_both(|rig| async move {
        let id = rig.lab.enqueue(Script(vec![Do::Done(1)])).await.unwrap();
        rig.lab.runtime.enqueue(Script(vec![Do::Done(2)])).await.unwrap();
        rig.lab.clock.advance(10_000);
        assert_eq!(rig.lab.job(&id).await.unwrap().phase, Phase::Ready);
        assert_eq!(rig.lab.runtime.stats().claims, 0);
        rig.lab.settle().await;
        assert_eq!(rig.lab.job(&id).await.unwrap().phase, Phase::Completed);
        let next = rig.lab.enqueue(Script(vec![Do::Done(1)])).await.unwrap();
        assert_eq!(rig.lab.job(&next).await.unwrap().phase, Phase::Ready);
        rig.check().await;
    })
    .await;
}

#[tokio::test]
async fn a_run_is_one_attempt_and_says_how_it_ended() {
    use AttemptOutcome::{Cancelled, Completed, Deferred, Failed, Retried, Snoozed, Yielded};
    let rig = Rig::start(None).await;
    let waits = rig.lab.enqueue(Script(vec![Do::Done(0)])).await.unwrap();
    for (what, outcome, phase, wait) in [
        (Do::Done(7), Completed, Phase::Completed, 0),
        (Do::Fail, Retried, Phase::Retrying, 2_000),
        (Do::GiveUp, Failed, Phase::Dead, 0),
        (Do::Defer, Deferred, Phase::Scheduled, 40_000),
        (Do::Yield, Yielded, Phase::Ready, 0),
        (Do::Snooze, Snoozed, Phase::Scheduled, 7_000),
        (Do::Cancelled, Cancelled, Phase::Cancelled, 0),
    ] {
        let now = rig.lab.clock.now();
        let later = Script(vec![what.clone()]).after(Duration::from_secs(3_600));
        let id = rig.lab.enqueue(later).await.unwrap();
        let ran = rig.lab.run(&id).await.unwrap();
        assert_eq!((ran.outcome, ran.job.phase), (Some(outcome), phase), "{what:?}");
        assert_eq!(ran.job.epoch, 1, "one attempt: {what:?}");
        if phase != Phase::Completed && phase != Phase::Dead && phase != Phase::Cancelled {
            assert_eq!(ran.job.run_at - now, wait, "{what:?}");
        }
        if outcome == Completed {
            assert_eq!(ran.job.result.unwrap().as_str(), "7");
        }
    }
    assert_eq!(rig.lab.job(&waits).await.unwrap().phase, Phase::Ready, "it stood still");
    assert_eq!(rig.lab.runtime.stats().in_flight, 0);
    rig.check().await;
}

#[tokio::test]
async fn the_last_of_several_runs_is_told_from_those_before() {
    on_both(|rig| async move {
        let id = rig.lab.enqueue(Script(vec![Do::Fail, Do::Fail, Do::Done(3)])).await.unwrap();
        for outcome in [AttemptOutcome::Retried, AttemptOutcome::Retried] {
            assert_eq!(rig.lab.run(&id).await.unwrap().outcome, Some(outcome));
        }
        let last = rig.lab.run(&id).await.unwrap();
        assert_eq!(last.outcome, Some(AttemptOutcome::Completed));
        assert_eq!((last.job.epoch, last.job.status), (3, Status::Completed));
        rig.check().await;
    })
    .await;
}

#[tokio::test]
async fn a_run_that_waits_for_the_clock_has_not_ended_yet() {
    let rig = Rig::start(None).await;
    let id = rig.lab.enqueue(Script(vec![Do::Sleep])).await.unwrap();
    let ran = rig.lab.run(&id).await.unwrap();
    assert_eq!((ran.outcome, ran.job.status), (None, Status::Running));
    rig.lab.advance(Duration::from_secs(3)).await;
    assert_eq!(rig.lab.job(&id).await.unwrap().status, Status::Completed);
}

#[tokio::test]
async fn a_run_that_cannot_be_says_why() {
    let rig = Rig::start(None).await;
    let run = |id: &str| rig.lab.run(id.to_owned());
    assert!(matches!(run("nobody").await, Err(Error::Refused(Refusal::NotFound))));
    let strange = rig.lab.run(rig.bystander.id()).await;
    assert!(matches!(strange, Err(Error::Setup(why)) if why.contains("no handler")));
    let id = rig.lab.enqueue(Script(vec![Do::Sleep])).await.unwrap();
    rig.lab.run(&id).await.unwrap();
    assert!(matches!(rig.lab.run(&id).await, Err(Error::Refused(Refusal::Live { .. }))));
    rig.lab.advance(Duration::from_secs(3)).await;
    assert!(matches!(rig.lab.run(&id).await, Err(Error::Refused(Refusal::Terminal { .. }))));
    rig.check().await;
}

// ---------------------------------------------------------------------------------------------
// What was enqueued

#[tokio::test]
async fn what_was_enqueued_is_listed_with_its_payloads_in_order() {
    on_both(|rig| async move {
        let mut expected = Vec::new();
        for n in 0..3 {
            let job = Script(vec![Do::Done(n)]);
            expected.push((rig.lab.enqueue(job.clone()).await.unwrap(), job));
            rig.lab.enqueue(Act::Sleep(1)).await.unwrap();
        }
        assert_eq!(rig.lab.enqueued::<Script>().await.unwrap(), expected);
        rig.lab.run(&expected[1].0).await.unwrap();
        assert_eq!(rig.lab.enqueued::<Script>().await.unwrap(), expected, "ended ones too");
        let ready = Filter::new().kind("script").phase(Phase::Ready);
        let ids = |jobs: Vec<JobRecord>| jobs.into_iter().map(|job| job.id).collect::<Vec<_>>();
        let ready = ids(rig.lab.jobs(&ready).await.unwrap());
        assert_eq!(ready, [expected[0].0.clone(), expected[2].0.clone()]);
        rig.check().await;
    })
    .await;
}

#[tokio::test]
async fn a_payload_of_another_shape_is_named() {
    #[derive(Debug, Serialize, Deserialize)]
    struct Other {
        field: u32,
    }
    impl Job for Other {
        const KIND: &'static str = "script";
    }
    let rig = Rig::start(None).await;
    rig.lab.enqueue(Script(vec![]).into_new().id("odd")).await.unwrap();
    let odd = rig.lab.enqueued::<Other>().await;
    assert!(matches!(odd, Err(Error::Setup(why)) if why.contains("odd")));
}

// ---------------------------------------------------------------------------------------------
// Crashes

#[tokio::test]
async fn a_crash_cuts_off_what_runs_and_the_next_process_takes_its_jobs() {
    on_both(|mut rig| async move {
        let sleeps = rig.lab.enqueue(Script(vec![Do::Sleep, Do::Done(2)])).await.unwrap();
        let waits = rig.lab.enqueue(Script(vec![Do::Done(1)]).after(SECOND)).await.unwrap();
        rig.lab.settle().await;
        let before = rig.lab.runtime.clone();
        rig.lab.crash().await.unwrap();
        assert_ne!(before.owner(), rig.lab.runtime.owner());
        let cut = rig.lab.job(&sleeps).await.unwrap();
        assert_eq!((cut.status, cut.owner.as_deref()), (Status::Running, Some(before.owner())));
        let late = before.enqueue(Script(vec![Do::Done(1)])).await;
        assert!(matches!(late, Err(Error::Store(StoreFault::Stopped))), "{late:?}");
        rig.lab.settle().await;
        let again = rig.lab.job(&sleeps).await.unwrap();
        assert_eq!((again.status, again.attempts, again.stalls), (Status::Completed, 2, 1));
        assert_eq!(rig.lab.job(&waits).await.unwrap().phase, Phase::Scheduled);
        let history = rig.lab.client().attempts(&sleeps).await.unwrap();
        assert_eq!(history[0].outcome, AttemptOutcome::Lost);
        rig.check().await;
    })
    .await;
}

#[tokio::test]
async fn a_handler_can_die_at_a_point_of_its_own() {
    on_both(|mut rig| async move {
        let id = rig.lab.enqueue(Script(vec![Do::Die, Do::Done(1)])).await.unwrap();
        rig.lab.settle().await;
        assert!(rig.lab.has_died());
        assert_eq!(rig.world.said(), ["dies"]);
        rig.lab.crash().await.unwrap();
        assert!(!rig.lab.has_died());
        assert_eq!(rig.world.said(), ["dropped"], "it does not go on");
        rig.lab.settle().await;
        assert_eq!(rig.lab.job(&id).await.unwrap().status, Status::Completed);
        rig.check().await;
    })
    .await;
}

#[tokio::test]
async fn a_process_that_has_died_writes_nothing_more() {
    on_both(|mut rig| async move {
        let other = rig.lab.enqueue(Script(vec![Do::Sleep, Do::Done(9)])).await.unwrap();
        rig.lab.settle().await;
        rig.lab.enqueue(Script(vec![Do::Die, Do::Done(1)])).await.unwrap();
        rig.lab.settle().await;
        // The other handler ends in a process that is dead.
        rig.lab.advance(Duration::from_secs(3)).await;
        rig.lab.crash().await.unwrap();
        let cut = rig.lab.job(&other).await.unwrap();
        assert_eq!((cut.status, cut.epoch), (Status::Running, 1));
        rig.lab.settle().await;
        let job = rig.lab.job(&other).await.unwrap();
        assert_eq!((job.attempts, job.result.unwrap().as_str()), (2, "9"));
        rig.check().await;
    })
    .await;
}

/// Crashes once, where a point says so, and answers what was said before and after.
async fn crashes_once(rig: &mut Rig, point: Point, passes: u32) -> (Vec<String>, Vec<String>) {
    let id = rig.lab.enqueue(Script(vec![Do::Save(3)])).await.unwrap();
    rig.lab.faults.arm_after(point, passes, 1);
    rig.lab.settle().await;
    assert!(rig.lab.has_died(), "{point:?} {passes}");
    rig.lab.crash().await.unwrap();
    let mut before = rig.world.said();
    before.retain(|said| said != "dropped");
    rig.lab.settle().await;
    let job = rig.lab.job(&id).await.unwrap();
    assert_eq!(job.status, Status::Completed, "{point:?} {passes}: {job:?}");
    rig.check().await;
    (before, rig.world.said())
}

#[tokio::test]
async fn a_crash_before_a_write_loses_it_and_one_after_it_does_not() {
    on_both(|mut rig| async move {
        let (before, after) = crashes_once(&mut rig, Point::BeforeWrite, 1).await;
        assert_eq!(before, ["from 0", "saved 1"]);
        assert_eq!(after, ["from 1", "saved 2", "saved 3", "dropped"]);
        let (before, after) = crashes_once(&mut rig, Point::AfterWrite, 1).await;
        assert_eq!(before, ["from 0", "saved 1"], "nobody is told");
        assert_eq!(after, ["from 2", "saved 3", "dropped"]);
        // The fourth write is the end.
        let (_, after) = crashes_once(&mut rig, Point::BeforeWrite, 3).await;
        assert_eq!(after, ["from 3", "dropped"]);
        let (_, after) = crashes_once(&mut rig, Point::AfterWrite, 3).await;
        assert_eq!(after, [""; 0], "its end has landed");
    })
    .await;
}

#[tokio::test]
async fn a_blocking_handler_that_is_cut_off_changes_nothing() {
    async fn starts(world: &World) -> Lab {
        let blocks = |_: Script, ctx: Ctx<World>| -> JobResult {
            ctx.state().say(format!("epoch {} begins", ctx.epoch()));
            let saved = ctx.block_on(ctx.save(&ctx.epoch()));
            ctx.state().say(format!("epoch {} saved: {}", ctx.epoch(), saved.is_ok()));
            saved?;
            Ok(Outcome::Done)
        };
        let builder = Runtime::in_memory().faults(world.faults.clone()).state(world.clone());
        Lab::start(builder.handle_blocking(blocks)).await.unwrap()
    }
    let world = World::default();
    let mut lab = starts(&world).await;
    let bystander = Bystander::enqueue(&lab.client()).await;
    let id = lab.enqueue(Script(vec![])).await.unwrap();
    lab.faults.arm(Point::BeforeWrite, 1);
    lab.settle().await;
    lab.crash().await.unwrap();
    lab.settle().await;
    let job = lab.job(&id).await.unwrap();
    assert_eq!((job.status, job.redrives), (Status::Completed, 1));
    while world.log.lock().unwrap().len() < 4 {
        tokio::task::yield_now().await;
    }
    let mut said = world.said();
    said.sort();
    let expected =
        ["epoch 1 begins", "epoch 1 saved: false", "epoch 3 begins", "epoch 3 saved: true"];
    assert_eq!(said, expected);
    bystander.check_by(&lab.client()).await;
}

// ---------------------------------------------------------------------------------------------
// Leases

#[tokio::test]
async fn a_lost_job_is_refused_to_its_holder_and_runs_again() {
    on_both(|rig| async move {
        let id = rig.lab.enqueue(Script(vec![Do::Listen, Do::Done(2)])).await.unwrap();
        rig.lab.settle().await;
        rig.lab.lose(&id).await.unwrap();
        assert_eq!(rig.world.said(), [""; 0], "nobody has told it yet");
        assert_eq!(rig.lab.job(&id).await.unwrap().phase, Phase::Ready);
        rig.lab.advance(Duration::from_secs(10)).await;
        assert_eq!(rig.world.said(), ["asked to stop: true", "lost: true true"]);
        let job = rig.lab.job(&id).await.unwrap();
        assert_eq!((job.attempts, job.result.unwrap().as_str()), (2, "2"));
        assert!(rig.lab.runtime.stats().lost > 0);
        let over = rig.lab.lose(&id).await;
        assert!(matches!(over, Err(Error::Refused(Refusal::NotRunning { .. }))), "{over:?}");
        rig.check().await;
    })
    .await;
}

// ---------------------------------------------------------------------------------------------
// Failures of the store

#[tokio::test]
async fn a_lost_answer_of_a_write_is_asked_for_again_and_lands_once() {
    on_both(|rig| async move {
        let id = rig.lab.enqueue(Script(vec![Do::Save(3)])).await.unwrap();
        rig.lab.faults.arm_after(Point::LostAnswer, 1, 2);
        rig.lab.settle().await;
        assert_eq!(rig.lab.faults.left(Point::LostAnswer), 0);
        let expected = ["from 0", "saved 1", "saved 2", "saved 3", "dropped"];
        assert_eq!(rig.world.said(), expected);
        let job = rig.lab.job(&id).await.unwrap();
        assert_eq!((job.status, job.epoch), (Status::Completed, 1));
        // That of the end is asked for after a pause.
        let id = rig.lab.enqueue(Script(vec![Do::Done(1)])).await.unwrap();
        rig.lab.faults.arm(Point::LostAnswer, 1);
        rig.lab.settle().await;
        assert_eq!(rig.lab.job(&id).await.unwrap().status, Status::Completed);
        assert_eq!(rig.lab.runtime.stats().in_flight, 1);
        rig.lab.advance(SECOND).await;
        assert_eq!(rig.lab.runtime.stats().in_flight, 0);
        rig.check().await;
    })
    .await;
}

#[tokio::test]
async fn a_point_is_passed_as_often_as_it_was_told() {
    let rig = Rig::start(None).await;
    let client = rig.lab.client();
    rig.lab.runtime.quiet();
    for (point, fault) in [
        (Point::Full, StoreFault::Full),
        (Point::Busy, StoreFault::Busy),
        (Point::Io, StoreFault::Io("an injected failure".into())),
    ] {
        let before = rig.lab.enqueued::<Script>().await.unwrap().len();
        rig.lab.faults.arm_after(point, 2, 1);
        for nth in 0..4 {
            let answer = client.enqueue(Script(vec![Do::Done(1)])).await;
            match answer {
                Err(Error::Store(found)) if nth == 2 => assert_eq!(found, fault),
                Ok(_) if nth != 2 => {}
                other => panic!("{point:?} {nth}: {other:?}"),
            }
        }
        assert_eq!(rig.lab.faults.left(point), 0);
        let after = rig.lab.enqueued::<Script>().await.unwrap().len();
        assert_eq!(after - before, 3, "{point:?}: nothing of it has landed");
    }
    // A batch that was rolled back is run again.
    rig.lab.faults.arm_after(Point::Message, 1, 1);
    for left in [1, 0] {
        client.enqueue(Script(vec![])).await.unwrap();
        assert_eq!(rig.lab.faults.left(Point::Message), left);
    }
    assert!(rig.lab.runtime.health().is_healthy());
    rig.check().await;
}

#[tokio::test]
async fn a_store_that_waits_for_its_restart_is_no_reason_to_hang() {
    on_both(|rig| async move {
        let id = rig.lab.enqueue(Script(vec![Do::Save(2)])).await.unwrap();
        for _ in 0..3 {
            rig.lab.faults.arm(Point::Store, 1);
            rig.lab.settle().await;
            assert_eq!(rig.lab.faults.left(Point::Store), 0);
            rig.lab.settle().await;
            assert!(matches!(rig.lab.run(&id).await, Err(Error::Store(StoreFault::Stopped))));
            rig.lab.advance(SECOND).await;
        }
        assert_eq!(rig.lab.runtime.health().restarts, 3);
        let job = rig.lab.job(&id).await.unwrap();
        assert_eq!((job.status, job.epoch), (Status::Completed, 1));
        rig.check().await;
    })
    .await;
}

#[tokio::test]
async fn a_call_that_cannot_end_panics_and_says_what_it_has_waited_for() {
    async fn panics(call: impl Future) -> String {
        let Err(panic) = AssertUnwindSafe(call).catch_unwind().await else {
            panic!("it has ended");
        };
        panic.downcast_ref::<String>().unwrap().clone()
    }
    let mut rig = Rig::start(None).await;
    rig.lab.patience = Duration::from_millis(50);
    rig.lab.faults.arm(Point::Store, 1);
    // A panic is printed before anybody hears of it, which may take longer than the patience.
    let mut text = String::new();
    for _ in 0..200 {
        text = panics(rig.lab.enqueue(Script(vec![]))).await;
        if text.contains("panicked") {
            break;
        }
    }
    assert!(text.starts_with("Lab::enqueue ") && text.contains("panicked"), "{text}");
    rig.lab.patience = Duration::from_secs(60);
    rig.lab.advance(SECOND).await;
    rig.lab.enqueue(Script(vec![Do::Hang]).into_new().id("hangs")).await.unwrap();
    // Long enough for the handler to be there.
    rig.lab.patience = Duration::from_secs(2);
    let text = panics(rig.lab.settle()).await;
    assert!(text.contains(r#"["script hangs"]"#), "{text}");
    rig.lab.faults.die().now_or_never();
    let text = panics(rig.lab.job("hangs")).await;
    assert!(text.contains("Lab::crash"), "{text}");
}

// ---------------------------------------------------------------------------------------------
// Several processes, and time

#[tokio::test]
async fn runtimes_beside_each_other_settle_together() {
    let rig = Rig::start(Some(())).await;
    let signals = Signals::default();
    let builder = rig.builder().state(signals.clone()).handle(act);
    let mut other = rig.lab.beside(builder).await.unwrap();
    let ours = rig.lab.enqueue(Script(vec![Do::Sleep, Do::Done(1)])).await.unwrap();
    let theirs = rig.lab.enqueue(Act::Sleep(3_000)).await.unwrap();
    rig.lab.settle().await;
    let owner = async |id| rig.lab.job(id).await.unwrap().owner.unwrap();
    assert_eq!(&*owner(&ours).await, rig.lab.runtime.owner());
    assert_eq!(&*owner(&theirs).await, other.runtime.owner());
    other.crash().await.unwrap();
    other.advance(Duration::from_secs(3)).await;
    assert_eq!(rig.lab.job(&ours).await.unwrap().status, Status::Completed);
    let job = rig.lab.job(&theirs).await.unwrap();
    assert_eq!((job.status, job.attempts, signals.times()), (Status::Running, 2, 2));
    rig.lab.advance(Duration::from_secs(3)).await;
    assert_eq!(rig.lab.job(&theirs).await.unwrap().status, Status::Completed);
    rig.check().await;
}

#[tokio::test]
async fn retention_is_made_by_the_labs_own_pass() {
    let world = World::default();
    let builder = on(Runtime::in_memory(), &world)
        .configure::<Script>(|kept| kept.keep(5 * SECOND, 5 * SECOND));
    let lab = Lab::start(builder).await.unwrap();
    let id = lab.enqueue(Script(vec![Do::Done(1)])).await.unwrap();
    lab.settle().await;
    lab.clock.advance(120_000);
    // Nobody else makes a pass, however long it is waited.
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert!(lab.client().job(&id).await.unwrap().is_some());
    assert!(!lab.look().await, "the pass has removed something");
    assert!(lab.client().job(&id).await.unwrap().is_none());
    assert!(lab.look().await);
}

#[tokio::test]
async fn a_process_that_has_died_leaves_nothing_of_its_own_behind() {
    let mut rig = Rig::start(None).await;
    let id = rig.lab.enqueue(Script(vec![Do::Sleep, Do::Done(1)])).await.unwrap();
    rig.lab.settle().await;
    rig.lab.crash().await.unwrap();
    rig.lab.settle().await;
    assert_eq!(rig.lab.job(&id).await.unwrap().status, Status::Completed);
    rig.lab.stop(SECOND).await;
    let Rig { lab, world, bystander, dir } = rig;
    drop((lab, bystander, dir));
    // Each process has the state until its last thread ends.
    let gone = async {
        while Arc::strong_count(&world.log) > 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(60 * SECOND, gone).await.unwrap();
}
