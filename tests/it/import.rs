//! The example `import`: every record once, whatever happens to its processes.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::rusqlite::{self, Connection};
use leasehold::testing::{Faults, Point};
use leasehold::{Ctx, Job, JobResult, Outcome, Runtime, Status};
use serde::{Deserialize, Serialize};

use crate::example::{DATA, Import, SPECIES, error, result, text, until};

/// Slow enough to be killed in the middle.
const SLOW: &str = "--slice 50 --pause-ms 5";

#[test]
fn every_record_is_imported_and_a_second_start_changes_nothing() {
    let import = Import::new();
    let first = text(import.start("").end());
    for (species, reports) in SPECIES {
        let line = first.lines().find(|line| line.contains(species)).unwrap();
        assert!(line.ends_with(&format!(" {reports}")), "{line}");
    }
    assert!(first.contains("10000") && first.contains("40545276"), "{first}");
    import.check();

    let before = import.row();
    let second = text(import.start("").end());
    assert_eq!(second, format!("This import was done before; nothing has changed.\n{first}"));
    let expected = serde_json::json!({
        "records": 10_000, "cost_total": 40_545_276, "slices": 20, "attempts": 1, "resumed": true,
    });
    assert_eq!(import.result(""), expected);
    assert_eq!(import.row(), before);
    import.check();
}

/// Draws that can be had again: the seed is printed.
struct Dice(u64);

