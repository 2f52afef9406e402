//! The same on a file, and what is left in it.

use leasehold::rusqlite::Connection;

use super::play;

const SEEDS: u64 = 4;
const STEPS: usize = 120;

/// A question about rows that must not be there, and what they would be.
const WRONG: [(&str, &str); 8] = [
    (
        "pending rows without a lane, or others with one",
        "SELECT key FROM leasehold_job WHERE (status = 0) <> (lane IS NOT NULL)",
    ),
    (
        "rows held back without a limit that is full",
        "SELECT j.key FROM leasehold_job j LEFT JOIN leasehold_limits l \
         ON l.scope = 'limit_key' AND l.name = j.limit_key WHERE j.lane = 3 AND \
         ifnull(l.running, 1000) > (SELECT count(*) FROM leasehold_job r \
         WHERE r.status = 1 AND r.limit_key = j.limit_key) \
         + (SELECT count(*) FROM leasehold_job r WHERE r.lane IN (1, 2) \
         AND r.limit_key = j.limit_key AND r.kind = j.kind AND r.queue = j.queue)",
    ),
    (
        "pending rows in the lane of suspects without a stall, or the other way round",
        "SELECT key FROM leasehold_job WHERE (lane = 1 AND stalls > 0) OR (lane = 2 AND stalls = 0)",
    ),
    ("endings owed without hooks", "SELECT key FROM leasehold_job WHERE owed_at IS NOT NULL"),
    (
        "running rows without a lease",
        "SELECT key FROM leasehold_job WHERE status = 1 AND (token IS NULL OR lease_until IS NULL \
         OR owner IS NULL)",
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
fn model_what_is_left_in_the_file_holds_together() {
    for seed in 1..=SEEDS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        let world = play(seed, Some(&path), STEPS);
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
        let kept = rows(&conn, "SELECT count(*) FROM leasehold_job");
        assert_eq!(kept, [world.kept().count() as i64], "seed {seed}");
    }
}
