//! A panic wherever it can be: nothing but what panicked is lost, and the next job runs.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold::testing::{Faults, Lab, Point};
use leasehold::{
    Ctx, FencedError, Hooks, Job, JobResult, Outcome, Runtime, Settings, Status, StoreFault,
};
use serde::{Deserialize, Serialize};

use crate::support::{Act, Bystander, Signals, act};

const PATIENCE: Duration = Duration::from_secs(60);

struct Panicking {
    _dir: tempfile::TempDir,
    runtime: Runtime,
    faults: Faults,
    bystander: Bystander,
}

impl Panicking {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let faults = Faults::default();
        let runtime = Runtime::builder(dir.path().join("jobs.db"))
            .state(Signals::default())
            .handle(act)
            .faults(faults.clone())
            .start()
            .await
            .unwrap();
        let bystander = Bystander::enqueue(&runtime.client()).await;
        Self { _dir: dir, runtime, faults, bystander }
    }

    /// Arms a point, waits until it was hit, and sees that the runtime is as before.
    async fn survives(&self, point: Point, actor: &str) {
        self.faults.arm(point, 1);
        while self.faults.left(point) > 0 {
            tokio::task::yield_now().await;
        }
        while self.runtime.health().restarts == 0 {
            tokio::task::yield_now().await;
        }
        let health = self.runtime.health();
        assert!(health.is_healthy(), "{health:?}");
        assert!(health.last_restart.unwrap().starts_with(actor));
        self.runs_a_job().await;
        self.bystander.check().await;
    }

    async fn runs_a_job(&self) {
        let id = self.runtime.enqueue(Act::Done).await.unwrap().id;
        let job = self.runtime.wait(id, PATIENCE).await.unwrap();
        assert_eq!((job.status, job.attempts), (Status::Completed, 1));
    }
}

#[tokio::test]
async fn a_panic_of_the_workers_own_code_restarts_it() {
    Panicking::start().await.survives(Point::Worker, "worker").await;
}

#[tokio::test]
async fn a_panic_of_the_reapers_own_code_restarts_it() {
    Panicking::start().await.survives(Point::Reaper, "reaper").await;
}

#[tokio::test]
async fn a_panic_of_the_supervisors_own_code_restarts_it() {
    let lab = Panicking::start().await;
    // The supervisor looks while something runs.
    let id = lab.runtime.enqueue(Act::UntilAsked).await.unwrap().id;
    lab.survives(Point::Supervisor, "supervisor").await;
    let client = lab.runtime.client();
    client.cancel(&id, leasehold::Operator::named("test")).await.unwrap();
    assert_eq!(lab.runtime.wait(id, PATIENCE).await.unwrap().status, Status::Cancelled);
}

#[tokio::test]
async fn heartbeats_and_time_limits_go_on_after_a_panic_of_the_supervisors_own_code() {
    let clock = leasehold::ManualClock::at(0);
    let (signals, faults) = (Signals::default(), Faults::default());
    let runtime = Runtime::in_memory()
        .state(signals.clone())
        .handle(act)
        .configure::<Act>(|settings| settings.timeout(Duration::from_secs(15)))
        .faults(faults.clone())
        .clock(clock.clone())
        .start()
        .await
        .unwrap();
    runtime.enqueue(Act::Hang.into_new().max_attempts(1_000_000)).await.unwrap();
    signals.entered(1).await;
    faults.arm(Point::Supervisor, 1);
    let goes_on = async {
        while runtime.health().restarts == 0 {
            clock.advance(20);
            tokio::task::yield_now().await;
        }
        let before = runtime.stats();
        loop {
            let stats = runtime.stats();
            if stats.renewals > before.renewals && stats.failures > before.failures {
                return;
            }
            clock.advance(20);
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, goes_on).await.unwrap();
    assert_eq!(runtime.health().restarts, 1);
}

#[tokio::test]
async fn a_panic_of_the_stores_own_code_loses_no_message() {
    let lab = Panicking::start().await;
    lab.faults.arm(Point::Store, 1);
    // Asked for while the store is down, and answered when it is up again.
    let ids = (0..20).map(|_| lab.runtime.enqueue(Act::Done));
    let ids = futures_util::future::join_all(ids).await;
    for id in ids {
        let job = lab.runtime.wait(id.unwrap().id, PATIENCE).await.unwrap();
        assert_eq!(job.status, Status::Completed);
    }
    assert_eq!(lab.runtime.health().restarts, 1);
    assert!(lab.runtime.health().is_healthy());
    lab.bystander.check().await;
}

#[tokio::test]
async fn a_worker_whose_thread_is_stuck_gets_a_successor() {
    let lab = Panicking::start().await;
    lab.survives(Point::WorkerStuck, "worker").await;
}

#[tokio::test]
async fn a_loop_that_panics_again_and_again_is_given_up_and_health_says_so() {
    let clock = leasehold::ManualClock::at(0);
    let faults = Faults::default();
    let runtime = Runtime::in_memory()
        .state(Signals::default())
        .handle(act)
        .faults(faults.clone())
        .clock(clock.clone())
        .start()
        .await
        .unwrap();
    faults.arm(Point::Reaper, 11);
    while runtime.health().restarts == 0 {
        clock.advance(200);
        tokio::task::yield_now().await;
    }
    // The pauses before the ten restarts that a minute allows.
    let pauses = [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000, 10_000];
    for (restarts, pause) in (1..).zip(pauses) {
        while runtime.health().restarts < restarts {
            tokio::task::yield_now().await;
        }
        assert!(runtime.health().is_healthy());
        clock.advance(pause);
    }
    while runtime.health().is_healthy() {
        tokio::task::yield_now().await;
    }
    let health = runtime.health();
    assert!(health.troubles[0].starts_with("reaper failed too often"), "{health:?}");
}

#[tokio::test]
async fn a_panic_in_a_handler_is_a_failed_attempt_with_its_text() {
    let lab = Panicking::start().await;
    let id = lab.runtime.enqueue(Act::Panic.into_new().max_attempts(1)).await.unwrap().id;
    let job = lab.runtime.wait(id, PATIENCE).await.unwrap();
    assert_eq!(job.status, Status::Failed);
    assert_eq!(job.last_error.as_deref(), Some("panicked: as it was told"));
    assert_eq!(lab.runtime.health().restarts, 0);
    lab.runs_a_job().await;
    lab.bystander.check().await;
}

/// A job whose handler panics in a transaction, and then says what it saw.
#[derive(Serialize, Deserialize)]
struct Poison;

impl Job for Poison {
    const KIND: &'static str = "poison";
    fn settings() -> Settings {
        Settings::new()
    }
}

async fn poison(_: Poison, ctx: Ctx) -> JobResult {
    ctx.fenced(|tx| tx.execute("CREATE TABLE IF NOT EXISTS mine (n INTEGER)", [])).await?;
    let failed = ctx
        .fenced(|tx| -> leasehold::rusqlite::Result<()> {
            tx.execute("INSERT INTO mine VALUES (1)", [])?;
            panic!("in the transaction")
        })
        .await;
    let Err(FencedError::Store(StoreFault::Panicked(text))) = failed else {
        return Err(format!("{failed:?}"))?;
    };
    let rows: i64 =
        ctx.fenced(|tx| tx.query_row("SELECT count(*) FROM mine", [], |row| row.get(0))).await?;
    Ok(Outcome::done_with(&(text, rows)))
}

#[tokio::test]
async fn a_panic_in_a_fenced_closure_rolls_back_what_it_wrote_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let builder = Runtime::builder(dir.path().join("jobs.db")).handle(poison);
    let runtime = builder.start().await.unwrap();
    let bystander = Bystander::enqueue(&runtime.client()).await;
    let id = runtime.enqueue(Poison).await.unwrap().id;
    let job = runtime.wait(id, PATIENCE).await.unwrap();
    assert_eq!(job.result.unwrap().as_str(), r#"["panicked: in the transaction",0]"#);
    assert_eq!(runtime.health().restarts, 0);
    bystander.check().await;
}

struct PanicsInDrop;

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        panic!("in a drop")
    }
}

