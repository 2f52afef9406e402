//! A long job in slices that is cut off at the worst moment, and goes on where it was.
//!
//! It bills nine customers at a payment provider. The process stops after the provider has taken a
//! payment and before the job could know: asked again with the same key, it takes none twice.

#![allow(clippy::disallowed_methods, reason = "the application opens its own connection")]
#![allow(clippy::unused_async, reason = "a real provider would be waited for")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::rusqlite::Connection;
use leasehold::{Ctx, Job, JobError, JobResult, Outcome, Runtime};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, Notify};

#[derive(Serialize, Deserialize)]
struct Billing {
    customers: i64,
}

impl Job for Billing {
    const KIND: &'static str = "billing";
}

/// Customers in a slice: other jobs get their turn in between.
const SLICE: i64 = 3;

async fn bill(job: Billing, ctx: Ctx<Arc<Provider>>) -> JobResult {
    let provider = ctx.state();
    let price = ctx.step("price", || provider.price()).await?;
    let first: i64 = ctx.checkpoint()?.unwrap_or(1);
    for customer in first..=job.customers {
        let key = ctx.idempotency_key();
        println!("slice {}: customer {customer}, with the key {key}", ctx.seq());
        provider.charge(&key, price).await;
        // The row and the place to go on from land together, and only while the job is held.
        let sql = "INSERT INTO bills (customer, price) VALUES (?1, ?2)";
        ctx.fenced_save(&(customer + 1), move |tx| tx.execute(sql, (customer, price))).await?;
        if customer < job.customers && (customer % SLICE == 0 || ctx.should_yield()) {
            return Ok(Outcome::Yield);
        }
    }
    Ok(Outcome::Done)
}

/// A provider elsewhere, which outlives this process and takes one payment for a key.
#[derive(Default)]
struct Provider {
    taken: Mutex<BTreeMap<String, i64>>,
    asked: AtomicU32,
    priced: AtomicU32,
    /// The answer to this payment is lost on its way, once.
    loses: u32,
    lost: Notify,
}

impl Provider {
    async fn price(&self) -> Result<i64, JobError> {
        self.priced.fetch_add(1, Ordering::SeqCst);
        Ok(25)
    }

    async fn charge(&self, key: &str, price: i64) {
        self.taken.lock().await.insert(key.to_owned(), price);
        let nth = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        if nth == self.loses {
            self.lost.notify_one();
            std::future::pending::<()>().await;
        }
    }
}

async fn start(db: &Path, provider: &Arc<Provider>) -> leasehold::Result<Runtime> {
    Runtime::builder(db).state(provider.clone()).handle(bill).start().await
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let dir = std::env::temp_dir().join("leasehold-slices");
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    std::fs::create_dir_all(&dir)?;
    let db = dir.join("billing.db");
    let conn = Connection::open(&db)?;
    conn.execute_batch("CREATE TABLE bills (customer INTEGER PRIMARY KEY, price INTEGER) STRICT")?;

    let provider = Arc::new(Provider { loses: 5, ..Provider::default() });
    let runtime = start(&db, &provider).await?;
    runtime.enqueue(Billing { customers: 9 }.into_new().id("june")).await?;
    provider.lost.notified().await;
    let report = runtime.stop(Duration::from_millis(100)).await;
    println!("stopped in the middle; jobs handed back: {}", report.handed_back);

    let runtime = start(&db, &provider).await?;
    let done = runtime.wait("june", Duration::from_secs(10)).await?;
    runtime.stop(Duration::from_secs(5)).await;

    println!("{}: {} slices, {} attempts", done.id, done.seq + 1, done.epoch);
    let sql = "SELECT count(*), sum(price) FROM bills";
    let (rows, sum): (i64, i64) = conn.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let taken: Vec<i64> = provider.taken.lock().await.values().copied().collect();
    println!("bills: {rows}, in all {sum}");
    println!("payments: {}, in all {}", taken.len(), taken.iter().sum::<i64>());
    println!("payments asked for: {}", provider.asked.load(Ordering::SeqCst));
    println!("prices asked for: {}", provider.priced.load(Ordering::SeqCst));
    Ok(())
}
