//! Operations on many jobs: preview, pace, stop, resume, a restart in between, and what each job
//! came to.

use std::time::Duration;

use leasehold::testing::{Bench, BenchSettings, Lab, Point};
use leasehold::{
    Bulk, BulkAction, BulkState, Client, ErrorClass, Failed, Filter, Hooks, JobId, NewBulk, NewJob,
    Operator, Phase, Redrive, Refusal, Runtime, Scope, Settings, Status,
};

use crate::support::{Act, Bystander, Signals, act};

fn ann() -> Operator {
    Operator::named("ann").because("the provider is back")
}

fn again() -> BulkAction {
    BulkAction::Redrive(Redrive::default())
}

/// So many failed jobs of kind `mail`, named `0` and up.
async fn failed(client: &Client, n: usize) {
    client.register("mail", Settings::new()).await.unwrap();
    for n in 0..n {
        client.enqueue(NewJob::raw("mail", None).id(n.to_string())).await.unwrap();
        let lease = client.claim_by_id(n.to_string(), "w").await.unwrap().unwrap();
        lease
            .fail(Failed { class: ErrorClass::Terminal, ..Failed::transient("boom") })
            .await
            .unwrap();
    }
}

async fn bulk(client: &Client, id: i64) -> Bulk {
    client.bulk(id).await.unwrap().unwrap()
}

async fn ready(client: &Client) -> i64 {
    *client.counts().await.unwrap().kinds.get("mail").unwrap_or(&0)
}

fn dead() -> Filter {
    Filter::new().kind("mail").phase(Phase::Dead)
}

#[tokio::test]
async fn it_goes_on_at_its_pace_until_every_job_is_met_and_touches_no_other() {
    let bench = Bench::start(BenchSettings::default()).await.unwrap();
    let client = &bench.client;
    failed(client, 250).await;
    let bystander = Bystander::enqueue(client).await;
    let id = client.start_bulk(NewBulk::new(again(), dead()).pace(200), ann()).await.unwrap();
    failed_late(&bench).await;
    for (after, done) in [(0, 100), (499, 100), (1, 200), (500, 250)] {
        bench.clock.advance(after);
        client.reap_once().await.unwrap();
        assert_eq!((ready(client).await, bulk(client, id).await.done), (done, done), "{after}");
    }
    let done = bulk(client, id).await;
    assert_eq!((done.state, done.refused), (BulkState::Done, 0));
    assert_eq!(done.finished_at, Some(1_001_001));
    let late = client.job("late").await.unwrap().unwrap();
    assert_eq!(late.status, Status::Failed, "what was enqueued later is not touched");
    bystander.check().await;
    let record = client.job("7").await.unwrap().unwrap();
    assert_eq!((record.redrives, record.last_error.as_deref()), (1, Some("boom")));
}

/// A job that fails after the operation was started.
async fn failed_late(bench: &Bench) {
    bench.clock.advance(1);
    bench.client.enqueue(NewJob::raw("mail", None).id("late")).await.unwrap();
    let lease = bench.client.claim_by_id("late", "w").await.unwrap().unwrap();
    lease.fail(Failed { class: ErrorClass::Terminal, ..Failed::transient("boom") }).await.unwrap();
}

#[tokio::test]
async fn a_job_that_fails_again_is_not_met_again() {
    let bench = Bench::start(BenchSettings::default()).await.unwrap();
    let client = &bench.client;
    failed(client, 3).await;
    let id = client.start_bulk(NewBulk::new(again(), dead()).pace(1), ann()).await.unwrap();
    for _ in 0..6 {
        bench.clock.advance(1_000);
        client.reap_once().await.unwrap();
        for lease in client.claim(&["mail"], "w", 10).await.unwrap() {
            lease
                .fail(Failed { class: ErrorClass::Terminal, ..Failed::transient("again") })
                .await
                .unwrap();
        }
    }
    let done = bulk(client, id).await;
    assert_eq!((done.state, done.done), (BulkState::Done, 3));
    assert_eq!(client.counts().await.unwrap().dead, 3);
}

