//! Operations on many jobs where something is odd: a filter that says a thing twice, rows that
//! this code cannot read, a clock that goes back, hooks that take their time.

use std::time::Duration;

use leasehold::rusqlite::Connection;
use leasehold::testing::{Bench, BenchSettings};
use leasehold::{
    BulkAction, BulkState, Client, ErrorClass, Failed, Filter, Hooks, NewBulk, NewJob, Operator,
    Order, Paging, Phase, Redrive, Settings, Status,
};

fn ann() -> Operator {
    Operator::named("ann")
}

fn again() -> BulkAction {
    BulkAction::Redrive(Redrive::default())
}

fn dead() -> Filter {
    Filter::new().kind("mail").phase(Phase::Dead)
}

async fn fail(client: &Client, id: &str) {
    let lease = client.claim_by_id(id, "w").await.unwrap().unwrap();
    lease.fail(Failed { class: ErrorClass::Terminal, ..Failed::transient("boom") }).await.unwrap();
}

/// Failed jobs of kind `mail`, named `0` and up.
async fn failed(client: &Client, n: usize) {
    client.register("mail", Settings::new()).await.unwrap();
    for n in 0..n {
        client.enqueue(NewJob::raw("mail", None).id(n.to_string())).await.unwrap();
        fail(client, &n.to_string()).await;
    }
}

/// A bench on a file, and a connection of the application's to it.
async fn on_file() -> (tempfile::TempDir, Bench, Connection) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.db");
    let settings = BenchSettings { path: Some(path.clone()), ..BenchSettings::default() };
    let bench = Bench::start(settings).await.unwrap();
    (dir, bench, Connection::open(path).unwrap())
}

/// What became of each job, in the order of the work.
async fn outcomes(client: &Client, bulk: i64) -> Vec<String> {
    let all = client.bulk_outcomes(bulk, 0, 10_000).await.unwrap();
    all.into_iter().map(|one| format!("{} {}", one.job, one.outcome)).collect()
}

#[tokio::test]
async fn a_filter_that_names_a_kind_twice_meets_each_of_its_jobs_once() {
    let bench = Bench::start(BenchSettings::default()).await.unwrap();
    let client = &bench.client;
    failed(client, 3).await;
    let twice = dead().kind("mail");
    for order in [Order::EndedOldest, Order::EndedNewest, Order::Oldest, Order::Newest] {
        let page = client.list(&twice, Paging::first(order, 10)).await.unwrap();
        assert_eq!(page.jobs.len(), 3, "{order}");
    }
    let bulk = client.start_bulk(NewBulk::new(BulkAction::RunAgain, twice), ann()).await.unwrap();
    client.reap_once().await.unwrap();
    assert_eq!(outcomes(client, bulk).await, ["0 done", "1 done", "2 done"]);
    assert_eq!(client.counts().await.unwrap().ready, 3);
}