/// Lets go of a fenced write that is on its way, so that the store drops its closure.
async fn lets_go(_: Poison, ctx: Ctx) -> JobResult {
    let held = PanicsInDrop;
    let write = ctx.fenced(move |_| -> leasehold::rusqlite::Result<()> {
        let _held = &held;
        Ok(())
    });
    // Who drops the closure last, the store or this handler, is a matter of chance; a panic of
    // the handler's own is caught here, as it is not what is tested.
    let _mine = std::panic::catch_unwind(AssertUnwindSafe(|| write.now_or_never().is_none()));
    Ok(Outcome::Done)
}

#[tokio::test]
async fn a_panic_when_a_fenced_closure_is_dropped_costs_nobody_else_anything() {
    let runtime = Runtime::in_memory().handle(lets_go).start().await.unwrap();
    for _ in 0..3 {
        let id = runtime.enqueue(Poison).await.unwrap().id;
        let job = runtime.wait(id, PATIENCE).await.unwrap();
        assert_eq!((job.status, job.epoch), (Status::Completed, 1));
    }
    assert_eq!(runtime.health().restarts, 0);
}

#[tokio::test]
async fn a_panic_in_a_hook_is_no_agreement_and_the_job_goes_on_by_its_policy() {
    let hooks = Hooks::new().on_transition(|_, _| panic!("in a hook")).on_redrive(|_, _| Ok(1));
    let ended = Arc::new(Mutex::new(Vec::new()));
    let note = ended.clone();
    let hooks = hooks.after_transition(move |job| note.lock().unwrap().push(job.id.clone()));
    let builder = Runtime::in_memory().state(Signals::default()).handle(act);
    let lab = Lab::start(builder.hooks::<Act>(hooks)).await.unwrap();
    let bystander = Bystander::enqueue(&lab.client()).await;
    let id = lab.enqueue(Act::Done.into_new().max_attempts(2)).await.unwrap();
    lab.settle().await;
    // The completion was refused: a failed attempt, and a retry by the kind's policy.
    let job = lab.job(&id).await.unwrap();
    assert_eq!((job.status, job.hook_failures, job.attempts), (Status::Pending, 1, 1));
    assert!(job.last_error.as_ref().unwrap().contains("in a hook"), "{job:?}");
    lab.advance(Duration::from_secs(1)).await;
    // The last failure was owed, pass after pass, until the hook had failed too often.
    let job = lab.job(&id).await.unwrap();
    assert_eq!((job.status, job.hook_failures), (Status::Failed, 20));
    assert!(job.parked_at.is_some() && job.hooked_at.is_none());
    // An ending without its hook needs a person, and says so where a person looks.
    let troubles = lab.runtime.health().troubles;
    assert!(troubles.len() == 1 && troubles[0].contains(&id.to_string()), "{troubles:?}");
    assert_eq!(*ended.lock().unwrap(), [id], "the hook after the commit saw the end, once");
    assert_eq!(lab.runtime.health().restarts, 0);
    bystander.check().await;
}