impl Dice {
    fn new() -> Self {
        let given = std::env::var("LEASEHOLD_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| RandomState::new().hash_one("seed"));
        println!("LEASEHOLD_SEED={seed}");
        Self(seed | 1)
    }

    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

/// Kills at random moments, as often as `LEASEHOLD_KILL_ROUNDS` says, one process or all of
/// them, and starts as many again. An import that comes to its end in between is checked, and
/// another is begun.
fn kill_rounds(processes: u64) {
    let rounds = std::env::var("LEASEHOLD_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let (mut left, mut dice) = (rounds.unwrap_or(3), Dice::new());
    while left > 0 {
        let import = Import::new();
        let start = || import.start(&format!("--json {SLOW}"));
        let mut running: Vec<_> = (0..processes).map(|_| start()).collect();
        let mut kills = 0;
        while left > 0 {
            std::thread::sleep(Duration::from_millis(50 + dice.below(850)));
            if running.iter_mut().any(crate::example::Process::has_ended) {
                break;
            }
            let (one, all) = (dice.below(processes), dice.below(4) == 0);
            for (process, n) in running.iter_mut().zip(0..) {
                if all || n == one {
                    process.kill();
                    *process = start();
                }
            }
            (kills, left) = (kills + 1, left - 1);
        }
        let mut attempts = Vec::new();
        for process in running {
            let said = result(&process.end());
            assert_eq!(said["slices"], 200, "however often the work was cut short");
            attempts.push(said["attempts"].as_i64());
        }
        attempts.dedup();
        assert_eq!(
            attempts,
            [import.row().map(|row| row.epoch - row.redrives)],
            "all say the same"
        );
        println!("{kills} kills, attempts {attempts:?}");
        import.check();
    }
}

#[test]
fn killed_at_any_moment_it_goes_on_and_every_record_is_there_once() {
    kill_rounds(1);
}

#[test]
fn two_at_a_time_killed_at_any_moment_share_the_work_and_every_record_is_there_once() {
    kill_rounds(2);
}

#[test]
fn another_process_takes_over_from_a_killed_one_in_under_a_second() {
    let import = Import::new();
    let slow = "--slice 50 --pause-ms 20";
    let mut first = import.start(slow);
    let held = import.saved();
    let second = import.start(slow);
    until("the second runtime", || (import.owners() == 2).then_some(()));
    first.kill();
    let (taken, after) = until("another holds the job", || {
        import.row().filter(|row| row.status == "running" && row.owner != held.owner)
    });
    println!("taken over after {after:?}");
    assert!(after < Duration::from_secs(1), "{after:?}");
    assert!(taken.epoch > held.epoch);
    drop(second);
    assert_eq!(import.result("--slice 50")["slices"], 200);
    import.check();
}

#[test]
fn no_number_of_kills_before_the_first_save_parks_it() {
    let import = Import::new();
    let mut epoch = 0;
    for _ in 0..8 {
        let mut process = import.start("--pause-ms 60000");
        epoch = import.running_after(epoch).0.epoch;
        process.kill();
    }
    let row = import.row().unwrap();
    assert_eq!((row.attempts, row.stalls, row.last_committed_at), (8, 7, None), "{row:?}");
    assert_eq!(import.result("")["resumed"], true);
    assert_eq!(import.row().unwrap().stalls, 0);
    import.check();
}

#[test]
fn ctrl_c_hands_the_job_back() {
    let import = Import::new();
    let process = import.start(SLOW);
    import.saved();
    process.interrupt();
    let said = error(process.end());
    assert!(said.ends_with("error: stopped before the end; start it again to go on\n"), "{said}");
    let row = import.row().unwrap();
    assert_eq!((&*row.status, row.interruptions, row.epoch), ("pending", 1, 1), "{row:?}");
    assert_eq!(import.owners(), 0, "a runtime that has stopped takes its lock with it");
    let result = import.result("--slice 50");
    assert_eq!((&result["slices"], &result["attempts"]), (&200.into(), &2.into()));
    import.check();
}

/// The bundled file with one line changed by `change`; lines count from 1, the header's.
fn with_line(number: usize, change: impl Fn(&str) -> Vec<u8>) -> Vec<u8> {
    let data = fs::read_to_string(DATA).unwrap();
    let line = |(n, line): (usize, &str)| {
        if n + 1 == number { change(line) } else { line.as_bytes().to_vec() }
    };
    data.split("\r\n").enumerate().map(line).collect::<Vec<_>>().join(&b"\r\n"[..])
}

#[test]
fn a_malformed_line_fails_for_good_naming_file_line_and_field() {
    type Change = fn(&str) -> Vec<u8>;
    let short: Change = |line| line.rsplit_once(',').unwrap().0.into();
    let long: Change = |line| format!("{line},one more").into();
    let cost: Change = |line| {
        let fields: Vec<_> = line.split(',').collect();
        [&fields[..12], &["12 dollars"], &fields[13..]].concat().join(",").into()
    };
    let bytes: Change = |line| [b"\xFF", line.as_bytes()].concat();
    for (change, field) in [
        (short, r#"field "Speed IAS in knots" is missing: 13 fields instead of 14"#),
        (long, r#"field "15" is one too many: 15 fields instead of 14"#),
        (cost, r#"field "Cost Total $" is no number: "12 dollars""#),
        (bytes, r#"field "Airport Name" is not UTF-8"#),
    ] {
        let import = Import::of(&with_line(777, change));
        let says = format!("{}, line 777: {field}", import.csv.display());
        let said = error(import.start("--slice 100").end());
        assert!(said.contains(&says), "{said}");
        // Seven slices are lines 2 to 701; the lines before 777 in the eighth are refused with it.
        let saved = "SELECT count(*) || ' up to ' || max(line) FROM strikes";
        assert_eq!(import.query::<String>(saved), "700 up to 701");
        let row = import.row().unwrap();
        assert_eq!((&*row.status, row.verdict.as_deref()), ("failed", Some("terminal")));

        let again = error(import.start("--json").end());
        assert!(again.contains(&says), "{again}");
        assert_eq!(import.row().unwrap(), row, "started again it changes nothing");
        assert_eq!(import.query::<String>(saved), "700 up to 701");
    }
}

#[test]
fn a_file_that_has_changed_is_refused() {
    let data = fs::read(DATA).unwrap();
    let import = Import::of(&data);
    let mut process = import.start(SLOW);
    import.saved();
    process.kill();
    let (row, lines) = (import.row(), import.query::<i64>("SELECT count(*) FROM strikes"));
    let same_length = with_line(9_000, |line| line.replacen(',', ";", 1).into());
    let longer = [&data[..], b"\r\n"].concat();
    for changed in [same_length, longer] {
        fs::write(&import.csv, changed).unwrap();
        let said = error(import.start("--json").end());
        let says = format!("{} has changed since the import was begun", import.csv.display());
        assert!(said.contains(&says), "{said}");
        assert_eq!(import.row(), row, "nothing was begun");
        assert_eq!(import.query::<i64>("SELECT count(*) FROM strikes"), lines);
    }
    fs::write(&import.csv, data).unwrap();
    assert_eq!(import.result("--slice 50")["slices"], 200);
    import.check();
}

#[test]
fn a_file_that_changes_under_a_waiting_process_is_refused_by_its_attempt() {
    let data = fs::read(DATA).unwrap();
    let import = Import::of(&data);
    let mut first = import.start("--slice 50 --pause-ms 20");
    import.saved();
    let second = import.start("--slice 50");
    until("the second runtime", || (import.owners() == 2).then_some(()));
    fs::write(&import.csv, &data[..data.len() / 2]).unwrap();
    first.kill();
    let lines = import.query::<i64>("SELECT count(*) FROM strikes");
    let said = error(second.end());
    assert!(said.contains("has changed since the import was begun"), "{said}");
    assert_eq!(import.query::<i64>("SELECT count(*) FROM strikes"), lines);
}

#[derive(Serialize, Deserialize)]
struct Rows {
    rows: i64,
    slice: i64,
}

impl Job for Rows {
    const KIND: &'static str = "rows";
}

/// Loses the answer of each of its commits, of the slices' twice in a row.
async fn rows(job: Rows, ctx: Ctx<(Faults, Arc<AtomicU32>)>) -> JobResult {
    let (faults, ran) = ctx.state();
    let mut at: i64 = ctx.checkpoint()?.unwrap_or(0);
    while at < job.rows {
        let (from, to, ran) = (at, at + job.slice, ran.clone());
        faults.arm(Point::Commit, 2);
        let save = ctx.fenced_save(&to, move |tx| {
            ran.fetch_add(1, Ordering::SeqCst);
            (from..to).try_for_each(|n| tx.execute("INSERT INTO rows VALUES (?1)", [n]).map(|_| ()))
        });
        save.await?;
        at = to;
    }
    faults.arm(Point::Commit, 1);
    Ok(Outcome::Done)
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_inserts_no_slice_twice() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("rows.db");
    let (faults, ran) = (Faults::default(), Arc::new(AtomicU32::new(0)));
    let builder = Runtime::builder(&db).state((faults.clone(), ran.clone()));
    let runtime = builder.handle(rows).faults(faults.clone()).start().await.unwrap();
    // No primary key: a slice that came twice would be seen.
    Connection::open(&db).unwrap().execute_batch("CREATE TABLE rows (n INTEGER)").unwrap();
    let job = runtime.enqueue(Rows { rows: 100, slice: 10 }).await.unwrap();
    let ended = runtime.wait(job.id, Duration::from_secs(60)).await.unwrap();
    assert_eq!((ended.status, ended.epoch), (Status::Completed, 1));
    assert_eq!(faults.left(Point::Commit), 0);
    assert_eq!(ran.load(Ordering::SeqCst), 10, "a slice that has landed is not run again");
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let sql = "SELECT count(*), count(DISTINCT n) FROM rows";
    let found: (i64, i64) = Connection::open(&db).unwrap().query_row(sql, [], read).unwrap();
    assert_eq!(found, (100, 100));
    assert!(runtime.stop(Duration::from_secs(5)).await.drained);
}
