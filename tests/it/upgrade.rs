//! Files of earlier schema versions: brought up to date in one step, with nothing of them lost.

use std::path::Path;
use std::time::Duration;

use leasehold::{Client, Filter, Migrate, Order, Paging, Phase, Runtime, Status, rusqlite};

use crate::support::{Act, Signals, act, child_folder, spawn_child};

/// A file of schema version 1 with a row in each state that a job can be in.
fn version_1(path: &Path) {
    let conn = rusqlite::Connection::open(path).unwrap();
    conn.pragma_update(None, "journal_mode", "wal").unwrap();
    conn.execute_batch(leasehold::migrations()[0]).unwrap();
    conn.execute_batch(
        "INSERT INTO leasehold_names VALUES (1, 'act'), (2, 'default'), (3, 'gone');
         INSERT INTO leasehold_lanes VALUES (1, 2);",
    )
    .unwrap();
    let rows = [
        // key, id, status, lane, run_at, attempts, epoch, owner, token, lease_until, finished_at
        "1, 'ready', 0, 1, 5, 0, 0, NULL, NULL, NULL, NULL",
        "2, 'scheduled', 0, 0, 4000000000000, 0, 0, NULL, NULL, NULL, NULL",
        "3, 'retrying', 0, 1, 5, 1, 1, NULL, NULL, NULL, NULL",
        "4, 'orphaned', 1, NULL, 5, 1, 1, 3, zeroblob(16), 5, NULL",
        "5, 'completed', 2, NULL, 5, 1, 1, 3, NULL, NULL, 1600000000000",
        "6, 'failed', 3, NULL, 5, 1, 1, 3, NULL, NULL, 4000000000000",
    ];
    for row in rows {
        conn.execute_batch(&format!(
            "INSERT INTO leasehold_job (key, id, status, lane, run_at, attempts, epoch, owner, \
             token, lease_until, finished_at, kind, queue, priority, created_at, updated_at, \
             max_attempts, stalls, seq, heartbeat_at) VALUES ({row}, 1, 2, 0, 5, 5, 3, 0, 0, 5);"
        ))
        .unwrap();
    }
    conn.execute_batch(
        "INSERT INTO leasehold_payload SELECT key, '\"Done\"' FROM leasehold_job;
         INSERT INTO leasehold_detail (job, verdict, last_error) VALUES (6, 'terminal', 'no');
         UPDATE leasehold_job SET detailed = 1 WHERE key = 6;",
    )
    .unwrap();
}

fn versions(path: &Path) -> (i64, i64) {
    let conn = rusqlite::Connection::open(path).unwrap();
    let sql = "SELECT version, oldest_compatible FROM leasehold_schema";
    conn.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
}

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn k13_a_file_of_version_1_runs_on_with_every_job_that_was_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.db");
    version_1(&path);
    let builder = Runtime::builder(&path).state(Signals::default()).handle(act);
    let runtime = builder.start().await.unwrap();
    for id in ["ready", "retrying", "orphaned"] {
        let job = runtime.wait(id, PATIENCE).await.unwrap();
        assert_eq!(job.status, Status::Completed, "{id}");
    }
    let client = runtime.client();
    let job = client.job("scheduled").await.unwrap().unwrap();
    assert_eq!((job.phase, job.run_at), (Phase::Scheduled, 4_000_000_000_000));
    let job = client.job("failed").await.unwrap().unwrap();
    assert_eq!((job.status, job.last_error.as_deref()), (Status::Failed, Some("no")));
    let gone = client.job("completed").await.unwrap();
    assert!(gone.is_none_or(|job| job.status == Status::Completed), "only retention takes it");
    let failed = Filter::new().status(Status::Failed);
    let page = client.list(&failed, Paging::first(Order::EndedNewest, 10)).await.unwrap();
    assert_eq!(page.jobs.len(), 1, "old rows are in the new lists");
}

#[tokio::test]
async fn a_migration_that_fails_leaves_the_file_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.db");
    version_1(&path);
    let conn = rusqlite::Connection::open(&path).unwrap();
    // In the way of the last of the step's tables.
    conn.execute_batch("CREATE TABLE leasehold_new (x)").unwrap();
    let shape = || -> Vec<String> {
        let mut sql = conn.prepare("SELECT name FROM sqlite_schema ORDER BY name").unwrap();
        let names = sql.query_map([], |row| row.get(0)).unwrap();
        names.map(Result::unwrap).collect()
    };
    let before = shape();
    let refused = Client::open(&path).await.unwrap_err();
    assert!(refused.to_string().contains("leasehold_new"), "{refused}");
    assert_eq!((shape(), versions(&path)), (before, (1, 1)));
    conn.execute_batch("DROP TABLE leasehold_new").unwrap();
    Client::open(&path).await.unwrap();
    assert_eq!(versions(&path), (2, 2));
}

#[tokio::test]
async fn an_older_file_that_the_application_migrates_is_refused_until_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.db");
    version_1(&path);
    let start = || {
        let builder = Runtime::builder(&path).state(Signals::default()).handle(act);
        builder.migrate(Migrate::Require).start()
    };
    let refused = start().await.unwrap_err().to_string();
    assert!(refused.contains("the schema is at version 1, and 2 is needed"), "{refused}");
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute_batch(leasehold::migrations()[1]).unwrap();
    drop(conn);
    let runtime = start().await.unwrap();
    assert_eq!(runtime.wait("ready", PATIENCE).await.unwrap().status, Status::Completed);
}

/// A child: opens the file, enqueues a job, and is done.
#[test]
fn child_that_opens_a_file() {
    let Some(folder) = child_folder() else { return };
    let client = Client::open_blocking(folder.join("jobs.db")).unwrap();
    client.enqueue_blocking(Act::Done).unwrap();
}

#[test]
fn k13_processes_that_start_together_on_an_older_file_or_none_all_start() {
    let rounds = if std::env::var_os("LEASEHOLD_FAULT_SCALE").is_some() { 50 } else { 3 };
    for round in 0..2 * rounds {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.db");
        let before = if round % 2 == 0 {
            version_1(&path);
            6
        } else {
            0
        };
        let children: Vec<_> =
            (0..4).map(|_| spawn_child("upgrade::child_that_opens_a_file", dir.path())).collect();
        for child in children {
            let done = child.wait_with_output().unwrap();
            assert!(done.status.success(), "round {round}");
        }
        assert_eq!(versions(&path), (2, 2));
        let conn = rusqlite::Connection::open(&path).unwrap();
        let jobs: i64 =
            conn.query_row("SELECT count(*) FROM leasehold_job", [], |row| row.get(0)).unwrap();
        assert_eq!(jobs, before + 4, "round {round}");
    }
}
