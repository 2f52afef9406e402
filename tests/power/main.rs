//! Power cuts and failing disks, simulated by a file system of our own under `SQLite`'s.
//!
//! `LEASEHOLD_POWER_SCALE=full` plays all of it: every call fails in every way, and every cut is
//! made with more variants, of each of which a runtime makes something.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails should say where")]
#![allow(unreachable_pub, missing_debug_implementations, reason = "nothing here is public")]
#![allow(clippy::cast_possible_wrap, reason = "small numbers")]
#![allow(clippy::let_underscore_must_use, reason = "writing to a text cannot fail")]
#![allow(clippy::disallowed_methods, reason = "tests open files as applications do")]

mod book;
mod cuts;
mod disk;
mod faults;
mod history;
mod platter;
#[path = "../support/rng.rs"]
mod rng;
mod single;
mod vfs;

use std::path::Path;

use cuts::{Cutter, Figures, Played};
use disk::{How, Then};
use faults::Sums;
use leasehold::Durability;
use leasehold::rusqlite::Connection;

/// Whether all is played.
fn full() -> bool {
    std::env::var("LEASEHOLD_POWER_SCALE").is_ok_and(|scale| scale == "full")
}

/// A folder in memory where there is one, as nothing here is to last.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Has `SQLite` recover a database and write its log back, without a look at what is in it.
fn recover(path: &Path) -> Result<(), String> {
    let conn = Connection::open(path).map_err(|error| error.to_string())?;
    conn.query_row("PRAGMA schema_version", [], |_| Ok(())).map_err(|error| error.to_string())
}

/// Cuts both histories at every point; a runtime goes on with every so many of the images.
fn cut(durability: Durability, going_on: usize) -> Figures {
    let mut figures = Figures::default();
    for played in [Played::whole(durability), Played::written_back(durability)] {
        let (seeds, going_on) = if full() { (3, 1) } else { (1, going_on) };
        figures.add(Cutter::of(&played, true).cut(1, seeds, going_on));
    }
    println!("{durability:?}: {figures:#?}");
    figures
}

#[test]
fn a_power_cut_takes_nothing_back_that_was_acknowledged() {
    let figures = cut(Durability::Full, 13);
    assert_eq!(figures.findings, [""; 0]);
    assert_eq!((figures.lossy, figures.corrupt), (0, 0));
}

#[test]
fn a_power_cut_takes_back_the_last_moments_alone_where_that_was_chosen() {
    let figures = cut(Durability::Normal, 25);
    assert_eq!(figures.findings, [""; 0]);
    assert_eq!(figures.corrupt, 0);
    assert!(figures.lossy > 0, "nothing was lost, so nothing was cut");
}

#[test]
fn a_disk_that_makes_nothing_safe_is_found_out() {
    let played = Played::whole(Durability::Full);
    let figures = Cutter::of(&played, false).cut(16, 1, 0);
    println!("no syncs: {figures:#?}");
    assert!(figures.lossy > 0 && figures.corrupt > 0, "{figures:?}");
}

#[track_caller]
fn nothing(name: &str, sums: &Sums) {
    println!("{name}: {sums:#?}");
    assert_eq!(sums.findings, [""; 0]);
}

/// Nothing either, and no connection was used again after a sync of it had failed.
#[track_caller]
fn nothing_and_no_reuse(name: &str, sums: &Sums) {
    nothing(name, sums);
    assert_eq!(sums.reused, 0, "a file whose sync had failed was used again");
}

#[test]
fn a_call_that_fails_once_takes_nothing_and_all_goes_on() {
    let base = faults::base();
    if full() {
        let ways = [How::Error, How::Torn, How::Full, How::Open].map(|how| (how, Then::Well, 1));
        for durability in [Durability::Full, Durability::Normal] {
            let sums = faults::each(&ways, |plan| faults::history(&base, plan, durability));
            nothing_and_no_reuse(&format!("{durability:?}, once"), &sums);
        }
    }
    // Several in a run, with more calls between them than a commit has on a new connection.
    let every = |calls| Then::Every(calls);
    let ways =
        [(How::Error, every(131), 2), (How::Torn, every(131), 6), (How::Full, every(131), 6)];
    let sums = faults::each(&ways, |plan| faults::history(&base, plan, Durability::Full));
    nothing_and_no_reuse("now and then", &sums);
}

#[test]
fn a_disk_that_fails_from_some_call_on_is_said_to_and_all_goes_on_when_it_is_well() {
    let base = faults::base();
    let ever = |how, step| (how, Then::ForEver, if full() { 1 } else { step });
    let ways =
        [ever(How::Error, 37), ever(How::Full, 53), ever(How::Open, 97), ever(How::Sync, 67)];
    let sums = faults::each(&ways, |plan| faults::history(&base, plan, Durability::Full));
    nothing_and_no_reuse("for ever", &sums);
    if full() {
        // Where commits are not synced they need no sync.
        let ways = &ways[..3];
        let sums = faults::each(ways, |plan| faults::history(&base, plan, Durability::Normal));
        nothing_and_no_reuse("Normal, for ever", &sums);
    }
}

#[test]
fn what_a_client_was_told_holds_in_the_database_that_the_next_one_finds() {
    let ever = |how, step| (how, Then::ForEver, if full() { 1 } else { step });
    let empty = platter::Image::default();
    let step = if full() { 1 } else { 3 };
    let ways = [(How::Error, Then::Well, step), ever(How::Error, 9), ever(How::Full, 13)];
    nothing_and_no_reuse("first start", &faults::each(&ways, |plan| faults::client(&empty, plan)));
    let base = faults::base();
    let ways = [How::Error, How::Full, How::Sync].map(|how| ever(how, 1));
    nothing_and_no_reuse("client", &faults::each(&ways, |plan| faults::client(&base, plan)));
}

#[test]
fn a_log_that_sqlite_cannot_write_back_takes_nothing_although_nobody_is_told() {
    let played = Played::written_back(Durability::Full);
    let step = if full() { 1 } else { 2 };
    let ways = [(How::Error, Then::Well, step), (How::Torn, Then::Well, 4 * step)];
    let sums = faults::each(&ways, |plan| faults::written_back(&played, plan));
    nothing("written back", &sums);
}
