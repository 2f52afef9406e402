//! The application: kinds that do what their seed says, and rows of its own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::rusqlite;
use leasehold::{
    Ctx, FencedError, Hooks, Job, JobError, JobRecord, JobResult, NewJob, Outcome, Retry, Settings,
    StoreFault,
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::history::{Asked, End, History, Start};
use super::rng::Rng;

/// The application's tables. Nothing in them is unique, so that what is done twice shows.
pub const TABLES: &str = "
    CREATE TABLE effects (job TEXT, tag TEXT, epoch INTEGER, held INTEGER);
    CREATE TABLE endings (job TEXT, status TEXT, epoch INTEGER, redrives INTEGER);";

/// How long a lease lasts, in milliseconds.
pub const LEASE: u64 = 2_000;
/// The time limit of an attempt, in milliseconds: longer than anybody stands still, but for slow
/// ones.
pub const TIMEOUT: u64 = 12_000;
/// That of slow ones.
pub const SHORT_TIMEOUT: u64 = 2_500;

/// What the handlers of a process know of the world.
#[derive(Clone)]
pub struct Stage {
    pub seed: u64,
    pub process: usize,
    pub start: Instant,
    pub history: Arc<Mutex<History>>,
}

impl Stage {
    pub fn at(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn note(&self, line: std::fmt::Arguments<'_>) {
        let (at, process) = (self.at(), self.process);
        self.history().note(at, format_args!("p{process} {line}"));
    }
}

/// Declares a kind whose payload is its number.
macro_rules! kinds {
    ($($name:ident = $kind:literal, $settings:expr;)+) => {
        $(#[derive(Serialize, Deserialize)]
        pub struct $name(u64);

        impl Job for $name {
            const KIND: &'static str = $kind;
            fn settings() -> Settings {
                $settings
            }
        })+
    };
}

fn usual() -> Settings {
    Settings::new()
        .lease(Duration::from_millis(LEASE))
        .retry(Retry::exponential(Duration::from_millis(100)).attempts(8))
        .timeout(Duration::from_millis(TIMEOUT))
        .defer(Duration::from_millis(200), Duration::from_secs(1), 10)
        .max_stalls(6)
}

kinds! {
    Quick = "quick", usual();
    Sliced = "sliced", usual().slice(Duration::from_millis(400));
    Slow = "slow", usual().concurrency(2).timeout(Duration::from_millis(SHORT_TIMEOUT));
    Hooked = "hooked", usual();
}

pub const KINDS: u64 = 4;

/// From this number on jobs are those that other jobs have enqueued.
const CHILDREN: u64 = 1_000_000;

/// A new job of a kind by its number.
pub fn new_job(kind: u64, n: u64) -> NewJob {
    match kind {
        0 => Quick(n).into(),
        1 => Sliced(n).into(),
        2 => Slow(n).into(),
        _ => Hooked(n).into(),
    }
}

pub async fn quick(job: Quick, ctx: Ctx<Stage>) -> JobResult {
    attempt(job.0, ctx, 300).await
}

pub async fn sliced(job: Sliced, ctx: Ctx<Stage>) -> JobResult {
    attempt(job.0, ctx, 400).await
}

pub async fn slow(job: Slow, ctx: Ctx<Stage>) -> JobResult {
    attempt(job.0, ctx, 1_000).await
}

pub async fn hooked(job: Hooked, ctx: Ctx<Stage>) -> JobResult {
    attempt(job.0, ctx, 200).await
}

/// Writes the end of a job into a table of the application's, in the transaction of the end; now
/// and then it refuses, and agrees when it is asked again.
pub fn hooks(seed: u64) -> Hooks {
    let refuses = move |job: &JobRecord| {
        let tries = u64::try_from(job.hook_failures).unwrap_or_default();
        Rng::of(seed, &[77, number(&job.id.to_string()), tries]).percent(20)
    };
    let sql = "INSERT INTO endings VALUES (?1, ?2, ?3, ?4)";
    Hooks::new()
        .on_transition(move |job, tx| {
            if refuses(job) {
                return Ok(0);
            }
            let row = (job.id.to_string(), job.status.as_str(), job.epoch, job.redrives);
            Ok(tx.execute(sql, row)?)
        })
        .on_redrive(move |job, tx| {
            Ok(tx.execute(sql, (job.id.to_string(), "redriven", job.epoch, job.redrives))?)
        })
}

/// A number that follows from a text.
pub fn number(text: &str) -> u64 {
    text.bytes().fold(7, |n, byte| n.wrapping_mul(31).wrapping_add(u64::from(byte)))
}

/// A start in the history, to which its end belongs.
struct Attempt {
    stage: Stage,
    id: String,
    place: usize,
    ended: bool,
}

impl Attempt {
    fn begin(stage: &Stage, id: &str, epoch: i64) -> Self {
        stage.note(format_args!("starts {id} epoch {epoch}"));
        let start = Start { at: stage.at(), process: stage.process, epoch, end: None };
        let place = {
            let mut history = stage.history();
            let starts = history.starts.entry(id.to_owned()).or_default();
            starts.push(start);
            starts.len() - 1
        };
        Self { stage: stage.clone(), id: id.to_owned(), place, ended: false }
    }

    fn end(&mut self, end: End) {
        self.ended = true;
        self.stage.note(format_args!("ends {} {end:?}", self.id));
        let at = self.stage.at();
        let mut history = self.stage.history();
        if let Some(start) =
            history.starts.get_mut(&self.id).and_then(|all| all.get_mut(self.place))
        {
            start.end = Some((at, end));
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.ended {
            self.end(if std::thread::panicking() { End::Failed } else { End::Dropped });
        }
    }
}

async fn attempt(n: u64, ctx: Ctx<Stage>, longest: u64) -> JobResult {
    let stage = ctx.state().clone();
    let epoch = ctx.epoch();
    let mut attempt = Attempt::begin(&stage, &ctx.id().to_string(), epoch);
    let mut rng = Rng::of(stage.seed, &[1, n, epoch.unsigned_abs()]);
    let result = pieces(n, &ctx, &mut rng, longest).await;
    attempt.end(match &result {
        Ok(Outcome::Done | Outcome::DoneWith(_)) => End::Done,
        Ok(Outcome::Yield | Outcome::Snooze(_)) => End::HandedBack,
        Ok(Outcome::Cancelled) => End::Over,
        Err(error) if error.text() == "gave up" => End::Over,
        Err(_) => End::Failed,
    });
    result
}

/// Does a few pieces of work, and ends in some way.
async fn pieces(n: u64, ctx: &Ctx<Stage>, rng: &mut Rng, longest: u64) -> JobResult {
    for piece in 0..rng.between(0, 4) {
        ctx.sleep(Duration::from_millis(rng.between(0, longest))).await;
        match rng.below(10) {
            0..5 => effect(ctx, piece, rng.percent(30)).await?,
            5 => ctx.save(&piece).await?,
            6 => {
                let name = format!("step{}", rng.below(2));
                ctx.step(&name, || async { Ok(1) }).await?;
            }
            7 => ctx.progress(1, None).await?,
            8 => child(n, ctx).await?,
            _ => tokio::task::yield_now().await,
        }
        if ctx.should_yield() && rng.percent(80) {
            return Ok(Outcome::Yield);
        }
    }
    match rng.below(100) {
        0..66 => Ok(Outcome::done_with(&ctx.epoch())),
        66..78 => Err("not yet")?,
        78..84 => panic!("a handler's own panic"),
        84..88 => Ok(Outcome::Snooze(Duration::from_millis(rng.below(900)))),
        88..94 => Ok(Outcome::Yield),
        94..97 => Err(JobError::rate_limited("slow down", Some(Duration::from_millis(300)))),
        97 => {
            // It sits there, if it is a slow one until somebody ends it.
            ctx.sleep(Duration::from_millis(3 * SHORT_TIMEOUT)).await;
            Ok(Outcome::Done)
        }
        98 => Err(JobError::give_up("gave up")),
        _ => Ok(Outcome::Cancelled),
    }
}

/// A fenced write, which says in its own row which attempt held the job when it was made.
async fn effect(ctx: &Ctx<Stage>, piece: u64, saves: bool) -> Result<(), JobError> {
    let (stage, id, epoch) = (ctx.state(), ctx.id().to_string(), ctx.epoch());
    let key = (id.clone(), format!("{epoch}.{piece}"));
    let tag = key.1.clone();
    let code = move |tx: &mut leasehold::Tx<'_>| {
        tx.execute(
            "INSERT INTO effects VALUES (?1, ?2, ?3, (SELECT epoch FROM leasehold_jobs \
             WHERE id = ?1 AND status = 'running'))",
            (&id, &tag, epoch),
        )
    };
    let written = if saves {
        ctx.fenced_save(&piece, code).await
    } else {
        ctx.fenced::<_, usize, rusqlite::Error>(code).await
    };
    stage.note(format_args!("writes {} {}: {}", key.0, key.1, answer(&written)));
    match &written {
        Ok(_) => {
            stage.history().acked.insert(key);
        }
        Err(FencedError::Lost(_)) => {
            stage.history().refused.insert(key);
        }
        Err(FencedError::Store(fault)) if says_no(fault) => {
            stage.history().refused.insert(key);
        }
        Err(_) => {}
    }
    written.map(|_| ()).map_err(JobError::from)
}

/// Enqueues another job, if this one is still held.
async fn child(n: u64, ctx: &Ctx<Stage>) -> Result<(), JobError> {
    if n >= CHILDREN {
        return Ok(());
    }
    let (stage, n) = (ctx.state(), CHILDREN + 100 * n + ctx.epoch().unsigned_abs());
    let id = format!("child{n}");
    stage.history().asked.entry(n).or_insert(Asked::Unknown);
    let code = move |tx: &mut leasehold::Tx<'_>| tx.enqueue(new_job(0, n).id(id.as_str()));
    let enqueued = ctx.fenced(code).await;
    stage.note(format_args!("enqueues child {n}: {}", answer(&enqueued)));
    if enqueued.is_ok() {
        stage.history().asked.insert(n, Asked::Acked);
    }
    Ok(())
}

/// Whether a call that came to this is known not to have landed.
pub const fn says_no(fault: &StoreFault) -> bool {
    matches!(fault, StoreFault::Busy | StoreFault::Full | StoreFault::Io(_))
}

pub fn answer<T, E: std::fmt::Display>(answer: &Result<T, E>) -> String {
    match answer {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.to_string(),
    }
}
