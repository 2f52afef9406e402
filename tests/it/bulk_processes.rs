//! Operations on many jobs that several processes work on, one of which is killed in the middle,
//! and that are stopped and resumed while they go on.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use leasehold::testing::{Bench, BenchSettings};
use leasehold::{
    Bulk, BulkAction, BulkState, Client, ErrorClass, Failed, Filter, Hooks, NewBulk, NewJob,
    Operator, Phase, Redrive, Settings,
};

use crate::support::{child_folder, spawn_child};

const JOBS: usize = 150;

fn ann() -> Operator {
    Operator::named("ann")
}

/// Hooks that say on standard output which job they are asked about.
fn hooks() -> Vec<(String, Hooks)> {
    let hooks = Hooks::new().on_transition(|_, _| Ok(1)).on_redrive(|job, _| {
        println!("\nredriven {}", job.id);
        Ok(1)
    });
    vec![("mail".to_owned(), hooks)]
}

async fn bench(folder: &Path, seed: u64) -> Bench {
    let path = Some(folder.join("jobs.db"));
    let settings = BenchSettings { path, seed, hooks: hooks(), ..BenchSettings::default() };
    Bench::start(settings).await.unwrap()
}

async fn failed(client: &Client) {
    client.register("mail", Settings::new()).await.unwrap();
    client.enqueue_many((0..JOBS).map(|_| NewJob::raw("mail", None))).await.unwrap();
    for lease in client.claim(&["mail"], "w", JOBS).await.unwrap() {
        let failed = Failed { class: ErrorClass::Terminal, ..Failed::transient("boom") };
        lease.fail(failed).await.unwrap();
    }
}

fn dead() -> Filter {
    Filter::new().kind("mail").phase(Phase::Dead)
}

async fn bulk(client: &Client, id: i64) -> Bulk {
    client.bulk(id).await.unwrap().unwrap()
}

/// How often each job was met, and whether the operation's own numbers say the same.
async fn met(client: &Client, id: i64) -> BTreeMap<String, usize> {
    let (all, told) = (client.bulk_outcomes(id, 0, 100_000).await.unwrap(), bulk(client, id).await);
    let done = all.iter().filter(|one| one.outcome == "done").count() as i64;
    assert_eq!((told.done, told.refused), (done, all.len() as i64 - done));
    let mut met = BTreeMap::new();
    for one in all {
        *met.entry(one.job.to_string()).or_default() += 1;
    }
    met
}

#[tokio::test]
async fn child_that_redrives_many() {
    let Some(folder) = child_folder() else { return };
    let bench = bench(&folder, 7).await;
    loop {
        bench.clock.advance(100);
        bench.client.reap_once().await.unwrap();
    }
}

#[tokio::test]
async fn a_process_that_is_killed_in_the_middle_of_a_slice_leaves_no_job_out_and_none_twice() {
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(dir.path(), 1).await;
    let client = &bench.client;
    failed(client).await;
    let action = BulkAction::Redrive(Redrive::default());
    let id = client.start_bulk(NewBulk::new(action, dead()).pace(10), ann()).await.unwrap();
    for lines in [1, 4, 13, 27, 55] {
        let mut child = spawn_child("bulk_processes::child_that_redrives_many", dir.path());
        // Open until it is dead, as its hook would fail otherwise.
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = output.by_ref().map_while(Result::ok);
        let said = said.filter(|line| line.starts_with("redriven")).take(lines).count();
        child.kill().unwrap();
        child.wait().unwrap();
        let met = met(client, id).await;
        assert!(met.values().all(|times| *times == 1));
        assert!(said == lines || bulk(client, id).await.state == BulkState::Done);
    }
    for _ in 0..100 {
        bench.clock.advance(1_000);
        client.reap_once().await.unwrap();
    }
    assert_eq!(bulk(client, id).await.state, BulkState::Done);
    assert_eq!(met(client, id).await.len(), JOBS);
    for job in client.claim(&["mail"], "w", JOBS).await.unwrap() {
        let record = client.job(job.job().clone()).await.unwrap().unwrap();
        assert_eq!((record.redrives, record.epoch), (1, 3));
    }
}

#[tokio::test]
async fn two_processes_and_two_operations_at_once_copy_each_job_once_an_operation() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (bench(dir.path(), 1).await, bench(dir.path(), 2).await);
    failed(&first.client).await;
    let new = || NewBulk::new(BulkAction::RunAgain, dead()).pace(1_000);
    let ids = [
        first.client.start_bulk(new(), ann()).await.unwrap(),
        second.client.start_bulk(new(), ann()).await.unwrap(),
    ];
    let work = async |bench: &Bench| {
        for _ in 0..8 {
            bench.clock.advance(100);
            bench.client.reap_once().await.unwrap();
        }
    };
    tokio::join!(work(&first), work(&second));
    for id in ids {
        let met = met(&first.client, id).await;
        assert_eq!((met.len(), bulk(&second.client, id).await.state), (JOBS, BulkState::Done));
    }
    assert_eq!(first.client.counts().await.unwrap().ready, 2 * JOBS as i64);
}

#[tokio::test]
async fn stops_and_resumes_while_it_goes_on_leave_no_job_out_and_none_twice() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (bench(dir.path(), 1).await, bench(dir.path(), 2).await);
    failed(&first.client).await;
    let new = NewBulk::new(BulkAction::RunAgain, dead()).pace(200);
    let id = first.client.start_bulk(new, ann()).await.unwrap();
    let work = async {
        while bulk(&first.client, id).await.state != BulkState::Done {
            first.clock.advance(10);
            first.client.reap_once().await.unwrap();
        }
    };
    let switch = async {
        // Each may come too late for the operation, and says so then.
        let mut refused = 0;
        while bulk(&second.client, id).await.state != BulkState::Done {
            refused += usize::from(second.client.stop_bulk(id, ann()).await.is_err());
            refused += usize::from(second.client.resume_bulk(id, ann()).await.is_err());
        }
        refused
    };
    let ((), refused) = tokio::join!(work, switch);
    assert!(refused <= 2, "{refused}");
    assert_eq!(met(&first.client, id).await.len(), JOBS);
    assert_eq!(first.client.counts().await.unwrap().ready, JOBS as i64);
}
