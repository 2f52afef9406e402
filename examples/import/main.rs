//! Imports wildlife strike records into a table of a SQLite file, as one durable job in slices.
//!
//! Kill it at any moment, with `kill -9` if you like, and start it again: it goes on from the
//! last slice, and every record is there once. Start it several times on one file: the
//! processes share the work, and when one dies another takes over.
//!
//! ```text
//! cargo run --release --example import -- --pause-ms 200
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program talks to its user")]
#![allow(clippy::disallowed_methods, reason = "the application opens its own connection")]
#![allow(clippy::needless_pass_by_value, reason = "handlers own their arguments")]
#![allow(unreachable_pub, missing_debug_implementations, reason = "nothing here is public")]

mod job;
mod progress;
mod records;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Parser;
use leasehold::{Client, Error, Job, JobRecord, Runtime, Status, Was};
use serde_json::json;

use job::{ID, Import, Source, Summary};
use records::Fingerprint;

/// How long handlers get at the end.
const GRACE: Duration = Duration::from_secs(5);
/// How often to look how far the job is.
const LOOK: Duration = Duration::from_millis(200);

/// Imports wildlife strike records into a table of a SQLite file. May be killed and started
/// again at any time: it goes on from where it was.
#[derive(Parser)]
struct Options {
    /// The records, as comma separated values.
    #[arg(long, value_name = "FILE", default_value = DATA)]
    csv: PathBuf,
    /// The database, which is made where it is not there.
    #[arg(long, value_name = "FILE", default_value = "import.db")]
    db: PathBuf,
    /// How many records are saved at a time.
    #[arg(long, value_name = "ROWS", default_value_t = 500)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    slice: u32,
    /// Milliseconds to sleep in each slice, to have time to kill it.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pause_ms: u64,
    /// Print the result as a JSON object, and nothing else on standard output.
    #[arg(long)]
    json: bool,
}

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/birdstrikes.csv");

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    match import(&Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn import(options: &Options) -> anyhow::Result<()> {
    let import = Import { file: Fingerprint::of(&options.csv)? };
    let bytes = import.file.bytes;
    let Found { job, resumed } = enqueue(options, import).await?;
    let ended_before = !job.status.is_live();
    let job = if ended_before { job } else { run(options, bytes).await? };
    let summary = summary(&job)?;
    if options.json {
        println!("{}", as_json(&summary, &job, resumed));
        return Ok(());
    }
    if ended_before {
        println!("This import was done before; nothing has changed.");
    } else if resumed {
        println!("This import had been begun before, and has gone on to its end.");
    }
    print(&summary, &job);
    Ok(())
}

/// The job as it was found or made.
struct Found {
    job: JobRecord,
    /// An earlier process has begun it.
    resumed: bool,
}

/// Enqueues the job, or finds it.
///
/// Its id makes this safe in any number of processes: one of them makes the job, and the others
/// find it. No runtime is running yet, as it might begin on the job of another file.
async fn enqueue(options: &Options, import: Import) -> anyhow::Result<Found> {
    let client = Client::open(&options.db).await?;
    job::create_table(&options.db)?;
    let enqueued = client.enqueue(import.clone().into_new().id(ID)).await?;
    let job = client.job(ID).await?.context("the job has gone")?;
    let payload = job.payload.as_ref().context("the job has no payload")?;
    let begun: Import = payload.to().map_err(|error| anyhow!("the job's payload: {error}"))?;
    if begun != import {
        bail!("{}; give another --db to import it", job::changed(&options.csv));
    }
    let resumed = enqueued.was != Was::New && job.epoch > 0;
    Ok(Found { job, resumed })
}

/// Runs the job here, unless another process does, and waits for its end.
async fn run(options: &Options, bytes: u64) -> anyhow::Result<JobRecord> {
    let source = Source {
        path: options.csv.clone(),
        slice: usize::try_from(options.slice)?,
        pause: Duration::from_millis(options.pause_ms),
    };
    let runtime = Runtime::builder(&options.db)
        .state(source)
        .handle_blocking(job::import)
        .stop_on_signals()
        .start()
        .await?;
    let ended = tokio::select! {
        ended = follow(&runtime, bytes) => ended,
        _ = runtime.stopped() => Err(anyhow!("stopped before the end; start it again to go on")),
    };
    let report = runtime.stop(GRACE).await;
    for left in report.in_flight {
        log::warn!("the handler of {} still runs", left.job);
    }
    ended
}

/// Waits for the end of the job, in whichever process, and shows how far it is.
async fn follow(runtime: &Runtime, bytes: u64) -> anyhow::Result<JobRecord> {
    let mut display = progress::Display::new(bytes)?;
    loop {
        match runtime.wait(ID, LOOK).await {
            Ok(ended) => {
                display.end();
                return Ok(ended);
            }
            Err(Error::Deadline { .. }) => {
                if let Some(job) = runtime.client().job(ID).await? {
                    display.show(&job);
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The result of a job that has ended well.
fn summary(job: &JobRecord) -> anyhow::Result<Summary> {
    if job.status != Status::Completed {
        let error = job.last_error.as_deref().unwrap_or("no error is known");
        bail!("the import has ended as {}: {error}", job.status);
    }
    let result = job.result.as_ref().context("the job has no result")?;
    result.to().map_err(|error| anyhow!("the job's result: {error}"))
}

/// How often the job was begun or gone on with: once a claim. The epoch counts those, and once
/// more whenever the job was taken from a process that had died.
fn attempts(job: &JobRecord) -> i64 {
    job.epoch - job.redrives
}

fn as_json(summary: &Summary, job: &JobRecord, resumed: bool) -> serde_json::Value {
    let Summary { records, cost_total, slices, .. } = summary;
    json!({
        "records": records,
        "cost_total": cost_total,
        "slices": slices,
        "attempts": attempts(job),
        "resumed": resumed,
    })
}

fn print(summary: &Summary, job: &JobRecord) {
    println!("records            {:>10}", summary.records);
    println!("cost in all, in $  {:>10}", summary.cost_total);
    println!("slices             {:>10}", summary.slices);
    println!("attempts           {:>10}", attempts(job));
    println!("most reported species:");
    for (species, reports) in &summary.species {
        println!("  {species:<30} {reports:>5}");
    }
}