#[tokio::test]
async fn a_time_without_an_end_is_no_condition() {
    let bench = Bench::start(BenchSettings::default()).await.unwrap();
    let all = serde_json::from_str::<Filter>(r#"{"created_at":{}}"#).unwrap();
    for filter in [Filter::new().created_at(..), all] {
        let bulk = NewBulk::new(BulkAction::Delete, filter.clone());
        let refused = bench.client.start_bulk(bulk, ann()).await.unwrap_err();
        assert_eq!(refused.refusal().unwrap().code(), "invalid", "{filter:?}");
    }
}

#[tokio::test]
async fn one_that_this_code_cannot_read_stops_no_other() {
    let (_dir, bench, app) = on_file().await;
    let client = &bench.client;
    failed(client, 3).await;
    let newer = client.start_bulk(NewBulk::new(again(), dead()), ann()).await.unwrap();
    let hand = client.start_bulk(NewBulk::new(again(), dead()), ann()).await.unwrap();
    app.execute_batch(&format!(
        "UPDATE leasehold_bulks SET filter = '{{\"moon\":[\"full\"]}}' WHERE n = {newer}; \
         UPDATE leasehold_bulks SET action = '\"explode\"' WHERE n = {hand};"
    ))
    .unwrap();
    let good = client.start_bulk(NewBulk::new(again(), dead()), ann()).await.unwrap();
    bench.clock.advance(1_000);
    client.reap_once().await.unwrap();
    assert_eq!(outcomes(client, good).await, ["0 done", "1 done", "2 done"]);
    let shown: Vec<_> = client.bulks(10).await.unwrap().into_iter().map(|bulk| bulk.id).collect();
    assert_eq!(shown, [good]);
    assert!(client.bulk(newer).await.unwrap_err().to_string().contains("moon"));
    assert!(client.bulk_outcomes(newer, 0, 10).await.unwrap().is_empty());
    client.stop_bulk(newer, ann()).await.unwrap();
}

#[tokio::test]
async fn many_that_are_for_another_process_keep_none_from_its_turn() {
    let (_dir, bench, app) = on_file().await;
    let client = &bench.client;
    failed(client, 5).await;
    client.register("other", Settings::new()).await.unwrap();
    let hooks = "UPDATE leasehold_kinds SET facts = json_set(facts, '$.hooks', json('true')) \
        WHERE kind = (SELECT id FROM leasehold_names WHERE name = 'other')";
    assert_eq!(app.execute(hooks, []).unwrap(), 1);
    for _ in 0..110 {
        let other = NewBulk::new(again(), Filter::new().kind("other"));
        client.start_bulk(other, ann()).await.unwrap();
    }
    let bulk = client.start_bulk(NewBulk::new(again(), dead()), ann()).await.unwrap();
    client.reap_once().await.unwrap();
    assert_eq!(outcomes(client, bulk).await.len(), 5);
    let waiting = client.bulks(200).await.unwrap();
    assert_eq!(waiting.iter().filter(|bulk| bulk.state == BulkState::Running).count(), 110);
}

#[tokio::test]
async fn one_on_ended_jobs_is_done_where_the_jobs_begin_that_ended_after_its_start() {
    let (_dir, bench, app) = on_file().await;
    let client = &bench.client;
    failed(client, 3).await;
    let bulk = client.start_bulk(NewBulk::new(again(), dead()), ann()).await.unwrap();
    client.enqueue_many((0..2_500).map(|_| NewJob::raw("mail", None))).await.unwrap();
    let end = "UPDATE leasehold_job SET status = 3, lane = NULL, finished_at = 2000000 \
        WHERE status = 0";
    assert_eq!(app.execute(end, []).unwrap(), 2_500);
    client.reap_once().await.unwrap();
    let done = client.bulk(bulk).await.unwrap().unwrap();
    assert_eq!((done.state, done.done), (BulkState::Done, 3));
}

#[tokio::test]
async fn no_job_is_acted_on_twice_where_the_clock_goes_back() {
    let bench = Bench::start(BenchSettings::default()).await.unwrap();
    let client = &bench.client;
    failed(client, 6).await;
    bench.clock.advance(60_000);
    let bulk = client.start_bulk(NewBulk::new(again(), dead()).pace(2), ann()).await.unwrap();
    bench.clock.advance(1_000);
    client.reap_once().await.unwrap();
    // The jobs that were redriven fail again, at a time between their end and the start.
    bench.clock.advance(-31_000);
    for id in ["0", "1"] {
        fail(client, id).await;
    }
    bench.clock.advance(70_000);
    for _ in 0..4 {
        client.reap_once().await.unwrap();
        bench.clock.advance(1_000);
    }
    assert_eq!(client.bulk(bulk).await.unwrap().unwrap().state, BulkState::Done);
    let done = outcomes(client, bulk).await;
    assert_eq!(done, ["0 done", "1 done", "2 done", "3 done", "4 done", "5 done"]);
}

#[tokio::test]
async fn it_goes_on_at_once_where_the_clock_goes_back() {
    let bench = Bench::start(BenchSettings { now: 10_000_000, ..BenchSettings::default() });
    let bench = bench.await.unwrap();
    let client = &bench.client;
    failed(client, 6).await;
    let bulk = client.start_bulk(NewBulk::new(again(), dead()).pace(2), ann()).await.unwrap();
    client.reap_once().await.unwrap();
    bench.clock.advance(-3_600_000);
    for met in [4, 4, 6] {
        client.reap_once().await.unwrap();
        assert_eq!(outcomes(client, bulk).await.len(), met, "still at its pace");
        bench.clock.advance(500);
    }
}

#[tokio::test]
async fn hooks_that_take_their_time_hold_the_lock_for_few_jobs_at_once() {
    let slow = Hooks::new().on_cancel(|_, _| {
        let begun = std::time::Instant::now();
        while begun.elapsed() < Duration::from_millis(100) {
            std::hint::spin_loop();
        }
        Ok(())
    });
    let hooks = vec![("mail".to_owned(), slow)];
    let bench = Bench::start(BenchSettings { hooks, ..BenchSettings::default() }).await.unwrap();
    let client = &bench.client;
    client.enqueue_many((0..20).map(|_| NewJob::raw("mail", None))).await.unwrap();
    let all = NewBulk::new(BulkAction::Cancel, Filter::new().kind("mail"));
    let bulk = client.start_bulk(all, ann()).await.unwrap();
    client.reap_once().await.unwrap();
    let first = client.bulk(bulk).await.unwrap().unwrap();
    assert!((1..=10).contains(&first.done), "{first:?}");
    for _ in 0..20 {
        bench.clock.advance(1_000);
        client.reap_once().await.unwrap();
    }
    assert_eq!(client.counts().await.unwrap().cancelled, 20);
    let done = client.bulk(bulk).await.unwrap().unwrap();
    assert_eq!((done.state, done.done), (BulkState::Done, 20));
}

#[tokio::test]
async fn a_hook_that_takes_the_transaction_back_costs_its_own_job_alone() {
    let hooks = Hooks::new()
        .on_transition(|job, tx| {
            if job.id.to_string().ends_with('3') {
                tx.execute("INSERT OR ROLLBACK INTO ours VALUES (1)", [])?;
            }
            Ok(1)
        })
        .on_redrive(|_, _| Ok(1));
    let hooks = vec![("mail".to_owned(), hooks)];
    let bench = Bench::start(BenchSettings { hooks, ..BenchSettings::default() }).await.unwrap();
    let client = &bench.client;
    client
        .transaction(|tx| {
            tx.execute("CREATE TABLE ours (one INTEGER PRIMARY KEY)", [])?;
            tx.execute("INSERT INTO ours VALUES (1)", [])?;
            Ok::<_, leasehold::BoxError>(())
        })
        .await
        .unwrap();
    let jobs = (0..30).map(|n| NewJob::raw("mail", None).id(format!("{n:02}")));
    client.enqueue_many(jobs).await.unwrap();
    let all = NewBulk::new(BulkAction::Cancel, Filter::new().kind("mail"));
    let bulk = client.start_bulk(all, ann()).await.unwrap();
    client.reap_once().await.unwrap();
    let expected: Vec<_> = (0..30)
        .map(|n| format!("{n:02} {}", if n % 10 == 3 { "hook_failed" } else { "done" }))
        .collect();
    assert_eq!(outcomes(client, bulk).await, expected);
    assert_eq!(client.job("03").await.unwrap().unwrap().status, Status::Pending);
}
