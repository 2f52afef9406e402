//! The jobs: one kind for each way in which work begins, goes on and ends.

use std::time::Duration;

use leasehold::rusqlite;
use leasehold::{
    Builder, Ctx, FencedError, Hooks, Job, JobError, JobResult, NewJob, Outcome, Retry, Runtime,
    Settings, Tx,
};
use serde::{Deserialize, Serialize};

use crate::dice::Dice;
use crate::said::{Pipe, Said};

/// The limit key of which one job runs at a time.
pub const NARROW: &str = "narrow";

/// The application's tables, in the same file. Nothing is unique in them, so that what came twice
/// is there twice.
pub const TABLES: [&str; 3] = [
    "CREATE TABLE effects (job TEXT, piece INTEGER, epoch INTEGER, at INTEGER)",
    "CREATE TABLE endings (job TEXT, epoch INTEGER, status TEXT)",
    "CREATE TABLE orders (job TEXT)",
];

/// No number of kills is held against the job, and its delays are short.
fn lasting() -> Settings {
    Settings::new().retry(Retry::fixed(Duration::from_millis(20))).survives_any_loss()
}

/// Declares kinds: their names, and their settings.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $kind:literal, $settings:expr;)+) => {
        $($(#[$doc])*
        #[derive(Serialize, Deserialize)]
        pub struct $name {
            /// How long it takes, how often it fails, how many pieces it has.
            n: u32,
        }

        impl Job for $name {
            const KIND: &'static str = $kind;

            fn settings() -> Settings {
                $settings
            }
        })+
    };
}

kinds! {
    /// Ends within a few milliseconds.
    Quick = "quick", lasting();
    /// Fails a few times, and then completes.
    Flaky = "flaky", lasting();
    /// Fails for good with its third attempt.
    Doomed = "doomed", lasting().max_stalls(3).retry(Retry::fixed(Duration::from_millis(10)).attempts(3));
    /// Writes a piece together with its checkpoint, and yields after two.
    Sliced = "sliced", lasting();
    /// Has one fenced write an attempt.
    Fenced = "fenced", lasting();
    /// Is enqueued in a transaction, together with a row.
    Order = "order", lasting();
    /// Has hooks, which write down each ending.
    Mirrored = "mirrored", lasting();
    /// Takes long, so that it is parked after as many losses as usual; an operator redrives it.
    Fragile = "fragile", Settings::new();
    /// Is claimed by hand.
    Hand = "hand", lasting().lease(Duration::from_millis(HAND_LEASE_MS));
}

/// Nothing renews it, and who holds it takes longer more often than not.
pub const HAND_LEASE_MS: u64 = 100;

/// The kind with a row beside each job, and the one with hooks.
pub const ORDER: &str = Order::KIND;
pub const MIRRORED: &str = Mirrored::KIND;

/// A kind that must end as failed.
pub fn is_doomed(kind: &str) -> bool {
    kind == Doomed::KIND
}

/// How many pieces a completed job has written by fenced writes, where that is known.
pub fn pieces(kind: &str, n: i64) -> Option<i64> {
    (kind == Sliced::KIND).then_some(n)
}

/// A builder with all handlers.
pub fn builder(db: &std::path::Path, pipe: &Pipe) -> Builder<Pipe> {
    let starts = pipe.clone();
    Runtime::builder(db)
        .slots(4)
        .limit_key(NARROW, 1)
        .state(pipe.clone())
        .around(move |call, next| {
            starts.say(&Said::Started { job: call.id.to_string(), epoch: call.epoch });
            next
        })
        .handle(quick)
        .handle(flaky)
        .handle(doomed)
        .handle(sliced)
        .handle(fenced)
        .handle(order)
        .handle(mirrored)
        .handle(fragile)
        .hooks::<Mirrored>(hooks())
}

/// Registered by whoever claims by hand.
pub fn by_hand() -> (&'static str, Settings) {
    (Hand::KIND, Hand::settings())
}

/// A result names the attempt that it is of.
#[derive(Serialize, Deserialize)]
pub struct Done {
    pub epoch: i64,
}

fn done(ctx: &Ctx<Pipe>) -> Outcome {
    Outcome::done_with(&Done { epoch: ctx.epoch() })
}

async fn work(ctx: &Ctx<Pipe>, ms: u32) {
    ctx.sleep(Duration::from_millis(ms.into())).await;
}

async fn quick(job: Quick, ctx: Ctx<Pipe>) -> JobResult {
    work(&ctx, job.n).await;
    Ok(done(&ctx))
}

async fn order(job: Order, ctx: Ctx<Pipe>) -> JobResult {
    work(&ctx, job.n).await;
    Ok(done(&ctx))
}

