//! The job: reads the file in slices, and lands each slice together with the place to go on
//! from.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::rusqlite::{self, Connection, ErrorCode, params_from_iter};
use leasehold::{Ctx, FencedError, Job, JobError, JobResult, Outcome, Settings, Tx};
use serde::{Deserialize, Serialize};

use crate::records::{Fingerprint, Place, Reader, Strike};

/// There is one import in a database, so the job has an id of its own.
pub const ID: &str = "import";

/// The job's payload: what is in the file. Where the file lies is the business of the process
/// that reads it, see [`Source`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    pub file: Fingerprint,
}

impl Job for Import {
    const KIND: &'static str = "import";

    fn settings() -> Settings {
        Settings::new()
            // Whoever kills the process means the process: it is not the job's fault, and the
            // job is not to be parked for it.
            .survives_any_loss()
            // The job's row is how the next start knows that the import is done.
            .keep(Duration::MAX, Duration::MAX)
    }
}

/// The application's state: how this process imports.
#[derive(Clone)]
pub struct Source {
    pub path: PathBuf,
    /// Records in a slice.
    pub slice: usize,
    /// A pause in each slice, so that a kill can hit it.
    pub pause: Duration,
}

/// The checkpoint: where to go on, and what has been counted up to there.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Progress {
    place: Option<Place>,
    records: u64,
    cost_total: i64,
    slices: u64,
}

impl Progress {
    fn add(&mut self, slice: &[Strike], place: Place) -> Result<(), JobError> {
        for strike in slice {
            let sum = self.cost_total.checked_add(strike.cost_total);
            self.cost_total = sum.ok_or_else(|| JobError::give_up("the costs are too large"))?;
        }
        self.place = Some(place);
        self.records += slice.len() as u64;
        self.slices += 1;
        Ok(())
    }
}

/// The result.
#[derive(Serialize, Deserialize)]
pub struct Summary {
    pub records: u64,
    pub cost_total: i64,
    /// The most reported species, with the number of reports.
    pub species: Vec<(String, i64)>,
    pub slices: u64,
}

/// Makes the application's table. It lies in the same file as the jobs, which is what lets a
/// slice and its checkpoint land together.
pub fn create_table(db: &Path) -> rusqlite::Result<()> {
    Connection::open(db)?.execute_batch(
        "CREATE TABLE IF NOT EXISTS strikes (
            line        INTEGER PRIMARY KEY,
            airport     TEXT NOT NULL,
            aircraft    TEXT NOT NULL,
            damage      TEXT NOT NULL,
            flight_date TEXT NOT NULL,
            operator    TEXT NOT NULL,
            state       TEXT NOT NULL,
            phase       TEXT NOT NULL,
            size        TEXT NOT NULL,
            species     TEXT NOT NULL,
            time_of_day TEXT NOT NULL,
            cost_other  INTEGER NOT NULL,
            cost_repair INTEGER NOT NULL,
            cost_total  INTEGER NOT NULL,
            speed       INTEGER
        ) STRICT",
    )
}

/// The handler. It blocks its thread, as reading a file does, and calls the store through
/// [`Ctx::block_on`].
pub fn import(job: Import, ctx: Ctx<Source>) -> JobResult {
    let source = ctx.state();
    // The checkpoint is a place in a file: it means nothing in another.
    if Fingerprint::of(&source.path)? != job.file {
        return Err(JobError::give_up(changed(&source.path)));
    }
    let mut progress: Progress = ctx.checkpoint()?.unwrap_or_default();
    let mut reader = Reader::open(&source.path, progress.place)?;
    loop {
        // A malformed record ends the job here, and the good records before it in the same
        // slice are not saved: a slice is taken as a whole or not at all. Those before it are
        // in the table and stay there.
        let slice = reader.slice(source.slice)?;
        if slice.is_empty() {
            break;
        }
        ctx.block_on(pause(&ctx));
        progress.add(&slice, reader.place())?;
        let save = ctx.fenced_save(&progress, move |tx| insert(tx, &slice));
        ctx.block_on(save).map_err(|error| match error {
            // These rows will never fit the table.
            FencedError::Application(error) if is_constraint(&error) => JobError::give_up(error),
            // The job was lost, or the disk is in trouble: another attempt goes on from here.
            other => other.into(),
        })?;
        let done = i64::try_from(reader.place().byte)?;
        ctx.block_on(ctx.progress(done, Some(i64::try_from(job.file.bytes)?)))?;
        if ctx.should_yield() {
            return Ok(Outcome::Yield);
        }
    }
    let species = ctx.block_on(ctx.fenced(most_reported))?;
    let Progress { records, cost_total, slices, .. } = progress;
    Ok(Outcome::done_with(&Summary { records, cost_total, species, slices }))
}

/// Sleeps for as long as the options say, or until somebody wants the handler to end.
async fn pause(ctx: &Ctx<Source>) {
    tokio::select! {
        () = ctx.sleep(ctx.state().pause) => {}
        _ = ctx.cancelled() => {}
    }
}

/// What to say of a file that is not the one that the import was begun with.
pub fn changed(path: &Path) -> String {
    format!(
        "{} has changed since the import was begun: its length or its content is another",
        path.display()
    )
}

/// Inserts a slice. May run again after a rollback, so it takes nothing out of the slice. A
/// plain insert: a line that came a second time would fail, and not go unnoticed.
fn insert(tx: &mut Tx<'_>, slice: &[Strike]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare(
        "INSERT INTO strikes VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14,
            ?15)",
    )?;
    for strike in slice {
        insert.execute(params_from_iter(&strike.row))?;
    }
    Ok(())
}

fn is_constraint(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation)
}

fn most_reported(tx: &mut Tx<'_>) -> rusqlite::Result<Vec<(String, i64)>> {
    let mut query = tx.prepare(
        "SELECT species, count(*) AS reports FROM strikes
            GROUP BY species ORDER BY reports DESC, species LIMIT 3",
    )?;
    let species = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    species.collect()
}
