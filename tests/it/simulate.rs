//! A few schedules of the simulation, and that a seed tells all of one.

#[path = "../../examples/simulate/sim/mod.rs"]
mod sim;

use sim::{Template, play};

const SEEDS: std::ops::Range<u64> = 1..41;

#[test]
fn simulate_some_schedules_keep_every_promise() {
    let template = Template::new().unwrap();
    let mut all = sim::Figures::default();
    for seed in SEEDS {
        let report = play(seed, &template, false).unwrap();
        assert_eq!(report.broken, [""; 0], "SEED={seed}; replay: simulate --from {seed} --seeds 1");
        all.add(&report.figures);
    }
    // A world in which nothing happens would keep its promises too.
    assert!(all.is_clean() && all.schedules == 40, "{all:?}");
    assert!(all.acked > 400 && all.repeats > 100 && all.rescues > 5 && all.crashes > 50, "{all:?}");
}

#[test]
fn simulate_a_seed_has_one_trace() {
    let template = Template::new().unwrap();
    for seed in [3, 11, 17] {
        let once = play(seed, &template, true).unwrap();
        let other = play(seed + 1, &template, false).unwrap();
        let again = play(seed, &template, true).unwrap();
        assert_eq!(once.trace, again.trace, "SEED={seed}");
        assert_eq!(once.figures, again.figures);
        assert_ne!(once.figures.trace, other.figures.trace);
    }
}
