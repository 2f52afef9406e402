//! The example `import` as processes of its own, and its database as anybody can read it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use leasehold::rusqlite::{self, Connection, OpenFlags};

pub const RECORDS: i64 = 10_000;
pub const COST_TOTAL: i64 = 40_545_276;
pub const SPECIES: [(&str, i64); 3] = [
    ("Unknown bird - small", 3_572),
    ("Unknown bird - medium", 3_372),
    ("Unknown bird or bat", 629),
];
pub const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/birdstrikes.csv");
/// Long enough for anything that ends at all.
const LIMIT: Duration = Duration::from_secs(60);

/// Looks until there is an answer, and says how long it took: other processes have no clock
/// that a test could stop.
#[track_caller]
#[allow(clippy::disallowed_methods, reason = "waits for other processes, in real time")]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> (T, Duration) {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return (found, start.elapsed());
        }
        assert!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// An example that was built with these tests.
pub fn program(name: &str) -> Command {
    let tests = std::env::current_exe().unwrap();
    let profile = tests.parent().and_then(Path::parent).unwrap();
    Command::new(profile.join("examples").join(name))
}

/// A process of the example. It is killed with the test.
pub struct Process(Child);

impl Process {
    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Waits for its end and answers what it said.
    #[track_caller]
    pub fn end(mut self) -> Output {
        use std::io::Read;
        let (status, _) = until("the end of a process", || self.0.try_wait().unwrap());
        let mut output = Output { status, stdout: Vec::new(), stderr: Vec::new() };
        self.0.stdout.take().unwrap().read_to_end(&mut output.stdout).unwrap();
        self.0.stderr.take().unwrap().read_to_end(&mut output.stderr).unwrap();
        output
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Ctrl-C.
    pub fn interrupt(&self) {
        let kill = format!("kill -INT {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A database, and the file to import into it.
pub struct Import {
    dir: tempfile::TempDir,
    pub csv: PathBuf,
}

/// The job's row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub status: String,
    pub epoch: i64,
    pub owner: Option<String>,
    pub attempts: i64,
    pub stalls: i64,
    pub redrives: i64,
    pub interruptions: i64,
    pub verdict: Option<String>,
    pub last_committed_at: Option<i64>,
    pub updated_at: i64,
}

impl Import {
    /// A fresh database, and the bundled file.
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), csv: DATA.into() }
    }

    /// A fresh database, and a file of its own.
    pub fn of(content: &[u8]) -> Self {
        let mut this = Self::new();
        this.csv = this.dir.path().join("strikes.csv");
        fs::write(&this.csv, content).unwrap();
        this
    }

    fn db(&self) -> PathBuf {
        self.dir.path().join("import.db")
    }

    /// How many runtimes hold a lock beside the database.
    pub fn owners(&self) -> usize {
        let files = fs::read_dir(self.dir.path().join("import.db-leasehold")).into_iter().flatten();
        files.filter(|file| file.as_ref().unwrap().file_name() != "ballast").count()
    }

    pub fn start(&self, options: &str) -> Process {
        let mut example = program("import");
        example.arg("--db").arg(self.db()).arg("--csv").arg(&self.csv);
        example.args(options.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Process(example.spawn().expect("it is there; else: cargo build --example import"))
    }

    /// Runs to the end, and answers the JSON object.
    #[track_caller]
    pub fn result(&self, options: &str) -> serde_json::Value {
        result(&self.start(&format!("--json {options}")).end())
    }

    pub fn query<T: rusqlite::types::FromSql>(&self, sql: &str) -> T {
        let conn = Connection::open(self.db()).unwrap();
        conn.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// The job's row, where there is one yet.
    pub fn row(&self) -> Option<Row> {
        let conn = Connection::open_with_flags(self.db(), OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
        let sql = "SELECT status, epoch, owner, attempts, stalls, redrives, interruptions, verdict, \
            last_committed_at, updated_at FROM leasehold_jobs WHERE id = 'import'";
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Row {
                status: row.get(0)?,
                epoch: row.get(1)?,
                owner: row.get(2)?,
                attempts: row.get(3)?,
                stalls: row.get(4)?,
                redrives: row.get(5)?,
                interruptions: row.get(6)?,
                verdict: row.get(7)?,
                last_committed_at: row.get(8)?,
                updated_at: row.get(9)?,
            })
        };
        conn.query_row(sql, [], read).ok()
    }

    /// Waits until the job runs in an epoch after this one.
    #[track_caller]
    pub fn running_after(&self, epoch: i64) -> (Row, Duration) {
        let runs = |row: &Row| row.status == "running" && row.epoch > epoch;
        until("the job runs", || self.row().filter(runs))
    }

    /// Waits until a slice has been saved.
    #[track_caller]
    pub fn saved(&self) -> Row {
        until("a slice", || self.row().filter(|row| row.last_committed_at.is_some())).0
    }

    /// Looks at the database itself: every record once, and one job, completed.
    #[track_caller]
    pub fn check(&self) {
        let conn = Connection::open(self.db()).unwrap();
        let strikes = "SELECT count(*), count(DISTINCT line), min(line), max(line), \
            sum(cost_total) FROM strikes";
        let strikes: [i64; 5] = conn
            .query_row(strikes, [], |row| {
                Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?])
            })
            .unwrap();
        assert_eq!(strikes, [RECORDS, RECORDS, 2, RECORDS + 1, COST_TOTAL]);
        for (species, reports) in SPECIES {
            let sql = "SELECT count(*) FROM strikes WHERE species = ?1";
            let found: i64 = conn.query_row(sql, [species], |row| row.get(0)).unwrap();
            assert_eq!(found, reports, "{species}");
        }
        let jobs = "SELECT group_concat(id || ' ' || status) FROM leasehold_jobs";
        assert_eq!(self.query::<String>(jobs), "import completed");
        assert_eq!(self.query::<String>("PRAGMA integrity_check"), "ok");
    }
}

/// What a process that came to the end has printed, as JSON.
#[track_caller]
pub fn result(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["records"], RECORDS);
    assert_eq!(json["cost_total"], COST_TOTAL);
    json
}

/// What a process that came to the end has printed.
#[track_caller]
pub fn text(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What a process that failed has said.
#[track_caller]
pub fn error(output: Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}
