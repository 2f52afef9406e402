//! A test of a handler through a crash at every one of its writes.
//!
//! It bills nine customers at a payment provider, in slices. The test has the process die before
//! the first write, then after it, before the second, and so on until the handler gets through.
//! Whatever happens, each customer is billed once, in the database and at the provider.

#![allow(clippy::unused_async, reason = "a real provider would be waited for")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::ensure;
use leasehold::rusqlite::Row;
use leasehold::testing::{Lab, Point};
use leasehold::{Ctx, Job, JobError, JobResult, Outcome, Runtime, Status};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Billing {
    customers: i64,
}

impl Job for Billing {
    const KIND: &'static str = "billing";
}

/// Customers in a slice: other jobs get their turn in between.
const SLICE: i64 = 3;

/// The handler under test: it knows nothing of crashes.
async fn bill(job: Billing, ctx: Ctx<Arc<Provider>>) -> JobResult {
    let provider = ctx.state();
    let price = ctx.step("price", || provider.price()).await?;
    let first: i64 = ctx.checkpoint()?.unwrap_or(1);
    for customer in first..=job.customers {
        provider.charge(&ctx.idempotency_key(), price).await;
        // The row and the place to go on from land together, and only while the job is held.
        let sql = "INSERT INTO bills (customer, price) VALUES (?1, ?2)";
        ctx.fenced_save(&(customer + 1), move |tx| tx.execute(sql, (customer, price))).await?;
        if customer < job.customers && (customer % SLICE == 0 || ctx.should_yield()) {
            return Ok(Outcome::Yield);
        }
    }
    Ok(Outcome::Done)
}

/// A provider elsewhere, which outlives the process and takes one payment for a key.
#[derive(Default)]
struct Provider {
    taken: Mutex<BTreeMap<String, i64>>,
    asked: Mutex<u32>,
}

impl Provider {
    async fn price(&self) -> Result<i64, JobError> {
        Ok(25)
    }

    async fn charge(&self, key: &str, price: i64) {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.entry(key.to_owned()).or_insert(price);
    }
}

/// Bills nine customers in a process that dies once `passes` writes have passed the point; answers
/// whether it has died, and how often the provider was asked for a payment.
async fn bill_and_crash(point: Point, passes: u32) -> anyhow::Result<(bool, u32)> {
    let provider = Arc::new(Provider::default());
    let builder = Runtime::in_memory().state(provider.clone()).handle(bill);
    let mut lab = Lab::start(builder).await?;
    let table = "CREATE TABLE bills (customer INTEGER PRIMARY KEY, price INTEGER) STRICT";
    lab.client().transaction(move |tx| tx.execute(table, [])).await?;
    let id = lab.enqueue(Billing { customers: 9 }).await?;

    lab.faults.arm_after(point, passes, 1);
    lab.settle().await;
    let died = lab.has_died();
    if died {
        lab.crash().await?;
        lab.settle().await;
    }

    let job = lab.job(&id).await?;
    ensure!(job.status == Status::Completed, "{point:?} {passes}: {job:?}");
    let sql = "SELECT count(*), sum(price) FROM bills";
    let sum = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
    let rows = lab.client().transaction(move |tx| tx.query_row(sql, [], sum)).await?;
    ensure!(rows == (9, 9 * 25), "{point:?} {passes}: bills {rows:?}");
    let taken = provider.taken.lock().unwrap_or_else(PoisonError::into_inner).len();
    ensure!(taken == 9, "{point:?} {passes}: {taken} payments");
    let asked = *provider.asked.lock().unwrap_or_else(PoisonError::into_inner);
    Ok((died, asked))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    for point in [Point::BeforeWrite, Point::AfterWrite] {
        println!("{point:?}");
        for passes in 0.. {
            let (died, asked) = bill_and_crash(point, passes).await?;
            let came = format!("9 bills, 9 payments, asked for {asked} times");
            if !died {
                println!("  {passes} writes, no crash: {came}");
                break;
            }
            println!("  write {}: {came}", passes + 1);
        }
    }
    Ok(())
}
