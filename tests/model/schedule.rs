//! Schedules: played by their seed, counted, and made small where they fail.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::profile::Profile;
use super::rng::Rng;
use super::stage::Stage;
use super::world::World;

const THREADS: usize = 2;

pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// The seed of a step, which follows from nothing but its place.
pub fn step_seed(seed: u64, step: usize) -> u64 {
    Rng::new(seed ^ (step as u64 + 1).wrapping_mul(0xA24B_AED4_963E_E407)).next()
}

/// What a schedule came to.
pub struct Outcome {
    pub steps: usize,
    /// What was wrong, and after which step, if anything was.
    pub wrong: Option<(usize, String)>,
    pub trace: Vec<String>,
}

/// Plays some steps of a seed.
pub fn play(stage: &mut Stage, seed: u64, steps: &[usize], traced: bool) -> Outcome {
    let mut world = World::start(stage, seed, traced);
    let mut wrong = None;
    for step in steps {
        if let Err(text) = world.step(step_seed(seed, *step)) {
            wrong = Some((*step, text));
            break;
        }
    }
    if wrong.is_none()
        && let Err(text) = world.finish()
    {
        wrong = Some((usize::MAX, text));
    }
    Outcome { steps: world.steps, wrong, trace: world.trace.take().unwrap_or_default() }
}

/// All steps of a seed.
pub fn steps(seed: u64) -> Vec<usize> {
    (0..Profile::of(seed).steps).collect()
}

/// Leaves out what a failing schedule does not need, in ever smaller parts.
pub fn shrink(mut fails: impl FnMut(&[usize]) -> Option<usize>, all: &[usize]) -> Vec<usize> {
    let mut kept = all.to_vec();
    let cut = |kept: &mut Vec<usize>, last: usize| kept.retain(|step| *step <= last);
    if let Some(last) = fails(&kept) {
        cut(&mut kept, last);
    }
    let mut part = kept.len().div_ceil(2).max(1);
    loop {
        let (mut at, mut dropped) = (0, false);
        while at < kept.len() {
            let mut fewer = kept.clone();
            fewer.drain(at..(at + part).min(kept.len()));
            match fails(&fewer) {
                Some(last) => {
                    cut(&mut fewer, last);
                    (kept, dropped) = (fewer, true);
                }
                None => at += part,
            }
        }
        if part == 1 && !dropped {
            return kept;
        }
        part = if dropped { part.min(kept.len()).max(1) } else { part.div_ceil(2) };
    }
}

/// The least of a failing seed, as it is told to a person.
pub fn report(seed: u64, stage: impl Fn() -> Stage) -> String {
    let mut on = stage();
    let least = shrink(
        |steps| {
            let (last, _) = play(&mut on, seed, steps, false).wrong?;
            // After a failure the bench may be in any state.
            on = stage();
            Some(last)
        },
        &steps(seed),
    );
    let played = play(&mut stage(), seed, &least, true);
    let text = played.wrong.map_or_else(|| "it did not fail again".into(), |wrong| wrong.1);
    let history: Vec<_> = played.trace.iter().filter(|line| !line.starts_with("  ")).collect();
    let history: Vec<_> = history.into_iter().map(String::as_str).collect();
    format!(
        "{text}\n  SEED={seed}, steps {least:?} of {}; replay: LEASEHOLD_SEED={seed} \
         cargo test --all-features --test model every_job -- --nocapture\n  {}",
        Profile::of(seed).steps,
        history.join("\n  ")
    )
}

/// Plays one seed, and tells its history; the least of it, where it fails.
pub fn replay(seed: u64) -> String {
    let played = play(&mut Stage::new(None), seed, &steps(seed), true);
    assert!(played.wrong.is_none(), "{}", report(seed, || Stage::new(None)));
    played.trace.join("\n")
}

/// How much was played, and how long it took the processor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub schedules: u64,
    pub steps: u64,
    pub nanoseconds: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedules, steps, nanoseconds } = *self;
        let (seconds, each) = (nanoseconds / 1_000_000_000, nanoseconds / schedules.max(1));
        let rate = 1_000_000_000 / each.max(1);
        write!(
            f,
            "{schedules} schedules, {steps} steps, {seconds} s of processor time: \
             {rate} schedules/s a core"
        )
    }
}

/// The processor time that this thread has had, in nanoseconds; nothing where nobody says.
fn processor_time() -> u64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    told.split(' ').next().and_then(|time| time.parse().ok()).unwrap_or_default()
}

/// Plays seeds on a few threads; the first that fails ends it.
pub fn volume(seeds: Range<u64>) -> Tally {
    let next = AtomicU64::new(seeds.start);
    let worker = || {
        let (mut tally, begun) = (Tally::default(), processor_time());
        let mut stage = Stage::new(None);
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                tally.nanoseconds = processor_time().saturating_sub(begun);
                return tally;
            }
            let played = play(&mut stage, seed, &steps(seed), false);
            if played.wrong.is_some() {
                next.store(u64::MAX / 2, Ordering::Relaxed);
                panic!("{}", report(seed, || Stage::new(None)));
            }
            tally.schedules += 1;
            tally.steps += played.steps as u64;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(worker)).collect();
        threads.into_iter().fold(Tally::default(), |all, thread| {
            let one = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Tally {
                schedules: all.schedules + one.schedules,
                steps: all.steps + one.steps,
                nanoseconds: all.nanoseconds + one.nanoseconds,
            }
        })
    })
}
