//! Kills the processes that run jobs, again and again at random moments, and then compares what
//! they had acknowledged with what is in the file.
//!
//! ```text
//! cargo run --release --example soak -- --processes 3 --kills 300 --json
//! ```
//!
//! - `drive` starts the workers and kills them with SIGKILL. It enqueues, cancels and redrives,
//!   and holds some jobs by hand, with leases that are too short.
//! - `worker` is what they do: it runs jobs of the kinds in `kinds`, and enqueues more of them.
//! - `said` is what they acknowledge, a line each, on a pipe that outlives them.
//! - `check` compares: every figure that must be 0 is a comparison of that with the rows.
//!
//! The seed decides what is enqueued, cancelled and killed. It does not decide what a kill meets.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program talks to its user")]
#![allow(clippy::disallowed_methods, reason = "it lives in real time, and reads the file itself")]
#![allow(unreachable_pub, missing_debug_implementations, reason = "nothing here is public")]

mod check;
mod dice;
mod drive;
mod figures;
mod hand;
mod job;
mod kinds;
mod said;
mod worker;

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Parser;

/// Kills the processes that run jobs, and compares what they had acknowledged with the file.
#[derive(Parser)]
struct Options {
    /// How many worker processes run at a time.
    #[arg(long, value_name = "P", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    processes: u16,
    /// How many of them are killed in all; each is replaced at once.
    #[arg(long, value_name = "N", default_value_t = 300)]
    kills: u32,
    /// How many kills a second, about.
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    rate: u32,
    /// Decides what is enqueued, cancelled and killed; drawn and printed unless given.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// The database, which must not be there; in a folder for temporary files unless given.
    #[arg(long, value_name = "PATH")]
    db: Option<PathBuf>,
    /// Print the figures as a JSON object, and nothing else on standard output.
    #[arg(long)]
    json: bool,
    /// The number of a worker process, of which this program starts several.
    #[arg(long, hide = true)]
    worker: Option<u32>,
}

fn main() -> ExitCode {
    // What the runtimes warn of is what is done to them here.
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("error")).init();
    let options = Options::parse();
    let seed = options.seed.unwrap_or_else(|| RandomState::new().hash_one("seed") >> 32);
    let done = match (options.worker, &options.db) {
        (Some(number), Some(db)) => worker::run(db, seed, number).map(|()| true),
        _ => soak(&options, seed),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}; the seed is {seed}");
            ExitCode::FAILURE
        }
    }
}

/// Answers whether all is as it must be.
fn soak(options: &Options, seed: u64) -> anyhow::Result<bool> {
    let folder = tempfile::tempdir()?;
    let db = options.db.clone().unwrap_or_else(|| folder.path().join("soak.db"));
    if db.exists() {
        bail!("{} is there already; give the name of a new file", db.display());
    }
    let plan = drive::Plan {
        db: db.clone(),
        processes: options.processes.into(),
        kills: options.kills,
        rate: options.rate,
        seed,
        progress: !options.json,
    };
    let run = drive::run(&plan)?;
    let (figures, findings) = check::compare(&plan, run)?;
    if options.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        figures.print();
    }
    for finding in findings.iter().take(20) {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        if options.db.is_none() {
            eprintln!("the database is kept in {}", folder.keep().display());
        }
        eprintln!("FAILED with {} findings; the seed is {seed}", findings.len());
    }
    Ok(findings.is_empty())
}
