//! The model: random commands against the store, and a history of the test's own that says after
//! each of them what every job must be. It is written from the semantics, not from the code.
//!
//! A seed tells all that a schedule does, and each of its steps draws from a seed of its own, so
//! that steps can be left out: a schedule that fails is replayed with fewer and fewer, until none
//! can be done without.
//!
//! `LEASEHOLD_SEED` replays one seed, `LEASEHOLD_MODEL_SEEDS` says how many are played,
//! `LEASEHOLD_MODEL_FROM` from which one.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails should say where")]
#![allow(unreachable_pub, missing_debug_implementations, reason = "nothing here is public")]
#![allow(clippy::cast_possible_wrap, reason = "small numbers")]
#![allow(clippy::disallowed_methods, reason = "tests open files as applications do")]

mod app;
#[cfg(feature = "__bugs")]
mod bugs;
mod compare;
mod file;
mod hold;
mod once;
mod operate;
mod play;
mod produce;
mod profile;
#[path = "../support/rng.rs"]
mod rng;
mod rules;
mod schedule;
mod stage;
mod time;
mod world;

use schedule::{Tally, number, play, replay, shrink, steps, volume};
use stage::Stage;

/// Schedules in a build without optimization, and in one with it.
const SEEDS: u64 = if cfg!(debug_assertions) { 500 } else { 20_000 };

#[test]
fn every_job_is_what_its_history_says() {
    if let Some(seed) = number("LEASEHOLD_SEED") {
        println!("{}", replay(seed));
        return;
    }
    let from = number("LEASEHOLD_MODEL_FROM").unwrap_or(1);
    let seeds = number("LEASEHOLD_MODEL_SEEDS").unwrap_or(SEEDS);
    println!("seeds {from} to {}", from + seeds - 1);
    let tally: Tally = volume(from..from + seeds);
    println!("{tally}");
}

/// What a schedule does follows from its seed alone, whatever was played before it.
#[test]
fn a_seed_plays_the_same_after_others() {
    let mut stage = Stage::new(None);
    let first = play(&mut stage, 64, &steps(64), true).trace;
    for seed in 1..=100 {
        assert!(play(&mut stage, seed, &steps(seed), false).wrong.is_none(), "seed {seed}");
    }
    let after = play(&mut stage, 64, &steps(64), true).trace;
    let differs = first.iter().zip(&after).position(|(one, other)| one != other);
    assert_eq!((differs, after.len()), (None, first.len()));
    assert!(first.len() > 200, "a step at the least has a line");
}

#[test]
fn what_a_failure_does_not_need_is_left_out() {
    let all: Vec<usize> = (0..200).collect();
    // It takes 17 and then 118 to fail, which shows at the next step, whichever that is.
    let fails = |steps: &[usize]| {
        let at = steps.iter().position(|step| *step == 118)?;
        let ready = steps[..at].contains(&17);
        steps.get(at + 1).copied().filter(|_| ready)
    };
    let least = shrink(fails, &all);
    assert_eq!((least.len(), &least[..2]), (3, &[17, 118][..]));
    assert_eq!(shrink(|steps| steps.first().copied(), &all).len(), 1);
}
