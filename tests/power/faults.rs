//! Failing disks: a history is played again and again, and each time other calls on the disk fail,
//! once or from then on.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, Durability, ManualClock, NewJob};

use crate::book::{Book, What, broken, look};
use crate::cuts::Played;
use crate::disk::{Disk, How, Plan, Sort, Then};
use crate::history::{Play, START};
use crate::platter::{Image, Kept, Platter, lay_out};
use crate::rng::Rng;
use crate::{block_on, folder};

/// How long a history may take whose time is frozen.
const PATIENCE: Duration = Duration::from_mins(5);

/// A way to fail: how, what then, and how many calls lie between those that one begins with.
pub type Way = (How, Then, usize);

/// What a history on a failing disk has come to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The calls that there were.
    calls: Vec<Sort>,
    failed: usize,
    /// How often a file whose sync had failed was used again.
    reused: usize,
    /// What whoever asked was told.
    errors: BTreeMap<&'static str, usize>,
    /// What must not be.
    findings: Vec<String>,
}

/// What many of them have.
#[derive(Debug, Default)]
pub struct Sums {
    pub runs: usize,
    /// The calls of a history in which none fails.
    pub calls: BTreeMap<Sort, usize>,
    /// Calls that failed, and histories in which nobody was told of it.
    pub failed: usize,
    pub silent: usize,
    pub reused: usize,
    pub errors: BTreeMap<&'static str, usize>,
    /// What must not be; a few.
    pub findings: Vec<String>,
}

/// Has each call of a history fail in these ways.
pub fn each(ways: &[Way], play: impl Fn(Option<Plan>) -> Outcome) -> Sums {
    let well = play(None);
    assert!(well.errors.is_empty() && well.findings.is_empty(), "{well:?}");
    let mut sums = Sums::default();
    for call in &well.calls {
        *sums.calls.entry(*call).or_default() += 1;
    }
    for (how, then, step) in ways.iter().copied() {
        let first = if let Then::Every(calls) = then { calls } else { well.calls.len() };
        for at in (0..first).step_by(step) {
            let outcome = play(Some(Plan { at, how, then }));
            sums.runs += 1;
            sums.failed += outcome.failed;
            sums.silent += usize::from(outcome.failed > 0 && outcome.errors.is_empty());
            sums.reused += outcome.reused;
            for (error, times) in outcome.errors {
                *sums.errors.entry(error).or_default() += times;
            }
            let named = |text| format!("call {at}, {how:?}, {then:?}: {text}");
            let room = 10_usize.saturating_sub(sums.findings.len());
            sums.findings.extend(outcome.findings.into_iter().take(room).map(named));
        }
    }
    sums
}

/// A disk with these files, some of whose calls fail.
struct Failing {
    dir: tempfile::TempDir,
    disk: Arc<Disk>,
    book: Book,
    findings: Vec<String>,
}

impl Failing {
    fn of(base: &Image, plan: Option<Plan>) -> Self {
        let dir = folder();
        let disk = Disk::of(&lay_out(base, dir.path(), "jobs.db"));
        let book = Book::new(disk.clone());
        disk.plan(plan);
        Self { dir, disk, book, findings: Vec::new() }
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("jobs.db")
    }

    /// What has come of it, whose calls count no more.
    fn end(mut self) -> Outcome {
        self.disk.pause(true);
        self.disk.let_go();
        self.findings.extend(wrong(&self.path(), &self.book));
        Outcome {
            calls: self.disk.calls(),
            failed: self.disk.failed(),
            reused: self.disk.reused(),
            errors: self.book.errors(),
            findings: self.findings,
        }
    }
}

/// What is wrong with a database.
fn wrong(path: &Path, book: &Book) -> Vec<String> {
    match look(path) {
        Ok(seen) => broken(&book.entries(), &seen, usize::MAX),
        Err(error) => vec![format!("damaged: {error}")],
    }
}

/// What is lost in a power cut at this moment, where that which a failed sync was to make safe
/// never reaches the disk, although later syncs succeed.
fn lost_with_syncs(base: &Image, disk: &Disk, book: &Book) -> Vec<String> {
    let log = disk.take_log();
    let mut platter = Platter::with(base.clone(), true);
    for (file, op) in &log {
        platter.take(*file, op);
    }
    let dir = folder();
    let left = lay_out(&platter.image(Kept::Nothing, &mut Rng::new(0)), dir.path(), "jobs.db");
    let named = |text| format!("after a failed sync and a power cut: {text}");
    wrong(&left, book).into_iter().map(named).collect()
}

