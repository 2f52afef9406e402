//! Code around handlers, and what is done when the runtime cannot mend itself.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::testing::{Faults, Point};
use leasehold::{Builder, Ctx, Job, JobResult, Outcome, Policy, Runtime, Status};

use crate::support::{Act, Signals, act};

const PATIENCE: Duration = Duration::from_secs(60);

type Trail = Arc<Mutex<Vec<String>>>;

fn note(trail: &Trail, what: impl Into<String>) {
    trail.lock().unwrap().push(what.into());
}

fn watched<M>(builder: Builder<Signals, M>, trail: &Trail) -> Builder<Signals, M> {
    let (outer, inner) = (trail.clone(), trail.clone());
    builder
        .around(move |call, next| {
            let trail = outer.clone();
            async move {
                note(&trail, format!("outer, attempt {} of {}", call.attempt, call.kind));
                let result = next.await;
                note(&trail, if result.is_ok() { "outer, well" } else { "outer, failed" });
                result
            }
        })
        .around(move |_, next| {
            let trail = inner.clone();
            async move {
                note(&trail, "inner");
                next.await
            }
        })
}

fn blocks(job: Act, _: Ctx<Signals>) -> JobResult {
    match job {
        Act::Panic => panic!("as it was told"),
        _ => Ok(Outcome::Done),
    }
}

/// Runs a job that ends well and one that panics.
async fn check<M>(builder: Builder<Signals, M>, trail: &Trail) {
    let runtime = builder.start().await.unwrap();
    for (job, status, end) in [
        (Act::Done, Status::Completed, "outer, well"),
        (Act::Panic, Status::Failed, "outer, failed"),
    ] {
        trail.lock().unwrap().clear();
        let id = runtime.enqueue(job.into_new().max_attempts(1)).await.unwrap().id;
        assert_eq!(runtime.wait(id, PATIENCE).await.unwrap().status, status);
        assert_eq!(*trail.lock().unwrap(), ["outer, attempt 1 of act", "inner", end]);
    }
    runtime.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn code_around_runs_outside_in_for_every_sort_of_handler() {
    let trail = Trail::default();
    let new = || Runtime::in_memory().state(Signals::default());
    check(watched(new(), &trail).handle(act), &trail).await;
    check(watched(new(), &trail).handle_blocking(blocks), &trail).await;
    let host = tokio::runtime::Handle::current();
    check(watched(new(), &trail).handlers_on(host).handle(act), &trail).await;
}

#[tokio::test]
async fn a_panic_of_the_code_around_is_a_failed_attempt() {
    let builder = Runtime::in_memory().state(Signals::default()).handle(act);
    let runtime = builder.around(|_, _| async { panic!("around") }).start().await.unwrap();
    let id = runtime.enqueue(Act::Done.into_new().max_attempts(1)).await.unwrap().id;
    let job = runtime.wait(id, PATIENCE).await.unwrap();
    assert_eq!((job.status, job.last_error.as_deref()), (Status::Failed, Some("panicked: around")));
}

#[tokio::test]
async fn a_runtime_that_cannot_mend_itself_stops_where_the_policy_says_so() {
    let faults = Faults::default();
    let signals = Signals::default();
    let runtime = Runtime::in_memory()
        .state(signals.clone())
        .handle(act)
        .when_unhealthy(Policy::Stop)
        .code_limit(Duration::from_millis(1))
        .faults(faults.clone())
        .start()
        .await
        .unwrap();
    // What mends itself is no reason to stop.
    faults.arm(Point::Worker, 1);
    runtime.enqueue(Act::StickInStore).await.unwrap();
    signals.entered(1).await;
    let report = runtime.stopped().await;
    assert!(report.stuck_in_store.is_some(), "{report:?}");
    signals.open();
}