#[tokio::test]
async fn the_preview_counts_what_is_met_and_what_is_allowed_and_changes_nothing() {
    let bench = Bench::start(BenchSettings::default()).await.unwrap();
    let client = &bench.client;
    failed(client, 12).await;
    client.enqueue_many((0..3).map(|_| NewJob::raw("mail", None))).await.unwrap();
    let lease = client.claim(&["mail"], "w", 1).await.unwrap().remove(0);
    lease.complete(None).await.unwrap();
    let mail = Filter::new().kind("mail");
    let before = client.counts().await.unwrap();
    for (action, allowed) in [
        (again(), 12),
        (BulkAction::Redrive(Redrive::default().allow_finished()), 13),
        (BulkAction::Cancel, 2),
        (BulkAction::Delete, 13),
        (BulkAction::RunAgain, 13),
    ] {
        let preview = client.preview(action, &mail).await.unwrap();
        assert_eq!((preview.matching, preview.allowed), (15, allowed), "{action:?}");
        assert_eq!(preview.samples.len(), 10);
    }
    assert_eq!(client.counts().await.unwrap(), before);
}

#[tokio::test]
async fn it_is_stopped_resumed_and_goes_on_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let settings =
        || BenchSettings { path: Some(dir.path().join("jobs.db")), ..BenchSettings::default() };
    let first = Bench::start(settings()).await.unwrap();
    failed(&first.client, 10).await;
    let id = first.client.start_bulk(NewBulk::new(again(), dead()).pace(4), ann()).await.unwrap();
    first.client.reap_once().await.unwrap();
    first.client.stop_bulk(id, ann()).await.unwrap();
    drop(first);
    let bench = Bench::start(settings()).await.unwrap();
    let client = &bench.client;
    bench.clock.advance(60_000);
    client.reap_once().await.unwrap();
    let stopped = bulk(client, id).await;
    assert_eq!((stopped.state, stopped.done), (BulkState::Stopped, 4));
    let refused = client.stop_bulk(id, ann()).await.unwrap_err();
    assert!(refused.to_string().contains("this one is stopped"), "{refused}");
    client.resume_bulk(id, ann()).await.unwrap();
    for _ in 0..3 {
        client.reap_once().await.unwrap();
        bench.clock.advance(1_000);
    }
    let done = bulk(client, id).await;
    assert_eq!((done.state, done.done, ready(client).await), (BulkState::Done, 10, 10));
    for refused in [client.resume_bulk(id, ann()).await, client.stop_bulk(99, ann()).await] {
        assert_eq!(refused.unwrap_err().refusal().unwrap().code(), "invalid");
    }
}

