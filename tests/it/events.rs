//! What a runtime tells: events, counts of itself, and troubles that a person must see to.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::testing::{Bench, BenchSettings, Faults, Lab, Point};
use leasehold::{
    Client, Ctx, ErrorClass, Event, Events, Failed, Hooks, Job, JobError, JobResult, NewJob,
    Operator, Outcome, Redrive, Runtime, Settings, Status, Verdict,
};
use serde::{Deserialize, Serialize};

use crate::rng::Rng;
use crate::support::{Act, Bystander, Signals, act, record};

/// The next so many events, in short.
async fn heard(events: &mut Events, n: usize) -> Vec<String> {
    let mut heard = Vec::new();
    for _ in 0..n {
        heard.push(match events.next().await.unwrap() {
            Event::Job(job) => {
                let outcome = job.outcome.map_or(String::new(), |outcome| format!(" {outcome}"));
                format!("{} {} {} {}{outcome}", job.what, job.id, job.epoch, job.status)
            }
            Event::Restarted { name, .. } => format!("restarted {name}"),
            Event::Missed { events } => format!("missed {events}"),
            other => format!("{other:?}"),
        });
    }
    heard
}

async fn lease(client: &Client, id: &str) -> leasehold::Lease {
    client.claim_by_id(id, "w").await.unwrap().unwrap()
}

#[tokio::test]
async fn each_write_is_told_once_after_its_commit() {
    let bench = Bench::start(BenchSettings::default()).await.unwrap();
    let client = &bench.client;
    client.register("mail", Settings::new().max_stalls(1)).await.unwrap();
    client.enqueue(NewJob::raw("mail", None).id("unheard")).await.unwrap();
    let mut events = client.events();
    let by = || Operator::named("ann");
    for id in ["a", "b", "c"] {
        client.enqueue(NewJob::raw("mail", None).id(id)).await.unwrap();
    }
    client.enqueue(NewJob::raw("mail", None).id("a")).await.unwrap();
    lease(client, "a").await.complete(None).await.unwrap();
    lease(client, "b").await.fail(Failed::transient("x")).await.unwrap();
    client.cancel("b", by()).await.unwrap();
    client.redrive("b", Redrive::default(), by()).await.unwrap();
    lease(client, "b").await.hand_back().await.unwrap();
    let late = lease(client, "c").await;
    bench.clock.advance(31_000);
    client.reap_once().await.unwrap();
    late.complete(None).await.unwrap_err();
    let expected = [
        "enqueued a 0 pending",
        "enqueued b 0 pending",
        "enqueued c 0 pending",
        "claimed a 1 running",
        "settled a 1 completed completed",
        "claimed b 1 running",
        "settled b 1 pending retried",
        "cancelled b 1 cancelled",
        "redriven b 1 pending",
        "claimed b 3 running",
        "parked b 3 failed poison",
        "claimed c 1 running",
        "reaped c 1 pending lost",
        "lost c 1 pending lost",
    ];
    assert_eq!(heard(&mut events, expected.len()).await, expected);
    client.enqueue(NewJob::raw("mail", None).id("last")).await.unwrap();
    assert_eq!(heard(&mut events, 1).await, ["enqueued last 0 pending"], "and nothing besides");
}

#[tokio::test]
async fn what_is_rolled_back_is_not_told() {
    let bench = Bench::start(BenchSettings::default()).await.unwrap();
    let mut events = bench.client.events();
    let failed = bench
        .client
        .transaction(|tx| {
            tx.enqueue(NewJob::raw("mail", None)).map_err(|error| error.to_string())?;
            Err::<(), _>("no".to_owned())
        })
        .await;
    assert!(failed.is_err());
    bench.client.enqueue(NewJob::raw("mail", None).id("a")).await.unwrap();
    assert_eq!(heard(&mut events, 1).await, ["enqueued a 0 pending"]);
}

