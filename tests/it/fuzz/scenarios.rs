//! Scenarios that are spoiled: parts cut out, doubled, taken from elsewhere, numbers and texts that
//! nobody would write. Each passes or fails at one of its steps; the runner goes on.

use std::collections::HashSet;

use super::enqueue::{json, text};
use super::{Case, Tape, fuzz, in_time};
use crate::conformance::{Scenario, Summary};

/// The scenarios that are spoiled, each as text.
fn scenarios() -> Vec<String> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        all.extend(Scenario::texts(&text).unwrap());
    }
    all
}

/// The ranges of the numbers and the texts of a JSON text.
fn tokens(text: &str) -> Vec<std::ops::Range<usize>> {
    let (mut found, mut at, bytes) = (Vec::new(), 0, text.as_bytes());
    while at < bytes.len() {
        let begin = at;
        at += 1;
        match bytes[begin] {
            b'"' => {
                while at < bytes.len() && bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at = (at + 1).min(bytes.len());
                found.push(begin..at);
            }
            b'0'..=b'9' | b'-' => {
                while at < bytes.len() && matches!(bytes[at], b'0'..=b'9' | b'.' | b'e' | b'-') {
                    at += 1;
                }
                found.push(begin..at);
            }
            _ => {}
        }
    }
    found
}

/// A place between two characters.
fn place(tape: &mut Tape, text: &str) -> usize {
    let mut at = tape.below(text.len() + 1);
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Spoils a scenario in one place.
fn spoil(tape: &mut Tape, all: &[String], given: &mut String) {
    let tokens = tokens(given);
    let Some(token) = tokens.get(tape.below(tokens.len())).cloned() else { return };
    match tape.below(8) {
        0..3 => {
            // Another token of the same scenario, or of another.
            let other = if tape.once_in(2) { tape.pick(all).clone() } else { given.clone() };
            let found = self::tokens(&other);
            let with = found.get(tape.below(found.len())).cloned().unwrap_or(0..0);
            given.replace_range(token, &other[with]);
        }
        3 => {
            const NUMBERS: [&str; 10] = [
                "0",
                "-1",
                "1.5",
                "1e3",
                "1e400",
                "9223372036854775807",
                "-9223372036854775808",
                "18446744073709551616",
                "7258118400000",
                "99999999",
            ];
            let number = *tape.pick(&NUMBERS);
            given.replace_range(token, number);
        }
        4 => given.replace_range(token, &json(tape)),
        5 => {
            let with = serde_json::to_string(&text(tape)).unwrap();
            given.replace_range(token, &with);
        }
        6 => {
            // A short part of it, for what is left to be read.
            let from = place(tape, given);
            let to = given[from..].char_indices().nth(tape.below(80));
            given.replace_range(from..to.map_or(given.len(), |(to, _)| from + to), "");
        }
        _ => {
            let (one, other) = (place(tape, given), place(tape, given));
            let part = given[one.min(other)..one.max(other)].to_owned();
            let to = place(tape, given);
            given.insert_str(to, &part);
        }
    }
}

async fn spoiled(tape: &mut Tape, all: &[String]) -> Case {
    let mut given = tape.pick(all).clone();
    for _ in 0..=tape.below(3) {
        spoil(tape, all, &mut given);
    }
    let file = format!("{{\"scenarios\":[{given}]}}");
    let mut summary = Summary::default();
    summary.file("spoiled.json", &file, &mut HashSet::new()).await;
    let steps = serde_json::from_str::<serde_json::Value>(&given);
    let steps = steps.ok().and_then(|given| Some(given["steps"].as_array()?.len()));
    let failed = summary.failures.len();
    if failed > summary.scenarios.max(1) {
        return Err(format!("{failed} failures of {} scenarios: {given}", summary.scenarios));
    }
    if failed == 0 && steps.is_none() {
        return Err(format!("what has no steps has passed: {given}"));
    }
    let within = |steps| summary.failures.iter().all(|failure| failure.step <= steps);
    if steps.is_some_and(|steps| !within(steps)) {
        return Err(format!("a step that there is not: {}", summary.report()));
    }
    drop(summary.report());
    Ok(())
}

#[test]
fn fuzz_scenarios_that_are_spoiled_pass_or_fail_at_a_step() {
    let all = scenarios();
    fuzz("scenarios", 250, |tape| in_time(spoiled(tape, &all)));
}