#[tokio::test]
async fn what_each_job_came_to_is_kept_with_who_and_why() {
    let hooks = Hooks::new().on_delete(|job, _| match job.id.to_string().as_str() {
        "1" => Err("it is an exhibit")?,
        _ => Ok(()),
    });
    let hooks = vec![("mail".to_owned(), hooks)];
    let bench = Bench::start(BenchSettings { hooks, ..BenchSettings::default() }).await.unwrap();
    let client = &bench.client;
    failed(client, 3).await;
    client.enqueue(NewJob::raw("mail", None).id("live")).await.unwrap();
    let mail = Filter::new().kind("mail");
    let id = client.start_bulk(NewBulk::new(BulkAction::Delete, mail), ann()).await.unwrap();
    client.reap_once().await.unwrap();
    let outcomes = client.bulk_outcomes(id, 0, 3).await.unwrap();
    let after = outcomes.last().unwrap().n;
    let rest = client.bulk_outcomes(id, after, 10).await.unwrap();
    let all: Vec<_> = outcomes.iter().chain(&rest).collect();
    let seen: Vec<_> = all.iter().map(|one| (one.job.to_string(), &*one.outcome)).collect();
    let expected = [("0", "done"), ("1", "vetoed"), ("2", "done"), ("live", "live")];
    assert_eq!(seen, expected.map(|(id, outcome)| (id.to_owned(), outcome)));
    assert!(all[1].detail.as_ref().unwrap().contains("it is an exhibit"));
    let done = bulk(client, id).await;
    assert_eq!((done.done, done.refused, done.state), (2, 2, BulkState::Done));
    let actions = client.actions(i64::MAX, 100).await.unwrap();
    let said: Vec<_> = actions.iter().map(|one| (&*one.action, &*one.target)).collect();
    let bulk = format!("bulk {id}");
    let expected =
        [("bulk delete done", &*bulk), ("delete", "2"), ("delete", "0"), ("bulk delete", &*bulk)];
    assert_eq!(said, expected);
    assert!(actions.iter().all(|one| one.by == ann()));
    assert_eq!(actions[3].filter.as_deref(), Some(r#"{"kind":["mail"]}"#));
}

#[tokio::test]
async fn one_without_a_condition_or_with_a_pace_out_of_range_is_refused() {
    let bench = Bench::start(BenchSettings::default()).await.unwrap();
    let client = &bench.client;
    for (bulk, field) in [
        (NewBulk::new(BulkAction::Cancel, Filter::new()), "filter"),
        (NewBulk::new(BulkAction::Cancel, dead()).pace(0), "pace"),
        (NewBulk::new(BulkAction::Cancel, dead()).pace(10_001), "pace"),
    ] {
        let refused = client.start_bulk(bulk, ann()).await.unwrap_err();
        let is =
            matches!(refused.refusal(), Some(Refusal::Invalid { field: f, .. }) if *f == field);
        assert!(is, "{refused}");
    }
    assert!(client.bulks(10).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_scoped_one_touches_and_shows_its_own_alone() {
    let bench = Bench::start(BenchSettings::default()).await.unwrap();
    let client = &bench.client;
    let jobs = ["a", "b"].map(|tenant| NewJob::raw("mail", None).id(tenant).tenant(tenant));
    client.enqueue_many(jobs).await.unwrap();
    let ours = client.scoped(Scope::tenant("a"));
    let all = NewBulk::new(BulkAction::Cancel, Filter::new().created_at(0..));
    let id = ours.start_bulk(all, ann()).await.unwrap();
    client.reap_once().await.unwrap();
    let status = async |id: &str| client.job(JobId::new(id)).await.unwrap().unwrap().status;
    assert_eq!((status("a").await, status("b").await), (Status::Cancelled, Status::Pending));
    let theirs = client.scoped(Scope::tenant("b"));
    assert!(theirs.bulk(id).await.unwrap().is_none());
    assert!(theirs.bulk_outcomes(id, 0, 10).await.unwrap().is_empty());
    assert_eq!(ours.bulk_outcomes(id, 0, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_runtime_works_it_off_by_itself() {
    let builder = Runtime::in_memory().state(Signals::default()).handle(act);
    let lab = Lab::start(builder).await.unwrap();
    let id = lab.enqueue(NewJob::from(Act::Done).delay(Duration::from_secs(3_600))).await.unwrap();
    let all = NewBulk::new(BulkAction::Cancel, Filter::new().kind("act"));
    let n = lab.client().start_bulk(all, ann()).await.unwrap();
    lab.settle().await;
    assert_eq!(lab.job(&id).await.unwrap().status, Status::Cancelled);
    assert_eq!(bulk(&lab.client(), n).await.state, BulkState::Done);
}

#[tokio::test]
async fn jobs_that_are_enqueued_after_its_start_are_not_touched() {
    let bench = Bench::start(BenchSettings::default()).await.unwrap();
    let client = &bench.client;
    let mail = |id: String| NewJob::raw("mail", None).id(id);
    client.enqueue_many((0..3).map(|n| mail(n.to_string()))).await.unwrap();
    let all = NewBulk::new(BulkAction::Cancel, Filter::new().kind("mail"));
    let id = client.start_bulk(all.pace(2), ann()).await.unwrap();
    for n in 0..5 {
        client.enqueue(mail(format!("late-{n}"))).await.unwrap();
        client.reap_once().await.unwrap();
        bench.clock.advance(1_000);
    }
    let done = bulk(client, id).await;
    assert_eq!((done.state, done.done, ready(client).await), (BulkState::Done, 3, 5));
}

#[tokio::test]
async fn a_start_whose_answer_is_lost_starts_one() {
    let lab = Lab::start(Runtime::in_memory().state(Signals::default()).handle(act)).await.unwrap();
    lab.settle().await;
    lab.faults.arm(Point::Commit, 2);
    let all = NewBulk::new(BulkAction::Cancel, Filter::new().kind("mail"));
    let id = lab.client().start_bulk(all, ann()).await.unwrap();
    let bulks = lab.client().bulks(9).await.unwrap();
    assert_eq!((bulks.len(), bulks[0].id), (1, id));
}
