//! Many jobs through one process: what it keeps in memory, and how its log stays small.
//!
//! Jobs complete, fail, panic, are tried again, go on in slices and are cancelled; some are waited
//! for, by callers that stay or that go away. After the first of them the process must not grow,
//! and at the end it must keep nothing for any of them. All the while somebody reads the file, and
//! for a time somebody holds a snapshot of it, which keeps the log from being written anew.
//!
//! ```text
//! cargo run --release --example load -- --jobs 1000000 --json
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program talks to its user")]
#![allow(clippy::disallowed_methods, reason = "it measures itself, and reads its own file")]
#![allow(clippy::needless_pass_by_value, reason = "handlers own their arguments")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use clap::Parser;
use leasehold::rusqlite::Connection;
use leasehold::{
    Client, Ctx, Durability, Error, Job, JobError, JobResult, NewJob, Operator, Outcome, Retry,
    Runtime, Settings, testing,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// How large the log may become while nobody holds a snapshot, in MiB: a runtime cuts it off from
/// 32 MiB on, looks each second, and waits for readers for a half; all the while jobs are written.
/// A busy machine lets no try succeed for ten seconds, in which it grows with what is written.
const MOST_LOG: f64 = 256.0;
/// Long enough for anything that ends at all.
const PATIENCE: Duration = Duration::from_mins(2);

/// Puts many jobs through one process, and fails where it grows with their number.
#[derive(Parser)]
struct Options {
    /// How many jobs.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1_000..))]
    jobs: u64,
    /// How much the process may grow after the first jobs, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 20.0, allow_negative_numbers = true)]
    most_growth_mib: f64,
    /// The folder for the database, which must have none yet; a temporary one unless given.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Print the figures as a JSON object, and nothing else on standard output.
    #[arg(long)]
    json: bool,
}

/// What becomes of a job.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Fate {
    Done,
    Fails,
    Panics,
    SecondTry,
    Slices,
    UntilCancelled,
}

#[derive(Serialize, Deserialize)]
struct Work {
    fate: Fate,
    text: String,
}

impl Job for Work {
    const KIND: &'static str = "work";

    fn settings() -> Settings {
        Settings::new().retry(Retry::fixed(Duration::ZERO).no_jitter())
    }
}

async fn work(job: Work, ctx: Ctx) -> JobResult {
    match job.fate {
        Fate::Done => Ok(Outcome::done_with(&job.text.len())),
        Fate::Fails => Err(JobError::give_up("as it was told")),
        Fate::Panics if ctx.attempt() == 1 => panic!("as it was told"),
        Fate::SecondTry if ctx.attempt() == 1 => Err("not yet")?,
        Fate::Slices if ctx.checkpoint::<String>()?.is_none() => {
            ctx.save(&job.text).await?;
            Ok(Outcome::Yield)
        }
        Fate::UntilCancelled => {
            ctx.cancelled().await;
            Ok(Outcome::Cancelled)
        }
        Fate::Panics | Fate::SecondTry | Fate::Slices => Ok(Outcome::Done),
    }
}

/// A job that blocks its thread.
#[derive(Serialize, Deserialize)]
struct Blocks;

impl Job for Blocks {
    const KIND: &'static str = "blocks";
}

/// Jobs that one caller enqueues at a time.
const AT_ONCE: u64 = 100;
/// Callers at a time.
const CALLERS: u64 = 32;

/// The jobs of one call, by their place in it.
fn jobs_of(call: u64) -> Vec<NewJob> {
    let text = "x".repeat(200);
    let work = |fate| Work { fate, text: text.clone() }.into_new();
    let job = |place| match place {
        0 => work(Fate::UntilCancelled).id(format!("{call}-cancelled")),
        1 => work(Fate::Done).delay(Duration::from_hours(1)).id(format!("{call}-early")),
        2 => work(Fate::Fails),
        3 => work(Fate::Panics),
        4 => work(Fate::SecondTry),
        5 => work(Fate::Slices),
        6 => Blocks.into_new(),
        // One of these two is the job, the other is answered with it.
        7 | 8 => work(Fate::Done).dedup_key(format!("{call}-same")),
        9 => work(Fate::Done).idempotency_key(format!("{call}-key")),
        _ => work(Fate::Done),
    };
    (0..AT_ONCE).map(job).collect()
}

/// Enqueues the jobs of a call, and waits for some of them: to the end, for a moment, and as one
/// who goes away.
async fn call(client: &Client, call: u64) -> anyhow::Result<()> {
    let mut ids = Vec::new();
    for enqueued in client.enqueue_many(jobs_of(call)).await? {
        ids.push(enqueued.map_err(Error::from)?.id);
    }
    for id in &ids[10..15] {
        // Polled once, and dropped.
        let wait = std::pin::pin!(client.wait(id, PATIENCE));
        drop(futures_util::FutureExt::now_or_never(wait));
    }
    for id in &ids[15..20] {
        match client.wait(id, Duration::from_millis(1)).await {
            Ok(_) | Err(Error::Deadline { .. }) => {}
            Err(other) => return Err(other.into()),
        }
    }
    for id in &ids[..2] {
        client.cancel(id, Operator::named("load")).await?;
    }
    for id in &ids {
        client.wait(id, PATIENCE).await?;
    }
    Ok(())
}

