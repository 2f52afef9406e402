//! A few schedules of the simulation, and that a seed tells all of one.

#[path = "../../examples/simulate/sim/mod.rs"]
mod sim;

use sim::{Theatre, play};

const SEEDS: std::ops::Range<u64> = 1..41;

/// Those that once broke a promise: a write that had landed, whose answer was lost, was said to be
/// undone, as the job was lost before it was asked for again.
const FOUND: [u64; 1] = [79_113];

#[test]
fn simulate_some_schedules_keep_every_promise() {
    let theatre = Theatre::new().unwrap();
    let mut all = sim::Figures::default();
    for seed in SEEDS {
        let report = play(seed, &theatre, false).unwrap();
        assert_eq!(report.broken, [""; 0], "SEED={seed}; replay: simulate --from {seed} --seeds 1");
        all.add(&report.figures);
    }
    // A world in which nothing happens would keep its promises too.
    assert!(all.is_clean() && all.schedules == 40, "{all:?}");
    assert!(all.acked > 400 && all.repeats > 100 && all.rescues > 5 && all.crashes > 50, "{all:?}");
}

#[test]
fn simulate_schedules_that_once_broke_a_promise_keep_it() {
    let theatre = Theatre::new().unwrap();
    for seed in FOUND {
        assert_eq!(play(seed, &theatre, false).unwrap().broken, [""; 0], "SEED={seed}");
    }
}

#[test]
fn simulate_a_seed_has_one_trace() {
    let theatre = Theatre::new().unwrap();
    for seed in [3, 11, 17] {
        let once = play(seed, &theatre, true).unwrap();
        let other = play(seed + 1, &theatre, false).unwrap();
        let again = play(seed, &theatre, true).unwrap();
        assert_eq!(once.trace, again.trace, "SEED={seed}");
        assert_eq!(once.figures, again.figures);
        assert_ne!(once.figures.trace, other.figures.trace);
    }
}
