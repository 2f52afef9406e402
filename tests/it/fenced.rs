//! Fenced writes: the application's statements land with the job's own change or not at all,
//! and nothing but its own tables is within its reach.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::rusqlite::{self, Connection};
use leasehold::testing::{Faults, Lab, Point};
use leasehold::{
    Client, Ctx, FencedError, Job, JobRecord, JobResult, Outcome, Runtime, Settings, Status,
    StoreFault,
};
use serde::{Deserialize, Serialize};

use crate::support::Bystander;

const PATIENCE: Duration = Duration::from_secs(60);

/// What a job tries in a transaction.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Try {
    /// Statements, one after the other.
    Sql(Vec<String>),
    /// Writes, then fails by itself.
    Fail,
    /// Writes, then loops in SQL for ever.
    Loop,
    /// Saves and writes three slices, each once.
    Slices,
    /// Runs a step that must run once in the life of the job, then fails the first time.
    Step,
}

impl Job for Try {
    const KIND: &'static str = "try";
    fn settings() -> Settings {
        Settings::new().retry(leasehold::Retry::fixed(Duration::from_millis(1)).attempts(2))
    }
}

async fn attempt(job: Try, ctx: Ctx<PathBuf>) -> JobResult {
    match job {
        Try::Sql(statements) => {
            let done = ctx.fenced(move |tx| -> rusqlite::Result<()> {
                for sql in &statements {
                    tx.execute(sql, [])?;
                }
                Ok(())
            });
            Ok(Outcome::done_with(&match done.await {
                Ok(()) => "landed".to_owned(),
                Err(error) => error.to_string(),
            }))
        }
        Try::Fail => {
            let failed = ctx.fenced(|tx| -> anyhow::Result<()> {
                tx.execute("INSERT INTO mine VALUES (1)", [])?;
                anyhow::bail!("by its own will")
            });
            match failed.await {
                Err(FencedError::Application(error)) => Ok(Outcome::done_with(&error.to_string())),
                other => Err(format!("{other:?}"))?,
            }
        }
        Try::Loop => {
            let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) \
                           SELECT count(*) FROM n";
            let stuck = ctx.fenced(move |tx| -> rusqlite::Result<i64> {
                tx.execute("INSERT INTO mine VALUES (1)", [])?;
                tx.query_row(endless, [], |row| row.get(0))
            });
            match stuck.await {
                Err(FencedError::Application(_) | FencedError::Store(StoreFault::TimedOut)) => {
                    Ok(Outcome::done_with("interrupted"))
                }
                other => Err(format!("{other:?}"))?,
            }
        }
        Try::Slices => {
            let from = ctx.checkpoint::<i64>()?.unwrap_or(0);
            let mut keys = vec![ctx.idempotency_key()];
            for n in from..3 {
                let insert = move |tx: &mut leasehold::Tx<'_>| {
                    tx.execute("INSERT INTO mine VALUES (?1)", [n])?;
                    Ok::<_, rusqlite::Error>(n)
                };
                assert_eq!(ctx.fenced_save(&(n + 1), insert).await?, n);
                keys.push(ctx.idempotency_key());
            }
            ctx.progress(3, Some(3)).await?;
            Ok(Outcome::done_with(&keys))
        }
        Try::Step => {
            let path = ctx.state().clone();
            // The empty name is the job's own checkpoint.
            assert!(ctx.step("", || async { Ok(0) }).await.is_err());
            let value: u32 = ctx
                .step("count", || async move {
                    let times = std::fs::read_to_string(&path).unwrap_or_default() + "x";
                    std::fs::write(&path, &times)?;
                    Ok(7)
                })
                .await?;
            if ctx.attempt() == 1 && ctx.epoch() == 1 {
                Err("after the step")?;
            }
            Ok(Outcome::done_with(&value))
        }
    }
}

struct Bench {
    dir: tempfile::TempDir,
    runtime: Runtime,
    client: Client,
    faults: Faults,
    bystander: Bystander,
}

impl Bench {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let faults = Faults::default();
        let runtime = Runtime::builder(dir.path().join("app.db"))
            .state(dir.path().join("times"))
            .handle(attempt)
            .faults(faults.clone())
            .code_limit(Duration::from_millis(100))
            .start()
            .await
            .unwrap();
        let client = runtime.client();
        open(dir.path())
            .execute_batch(
                "CREATE TABLE mine (n INTEGER PRIMARY KEY);
                 CREATE TABLE child (n INTEGER REFERENCES mine (n) DEFERRABLE INITIALLY DEFERRED);",
            )
            .unwrap();
        let bystander = Bystander::enqueue(&client).await;
        Self { dir, runtime, client, faults, bystander }
    }

    async fn run(&self, job: Try) -> JobRecord {
        let id = self.client.enqueue(job).await.unwrap().id;
        self.client.wait(id, PATIENCE).await.unwrap()
    }

    /// Runs statements, and sees that they did not land.
    async fn refused(&self, statements: &[&str]) -> String {
        let sql = statements.iter().map(|sql| (*sql).to_owned()).collect();
        let job = self.run(Try::Sql(sql)).await;
        let said: String = job.result.unwrap().to().unwrap();
        assert_ne!(said, "landed", "{statements:?}");
        assert_eq!(self.mine(), 0, "{statements:?}");
        self.bystander.check().await;
        said
    }

    fn mine(&self) -> i64 {
        open(self.dir.path()).query_row("SELECT count(*) FROM mine", [], |row| row.get(0)).unwrap()
    }
}