const MIB: f64 = 1_048_576.0;

#[allow(clippy::cast_precision_loss, reason = "bytes of memory")]
fn mib(bytes: u64) -> f64 {
    (bytes as f64 / MIB * 10.0).round() / 10.0
}

/// The memory that this process has, in MiB.
fn resident() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("it needs Linux")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(mib(kib.context("no VmRSS in /proc/self/status")? * 1_024))
}

fn log_size(db: &Path) -> u64 {
    let mut name = db.as_os_str().to_owned();
    name.push("-wal");
    std::fs::metadata(name).map_or(0, |file| file.len())
}

/// How far it is, and what was seen on the way.
#[derive(Default)]
struct Seen {
    calls: AtomicU64,
    reads: AtomicU64,
    log_most: AtomicU64,
    log_while_held: AtomicU64,
    log_in_health: AtomicU64,
    over: AtomicBool,
}

impl Seen {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
}

/// Begins to read, and sees the file as it is now from then on.
fn snapshot(conn: &Connection) -> leasehold::rusqlite::Result<()> {
    conn.execute_batch("BEGIN; SELECT count(*) FROM leasehold_schema")
}

/// Reads all the time, on two connections whose reads overlap, so that there is never none; and
/// from a half to three quarters of the calls holds one snapshot beside them.
fn read(db: &Path, seen: &Seen, calls: u64) -> anyhow::Result<()> {
    /// How long a read takes.
    const READ: Duration = Duration::from_millis(20);
    let (mut one, mut other) = (Connection::open(db)?, Connection::open(db)?);
    snapshot(&one)?;
    let holder = Connection::open(db)?;
    let mut large = true;
    while !seen.is_over() {
        snapshot(&other)?;
        std::thread::sleep(READ);
        one.execute_batch("COMMIT")?;
        std::mem::swap(&mut one, &mut other);
        seen.reads.fetch_add(1, Ordering::SeqCst);
        let size = log_size(db);
        let hold = (calls / 2..calls * 3 / 4).contains(&seen.calls.load(Ordering::SeqCst));
        if hold {
            if holder.is_autocommit() {
                snapshot(&holder)?;
            }
            large = true;
            seen.log_while_held.fetch_max(size, Ordering::SeqCst);
        } else if !holder.is_autocommit() {
            holder.execute_batch("COMMIT")?;
        }
        // What the snapshot has made of the log goes with it, if not at once.
        large &= hold || mib(size) > MOST_LOG;
        if !large {
            seen.log_most.fetch_max(size, Ordering::SeqCst);
        }
    }
    Ok(())
}

/// Makes calls up to a number of them, several at a time, and waits for all.
async fn calls(client: &Client, seen: &Arc<Seen>, until: u64) -> anyhow::Result<()> {
    let next = Arc::new(AtomicU64::new(seen.calls.load(Ordering::SeqCst)));
    let caller = || {
        let (client, seen, next) = (client.clone(), seen.clone(), next.clone());
        tokio::spawn(async move {
            loop {
                let one = next.fetch_add(1, Ordering::SeqCst);
                if one >= until {
                    return anyhow::Ok(());
                }
                call(&client, one).await?;
                seen.calls.fetch_add(1, Ordering::SeqCst);
            }
        })
    };
    for caller in (0..CALLERS).map(|_| caller()).collect::<Vec<_>>() {
        caller.await??;
    }
    Ok(())
}

/// Waits until it is so, or for so long that it never will be.
async fn until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() && start.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What is kept for jobs although there are none any more.
async fn left(runtime: &Runtime) -> BTreeMap<&'static str, usize> {
    let kept = || {
        let mut kept = testing::kept(runtime);
        kept.retain(|_, number| *number > 0);
        kept
    };
    until(|| kept().is_empty()).await;
    kept()
}

/// The figures of a run.
struct Figures {
    seconds: f64,
    first_jobs: u64,
    first_mib: f64,
    end_mib: f64,
    left: BTreeMap<&'static str, usize>,
    log_end: f64,
    /// Whatever was not as it must be.
    wrong: Vec<String>,
}

