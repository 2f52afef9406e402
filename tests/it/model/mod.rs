//! A model test: seeded random commands against the store, and a history of the test's own
//! that says after each of them what every job must be.
//!
//! `LEASEHOLD_SEED` replays one seed, `LEASEHOLD_MODEL_SEEDS` says how many are played,
//! `LEASEHOLD_MODEL_FROM` from which one.

mod file;
mod once;
mod operate;
mod play;
mod rules;
mod world;

pub use world::Rng;
use world::World;

const SEEDS: u64 = 180;
const STEPS: usize = 200;
const THREADS: u64 = 2;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Plays one seed.
fn play(seed: u64, path: Option<&std::path::Path>, steps: usize) -> World {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut world = World::start(seed, path).await;
        for _ in 0..steps {
            world.step().await;
        }
        world
    })
}

#[test]
fn model_every_job_is_what_its_history_says() {
    if let Some(seed) = number("LEASEHOLD_SEED") {
        println!("{}", play(seed, None, STEPS).summary());
        return;
    }
    let from = number("LEASEHOLD_MODEL_FROM").unwrap_or(1);
    let seeds = number("LEASEHOLD_MODEL_SEEDS").unwrap_or(SEEDS);
    println!("seeds {from} to {} of {STEPS} steps each", from + seeds - 1);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for seed in (from..from + seeds).filter(|seed| seed % THREADS == thread) {
                    play(seed, None, STEPS);
                }
            });
        }
    });
}
