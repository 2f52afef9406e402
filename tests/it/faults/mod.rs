//! Faults that other job runtimes have had, by kind, each played here as it happened there.
//!
//! A test's name begins with the kind of its fault. Where a public report tells of it, the test
//! names the report.

mod attempts;
mod clocks;
mod contention;
mod files;
mod handoff;
mod hostile;
mod keys;
mod operator;
mod owners;
mod panicking;
mod payloads;
mod scale;
mod shutdown;
mod stuck;
mod ticks;
mod time;
mod versions;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::rusqlite::{self, Connection};
use leasehold::testing::{Bench, BenchSettings};
use leasehold::{Client, Clock, NewJob, Operator, SystemClock};

/// Long enough for anything that ends at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a frozen clock shows at first: 2020-01-01 00:00 UTC.
const START: i64 = 1_577_836_800_000;
/// How long a lease is unless set, in milliseconds.
const LEASE: i64 = 30_000;

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// How much of something: little by day, all of it with `LEASEHOLD_FAULT_SCALE=full`.
fn scale(little: usize, full: usize) -> usize {
    match std::env::var("LEASEHOLD_FAULT_SCALE") {
        Ok(scale) if scale == "full" => full,
        _ => little,
    }
}

fn by() -> Operator {
    Operator::named("test")
}

/// What the system's clock shows.
fn now() -> i64 {
    SystemClock::new().now()
}

/// A job of the kind that is claimed by hand.
fn hand(id: &str) -> NewJob {
    NewJob::raw("hand", None).id(id)
}

/// A store on a file, with a clock of its own: as another process, whose clock may differ.
async fn bench(path: &Path, now: i64) -> Bench {
    static SEED: AtomicU64 = AtomicU64::new(1_000);
    let seed = SEED.fetch_add(1, Ordering::SeqCst);
    let path = Some(path.to_owned());
    let settings = BenchSettings { now, path, seed, ..BenchSettings::default() };
    Bench::start(settings).await.unwrap()
}

/// A folder and the path of a database in it.
fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.db");
    (dir, path)
}

/// Looks into the file from outside.
fn query<T: rusqlite::types::FromSql>(path: &Path, sql: &str) -> T {
    let conn = Connection::open(path).unwrap();
    conn.busy_timeout(PATIENCE).unwrap();
    conn.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Changes the file from outside, by hand.
fn by_hand(path: &Path, sql: &str) {
    let conn = Connection::open(path).unwrap();
    conn.busy_timeout(PATIENCE).unwrap();
    conn.execute_batch(sql).unwrap();
}

/// What a job is in all its columns, and its history: to be compared.
async fn whole(client: &Client, id: &str) -> String {
    let (job, history) = (client.job(id).await.unwrap(), client.attempts(id).await.unwrap());
    format!("{job:?} {history:?}")
}

/// How a job's attempts ended, in order.
async fn outcomes(client: &Client, id: &str) -> Vec<String> {
    let history = client.attempts(id).await.unwrap();
    history.into_iter().map(|attempt| attempt.outcome.to_string()).collect()
}

/// A test of this binary as a process of its own that is talked to line by line, and is killed
/// with the test.
struct Talker {
    child: Child,
    said: BufReader<ChildStdout>,
    to: Option<ChildStdin>,
}

impl Talker {
    fn start(test: &str, folder: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("faults::{test}"), "--nocapture", "--test-threads=1"])
            .env(crate::support::CHILD, folder)
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (said, to) = (child.stdout.take().unwrap(), child.stdin.take());
        Self { said: BufReader::new(said), to, child }
    }

    /// Waits until it says a line that begins so, and answers the rest of the line; nothing
    /// where it ends without.
    fn hear(&mut self, word: &str) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.said.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some(rest) = line.strip_prefix(word) {
                return Some(rest.trim().to_owned());
            }
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.to.as_mut().unwrap(), "{line}").unwrap();
    }

    /// `kill -9`.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends a signal by its name.
    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Waits for its end; answers its exit code, where it was not killed.
    fn end(mut self) -> Option<i32> {
        self.to = None;
        while self.hear("nothing that it says").is_some() {}
        self.child.wait().unwrap().code()
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _ended_already = self.child.wait();
    }
}

/// Says a line to the process that started this one; what tests print comes before it.
fn say(line: &str) {
    println!("\n{line}");
}

/// Waits for a line from the process that started this one.
fn listen() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Puts completed jobs of a registered kind into the file by hand, which ended at a time.
fn fill(path: &Path, kind: &str, jobs: usize, finished_at: i64) {
    by_hand(
        path,
        &format!(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {jobs})
             INSERT INTO leasehold_job (id, kind, queue, status, priority, run_at, created_at,
               updated_at, started_at, finished_at, attempts, max_attempts, epoch, stalls, seq)
             SELECT 'old-' || i || '-{finished_at}', k.id, k.id, 2, 0, {finished_at},
               {finished_at}, {finished_at}, {finished_at}, {finished_at}, 1, 5, 1, 0, 0
             FROM n, leasehold_names k WHERE k.name = '{kind}'"
        ),
    );
}
