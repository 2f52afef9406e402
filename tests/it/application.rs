//! Application code in the transactions of jobs: whatever it does, it alone is rolled back.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::testing::Lab;
use leasehold::{
    Ctx, Hooks, Job, JobResult, ManualClock, Operator, Outcome, Redrive, Runtime, Settings, Status,
};
use serde::{Deserialize, Serialize};

use crate::support::{Act, Bystander, Signals, act};

const PATIENCE: Duration = Duration::from_secs(60);

/// Runs one statement in a fenced write, and says what came of it.
#[derive(Serialize, Deserialize)]
struct Statement(String);

impl Job for Statement {
    const KIND: &'static str = "statement";
    fn settings() -> Settings {
        Settings::new()
    }
}

async fn statement(job: Statement, ctx: Ctx<Signals>) -> JobResult {
    let ran = ctx.fenced(move |tx| tx.execute(&job.0, [])).await;
    let answer = ran.map_or_else(|error| error.to_string(), |rows| format!("{rows} rows"));
    Ok(Outcome::done_with(&answer))
}

const TABLES: [&str; 3] = [
    "CREATE TABLE parent (id INTEGER PRIMARY KEY)",
    "CREATE TABLE child (id INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
    "CREATE TABLE numbers (n INTEGER UNIQUE)",
];

/// A child without its parent, which shows at the commit.
const ORPHAN: &str = "INSERT INTO child VALUES (7)";

/// Writes without an end: interrupted, it takes the whole transaction with it.
const ENDLESS: &str = "INSERT INTO numbers WITH RECURSIVE c(n) AS \
                       (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n FROM c WHERE n < 0";

/// Takes the whole transaction with it.
const ALL_BACK: &str = "INSERT OR ROLLBACK INTO numbers VALUES (1), (1)";

/// A limit that a busy machine meets only where the code never ends.
const LIMIT: Duration = Duration::from_millis(500);

async fn said(runtime: &Runtime, sql: &str) -> String {
    let id = runtime.enqueue(Statement(sql.to_owned())).await.unwrap().id;
    let job = runtime.wait(id, PATIENCE).await.unwrap();
    assert_eq!((job.status, job.epoch), (Status::Completed, 1));
    job.result.unwrap().to().unwrap()
}

#[tokio::test]
async fn a_fenced_write_that_takes_its_transaction_down_is_alone_with_it() {
    let builder = Runtime::in_memory().state(Signals::default()).handle(statement);
    let runtime = builder.code_limit(LIMIT).start().await.unwrap();
    for sql in TABLES {
        said(&runtime, sql).await;
    }
    let (one, two, three) =
        tokio::join!(said(&runtime, ORPHAN), said(&runtime, ENDLESS), said(&runtime, ALL_BACK));
    assert!(one.contains("foreign key"), "{one}");
    assert!(two.contains("time limit"), "{two}");
    assert!(three.contains("UNIQUE"), "{three}");
    assert_eq!(said(&runtime, "DELETE FROM numbers").await, "0 rows");
    assert_eq!(said(&runtime, "DELETE FROM child").await, "0 rows");
    assert!(runtime.health().is_healthy());
}

/// A hook that runs `sql` has not agreed, as if it had failed: a completion is a failed
/// attempt, a verdict is owed and lands in the end, and everything else goes on.
async fn counts_as_a_failure(sql: &'static str, takes_ms: i64, text: &str) {
    let clock = ManualClock::at(1_577_836_800_000);
    let hands = clock.clone();
    let hooks = Hooks::new()
        .on_transition(move |_, tx| {
            hands.advance(takes_ms);
            for table in TABLES {
                tx.execute(&table.replace("TABLE", "TABLE IF NOT EXISTS"), [])?;
            }
            tx.execute(sql, [])?;
            Ok(1)
        })
        .on_redrive(|_, _| Ok(1));
    let builder = Runtime::in_memory().state(Signals::default()).handle(act).handle(statement);
    let builder = builder.hooks::<Act>(hooks).code_limit(Duration::from_millis(50));
    let lab = Lab::start_with(builder, clock, 1).await.unwrap();
    let bystander = Bystander::enqueue(&lab.client()).await;
    let id = lab.enqueue(Act::Done.into_new().max_attempts(2)).await.unwrap();
    lab.look().await;
    while lab.job(&id).await.unwrap().hook_failures == 0 {
        lab.look().await;
    }
    let job = lab.job(&id).await.unwrap();
    assert_eq!((job.status, job.attempts), (Status::Pending, 1));
    assert!(job.last_error.as_ref().unwrap().contains(text), "{job:?}");
    let cancelled = lab.client().cancel(&id, Operator::named("test")).await;
    assert!(matches!(
        cancelled.unwrap_err().refusal(),
        Some(leasehold::Refusal::HookFailed { .. })
    ));
    for _ in 0..20 {
        lab.look().await;
    }
    let job = lab.job(&id).await.unwrap();
    assert_eq!((job.status, job.hook_failures), (Status::Cancelled, 20));
    bystander.check().await;
}

