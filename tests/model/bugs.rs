//! How good the model is at finding bugs: each bug that can be planted is looked for from several
//! starting seeds, and must be found within a budget of schedules.
//!
//! `LEASEHOLD_MODEL_STARTS` says from how many; `LEASEHOLD_BUG` names the only one to look for.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::testing::{Bug, plant};

use super::schedule::{number, play, report, steps};
use super::stage::Stage;

/// Schedules that a bug may survive.
const BUDGET: u64 = 1_000;
const STARTS: u64 = if cfg!(debug_assertions) { 1 } else { 5 };

/// What shows between processes alone; `several.rs` looks for it.
const ELSEWHERE: [Bug; 1] = [Bug::StaleCache];

/// How many schedules it takes to find a bug, if it is found.
fn found_after(bug: Bug, start: u64) -> Option<u64> {
    let mut stage = Stage::new(None);
    plant(Some(bug));
    let found = (1..=BUDGET).find(|n| {
        let seed = start + n;
        // A panic of the store is found too.
        let played = catch_unwind(AssertUnwindSafe(|| play(&mut stage, seed, &steps(seed), false)));
        played.map_or(true, |played| played.wrong.is_some())
    });
    plant(None);
    found
}

#[test]
fn every_bug_is_found() {
    let only = std::env::var("LEASEHOLD_BUG").ok();
    let starts = number("LEASEHOLD_MODEL_STARTS").unwrap_or(STARTS);
    let bugs: Vec<Bug> = Bug::ALL
        .iter()
        .filter(|bug| !ELSEWHERE.contains(bug))
        .filter(|bug| only.as_ref().is_none_or(|only| format!("{bug:?}") == *only))
        .copied()
        .collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let look = || {
        while let Some(bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let after = (0..starts).map(|start| found_after(*bug, start * 1_000_000));
            let after: Vec<_> = after.map(|after| after.unwrap_or(u64::MAX)).collect();
            eprintln!("{bug:?} {after:?}");
            found.lock().unwrap().insert(format!("{bug:?}"), (after, bug.text()));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(look);
        look();
    });
    let found = found.into_inner().unwrap();
    println!("| bug | what it does wrong | worst | median |\n|---|---|---|---|");
    for (bug, (after, text)) in &found {
        let mut after = after.clone();
        after.sort_unstable();
        let (worst, median) = (after[after.len() - 1], after[after.len() / 2]);
        println!("| `{bug}` | {text} | {worst} | {median} |");
    }
    let missed: Vec<_> =
        found.iter().filter(|(_, (after, _))| after.contains(&u64::MAX)).map(|one| one.0).collect();
    assert!(missed.is_empty(), "not found within {BUDGET} schedules: {missed:?}");
}

/// A bug is told by the few steps that show it.
#[test]
fn a_bug_is_made_small() {
    let bug = Bug::DoneCancelled;
    let seed = found_after(bug, 0).unwrap();
    plant(Some(bug));
    let told = report(seed, || {
        plant(None);
        let stage = Stage::new(None);
        plant(Some(bug));
        stage
    });
    plant(None);
    println!("{told}");
    // A job, a claim, a request and a completion, and what they cannot be drawn without.
    let steps = told.split("steps [").nth(1).unwrap().split(']').next().unwrap();
    assert!(steps.split(',').count() <= 10, "{told}");
    assert!(told.contains("cancels"), "{told}");
}
