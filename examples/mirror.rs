//! An invoice whose state follows its job: hooks write it in the very transaction in which the job
//! ends or comes back, so no crash and no race can leave the two apart.

#![allow(clippy::disallowed_methods, reason = "the application opens its own connection")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::rusqlite::{self, Connection};
use leasehold::{
    AttemptOutcome, Ctx, Event, Hooks, Job, JobError, JobResult, NewJob, Operator, Outcome,
};
use leasehold::{JobRecord, Preset, Retry, Runtime, Settings, Status};
use serde::{Deserialize, Serialize};

const SOON: Duration = Duration::from_secs(10);

/// Collects what an invoice is about; the job's subject says which one.
#[derive(Serialize, Deserialize)]
struct Collect;

impl Job for Collect {
    const KIND: &'static str = "collect";

    fn settings() -> Settings {
        Settings::new().retry(Retry::fixed(Duration::from_millis(200)))
    }
}

impl Collect {
    fn of(invoice: &str) -> NewJob {
        Self.into_new().id(format!("collect-{invoice}")).subject_type("invoice").subject_id(invoice)
    }
}

/// The bank, which accepts payments at times.
#[derive(Clone, Default)]
struct Bank(Arc<AtomicBool>);

async fn collect(_: Collect, ctx: Ctx<Bank>) -> JobResult {
    if ctx.state().0.load(Ordering::SeqCst) {
        Ok(Outcome::Done)
    } else {
        Err(JobError::give_up("the bank declined"))
    }
}

/// The invoice's word for each status of its job.
const fn state_for(status: Status) -> &'static str {
    match status {
        Status::Pending | Status::Running => "open",
        Status::Completed => "paid",
        Status::Failed => "unpaid",
        Status::Cancelled => "withdrawn",
    }
}

/// Each hook answers how many rows it changed. None is no agreement: then the job stays as it is.
fn hooks() -> Hooks {
    let sql = "UPDATE invoices SET was = was || state || ', ', state = ?2 WHERE id = ?1";
    Hooks::new()
        .on_transition(
            move |job, tx| Ok(tx.execute(sql, (&job.subject_id, state_for(job.status)))?),
        )
        .on_redrive(move |job, tx| Ok(tx.execute(sql, (&job.subject_id, "open"))?))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let dir = std::env::temp_dir().join("leasehold-mirror");
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    std::fs::create_dir_all(&dir)?;
    let db = dir.join("invoices.db");

    let bank = Bank::default();
    let runtime = Runtime::builder(&db)
        .state(bank.clone())
        .handle(collect)
        .hooks::<Collect>(hooks())
        .start()
        .await?;
    let (client, conn) = (runtime.client(), Connection::open(&db)?);
    conn.execute_batch(
        "CREATE TABLE invoices (id TEXT PRIMARY KEY, state TEXT NOT NULL DEFAULT 'open',
            was TEXT NOT NULL DEFAULT '') STRICT;
         INSERT INTO invoices (id) VALUES ('ada'), ('bob'), ('cem');",
    )?;

    runtime.enqueue(Collect::of("bob")).await?;
    show("failed", &runtime.wait("collect-bob", SOON).await?, &conn)?;

    bank.0.store(true, Ordering::SeqCst);
    runtime.enqueue(Collect::of("ada")).await?;
    show("completed", &runtime.wait("collect-ada", SOON).await?, &conn)?;

    runtime.enqueue(Collect::of("cem").delay(Duration::from_hours(1))).await?;
    let operator = Operator::named("eve").because("the customer has paid in cash");
    client.cancel("collect-cem", operator).await?;
    show("cancelled", &runtime.wait("collect-cem", SOON).await?, &conn)?;

    client.redrive("collect-bob", Preset::Redrive, Operator::named("eve")).await?;
    show("redriven", &runtime.wait("collect-bob", SOON).await?, &conn)?;

    // The job of an invoice that is not there. Its completion finds no row, so it is rolled back
    // and counts as a failed attempt.
    let mut events = runtime.events();
    runtime.enqueue(Collect::of("dan")).await?;
    while let Some(event) = events.next().await {
        if matches!(event, Event::Job(event) if event.outcome == Some(AttemptOutcome::Retried)) {
            break;
        }
    }
    let refused = client.attempts("collect-dan").await?.into_iter().find_map(|one| one.error);
    println!("refused:   {}", refused.unwrap_or_default());
    conn.execute("INSERT INTO invoices (id) VALUES ('dan')", [])?;
    show("retried", &runtime.wait("collect-dan", SOON).await?, &conn)?;

    runtime.stop(Duration::from_secs(5)).await;
    let disagree: i64 = conn.query_row(
        "SELECT count(*) FROM invoices AS i FULL JOIN leasehold_jobs AS j ON j.subject_id = i.id
            WHERE i.state IS NOT CASE j.status WHEN 'completed' THEN 'paid'
                WHEN 'failed' THEN 'unpaid' WHEN 'cancelled' THEN 'withdrawn' ELSE 'open' END",
        [],
        |row| row.get(0),
    )?;
    println!("invoices that disagree with their jobs: {disagree}");
    Ok(())
}

/// A job and its invoice, side by side.
fn show(what: &str, job: &JobRecord, conn: &Connection) -> rusqlite::Result<()> {
    let sql = "SELECT state || ' (was ' || rtrim(was, ', ') || ')' FROM invoices WHERE id = ?1";
    let invoice: String = conn.query_row(sql, [&job.subject_id], |row| row.get(0))?;
    println!("{:<10} {} is {}, the invoice {invoice}", format!("{what}:"), job.id, job.status);
    Ok(())
}