#[tokio::test]
async fn a_slow_listener_is_told_how_many_events_it_missed_and_slows_nobody() {
    let bench = Bench::start(BenchSettings::default()).await.unwrap();
    let mut events = bench.client.events();
    let jobs = (0..1_500).map(|n| NewJob::raw("mail", None).id(n.to_string()));
    bench.client.enqueue_many(jobs).await.unwrap();
    // All is told once the next answer is here.
    bench.client.enqueue(NewJob::raw("mail", None).id("0")).await.unwrap();
    let heard = heard(&mut events, 1_025).await;
    assert_eq!((&*heard[0], &*heard[1]), ("missed 476", "enqueued 476 0 pending"));
    assert_eq!(events.try_next(), None);
    drop(bench);
    assert!(events.next().await.is_none(), "the stream ends with the database");
}

#[tokio::test]
async fn a_restart_of_a_loop_is_told() {
    let faults = Faults::default();
    let builder = Runtime::in_memory().state(Signals::default()).handle(act);
    let runtime = builder.faults(faults.clone()).start().await.unwrap();
    let mut events = runtime.events();
    faults.arm(Point::Reaper, 1);
    while heard(&mut events, 1).await != ["restarted reaper"] {}
}

/// A job of a kind that classifies its own errors.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Fetch {
    Missing,
    TimedOut,
    Odd,
    PanicInClassify,
}

#[derive(Debug)]
struct Bad;

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("bad")
    }
}

impl std::error::Error for Bad {}

impl Job for Fetch {
    const KIND: &'static str = "fetch";

    fn classify(error: JobError) -> JobError {
        use std::io::ErrorKind::{NotFound, TimedOut};
        assert!(error.find::<Bad>().is_none(), "a classifier that panics");
        match error.find::<std::io::Error>().map(std::io::Error::kind) {
            Some(NotFound) => error.with_class(ErrorClass::Unrecoverable).code("E404"),
            Some(TimedOut) => {
                error.with_class(ErrorClass::RateLimited).with_wait(Duration::from_hours(1))
            }
            _ => error,
        }
    }
}

async fn fetch(job: Fetch, _: Ctx) -> JobResult {
    match job {
        Fetch::Missing => Err(std::io::Error::from(std::io::ErrorKind::NotFound))?,
        Fetch::TimedOut => Err(std::io::Error::from(std::io::ErrorKind::TimedOut))?,
        Fetch::Odd => Err("odd")?,
        Fetch::PanicInClassify => Err(Bad)?,
    }
}

fn fetch_blocking(job: Fetch, _: Ctx) -> JobResult {
    match job {
        Fetch::Missing => Err(std::io::Error::from(std::io::ErrorKind::NotFound))?,
        _ => Ok(Outcome::Done),
    }
}

#[tokio::test]
async fn a_kind_classifies_its_own_errors() {
    let lab = Lab::start(Runtime::in_memory().handle(fetch)).await.unwrap();
    let bystander = Bystander::enqueue(&lab.client()).await;
    let mut seen = Vec::new();
    for job in [Fetch::Missing, Fetch::TimedOut, Fetch::Odd, Fetch::PanicInClassify] {
        let id = lab.enqueue(job).await.unwrap();
        lab.settle().await;
        let job = lab.job(&id).await.unwrap();
        seen.push((job.status, job.error_class, job.error_code, job.attempts));
        if matches!(seen.len(), 2) {
            assert_eq!(job.run_at, job.updated_at + 3_600_000, "the least wait was the kind's");
        }
    }
    let transient = (Status::Pending, Some(ErrorClass::Transient), None, 1);
    let expected = [
        (Status::Failed, Some(ErrorClass::Unrecoverable), Some("E404".to_owned()), 1),
        (Status::Pending, Some(ErrorClass::RateLimited), None, 0),
        transient.clone(),
        transient,
    ];
    assert_eq!(seen, expected);
    bystander.check().await;
}

#[tokio::test]
async fn errors_of_blocking_handlers_are_classified_too() {
    let lab = Lab::start(Runtime::in_memory().handle_blocking(fetch_blocking)).await.unwrap();
    let id = lab.enqueue(Fetch::Missing).await.unwrap();
    lab.settle().await;
    assert_eq!(lab.job(&id).await.unwrap().verdict, Some(Verdict::Unrecoverable));
}

