//! Rows that no library wrote: whatever plain SQL got in, others run, and the row fails by
//! itself, or waits.

use std::time::Duration;

use leasehold::rusqlite::Connection;
use leasehold::testing::Lab;
use leasehold::{
    Clock, Ctx, Durability, Error, Filter, Job, JobResult, Operator, Order, Outcome, Paging,
    Redrive, Runtime, Settings, Status,
};
use serde::{Deserialize, Serialize};

use crate::support::Bystander;

/// Completes with what it was given.
#[derive(Serialize, Deserialize)]
struct Echo(String);

impl Job for Echo {
    const KIND: &'static str = "echo";
    fn settings() -> Settings {
        Settings::new().retry(leasehold::Retry::fixed(Duration::from_secs(1)).attempts(1))
    }
}

async fn echo(job: Echo, _: Ctx) -> JobResult {
    Ok(Outcome::done_with(&job.0))
}

struct Scene {
    _dir: tempfile::TempDir,
    lab: Lab,
    app: Connection,
    bystander: Bystander,
}

/// Texts as SQL that makes them.
const TEXTS: [&str; 7] = [
    "CAST(x'ff' AS TEXT)",
    "CAST(x'61c3' AS TEXT)",
    "CAST(x'80' AS TEXT)",
    "CAST(x'eda080' AS TEXT)",
    "CAST(x'f8888080ff0a' AS TEXT)",
    "CAST(x'6100ff' AS TEXT)",
    "''",
];

impl Scene {
    async fn open() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.db");
        let lab = Lab::start(Runtime::builder(&path).durability(Durability::Normal).handle(echo))
            .await
            .unwrap();
        let bystander = Bystander::enqueue(&lab.client()).await;
        Self { _dir: dir, lab, app: Connection::open(path).unwrap(), bystander }
    }

    /// Runs all that is due, with good jobs before and after it in the order of the claim.
    async fn others_run(&self, beside: &str) {
        let now = self.lab.clock.now();
        let mut good = Vec::new();
        for run_at in [now - 1000, now] {
            let job = Echo("good".to_owned()).into_new().run_at(run_at);
            good.push(self.lab.enqueue(job).await.unwrap());
        }
        self.lab.settle().await;
        for id in good {
            let job = self.lab.job(&id).await.unwrap();
            assert_eq!((job.status, job.epoch), (Status::Completed, 1), "beside {beside}");
        }
        self.all_are_listed(beside).await;
        self.lab.client().counts().await.unwrap();
        self.lab.client().totals().await.unwrap();
        self.lab.client().reap_once().await.unwrap();
        self.bystander.check().await;
        assert!(
            self.lab.runtime.health().is_healthy(),
            "{beside}: {:?}",
            self.lab.runtime.health()
        );
    }

    /// Every row is in a list, and in each of the lists by its state.
    async fn all_are_listed(&self, beside: &str) {
        let client = self.lab.client();
        for order in [Order::Newest, Order::Oldest, Order::EndedNewest, Order::EndedOldest] {
            let (mut paging, mut seen) = (Paging::first(order, 100), 0);
            loop {
                let page = client.list(&Filter::new(), paging).await;
                let page = page.unwrap_or_else(|error| panic!("beside {beside}: {error}"));
                seen += page.jobs.len() as i64;
                let Some(next) = page.next else { break };
                paging = Paging::first(order, 100).after(next);
            }
            let rows = match order {
                Order::Newest | Order::Oldest => "SELECT count(*) FROM leasehold_job",
                _ => "SELECT count(*) FROM leasehold_job WHERE finished_at IS NOT NULL",
            };
            assert_eq!(seen, self.count(rows), "{order:?} beside {beside}");
        }
    }

    fn count(&self, sql: &str) -> i64 {
        self.app.query_row(sql, [], |row| row.get(0)).unwrap()
    }
}

#[tokio::test]
async fn no_text_that_the_view_lets_in_stops_the_jobs_of_others() {
    let scene = Scene::open().await;
    let (now, mut taken) = (scene.lab.clock.now(), 0);
    for column in [
        "payload",
        "id",
        "idempotency_key",
        "dedup_key",
        "lock_key",
        "limit_key",
        "tenant",
        "organization",
        "reason",
        "subject_type",
        "subject_id",
        "meta",
        "trace_context",
        "kind",
    ] {
        for text in TEXTS.iter().chain(&["'\"' || CAST(x'ff' AS TEXT) || '\"'"]) {
            let (kind, names, values) = match column {
                "kind" => (*text, String::new(), String::new()),
                "payload" => ("'echo'", ", payload".to_owned(), format!(", {text}")),
                other => ("'echo'", format!(", payload, {other}"), format!(", '\"x\"', {text}")),
            };
            let sql = format!(
                "INSERT INTO leasehold_enqueue (created_at, kind{names}) VALUES ({now}, {kind}{values})"
            );
            match scene.app.execute(&sql, []) {
                Ok(_) => taken += 1,
                Err(error) => assert!(error.to_string().contains(column), "{sql}: {error}"),
            }
            scene.others_run(&sql).await;
        }
    }
    assert!(taken > 50, "{taken}");
    // By its id a job is asked for, so that is one which can be said.
    for text in &TEXTS[..5] {
        let sql = format!("INSERT INTO leasehold_enqueue (kind, id) VALUES ('echo', {text})");
        let refused = scene.app.execute(&sql, []).unwrap_err().to_string();
        assert_eq!(refused, "leasehold: id must be UTF-8", "{sql}");
    }
    let waiting = "SELECT count(*) FROM leasehold_job WHERE status < 2";
    assert_eq!(scene.count(waiting), 1, "only the bystander");
}

