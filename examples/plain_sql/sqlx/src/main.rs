//! An order by sqlx, and its job by plain SQL, in one transaction; leasehold then runs the job.
//!
//! With a path it takes no orders: it makes the database, or ships what was ordered there since.

use std::error::Error;
use std::time::Duration;

use leasehold::{Ctx, Job, JobError, JobResult, Outcome, Runtime};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

#[derive(Serialize, Deserialize)]
struct Ship {
    order: i64,
}

impl Job for Ship {
    const KIND: &'static str = "ship";
}

async fn ship(job: Ship, ctx: Ctx) -> JobResult {
    let sql = "UPDATE orders SET shipped = 1 WHERE id = ?1";
    match ctx.fenced(move |tx| tx.execute(sql, [job.order])).await? {
        0 => Err(JobError::give_up("there is no such order")),
        _ => Ok(Outcome::Done),
    }
}

/// Both rows land with the commit. A transaction that is dropped before leaves neither.
async fn order(pool: &SqlitePool, item: &str, paid: bool) -> sqlx::Result<()> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    let insert = sqlx::query("INSERT INTO orders (item) VALUES (?1)").bind(item);
    let order = insert.execute(&mut *tx).await?.last_insert_rowid();
    let enqueue = "INSERT INTO leasehold_enqueue (kind, payload, subject_id)
        VALUES ('ship', json_object('order', ?1), ?2)";
    let enqueue = sqlx::query(enqueue).bind(order).bind(order.to_string());
    enqueue.execute(&mut *tx).await?;
    if paid { tx.commit().await } else { tx.rollback().await }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let given = std::env::args_os().nth(1);
    let db = match &given {
        Some(path) => path.into(),
        None => {
            let dir = std::env::temp_dir().join("leasehold-sqlx");
            if dir.exists() {
                std::fs::remove_dir_all(&dir)?;
            }
            std::fs::create_dir_all(&dir)?;
            dir.join("shop.db")
        }
    };

    // Leasehold makes its tables and the view, so it comes first.
    let runtime = Runtime::builder(&db).handle(ship).start().await?;
    let pool = SqlitePool::connect_with(SqliteConnectOptions::new().filename(&db)).await?;
    let table = "CREATE TABLE IF NOT EXISTS orders
        (id INTEGER PRIMARY KEY, item TEXT NOT NULL, shipped INTEGER NOT NULL DEFAULT 0) STRICT";
    sqlx::query(table).execute(&pool).await?;
    if given.is_none() {
        order(&pool, "a lamp", true).await?;
        order(&pool, "a mirror", false).await?;
    }

    let jobs = "SELECT id FROM leasehold_jobs ORDER BY created_at, id";
    for id in sqlx::query_scalar::<_, String>(jobs).fetch_all(&pool).await? {
        let job = runtime.wait(&*id, Duration::from_secs(10)).await?;
        let of = job.subject_id.unwrap_or_default();
        println!("the job of order {of} is {}", job.status);
    }
    runtime.stop(Duration::from_secs(5)).await;
    let orders = "SELECT item, shipped FROM orders ORDER BY id";
    for (item, shipped) in sqlx::query_as::<_, (String, bool)>(orders).fetch_all(&pool).await? {
        println!("{item}: {}", if shipped { "shipped" } else { "not shipped" });
    }
    Ok(())
}