fn open(dir: &Path) -> Connection {
    Connection::open(dir.join("app.db")).unwrap()
}

#[tokio::test]
async fn an_error_of_the_closure_rolls_back_what_it_wrote_and_is_handed_back() {
    let bench = Bench::start().await;
    let job = bench.run(Try::Fail).await;
    assert_eq!(job.result.unwrap().as_str(), r#""by its own will""#);
    assert_eq!(bench.mine(), 0);
    bench.bystander.check().await;
}

#[tokio::test]
async fn what_is_not_the_applications_own_is_refused() {
    let bench = Bench::start().await;
    for sql in [
        "COMMIT",
        "ROLLBACK",
        "BEGIN",
        "SAVEPOINT mine",
        "ROLLBACK TO leasehold_message",
        "RELEASE leasehold_message",
        "PRAGMA user_version = 9",
        "ATTACH ':memory:' AS other",
        "UPDATE leasehold_job SET status = 2",
        "DELETE FROM LEASEHOLD_JOB",
        "DROP TABLE leasehold_job",
        "ALTER TABLE leasehold_job ADD COLUMN mine",
        "CREATE TRIGGER mine AFTER INSERT ON leasehold_job BEGIN SELECT 1; END",
    ] {
        let said = bench.refused(&["INSERT INTO mine VALUES (1)", sql]).await;
        assert!(said.contains("not authorized"), "{sql}: {said}");
    }
    let job = bench.run(Try::Sql(vec!["INSERT INTO mine VALUES (1)".into()])).await;
    assert_eq!(job.result.unwrap().as_str(), r#""landed""#, "and its own tables are its own");
}

#[tokio::test]
async fn a_closure_that_loops_in_sql_is_interrupted_and_harms_nobody() {
    let bench = Bench::start().await;
    let job = bench.run(Try::Loop).await;
    assert_eq!(job.result.unwrap().as_str(), r#""interrupted""#);
    assert_eq!(bench.mine(), 0);
    assert!(bench.runtime.health().is_healthy());
    bench.bystander.check().await;
}

#[tokio::test]
async fn a_deferred_foreign_key_left_violated_rolls_back_its_own_message_alone() {
    let bench = Bench::start().await;
    // Beside neighbours that are enqueued at the same time.
    let neighbours = (0..20).map(|n| bench.run(Try::Sql(vec![format!("SELECT {n}")])));
    let violated = bench.refused(&["INSERT INTO child VALUES (99)"]);
    let (said, neighbours) =
        futures_util::future::join(violated, futures_util::future::join_all(neighbours)).await;
    assert!(said.contains("left a foreign key violated"), "{said}");
    assert!(neighbours.iter().all(|job| job.status == Status::Completed && job.attempts == 1));
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_runs_no_slice_twice_and_loses_no_value() {
    let bench = Bench::start().await;
    for lost in 1..=4 {
        bench.faults.arm(Point::Commit, lost);
        let job = bench.run(Try::Slices).await;
        assert_eq!((job.status, job.progress_done), (Status::Completed, Some(3)), "{lost}");
        let keys: Vec<String> = job.result.unwrap().to().unwrap();
        let expected: Vec<_> = (0..=3).map(|n| format!("{}:{n}", job.id)).collect();
        assert_eq!(keys, expected, "each piece of work has a key of its own");
        assert_eq!(bench.mine(), 3, "each slice is there once");
        bench.faults.arm(Point::Commit, 0);
        open(bench.dir.path()).execute("DELETE FROM mine", []).unwrap();
    }
    bench.bystander.check().await;
}

#[tokio::test]
async fn a_step_runs_once_in_the_life_of_a_job() {
    let bench = Bench::start().await;
    let job = bench.run(Try::Step).await;
    assert_eq!((job.status, job.epoch), (Status::Completed, 2));
    assert_eq!(job.result.unwrap().as_str(), "7");
    assert_eq!(std::fs::read_to_string(bench.dir.path().join("times")).unwrap(), "x");
}

#[tokio::test]
async fn a_lost_answer_to_an_enqueue_makes_no_second_job() {
    let dir = tempfile::tempdir().unwrap();
    let builder = Runtime::builder(dir.path().join("app.db")).state(dir.path().join("times"));
    let lab = Lab::start(builder.handle(attempt)).await.unwrap();
    lab.runtime.quiet();
    lab.faults.arm(Point::Commit, 1);
    lab.enqueue(Try::Step).await.unwrap();
    assert_eq!(lab.faults.left(Point::Commit), 0);
    assert_eq!(lab.client().counts().await.unwrap().ready, 1);
}