/// What a column of a row is set to by hand.
const VALUES: [&str; 13] = [
    "NULL",
    "-1",
    "1",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775807 - 1",
    "1234567890123456",
    "1e15",
    "1.23456789012345",
    "x'00112233445566778899aabbccddeeff'",
    "CAST(x'ff' AS TEXT)",
    "'a' || char(0) || 'b'",
    "''",
];

fn columns_of(app: &Connection, table: &str) -> Vec<String> {
    let mut columns =
        app.prepare(&format!("SELECT name FROM pragma_table_info('{table}')")).unwrap();
    let columns = columns.query_map([], |row| row.get(0)).unwrap();
    columns.map(Result::unwrap).filter(|name| name != "key" && name != "job").collect()
}

/// How a row stands that is then spoiled.
const STAGES: [(&str, &str); 4] = [
    ("pending", ""),
    ("scheduled", "UPDATE leasehold_job SET lane = 0, run_at = created_at + 1 WHERE key = $;"),
    (
        "lost",
        "UPDATE leasehold_job SET status = 1, lane = NULL, token = randomblob(16), epoch = 1,
           attempts = 1, max_attempts = 3, lease_until = 1, heartbeat_at = 1, started_at = 1,
           limit_key = 'shared', last_committed_at = 1, commits = 1 WHERE key = $;",
    ),
    ("ended", "UPDATE leasehold_job SET status = 2, lane = NULL, finished_at = 1 WHERE key = $;"),
];

/// A row beside the job's in each table of those that hang on it.
const BESIDE: &str = "INSERT INTO leasehold_detail (job, last_error) VALUES ($, 'e');
    INSERT INTO leasehold_result VALUES ($, '1');
    INSERT INTO leasehold_checkpoints VALUES ($, '', 1, '1');
    INSERT INTO leasehold_attempts (job, epoch, ended_at, outcome) VALUES ($, 1, 1, 'failed');
    INSERT INTO leasehold_discards VALUES ($);
    UPDATE leasehold_job SET detailed = 1 WHERE key = $;";

impl Scene {
    /// Jobs of one stage, a column of each spoiled with a value that the table lets in.
    fn spoil(&self, stage: &str, table: &str, column: &str) -> Vec<String> {
        let mut spoiled = Vec::new();
        for (n, value) in VALUES.iter().enumerate() {
            let id = format!("{table}-{column}-{n}");
            let sql = "INSERT INTO leasehold_enqueue (kind, payload, id, subject_id, created_at)
                       VALUES ('echo', '\"x\"', ?1, 's', ?2)";
            let mut insert = self.app.prepare_cached(sql).unwrap();
            insert.execute((&id, self.lab.clock.now())).unwrap();
            let key = self.count("SELECT max(key) FROM leasehold_job").to_string();
            self.app.execute_batch(&(stage.to_owned() + BESIDE).replace('$', &key)).unwrap();
            let by = if table == "leasehold_job" { "key" } else { "job" };
            let sql = format!("UPDATE {table} SET {column} = {value} WHERE {by} = {key}");
            match self.app.execute(&sql, []) {
                Ok(_) => spoiled.push(id),
                // As it was, and in the way of its neighbours.
                Err(_) => drop(self.app.execute("DELETE FROM leasehold_job WHERE key = ?1", [key])),
            }
        }
        spoiled
    }

    /// Spoils each column of each table, some at a time.
    async fn spoil_all(&self, (name, stage): (&str, &str)) {
        let tables = ["job", "payload", "label", "detail", "result", "checkpoints", "attempts"];
        let columns: Vec<_> = tables
            .iter()
            .map(|table| format!("leasehold_{table}"))
            .flat_map(|table| {
                let columns = columns_of(&self.app, &table);
                columns.into_iter().map(move |column| (table.clone(), column))
            })
            .collect();
        for columns in columns.chunks(12) {
            self.app.execute_batch("BEGIN IMMEDIATE").unwrap();
            let spoil = |(table, column): &(String, String)| self.spoil(stage, table, column);
            let spoiled: Vec<_> = columns.iter().flat_map(spoil).collect();
            self.app.execute_batch("COMMIT").unwrap();
            let what = format!("{name} rows with something strange in {columns:?}");
            self.others_run(&what).await;
            let client = self.lab.client();
            for id in spoiled.iter().map(String::as_str) {
                // Seen by whoever asks, if by that id at all; acted upon, or refused.
                client.job(id).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                let seen = client.attempts(id).await.map(drop);
                let how = Redrive::default().allow_finished().force();
                let redriven = client.redrive(id, how, Operator::named("ann")).await;
                let ann = || Operator::named("ann");
                let why = client.why_waiting(id).await.map(drop);
                let again = client.run_again(id, ann()).await.map(drop);
                let cancelled = client.cancel(id, ann()).await.map(drop);
                let deleted = client.delete(id, ann()).await;
                for answer in [seen, redriven, why, again, cancelled, deleted] {
                    assert!(!matches!(answer, Err(Error::Store(_))), "{id}: {answer:?}");
                }
            }
            self.others_run(&what).await;
            self.app.execute("DELETE FROM leasehold_job WHERE key > 1", []).unwrap();
        }
    }
}

#[tokio::test]
async fn rows_that_were_written_by_hand_stop_nobody() {
    for stage in STAGES {
        let scene = Scene::open().await;
        scene.lab.client().limit_key("shared", 100).await.unwrap();
        scene.spoil_all(stage).await;
    }
}