#[tokio::test]
async fn a_hook_after_the_commit_that_does_not_end_holds_up_no_job() {
    let gate = Signals::default();
    let closed = gate.clone();
    let hooks = Hooks::new().after_transition(move |_| closed.wait_for_gate());
    let builder = Runtime::in_memory().state(Signals::default()).handle(act).hooks::<Act>(hooks);
    let runtime = builder.start().await.unwrap();
    for _ in 0..3 {
        let id = runtime.enqueue(Act::Done).await.unwrap().id;
        let job = runtime.wait(id, Duration::from_secs(60)).await.unwrap();
        assert_eq!(job.status, Status::Completed);
    }
    gate.open();
    let report = runtime.stop(Duration::from_secs(5)).await;
    assert!(report.in_flight.is_empty());
}

#[tokio::test]
async fn health_names_endings_that_nobody_serves() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.db");
    let hooks = || Hooks::new().on_cancel(|_, _| Err("not now")?);
    let with = Runtime::builder(&path).state(Signals::default()).handle(act);
    let with = Lab::start(with.hooks::<Act>(hooks())).await.unwrap();
    with.runtime.quiet();
    let id = with.enqueue(Act::Done).await.unwrap();
    with.client().cancel(&*id.to_string(), Operator::named("ann")).await.unwrap_err();
    assert_eq!(record(&with.client(), &id).await.hook_failures, 1);
    with.stop(Duration::ZERO).await;
    drop(with);
    let without = Runtime::builder(&path).handle(fetch);
    let without = Lab::start(without).await.unwrap();
    without.settle().await;
    assert!(without.runtime.health().is_healthy(), "another process may be about to");
    without.advance(Duration::from_secs(61)).await;
    let troubles = without.runtime.health().troubles;
    let expected = "jobs of kind act owed an ending: 1; no process has its hooks";
    assert_eq!(troubles, [expected]);
    let job = record(&without.client(), &id).await;
    assert_eq!((job.status, job.hook_failures), (Status::Pending, 1), "it was left alone");
}

#[tokio::test]
async fn counts_of_itself_name_claims_that_could_not_be_made() {
    let lab = Lab::start(Runtime::in_memory().state(Signals::default()).handle(act)).await.unwrap();
    // Whoever claims is there by then.
    lab.settle().await;
    let before = lab.runtime.stats().claim_errors;
    lab.faults.arm(Point::Commit, 1);
    lab.enqueue(Act::Done).await.unwrap();
    lab.settle().await;
    assert_eq!((before, lab.runtime.stats().claim_errors), (0, 1));
}

#[tokio::test]
async fn each_end_is_told_once_where_batches_are_taken_back_and_run_again() {
    let seed = std::env::var("LEASEHOLD_SEED").map_or(1, |text| text.parse().unwrap());
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let builder = Runtime::in_memory().state(Signals::default()).handle(act);
    let lab = Lab::start(builder).await.unwrap();
    let (client, mut events) = (lab.client(), lab.client().events());
    let mut told = BTreeMap::<String, Vec<Status>>::new();
    let mut ids = Vec::new();
    for _ in 0..60 {
        for _ in 0..5 {
            let job = rng.of(&[Act::Done, Act::Fail, Act::Panic, Act::Sleep(500)]);
            ids.push(lab.enqueue(job).await.unwrap());
        }
        lab.faults.arm(Point::Message, u32::try_from(rng.below(4)).unwrap());
        if rng.one_in(3) {
            let id = rng.of(&ids);
            let _ended = client.cancel(id, Operator::named("ann")).await;
        }
        lab.advance(Duration::from_millis(400)).await;
        while let Some(event) = events.try_next() {
            let Event::Job(event) = event else { panic!("{event:?}") };
            if !event.status.is_live() {
                told.entry(event.id.to_string()).or_default().push(event.status);
            }
        }
    }
    lab.faults.arm(Point::Message, 0);
    for _ in 0..20 {
        lab.advance(Duration::from_secs(1)).await;
    }
    while let Some(event) = events.try_next() {
        let Event::Job(event) = event else { panic!("{event:?}") };
        if !event.status.is_live() {
            told.entry(event.id.to_string()).or_default().push(event.status);
        }
    }
    for id in ids {
        let status = record(&client, &id).await.status;
        assert_eq!(told.remove(&id.to_string()), Some(vec![status]), "{id}");
    }
    assert!(told.is_empty(), "{told:?}");
}
