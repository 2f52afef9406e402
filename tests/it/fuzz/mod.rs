//! Inputs that nobody would think of: each case draws its input from a tape of numbers that
//! follows from a seed.
//!
//! The tapes that once failed are kept in `tests/corpus`, by target, and played first. Then come
//! as many seeds as a quick run has, the same each time; with `LEASEHOLD_FUZZ_SECONDS=n` new ones
//! for so long, for each target. A tape that fails is made as short as it can be, and kept.

mod damage;
mod enqueue;
mod rows;
mod scenarios;

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::rng::Rng;

/// 2020-01-01 00:00 UTC.
const NOW: i64 = 1_577_836_800_000;

/// A folder in memory where there is such a thing: thousands of databases are made.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Numbers that a case draws: first those that are given, then those of a seed, then zeros.
pub struct Tape {
    given: Vec<u64>,
    rng: Option<Rng>,
    drawn: Vec<u64>,
}

impl Tape {
    fn of_seed(seed: u64) -> Self {
        Self { given: Vec::new(), rng: Some(Rng::new(seed)), drawn: Vec::new() }
    }

    fn of(given: Vec<u64>) -> Self {
        Self { given, rng: None, drawn: Vec::new() }
    }

    /// A number below `most`; the smaller, the simpler.
    pub fn below(&mut self, most: usize) -> usize {
        let next = match (self.given.get(self.drawn.len()), &mut self.rng) {
            (Some(given), _) => *given,
            (None, Some(rng)) => rng.below(1 << 32) as u64,
            (None, None) => 0,
        };
        // What is kept is the number that was drawn, so that a shorter tape stays comparable.
        let drawn = next % most.max(1) as u64;
        self.drawn.push(drawn);
        usize::try_from(drawn).unwrap()
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: usize) -> bool {
        // The simpler is that it does not happen.
        self.below(times) == times - 1
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// What a case came to: nothing, or what was not as it must be.
type Case = Result<(), String>;

fn corpus(target: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "corpus", target].iter().collect()
}

/// A tape as it is kept: numbers, and lines of comment.
fn read(text: &str) -> Vec<u64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.flat_map(str::split_whitespace).map(|number| number.parse().unwrap()).collect()
}

fn play(tape: &mut Tape, case: &dyn Fn(&mut Tape) -> Case) -> Case {
    catch_unwind(AssertUnwindSafe(|| case(tape))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("it panicked: {}", text.unwrap_or_default()))
    })
}

/// Without the zeros at its end, which are drawn anyway.
fn without_end(mut tape: Vec<u64>) -> Vec<u64> {
    let last = tape.iter().rposition(|drawn| *drawn > 0);
    tape.truncate(last.map_or(0, |last| last + 1));
    tape
}

/// Makes a tape that fails shorter and its numbers smaller, as long as it fails.
fn shrink(mut tape: Vec<u64>, case: &dyn Fn(&mut Tape) -> Case) -> Vec<u64> {
    let end = Instant::now() + Duration::from_secs(30);
    let fails = |tape: &[u64]| {
        let mut tried = Tape::of(tape.to_vec());
        let fails = Instant::now() < end && play(&mut tried, case).is_err();
        fails.then(|| without_end(tried.drawn))
    };
    tape = without_end(tape);
    let mut size = tape.len();
    while size > 0 {
        let mut at = 0;
        while at < tape.len() {
            let mut shorter = tape.clone();
            shorter.drain(at..(at + size).min(tape.len()));
            match fails(&shorter) {
                Some(drawn) if drawn.len() < tape.len() => tape = drawn,
                _ => at += size,
            }
        }
        size /= 2;
    }
    for at in 0..tape.len() {
        while let Some(smaller) = [0, tape[at] / 2, tape[at].saturating_sub(1)]
            .into_iter()
            .filter(|smaller| *smaller < tape[at])
            .find(|smaller| {
                let mut tried = tape.clone();
                tried[at] = *smaller;
                fails(&tried).is_some()
            })
        {
            tape[at] = smaller;
        }
    }
    without_end(tape)
}

/// Keeps a tape that fails, and says so.
fn fail(target: &str, tape: Vec<u64>, found: &str, case: &dyn Fn(&mut Tape) -> Case) -> ! {
    let tape = shrink(tape, case);
    let why = play(&mut Tape::of(tape.clone()), case).err();
    let why = why.unwrap_or_else(|| format!("not each time: {found}"));
    let mut text = String::new();
    for line in why.lines().take(20) {
        let _ = writeln!(text, "# {}", line.chars().take(300).collect::<String>());
    }
    let numbers: Vec<_> = tape.iter().map(u64::to_string).collect();
    let _ = writeln!(text, "{}", numbers.join(" "));
    let name = tape
        .iter()
        .fold(tape.len() as u64, |hash, n| hash.wrapping_mul(0x100_0000_01b3).wrapping_add(*n));
    let file = corpus(target).join(format!("{name:016x}.txt"));
    std::fs::create_dir_all(corpus(target)).unwrap();
    std::fs::write(&file, text).unwrap();
    panic!("{why}\nkept as {}, to be played first from now on", file.display());
}

/// Plays what is kept of a target, and then seeds.
fn fuzz(target: &str, quick: u64, case: impl Fn(&mut Tape) -> Case) {
    let files = std::fs::read_dir(corpus(target)).into_iter().flatten().flatten();
    let mut files: Vec<_> = files.map(|file| file.path()).collect();
    files.sort();
    for file in &files {
        let tape = read(&std::fs::read_to_string(file).unwrap());
        if let Err(why) = play(&mut Tape::of(tape), &case) {
            panic!("{}: {why}", file.display());
        }
    }
    let seconds = std::env::var("LEASEHOLD_FUZZ_SECONDS").ok().and_then(|n| n.parse().ok());
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let first = match end {
        None => 1,
        // Other seeds each night.
        Some(_) => leasehold::Clock::now(&leasehold::SystemClock::new()).unsigned_abs() << 20,
    };
    let mut played = 0;
    while end.map_or(played < quick, |end| Instant::now() < end) {
        let mut tape = Tape::of_seed(first + played);
        if let Err(why) = play(&mut tape, &case) {
            fail(target, tape.drawn, &why, &case);
        }
        played += 1;
    }
    println!("{target}: {} kept tapes, {played} seeds from {first}", files.len());
}

/// Runs a case that waits, and says so where it never ends.
fn in_time(case: impl Future<Output = Case>) -> Case {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt.block_on(async {
        let limit = Duration::from_secs(60);
        tokio::time::timeout(limit, case).await.unwrap_or_else(|_| Err("it hangs".into()))
    })
}

#[test]
fn fuzz_a_tape_that_fails_is_made_short_and_plays_the_same_again() {
    let case = |tape: &mut Tape| {
        let numbers: Vec<_> = (0..tape.below(50)).map(|_| tape.below(100)).collect();
        if numbers.iter().any(|n| *n > 70) { Err(format!("{numbers:?}")) } else { Ok(()) }
    };
    let mut seed = 1;
    let drawn = loop {
        let mut tape = Tape::of_seed(seed);
        if case(&mut tape).is_err() {
            break tape.drawn;
        }
        seed += 1;
    };
    assert_eq!(play(&mut Tape::of(drawn.clone()), &case), case(&mut Tape::of_seed(seed)));
    let short = shrink(drawn, &case);
    assert_eq!(short, [1, 71]);
    assert!(case(&mut Tape::of(short)).is_err());
    let panics = |_: &mut Tape| panic!("as it was told");
    assert_eq!(play(&mut Tape::of_seed(1), &panics), Err("it panicked: as it was told".into()));
}