#[tokio::test]
async fn a_hook_that_leaves_a_foreign_key_violated_has_not_agreed() {
    counts_as_a_failure(ORPHAN, 0, "foreign key").await;
}

#[tokio::test]
async fn a_hook_that_is_interrupted_while_it_writes_has_not_agreed() {
    counts_as_a_failure(ENDLESS, 51, "time limit").await;
}

#[tokio::test]
async fn a_hook_that_rolls_the_transaction_back_has_not_agreed() {
    counts_as_a_failure(ALL_BACK, 0, "UNIQUE").await;
}

/// Leaves a statement open in a fenced write, where no lifetime can keep it from that.
async fn leaves_open(job: Statement, ctx: Ctx) -> JobResult {
    let write = ctx.fenced(move |tx| -> leasehold::rusqlite::Result<()> {
        let mut statement = tx.prepare(&job.0)?;
        let mut rows = statement.query([])?;
        rows.next()?;
        std::mem::forget(rows);
        std::mem::forget(statement);
        Ok(())
    });
    Ok(Outcome::done_with(&write.await.is_ok()))
}

#[tokio::test]
async fn a_statement_left_open_spoils_nothing_for_those_that_come_after() {
    let dir = tempfile::tempdir().unwrap();
    let builder = Runtime::builder(dir.path().join("jobs.db")).handle(leaves_open);
    let runtime = builder.start().await.unwrap();
    let another = leasehold::Client::open(dir.path().join("jobs.db")).await.unwrap();
    for (sql, lands) in [
        ("CREATE TABLE numbers (n)", true),
        ("INSERT INTO numbers VALUES (1), (2)", true),
        ("SELECT n FROM numbers", true),
        ("INSERT INTO numbers VALUES (3), (4) RETURNING n", false),
        ("SELECT n FROM numbers", true),
    ] {
        // Written by another connection, which an open read would not see.
        let id = another.enqueue(Statement(sql.to_owned())).await.unwrap().id;
        let job = runtime.wait(id, PATIENCE).await.unwrap();
        assert_eq!((job.status, job.epoch), (Status::Completed, 1));
        assert_eq!(job.result.unwrap().to::<bool>().unwrap(), lands, "{sql}");
    }
    assert!(runtime.health().is_healthy());
}

#[tokio::test]
async fn application_code_reaches_nothing_of_leaseholds_own() {
    let builder = Runtime::in_memory().state(Signals::default()).handle(statement);
    let runtime = builder.start().await.unwrap();
    for sql in TABLES {
        said(&runtime, sql).await;
    }
    for sql in [
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT mine",
        "RELEASE leasehold_message",
        "COMMIT /* leasehold */",
        "ATTACH ':memory:' AS mine",
        "DETACH main",
        "PRAGMA foreign_keys = OFF",
        "SELECT * FROM pragma_user_version",
        "UPDATE leasehold_schema SET version = 2",
        "DELETE FROM Leasehold_schema",
        "DROP TABLE leasehold_schema",
        "ALTER TABLE leasehold_schema ADD COLUMN mine",
        "CREATE INDEX mine ON leasehold_schema (version)",
        "CREATE TRIGGER mine AFTER UPDATE ON leasehold_schema BEGIN SELECT 1; END",
        "CREATE TEMP TRIGGER mine AFTER UPDATE ON main.leasehold_schema BEGIN SELECT 1; END",
        // Triggers of leasehold's own may do what they must; these are not.
        "CREATE TRIGGER leasehold_mine AFTER DELETE ON numbers BEGIN SELECT 1; END",
        "CREATE TEMP TRIGGER leasehold_mine AFTER DELETE ON numbers BEGIN SELECT 1; END",
        "CREATE TABLE leasehold_mine (n)",
        "CREATE TEMP TABLE leasehold_schema (one, version, oldest_compatible)",
        "CREATE TEMP VIEW leasehold_schema AS SELECT 1",
        "CREATE VIEW leasehold_mine AS SELECT 1",
        "CREATE INDEX leasehold_mine ON numbers (n)",
    ] {
        let answer = said(&runtime, sql).await;
        assert!(answer.contains("not authorized"), "{sql}: {answer}");
    }
    let own = "CREATE TRIGGER mine AFTER DELETE ON numbers BEGIN SELECT 1; END";
    assert!(said(&runtime, own).await.ends_with("rows"));
    assert!(runtime.health().is_healthy());
}

