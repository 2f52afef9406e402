//! The same on a file, and what is left in it.

use leasehold::rusqlite::Connection;

use super::schedule::{play, step_seed, steps};
use super::stage::Stage;
use super::world::World;

const SHORT: u64 = 12;
const LONG: u64 = 3;

/// A question about rows that must not be there, and what they would be.
const WRONG: [(&str, &str); 8] = [
    (
        "pending rows without a lane, or others with one",
        "SELECT key FROM leasehold_job WHERE (status = 0) <> (lane IS NOT NULL)",
    ),
    (
        "rows held back without a limit that is full",
        "SELECT j.key FROM leasehold_job j LEFT JOIN leasehold_limits l \
         ON l.scope = 'limit_key' AND l.name = j.limit_key WHERE j.lane = 3 \
         AND j.owed_at IS NULL AND ifnull(l.running, 1000) > (SELECT count(*) FROM leasehold_job r \
         WHERE r.status = 1 AND r.limit_key = j.limit_key) \
         + (SELECT count(*) FROM leasehold_job r WHERE r.lane IN (1, 2) \
         AND r.limit_key = j.limit_key AND r.kind = j.kind AND r.queue = j.queue)",
    ),
    (
        "pending rows in the lane of suspects without a stall, or the other way round",
        "SELECT key FROM leasehold_job WHERE (lane = 1 AND stalls > 0) OR (lane = 2 AND stalls = 0)",
    ),
    (
        "endings owed without hooks, or not noted as owed",
        "SELECT key FROM leasehold_job j LEFT JOIN leasehold_detail d ON d.job = j.key \
         LEFT JOIN leasehold_names k ON k.id = j.kind WHERE (owed_at IS NOT NULL) <> \
         (status <= 1 AND token IS NULL \
         AND (verdict IS NOT NULL OR cancel_requested_at IS NOT NULL)) \
         OR (owed_at IS NOT NULL AND k.name <> 'hooked')",
    ),
    (
        "running rows without a lease",
        "SELECT key FROM leasehold_job WHERE status = 1 AND owed_at IS NULL \
         AND (token IS NULL OR lease_until IS NULL OR owner IS NULL)",
    ),
    (
        "details that the row does not tell of",
        "SELECT key FROM leasehold_job j WHERE detailed <> \
         EXISTS (SELECT 1 FROM leasehold_detail WHERE job = j.key)",
    ),
    (
        "pairs of kind and queue that no claim would look at",
        "SELECT key FROM leasehold_job WHERE (kind, queue) NOT IN \
         (SELECT kind, queue FROM leasehold_lanes)",
    ),
    (
        "results of jobs that have not completed",
        "SELECT j.key FROM leasehold_job j JOIN leasehold_result r ON r.job = j.key \
         WHERE j.status <> 2",
    ),
];

const BESIDE: [&str; 6] = ["detail", "label", "payload", "result", "checkpoints", "attempts"];

fn rows(conn: &Connection, sql: &str) -> Vec<i64> {
    let mut statement = conn.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

#[test]
fn what_is_left_in_the_file_holds_together() {
    for seed in (1..=SHORT).chain((1..=LONG).map(|n| 64 * n)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        let mut stage = Stage::new(Some(&path));
        let mut world = World::start(&mut stage, seed, false);
        for step in steps(seed) {
            world.step(step_seed(seed, step)).unwrap();
        }
        world.finish().unwrap();
        let kept = world.kept().count() as i64;
        let conn = Connection::open(&path).unwrap();
        let sound: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(sound, "ok", "seed {seed}");
        for (what, sql) in WRONG {
            assert_eq!(rows(&conn, sql), [0; 0], "{what}, seed {seed}");
        }
        for table in BESIDE {
            let sql = format!(
                "SELECT job FROM leasehold_{table} WHERE job NOT IN (SELECT key FROM leasehold_job)"
            );
            assert_eq!(rows(&conn, &sql), [0; 0], "{table} without a job, seed {seed}");
        }
        let there = rows(&conn, "SELECT count(*) FROM leasehold_job");
        assert_eq!(there, [kept], "seed {seed}");
    }
}

/// Two processes on a file, each of which registers kinds as it knows them: what decides is what
/// was registered last, whoever asks.
fn two(seeds: std::ops::RangeInclusive<u64>, mut plant: impl FnMut()) -> Option<(u64, String)> {
    let folder = tempfile::tempdir().unwrap();
    let mut stage = Stage::of_two(&folder.path().join("jobs.db"));
    plant();
    let mut wrong = |seed| Some((seed, play(&mut stage, seed, &steps(seed), false).wrong?.1));
    seeds.into_iter().find_map(&mut wrong)
}

#[test]
fn two_processes_agree() {
    assert_eq!(two(1..=if cfg!(debug_assertions) { 20 } else { 200 }, || {}), None);
}

#[cfg(feature = "__bugs")]
#[test]
fn a_process_that_does_not_look_again_is_seen() {
    use leasehold::testing::{Bug, plant};
    let found = two(1..=100, || plant(Some(Bug::StaleCache)));
    plant(None);
    println!("StaleCache: found after {found:?}");
    assert!(found.is_some());
}
