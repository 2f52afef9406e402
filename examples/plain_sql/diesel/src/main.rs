//! An order by diesel, and its job by an insert into the view, in one transaction; leasehold then
//! runs the job. Nothing here is async.

use std::error::Error;
use std::time::Duration;

use diesel::prelude::*;
use leasehold::{Ctx, Job, JobError, JobResult, Outcome, Runtime};
use serde::{Deserialize, Serialize};

diesel::table! {
    orders {
        id -> BigInt,
        item -> Text,
        shipped -> Bool,
    }
}

diesel::table! {
    /// The columns that are used here; diesel wants one of them to be a key.
    leasehold_enqueue (id) {
        id -> Text,
        kind -> Text,
        payload -> Text,
    }
}

#[derive(Serialize, Deserialize)]
struct Ship {
    order: i64,
}

impl Job for Ship {
    const KIND: &'static str = "ship";
}

fn ship(job: Ship, ctx: Ctx) -> JobResult {
    let sql = "UPDATE orders SET shipped = 1 WHERE id = ?1";
    match ctx.block_on(ctx.fenced(move |tx| tx.execute(sql, [job.order])))? {
        0 => Err(JobError::give_up("there is no such order")),
        _ => Ok(Outcome::Done),
    }
}

/// Both rows land with the commit, and an error leaves neither.
fn order(conn: &mut SqliteConnection, name: &str, paid: bool) -> Result<String, Box<dyn Error>> {
    use leasehold_enqueue::{id, kind, payload};
    conn.immediate_transaction(|conn| {
        let insert = diesel::insert_into(orders::table).values(orders::item.eq(name));
        let order: i64 = insert.returning(orders::id).get_result(conn)?;
        let job = format!("ship-{order}");
        let json = format!(r#"{{"order": {order}}}"#);
        diesel::insert_into(leasehold_enqueue::table)
            .values((id.eq(&job), kind.eq("ship"), payload.eq(json)))
            .execute(conn)?;
        if paid { Ok(job) } else { Err("the payment was declined".into()) }
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::temp_dir().join("leasehold-diesel");
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    std::fs::create_dir_all(&dir)?;
    let db = dir.join("shop.db");

    // Leasehold makes its tables and the view, so it comes first.
    let runtime = Runtime::builder(&db).handle_blocking(ship).start_blocking()?;
    let mut conn = SqliteConnection::establish(db.to_str().ok_or("a path that is no text")?)?;
    // Diesel waits for nobody unless it is told to.
    diesel::sql_query("PRAGMA busy_timeout = 5000").execute(&mut conn)?;
    diesel::sql_query(
        "CREATE TABLE orders
            (id INTEGER PRIMARY KEY, item TEXT NOT NULL, shipped INTEGER NOT NULL DEFAULT 0) STRICT",
    )
    .execute(&mut conn)?;

    let job = order(&mut conn, "a lamp", true)?;
    if let Err(error) = order(&mut conn, "a mirror", false) {
        println!("no mirror: {error}");
    }
    let done = runtime.client().wait_blocking(&*job, Duration::from_secs(10))?;
    println!("{} is {}", done.id, done.status);
    runtime.stop_blocking(Duration::from_secs(5));

    let all = orders::table.select((orders::item, orders::shipped)).order(orders::id);
    for (item, shipped) in all.load::<(String, bool)>(&mut conn)? {
        println!("{item}: {}", if shipped { "shipped" } else { "not shipped" });
    }
    Ok(())
}
