//! Rows of any content: columns of jobs in every state are set to whatever their tables let in,
//! rows beside them are added and taken away. Whatever is asked is answered or refused, and the
//! jobs of others run.

use std::collections::BTreeSet;

use leasehold::rusqlite::Connection;
use leasehold::testing::Bench;
use leasehold::{
    BulkAction, Client, Error, Failed, Filter, Json, Lease, NewJob, Order, Paging, Redrive,
    Settings,
};

use super::damage::{bench_settings, by, image, typed};
use super::{Case, NOW, Tape, folder, fuzz, in_time};

/// What a column is set to, as SQL.
const VALUES: [&str; 30] = [
    "NULL",
    "0",
    "1",
    "-1",
    "2",
    "5",
    "100",
    "65536",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775807 - 1",
    "1577836800000",
    "1577836800000 + 5000",
    "7258118400000",
    "1e15",
    "1e300",
    "0.5",
    "-0.0",
    "x''",
    "x'00112233445566778899aabbccddeeff'",
    "randomblob(15)",
    "CAST(x'ff' AS TEXT)",
    "CAST(x'eda080' AS TEXT)",
    "'a' || char(0) || 'b'",
    "''",
    "'1'",
    "'old-1'",
    "'{\"a\":[1,2'",
    "'[]'",
    "printf('%.*c', 70000, 'x')",
];

/// Tables whose rows belong to one job, and those that belong to all.
const OF_A_JOB: [&str; 8] =
    ["job", "payload", "label", "detail", "result", "checkpoints", "attempts", "discards"];

/// A strange content, statement by statement; those that the tables do not let in have no effect.
fn spoil(tape: &mut Tape, app: &Connection, all: bool) -> Vec<String> {
    let list = |sql: &str| -> Vec<String> {
        let mut names = app.prepare_cached(sql).unwrap();
        let names = names.query_map([], |row| row.get(0)).unwrap();
        names.map(Result::unwrap).collect()
    };
    let own: Vec<String> = OF_A_JOB.iter().map(|name| format!("leasehold_{name}")).collect();
    let tables = if all {
        list(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB 'leasehold_*' ORDER BY 1",
        )
    } else {
        own
    };
    let mut done = Vec::new();
    for _ in 0..=tape.below(12) {
        let table = tape.pick(&tables);
        let columns = list(&format!("SELECT name FROM pragma_table_info('{table}')"));
        let (first, nth) = (&columns[0], tape.below(60));
        // What is spoiled beside it is not the good job, which is the first.
        let good = if own_of(table) { format!("WHERE {first} <> 1") } else { String::new() };
        let row = format!("(SELECT {first} FROM {table} {good} LIMIT 1 OFFSET {nth})");
        let sql = match tape.below(8) {
            0 => format!("DELETE FROM {table} WHERE {first} = {row}"),
            1 => {
                let values: Vec<_> = columns
                    .iter()
                    .enumerate()
                    .map(|(n, _)| match (n, own_of(table)) {
                        (0, true) => format!(
                            "(SELECT key FROM leasehold_job WHERE key <> 1 LIMIT 1 OFFSET {nth})"
                        ),
                        _ => (*tape.pick(&VALUES)).to_owned(),
                    })
                    .collect();
                format!("INSERT OR REPLACE INTO {table} VALUES ({})", values.join(", "))
            }
            _ => {
                let sets: Vec<_> = (0..=tape.below(3))
                    .map(|_| format!("{} = {}", tape.pick(&columns), tape.pick(&VALUES)))
                    .collect();
                format!("UPDATE {table} SET {} WHERE {first} = {row}", sets.join(", "))
            }
        };
        if app.execute(&sql, []).is_ok() {
            done.push(sql);
        }
    }
    done
}

fn own_of(table: &str) -> bool {
    OF_A_JOB.iter().any(|name| table == format!("leasehold_{name}"))
}

/// A job whose rows nobody touches is the first of its file.
fn first_is_good(app: &Connection) {
    app.execute_batch(
        "INSERT INTO leasehold_enqueue (kind, id, payload, created_at)
           VALUES ('good', 'good', '\"good\"', 1577836800000);
         PRAGMA foreign_keys = off;
         UPDATE leasehold_payload SET job = 1000000 WHERE job = 1;
         UPDATE leasehold_label SET job = 1000000 WHERE job = 1;
         UPDATE leasehold_detail SET job = 1000000 WHERE job = 1;
         UPDATE leasehold_result SET job = 1000000 WHERE job = 1;
         UPDATE leasehold_checkpoints SET job = 1000000 WHERE job = 1;
         UPDATE leasehold_attempts SET job = 1000000 WHERE job = 1;
         UPDATE leasehold_job SET key = 1000000 WHERE key = 1;
         UPDATE leasehold_payload SET job = 1
           WHERE job = (SELECT key FROM leasehold_job WHERE id = 'good');
         UPDATE leasehold_job SET key = 1 WHERE id = 'good';",
    )
    .unwrap();
}

/// Answers of a store whose jobs' rows are strange, or whose every table may be.
#[derive(Clone, Copy)]
struct Judge {
    all: bool,
}

impl Judge {
    fn of<T>(self, what: &str, answer: Result<T, Error>) -> Result<Option<T>, String> {
        match answer {
            Err(Error::Store(fault)) if !self.all => Err(format!("{what}: {fault:?}")),
            other => typed(what, other),
        }
    }