#[tokio::test]
async fn a_kind_with_hooks_after_the_commit_alone_has_them_run() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = |what: &'static str| {
        let seen = seen.clone();
        move |job: &leasehold::JobRecord| seen.lock().unwrap().push((what, job.id.clone()))
    };
    let hooks = Hooks::new().after_transition(note("ended")).after_redrive(note("back"));
    let builder = Runtime::in_memory().state(Signals::default()).handle(act);
    let lab = Lab::start(builder.hooks::<Act>(hooks)).await.unwrap();
    let id = lab.enqueue(Act::Done).await.unwrap();
    lab.settle().await;
    let again = Redrive::default().allow_finished();
    lab.client().redrive(id.clone(), again, Operator::named("ann")).await.unwrap();
    lab.settle().await;
    assert_eq!(lab.job(&id).await.unwrap().hooked_at, None, "no hook was asked to agree");
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen, [("ended", id.clone()), ("back", id.clone()), ("ended", id)]);
}

#[tokio::test]
async fn hooks_in_this_process_are_asked_whatever_another_wrote_down_of_the_kind() {
    let hooks = Hooks::new()
        .on_transition(|job, tx| {
            Ok(tx.execute("INSERT INTO ended VALUES (?1)", [job.id.to_string()])?)
        })
        .on_redrive(|_, _| Ok(1));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let builder = Runtime::builder(&path).state(Signals::default()).handle(act);
    let lab = Lab::start(builder.hooks::<Act>(hooks)).await.unwrap();
    let app = leasehold::rusqlite::Connection::open(&path).unwrap();
    app.execute("CREATE TABLE ended (id TEXT)", []).unwrap();
    // A process that knows of no hooks comes last, and its word on the kind is what is stored.
    let other = leasehold::Client::open(&path).await.unwrap();
    other.register(Act::KIND, Act::settings()).await.unwrap();
    let id = lab.enqueue(Act::Done).await.unwrap();
    lab.settle().await;
    let ended: String = app.query_row("SELECT id FROM ended", [], |row| row.get(0)).unwrap();
    assert_eq!(ended, id.to_string());
    assert!(lab.job(&id).await.unwrap().hooked_at.is_some());
}

#[tokio::test]
async fn a_process_without_a_kinds_hooks_runs_none_of_its_jobs_until_it_has_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.db");
    let clock = leasehold::ManualClock::at(1_577_836_800_000);
    let start = async |seed, hooks: Option<Hooks>| {
        let builder =
            Runtime::builder(&path).no_owner_files().state(Signals::default()).handle(act);
        let builder = match hooks {
            Some(hooks) => builder.hooks::<Act>(hooks),
            None => builder,
        };
        Lab::start_with(builder, clock.clone(), seed).await.unwrap()
    };
    let hooks = Hooks::new().on_transition(|_, _| Ok(1)).on_redrive(|_, _| Ok(1));
    let with = start(1, Some(hooks)).await;
    with.runtime.quiet();
    // Registered later, and says nothing of hooks: as an older version does in a rolling deploy.
    let without = start(2, None).await;
    let bystander = Bystander::enqueue(&with.client()).await;
    let id = without.enqueue(Act::Done).await.unwrap();
    without.settle().await;
    let job = without.job(&id).await.unwrap();
    assert_eq!((job.status, job.epoch, job.hook_failures), (Status::Pending, 0, 0));
    let none = start(3, Some(Hooks::new())).await;
    none.runtime.quiet();
    without.settle().await;
    let job = without.job(&id).await.unwrap();
    assert_eq!((job.status, job.attempts, job.hooked_at), (Status::Completed, 1, None));
    bystander.check().await;
}
