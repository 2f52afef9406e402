//! An order and the job that ships it, in one transaction: both are there, or neither is.
//!
//! Three ways lead there: a closure on the runtime's connection, a transaction on a connection of
//! the application's own, and plain SQL, which any library in any language can run.

#![allow(clippy::disallowed_methods, reason = "the application opens its own connection")]

use std::time::Duration;

use leasehold::rusqlite::{self, Connection, Transaction, TransactionBehavior};
use leasehold::{BoxError, Client, Ctx, Job, JobError, JobResult, Outcome, Runtime};
use leasehold::{TransactionError, Tx};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Ship {
    order: i64,
}

impl Job for Ship {
    const KIND: &'static str = "ship";
}

/// A job whose order was rolled back would find nothing to ship, and fail.
async fn ship(job: Ship, ctx: Ctx) -> JobResult {
    let sql = "INSERT INTO shipped (id, item) SELECT id, item FROM orders WHERE id = ?1";
    match ctx.fenced(move |tx| tx.execute(sql, [job.order])).await? {
        0 => Err(JobError::give_up("there is no such order")),
        _ => Ok(Outcome::Done),
    }
}

/// What a customer wants, and whether the payment comes through.
#[derive(Clone, Copy)]
struct Order {
    item: &'static str,
    paid: bool,
}

/// The first way. The closure owns what it needs, since it may run again after a lost answer.
async fn by_closure(runtime: &Runtime, new: Order) -> Result<(), TransactionError<BoxError>> {
    let take = move |tx: &mut Tx<'_>| {
        tx.execute("INSERT INTO orders (item) VALUES (?1)", [new.item])?;
        tx.enqueue(Ship { order: tx.last_insert_rowid() })?;
        if new.paid { Ok(()) } else { Err("the payment was declined".into()) }
    };
    runtime.transaction(take).await
}

/// The second way. Begun as immediate: a transaction that reads first may find no way to write.
fn by_connection(client: &Client, conn: &mut Connection, new: Order) -> leasehold::Result<()> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    tx.execute("INSERT INTO orders (item) VALUES (?1)", [new.item])?;
    client.enqueue_in(&tx, Ship { order: tx.last_insert_rowid() })?;
    Ok(finish(tx, new)?)
}

/// The third way. Nothing of leasehold's is linked here; its tables are in the file.
fn by_plain_sql(conn: &mut Connection, new: Order) -> rusqlite::Result<()> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    tx.execute("INSERT INTO orders (item) VALUES (?1)", [new.item])?;
    tx.execute(
        "INSERT INTO leasehold_enqueue (kind, payload)
            VALUES ('ship', json_object('order', last_insert_rowid()))",
        [],
    )?;
    finish(tx, new)
}

fn finish(tx: Transaction<'_>, order: Order) -> rusqlite::Result<()> {
    if order.paid { tx.commit() } else { tx.rollback() }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let dir = std::env::temp_dir().join("leasehold-outbox");
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    std::fs::create_dir_all(&dir)?;
    let db = dir.join("shop.db");

    let runtime = Runtime::builder(&db).handle(ship).start().await?;
    let mut conn = Connection::open(&db)?;
    conn.execute_batch(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL) STRICT;
         CREATE TABLE shipped (id INTEGER PRIMARY KEY, item TEXT NOT NULL) STRICT;",
    )?;

    let order = |item, paid| Order { item, paid };
    by_closure(&runtime, order("a lamp", true)).await?;
    if let Err(error) = by_closure(&runtime, order("a mirror", false)).await {
        println!("no mirror: {error}");
    }
    by_connection(&runtime.client(), &mut conn, order("a chair", true))?;
    by_connection(&runtime.client(), &mut conn, order("a sofa", false))?;
    by_plain_sql(&mut conn, order("a table", true))?;
    by_plain_sql(&mut conn, order("a carpet", false))?;

    // The runtime hears of a commit, whoever made it; this waits for every job in the file.
    for id in column(&conn, "SELECT id FROM leasehold_jobs")? {
        runtime.wait(id, Duration::from_secs(10)).await?;
    }
    runtime.stop(Duration::from_secs(5)).await;

    println!("ordered: {}", column(&conn, "SELECT item FROM orders ORDER BY id")?.join(", "));
    println!("shipped: {}", column(&conn, "SELECT item FROM shipped ORDER BY id")?.join(", "));
    let jobs = "SELECT count(*) || ' ' || status FROM leasehold_jobs GROUP BY status";
    println!("jobs:    {}", column(&conn, jobs)?.join(", "));
    let disagree = "SELECT CAST(count(*) AS TEXT) FROM orders FULL JOIN shipped USING (id, item)
        WHERE orders.id IS NULL OR shipped.id IS NULL";
    println!("orders and shipments that disagree: {}", column(&conn, disagree)?.join(""));
    Ok(())
}

/// The texts that a query answers.
fn column(conn: &Connection, sql: &str) -> rusqlite::Result<Vec<String>> {
    conn.prepare(sql)?.query_map([], |row| row.get(0))?.collect()
}
