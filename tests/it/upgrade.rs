//! Files of earlier schema versions: brought up to date in one step, with nothing of them lost.

use std::path::Path;
use std::time::Duration;

use leasehold::{Client, Migrate, Runtime, Status, rusqlite};

use crate::support::{Act, Signals, act, child_folder, spawn_child};

/// A file of the first release, with jobs of every sort in it.
fn version_1(path: &Path) {
    let conn = rusqlite::Connection::open(path).unwrap();
    conn.pragma_update(None, "journal_mode", "wal").unwrap();
    conn.execute_batch(leasehold::migrations()[0]).unwrap();
    conn.execute_batch(include_str!("faults/release-0.1.sql")).unwrap();
}

fn jobs(path: &Path) -> i64 {
    let conn = rusqlite::Connection::open(path).unwrap();
    conn.query_row("SELECT count(*) FROM leasehold_job", [], |row| row.get(0)).unwrap()
}

fn versions(path: &Path) -> (i64, i64) {
    let conn = rusqlite::Connection::open(path).unwrap();
    let sql = "SELECT version, oldest_compatible FROM leasehold_schema";
    conn.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
}

const PATIENCE: Duration = Duration::from_secs(60);

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
    assert_eq!(runtime.wait("ready-1", PATIENCE).await.unwrap().status, Status::Completed);
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
            jobs(&path)
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
        assert_eq!(jobs(&path), before + 4, "round {round}");
    }
}