async fn load(options: &Options, db: &Path, seen: &Arc<Seen>) -> anyhow::Result<Figures> {
    let builder = Runtime::builder(db).durability(Durability::Normal).slots(64);
    let builder = builder.handle(work).handle_blocking(|_: Blocks, _: Ctx| Ok(Outcome::Done));
    let runtime = builder.start().await?;
    let client = runtime.client();
    // A listener that never listens.
    let _events = client.events();
    let all = options.jobs.div_ceil(AT_ONCE);
    // Caches are full by then.
    let first = (all / 10).max(500).min(all / 2);
    let reader = std::thread::spawn({
        let (db, seen) = (db.to_owned(), seen.clone());
        move || read(&db, &seen, all)
    });
    let watch = tokio::spawn({
        let (runtime, seen) = (runtime.clone(), seen.clone());
        async move {
            while !seen.is_over() {
                seen.log_in_health.fetch_max(runtime.health().log_bytes, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    });
    let start = Instant::now();
    calls(&client, seen, first).await?;
    let mut left_over = left(&runtime).await;
    let first_mib = resident()?;
    calls(&client, seen, all).await?;
    let seconds = start.elapsed().as_secs_f64();
    left_over.extend(left(&runtime).await);
    let end_mib = resident()?;
    until(|| mib(log_size(db)) <= MOST_LOG).await;
    let log_end = mib(log_size(db));
    seen.over.store(true, Ordering::SeqCst);
    watch.await?;
    reader.join().map_err(|_| anyhow!("the reader panicked"))??;
    let mut wrong = runtime.health().troubles;
    let counts = client.counts().await?;
    let ended = [counts.completed, counts.dead, counts.cancelled].map(i64::unsigned_abs);
    if ended != [all * (AT_ONCE - 4), all, all * 2] {
        wrong.push(format!("not every job came to its end: {counts:?}"));
    }
    runtime.stop(Duration::from_secs(5)).await;
    let first_jobs = first * AT_ONCE;
    Ok(Figures { seconds, first_jobs, first_mib, end_mib, left: left_over, log_end, wrong })
}

impl Figures {
    /// All of it as JSON, and what was not as it must be.
    fn judge(mut self, options: &Options, seen: &Seen) -> (serde_json::Value, Vec<String>) {
        let size = |of: &AtomicU64| mib(of.load(Ordering::SeqCst));
        let growth = ((self.end_mib - self.first_mib) * 10.0).round() / 10.0;
        let (log, held) = (size(&seen.log_most), size(&seen.log_while_held));
        let in_health = size(&seen.log_in_health);
        let mut check = |holds: bool, wrong: String| {
            if !holds {
                self.wrong.push(wrong);
            }
        };
        let most = options.most_growth_mib;
        check(growth < most, format!("it grew by {growth} MiB, and may by {most}"));
        check(self.left.is_empty(), format!("kept for no job: {:?}", self.left));
        check(log <= MOST_LOG, format!("the log became {log} MiB, and may {MOST_LOG}"));
        let end = self.log_end;
        check(end <= MOST_LOG, format!("the log stayed at {end} MiB after the snapshot"));
        let shown = in_health >= held / 2.0 || held < MOST_LOG;
        check(shown, format!("health showed a log of {in_health} MiB, and it was {held}"));
        let figures = json!({
            "jobs": options.jobs, "seconds": (self.seconds * 10.0).round() / 10.0,
            "first_jobs": self.first_jobs, "rss_first_mib": self.first_mib,
            "rss_100k_mib": (self.first_jobs == 100_000).then_some(self.first_mib),
            "rss_end_mib": self.end_mib, "growth_mib": growth,
            "wal_max_mib": log, "wal_held_mib": held, "wal_in_health_mib": in_health,
            "wal_end_mib": end, "reads": seen.reads.load(Ordering::SeqCst),
            "maps_left": self.left.values().sum::<usize>(), "left": self.left,
            "wrong": self.wrong,
        });
        (figures, self.wrong)
    }
}

async fn run(options: &Options, folder: &Path) -> anyhow::Result<Vec<String>> {
    std::fs::create_dir_all(folder)?;
    let db = folder.join("load.db");
    ensure!(!db.exists(), "{} is there already", db.display());
    let seen = Arc::new(Seen::default());
    let (figures, wrong) = load(options, &db, &seen).await?.judge(options, &seen);
    if options.json {
        println!("{figures}");
    } else {
        println!("{figures:#}");
    }
    Ok(wrong)
}

#[tokio::main]
async fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    // Handlers panic because they are told to.
    std::panic::set_hook(Box::new(|_| {}));
    let options = Options::parse();
    let own = std::env::temp_dir().join(format!("leasehold-load-{}", std::process::id()));
    let ran = run(&options, options.folder.as_deref().unwrap_or(&own)).await;
    if options.folder.is_none() {
        let _removed = std::fs::remove_dir_all(&own);
    }
    let wrong = ran.unwrap_or_else(|error| vec![format!("{error:#}")]);
    for line in &wrong {
        eprintln!("error: {line}");
    }
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