/// A database with its schema and nothing in it, where histories begin.
pub fn base() -> Image {
    let empty = Failing::of(&Image::default(), None);
    block_on(async {
        let (path, clock) = (empty.path(), ManualClock::at(START));
        let play = Play::start(&path, &empty.book, &clock, Durability::Full).await.unwrap();
        play.prepare().await;
        play.checkpoint("TRUNCATE");
        play.stop().await;
    });
    empty.disk.let_go();
    let log = empty.disk.take_log();
    let mut platter = Platter::with(Image::default(), true);
    for (file, op) in &log {
        platter.take(*file, op);
    }
    platter.image(Kept::All, &mut Rng::new(0))
}

/// Plays a history: on an empty database, the whole of it.
pub fn history(base: &Image, plan: Option<Plan>, durability: Durability) -> Outcome {
    let mut failing = Failing::of(base, plan);
    let (path, disk, book) = (failing.path(), failing.disk.clone(), failing.book.clone());
    let findings = &mut failing.findings;
    let whole = async {
        let clock = ManualClock::at(START);
        let mut started = Play::start(&path, &book, &clock, durability).await;
        if let Ok(playing) = &started {
            playing.go_on().await;
            // What is open already can still be written where nothing can be opened.
            if disk.is_broken() && plan.is_some_and(|plan| plan.how != How::Open) {
                findings.extend(playing.is_denied().await);
            }
        }
        disk.pause(true);
        if started.is_err() {
            started = Play::start(&path, &book, &clock, durability).await;
        }
        let playing = started.unwrap();
        findings.extend(playing.finish().await);
        if durability == Durability::Full && disk.failed_to_sync() {
            findings.extend(lost_with_syncs(base, &disk, &book));
        }
        disk.pause(plan.is_some_and(|plan| plan.then == Then::ForEver));
        playing.stop().await;
    };
    if block_on(async { tokio::time::timeout(PATIENCE, whole).await }).is_err() {
        failing.findings.push("it hangs".into());
    }
    failing.end()
}

/// The same of the moment at which `SQLite` writes the log back, and the next: where that fails
/// nobody is told.
pub fn written_back(played: &Played, plan: Option<Plan>) -> Outcome {
    let base = &played.base();
    let mut failing = Failing::of(base, plan);
    played.before().for_each(|what| failing.book.seen(what));
    let (path, disk, book) = (failing.path(), failing.disk.clone(), failing.book.clone());
    let findings = &mut failing.findings;
    block_on(async {
        let clock = ManualClock::at(START);
        disk.pause(true);
        let playing = Play::start(&path, &book, &clock, Durability::Full).await.unwrap();
        disk.pause(false);
        playing.write_back().await;
        disk.pause(true);
        findings.extend(playing.finish().await);
        if disk.failed_to_sync() {
            findings.extend(lost_with_syncs(base, &disk, &book));
        }
        playing.stop().await;
    });
    failing.end()
}

/// A client and two calls of it; it goes while the disk still fails, and another starts when that
/// is well.
pub fn client(base: &Image, plan: Option<Plan>) -> Outcome {
    let mut failing = Failing::of(base, plan);
    let (path, book) = (failing.path(), failing.book.clone());
    let enqueue = async |client: &Client, id: &str| {
        let job = NewJob::raw("hand", None).id(id);
        let asked = async || client.enqueue(job.clone()).await.map(|_| ());
        book.ask_once(What::Enqueued(id.to_owned()), asked).await;
    };
    block_on(async {
        match Client::open(&path).await {
            Ok(client) => {
                enqueue(&client, "one").await;
                enqueue(&client, "two").await;
            }
            Err(error) => drop(book.trouble(&error)),
        }
        failing.disk.pause(true);
        let client = Client::open(&path).await.unwrap();
        enqueue(&client, "three").await;
        if failing.disk.failed_to_sync() {
            let lost = lost_with_syncs(base, &failing.disk, &book);
            failing.findings.extend(lost);
        }
    });
    failing.end()
}