    /// Every row of a list, by pages.
    async fn listed(self, client: &Client, order: Order) -> Result<usize, String> {
        let (mut paging, mut seen) = (Paging::first(order, 25), BTreeSet::new());
        for _ in 0..100 {
            let Some(page) = self.of("list", client.list(&Filter::new(), paging).await)? else {
                return Ok(0);
            };
            for job in page.jobs {
                if !seen.insert(job.id.to_string()) && !self.all {
                    return Err(format!("{order:?} lists {} twice", job.id));
                }
            }
            let Some(next) = page.next else { return Ok(seen.len()) };
            paging = Paging::first(order, 25).after(next);
        }
        Err(format!("{order:?}: the list does not end"))
    }

    async fn end(self, tape: &mut Tape, lease: &Lease) -> Case {
        self.of("load", lease.load().await)?;
        self.of("checkpoint", lease.checkpoint("", Json::of(&1).unwrap()).await)?;
        self.of("renew", lease.renew().await)?;
        match tape.below(8) {
            0 => drop(self.of("fail", lease.fail(Failed::transient("again")).await)?),
            1 => drop(self.of("hand back", lease.hand_back().await)?),
            2 => drop(self.of("cancelled", lease.cancelled().await)?),
            3 => drop(self.of("interrupt", lease.interrupt().await)?),
            _ => drop(self.of("complete", lease.complete(Some(Json::of(&1).unwrap())).await)?),
        }
        Ok(())
    }

    /// Whatever can be asked about a job, and done to it.
    async fn about(self, client: &Client, id: &str) -> Case {
        let force = || Redrive::default().allow_finished().force();
        self.of("job", client.job(id).await)?;
        self.of("attempts", client.attempts(id).await)?;
        self.of("why waiting", client.why_waiting(id).await)?;
        self.of("redrive", client.redrive(id, force(), by()).await)?;
        self.of("run again", client.run_again(id, by()).await)?;
        self.of("cancel", client.cancel(id, by()).await)?;
        self.of("delete", client.delete(id, by()).await)?;
        Ok(())
    }
}

async fn spoiled(tape: &mut Tape) -> Case {
    let dir = folder();
    let path = dir.path().join("jobs.db");
    image().lay_out(&path);
    let bench = Bench::start(bench_settings(&path, 2)).await.map_err(|error| error.to_string())?;
    let client = &bench.client;
    client.register("good", Settings::new()).await.map_err(|error| error.to_string())?;
    let app = Connection::open(&path).unwrap();
    app.pragma_update(None, "synchronous", "off").unwrap();
    first_is_good(&app);
    let judge = Judge { all: tape.once_in(4) };
    let done = spoil(tape, &app, judge.all);
    let played = play(tape, &bench, &app, judge).await;
    played.map_err(|why| format!("{why}\n{}", done.join("\n")))
}

async fn play(tape: &mut Tape, bench: &Bench, app: &Connection, judge: Judge) -> Case {
    let client = &bench.client;
    let rows = |sql: &str| app.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    for order in [Order::Newest, Order::Oldest, Order::EndedNewest, Order::EndedOldest] {
        let listed = judge.listed(client, order).await?;
        let ended = matches!(order, Order::EndedNewest | Order::EndedOldest);
        let all = "SELECT count(*) FROM leasehold_job";
        let there =
            if ended { rows(&format!("{all} WHERE finished_at IS NOT NULL")) } else { rows(all) };
        if listed as i64 != there && !judge.all {
            return Err(format!("{order:?} lists {listed} of {there}"));
        }
    }
    for round in 0..2 {
        judge.of("counts", client.counts().await)?;
        judge.of("totals", client.totals().await)?;
        judge.of("preview", client.preview(BulkAction::Cancel, &Filter::new()).await)?;
        for _ in 0..40 {
            let claimed = client.claim(&["good", "mail", "report"], "w", 5).await;
            let leases = judge.of("claim", claimed)?.unwrap_or_default();
            if leases.is_empty() {
                break;
            }
            for lease in leases {
                judge.end(tape, &lease).await?;
            }
        }
        if round == 0 {
            let good = judge.of("job", client.job("good").await)?.flatten();
            if good.as_ref().is_none_or(|job| job.epoch == 0) && !judge.all {
                return Err(format!("the good job was not run: {good:?}"));
            }
        }
        judge.of("reap", client.reap_once().await)?;
        bench.clock.advance(*[1_000, 60_000, 8 * 86_400_000].get(tape.below(3)).unwrap());
    }
    for n in 0..60 {
        if tape.below(3) > 0 {
            judge.about(client, &format!("old-{n}")).await?;
        }
    }
    judge.of("sweep", client.sweep(NOW * 2, 100, by()).await)?;
    // What is new is as everything was.
    let job = NewJob::raw("good", Some(Json::of(&1).unwrap())).id("new");
    if judge.of("enqueue", client.enqueue(job).await)?.is_some() {
        let lease = judge.of("claim", client.claim_by_id("new", "w").await)?.flatten();
        match lease {
            Some(lease) => drop(judge.of("complete", lease.complete(None).await)?),
            None if judge.all => {}
            None => return Err("the new job cannot be claimed".into()),
        }
    }
    Ok(())
}

#[test]
fn fuzz_rows_of_any_content_are_answered_and_stop_no_job_but_their_own() {
    fuzz("rows", 60, |tape| in_time(spoiled(tape)));
}
