//! Simulated years: several processes on one database, killed, stopped, cut off from their answers,
//! with clocks that jump; and a judge who knows everything that happened.
//!
//! `cargo run --release --example simulate -- --seeds 20000 --json` plays so many schedules. One
//! that breaks a promise is named by its seed, and `--from SEED --seeds 1 --trace` tells its story.

#[allow(unreachable_pub, reason = "shared with a test")]
mod sim;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use clap::Parser;
use sim::{Figures, Theatre, play};

#[derive(Parser)]
struct Args {
    /// How many schedules to play.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Threads to play on; all cores unless set.
    #[arg(long)]
    threads: Option<u64>,
    /// Tell what happens.
    #[arg(long)]
    trace: bool,
    /// Print the figures as JSON.
    #[arg(long)]
    json: bool,
    /// Play with a bug in the store, by its name, until it is found.
    #[cfg(feature = "__bugs")]
    #[arg(long)]
    bug: Option<String>,
}

#[allow(clippy::disallowed_methods, reason = "how long it took is asked of the real clock")]
fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    // Panics are part of the play.
    std::panic::set_hook(Box::new(|_| {}));
    let begin = std::time::Instant::now();
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get) as u64;
    let threads = args.threads.unwrap_or(cores).max(1);
    let all = Mutex::new((Figures::default(), BTreeMap::new()));
    std::thread::scope(|scope| {
        let played: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn({
                    let (args, all) = (&args, &all);
                    move || play_some(args, thread, threads, all)
                })
            })
            .collect();
        played.into_iter().try_for_each(|one| {
            one.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the simulation itself panicked")))
        })
    })?;
    let (figures, broken) = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    let seconds = begin.elapsed().as_secs_f64();
    print(&figures, seconds, args.json);
    for (seed, what) in broken.iter().take(10) {
        eprintln!("SEED={seed}: {what:?}");
        eprintln!("  cargo run --release --example simulate -- --from {seed} --seeds 1 --trace");
    }
    anyhow::ensure!(figures.is_clean(), "{} schedules have broken a promise", broken.len());
    Ok(())
}

type All = Mutex<(Figures, BTreeMap<u64, Vec<String>>)>;

/// Plays every seed of this thread's.
fn play_some(args: &Args, thread: u64, threads: u64, all: &All) -> anyhow::Result<()> {
    let theatre = Theatre::new()?;
    #[cfg(feature = "__bugs")]
    if let Some(name) = &args.bug {
        use leasehold::testing::{Bug, plant};
        let bug = Bug::ALL.iter().find(|bug| format!("{bug:?}") == *name);
        plant(Some(*bug.ok_or_else(|| anyhow::anyhow!("{name} is none of {:?}", Bug::ALL))?));
    }
    for seed in (args.from..args.from + args.seeds).filter(|seed| seed % threads == thread) {
        let report = play(seed, &theatre, args.trace)?;
        print!("{}", report.trace);
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        all.0.add(&report.figures);
        if !report.broken.is_empty() {
            all.1.insert(seed, report.broken);
            #[cfg(feature = "__bugs")]
            if args.bug.is_some() {
                break;
            }
        }
    }
    Ok(())
}

fn print(figures: &Figures, seconds: f64, json: bool) {
    let virtual_seconds = figures.virtual_ms / 1_000;
    let numbers = [
        ("schedules", figures.schedules),
        ("jobs", figures.jobs),
        ("crashes", figures.crashes),
        ("virtual_seconds", virtual_seconds),
        ("acked", figures.acked),
        ("starts", figures.starts),
        ("repeats", figures.repeats),
        ("rescues", figures.rescues),
        ("lost", figures.lost),
        ("double_settled", figures.double_settled),
        ("stale_accepted", figures.stale_accepted),
        ("unexplained_repeats", figures.unexplained_repeats),
        ("stuck", figures.stuck),
        ("trace", figures.trace),
    ];
    if json {
        let mut map: serde_json::Map<_, _> =
            numbers.iter().map(|(name, n)| ((*name).to_owned(), (*n).into())).collect();
        map.insert("seconds".into(), ((seconds * 1_000.0).round() / 1_000.0).into());
        println!("{}", serde_json::Value::Object(map));
        return;
    }
    for (name, number) in numbers {
        println!("{name:>20} {number}");
    }
    println!("{:>20} {seconds:.1}", "seconds");
}