async fn mirrored(job: Mirrored, ctx: Ctx<Pipe>) -> JobResult {
    work(&ctx, job.n).await;
    Ok(done(&ctx))
}

async fn flaky(job: Flaky, ctx: Ctx<Pipe>) -> JobResult {
    work(&ctx, job.n).await;
    if ctx.attempt() <= i64::from(job.n % 4) {
        Err("not yet")?;
    }
    Ok(done(&ctx))
}

async fn doomed(job: Doomed, ctx: Ctx<Pipe>) -> JobResult {
    work(&ctx, job.n).await;
    Err("never")?
}

async fn fragile(job: Fragile, ctx: Ctx<Pipe>) -> JobResult {
    tokio::select! {
        () = work(&ctx, 4 * job.n) => Ok(done(&ctx)),
        _ = ctx.cancelled() => Ok(Outcome::Cancelled),
    }
}

async fn sliced(job: Sliced, ctx: Ctx<Pipe>) -> JobResult {
    let pieces = i64::from(job.n);
    let first: i64 = ctx.checkpoint()?.unwrap_or(0);
    for piece in first..pieces {
        work(&ctx, 3).await;
        let write = ctx.fenced_save(&(piece + 1), effect(&ctx, piece)).await;
        wrote(&ctx, piece, write)?;
        if piece % 2 == 1 && piece + 1 < pieces {
            return Ok(Outcome::Yield);
        }
    }
    Ok(done(&ctx))
}

/// The piece is the attempt's own, so that each attempt may write one.
async fn fenced(job: Fenced, ctx: Ctx<Pipe>) -> JobResult {
    let piece = ctx.epoch();
    let write = ctx.fenced(effect(&ctx, piece)).await;
    wrote(&ctx, piece, write)?;
    work(&ctx, job.n).await;
    Ok(done(&ctx))
}

type Effect = rusqlite::Result<usize>;

/// Writes down which attempt wrote which piece, and when by the transaction's own time.
fn effect(ctx: &Ctx<Pipe>, piece: i64) -> impl FnMut(&mut Tx<'_>) -> Effect + Send + use<> {
    let (job, epoch) = (ctx.id().to_string(), ctx.epoch());
    move |tx| {
        let sql = "INSERT INTO effects VALUES (?1, ?2, ?3, ?4)";
        tx.execute(sql, (&job, piece, epoch, tx.now()))
    }
}

fn wrote(
    ctx: &Ctx<Pipe>,
    piece: i64,
    write: Result<usize, FencedError<rusqlite::Error>>,
) -> Result<(), JobError> {
    write?;
    ctx.state().say(&Said::Wrote { job: ctx.id().to_string(), epoch: ctx.epoch(), piece });
    Ok(())
}

fn hooks() -> Hooks {
    Hooks::new()
        .on_transition(|job, tx| {
            let (id, status) = (job.id.to_string(), job.status.as_str());
            Ok(tx.execute("INSERT INTO endings VALUES (?1, ?2, ?3)", (id, job.epoch, status))?)
        })
        .on_redrive(|job, tx| {
            let (id, epoch) = (job.id.to_string(), job.epoch);
            Ok(tx.execute("INSERT INTO endings VALUES (?1, ?2, 'redriven')", (id, epoch))?)
        })
}

/// What is enqueued next. An order is to be enqueued with its row.
pub enum Next {
    Plain(NewJob),
    WithRow(NewJob),
}

/// Draws a job.
pub fn next(dice: &mut Dice) -> Next {
    let few = u32::try_from(dice.below(20)).unwrap_or_default();
    let job = match dice.below(20) {
        0..5 => Quick { n: few }.into_new(),
        5..8 => Flaky { n: few }.into_new(),
        8 => Doomed { n: few }.into_new(),
        9..12 => Sliced { n: 1 + few % 6 }.into_new(),
        12..14 => Fenced { n: few }.into_new(),
        14..16 => return Next::WithRow(Order { n: few }.into_new()),
        16..18 => Mirrored { n: few }.into_new(),
        18 => Fragile { n: few }.into_new(),
        _ => Hand { n: few }.into_new(),
    };
    Next::Plain(match dice.below(8) {
        0 => job.dedup_key(format!("one of {}", dice.below(4))),
        1 => job.limit_key(NARROW),
        2 => job.delay(Duration::from_millis(dice.below(50))),
        3 => job.priority(-1),
        _ => job,
    })
}

/// Writes down the order, in the transaction that its job is enqueued in.
pub fn with_row(tx: &mut Tx<'_>, job: &NewJob) -> leasehold::Result<String> {
    let job = tx.enqueue(job.clone())?.id.to_string();
    tx.execute("INSERT INTO orders VALUES (?1)", [&job])?;
    Ok(job)
}
