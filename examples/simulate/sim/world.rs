//! The world: starts processes, kills them, stops their clocks, and in the end lets all be well.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use leasehold::rusqlite::Connection;
use leasehold::testing::{Machine, Point};
use tokio::time::Instant;

use super::clock::SimClock;
use super::history::{Figures, History, Trouble};
use super::job::{LEASE, Stage, TABLES};
use super::judge;
use super::process::{Order, Process};
use super::rng::Rng;

/// How long all is well before what still lives counts as stuck, in milliseconds.
const PATIENCE: u64 = 300_000;

/// From how long on a pause can cost a lease, in milliseconds: what is left of one when the next
/// heartbeat is due.
const NOTICED: u64 = LEASE - 1_000;

/// What a schedule came to.
#[derive(Debug)]
pub struct Report {
    pub figures: Figures,
    /// The promises that were broken, in words.
    pub broken: Vec<String>,
    pub trace: String,
}

/// Where schedules are played, one after the other: a database that is emptied before each.
pub struct Theatre {
    folder: tempfile::TempDir,
    conn: Connection,
    machine: Machine,
}

impl Theatre {
    /// Opens one, in memory where the machine has a folder for that.
    pub fn new() -> anyhow::Result<Self> {
        let memory = Path::new("/dev/shm");
        let folder =
            if memory.is_dir() { tempfile::tempdir_in(memory)? } else { tempfile::tempdir()? };
        let conn = connect(&folder.path().join("jobs.db"))?;
        conn.pragma_update(None, "journal_mode", "wal")?;
        for step in leasehold::migrations() {
            conn.execute_batch(step)?;
        }
        conn.execute_batch(TABLES)?;
        Ok(Self { folder, conn, machine: Machine::new() })
    }

    /// Nothing is left of the schedule before.
    fn clear(&self) -> anyhow::Result<()> {
        let mut names = self.conn.prepare_cached(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT GLOB 'sqlite_*' \
             AND name <> 'leasehold_schema' ORDER BY name <> 'leasehold_job'",
        )?;
        let names = names.query_map([], |row| row.get::<_, String>(0))?;
        let names = names.collect::<Result<Vec<_>, _>>()?;
        let clear = self.conn.unchecked_transaction()?;
        for name in names {
            self.conn.prepare_cached(&format!("DELETE FROM {name}"))?.execute([])?;
        }
        clear.commit()?;
        Ok(())
    }
}

#[allow(clippy::disallowed_methods, reason = "the judge has a connection of its own")]
fn connect(path: &Path) -> anyhow::Result<Connection> {
    Ok(Connection::open(path)?)
}

/// Plays the schedule that follows from a seed.
pub fn play(seed: u64, theatre: &Theatre, traced: bool) -> anyhow::Result<Report> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    theatre.clear()?;
    runtime.block_on(async { World::new(seed, theatre, traced).play().await })
}

struct World<'t> {
    seed: u64,
    rng: Rng,
    conn: &'t Connection,
    path: PathBuf,
    machine: Machine,
    start: Instant,
    history: Arc<Mutex<History>>,
    /// Places for processes, each with a clock; a place is empty while its process is dead, until
    /// the moment that is given.
    places: Vec<(SimClock, Result<Process, u64>)>,
    started: usize,
    until: u64,
    /// When the last that stands still goes on.
    late: u64,
    crashes: u64,
}

impl<'t> World<'t> {
    fn new(seed: u64, theatre: &'t Theatre, traced: bool) -> Self {
        let mut rng = Rng::of(seed, &[0]);
        let start = Instant::now();
        let places =
            (0..*rng.pick(&[1, 2, 2, 3, 3])).map(|_| (SimClock::new(start), Err(0))).collect();
        let until = rng.between(600, 4_000);
        let history = History { trace: traced.then(String::new), ..History::default() };
        Self {
            seed,
            rng,
            conn: &theatre.conn,
            path: theatre.folder.path().join("jobs.db"),
            machine: theatre.machine.anew(),
            start,
            history: Arc::new(Mutex::new(history)),
            places,
            started: 0,
            until,
            late: 0,
            crashes: 0,
        }
    }

    fn stage(&self, process: usize) -> Stage {
        let (seed, start, history) = (self.seed, self.start, self.history.clone());
        Stage { seed, process, start, history }
    }

    fn at(&self) -> u64 {
        self.stage(0).at()
    }

    fn note(&self, line: std::fmt::Arguments<'_>) {
        let at = self.at();
        self.stage(0).history().note(at, format_args!("world {line}"));
    }

    async fn play(mut self) -> anyhow::Result<Report> {
        while self.at() < self.until {
            self.revive();
            let step = self.rng.between(10, 500);
            self.pass(step).await;
            self.strike();
        }
        self.heal();
        let healed = self.at();
        // What comes late comes now: enqueues, and writes of those who have lost their jobs.
        let latest = self.late.max(healed) - healed;
        self.pass(latest + LEASE).await;
        while self.left()? > 0 && self.at() < healed + PATIENCE {
            self.pass(250).await;
        }
        self.note(format_args!("is over"));
        let virtual_ms = self.at();
        self.places.clear();
        let history = std::mem::take(&mut *self.stage(0).history());
        let (mut figures, broken) = judge::judge(&history, self.conn)?;
        figures.virtual_ms = virtual_ms;
        figures.crashes = self.crashes;
        figures.trace = history.hash;
        Ok(Report { figures, broken, trace: history.trace.unwrap_or_default() })
    }

    /// Lets time pass: whoever can go on does, in an order that is drawn anew each time.
    async fn pass(&mut self, ms: u64) {
        let end = self.at() + ms;
        while self.at() < end {
            // Nothing but this wakes a process that stands still.
            let goes_on = |process: &Process| process.stalled_until;
            let stalls =
                self.places.iter().filter_map(|(_, process)| process.as_ref().ok().map(goes_on));
            let next =
                stalls.filter(|until| *until > self.at()).min().map_or(end, |next| next.min(end));
            self.pass_some(next - self.at()).await;
        }
    }

    async fn pass_some(&mut self, ms: u64) {
        let mut end = std::pin::pin!(tokio::time::sleep(Duration::from_millis(ms)));
        std::future::poll_fn(|cx| {
            let at = self.at();
            let first = usize::try_from(self.rng.below(6)).unwrap_or_default();
            for n in 0..self.places.len() {
                let n = (n + first) % self.places.len();
                if let Ok(process) = &mut self.places[n].1
                    && process.stalled_until <= at
                    && !process.poll(cx)
                {
                    self.kill(n, "dies of a write");
                }
            }
            match end.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
    }

    /// Starts the processes whose time has come.
    fn revive(&mut self) {
        let at = self.at();
        for n in 0..self.places.len() {
            let (clock, process) = &self.places[n];
            if process.as_ref().is_err_and(|again| *again <= at) {
                let stage = self.stage(self.started);
                let process = Process::start((&self.machine, clock), &self.path, stage, self.until);
                self.places[n].1 = Ok(process);
                self.started += 1;
            }
        }
    }

    /// One blow of fate.
    fn strike(&mut self) {
        let n = usize::try_from(self.rng.below(self.places.len() as u64)).unwrap_or_default();
        let at = self.at();
        match self.rng.below(100) {
            0..12 => self.kill(n, "is killed"),
            12..24 => {
                let stall = self.pause();
                self.stall(n, at + stall);
            }
            24..32 => self.step_clock(n),
            32..36 => {
                let grace = Duration::from_millis(self.rng.below(1_000));
                self.order(n, Order::Stop(grace));
                if let Ok(process) = &mut self.places[n].1 {
                    process.is_stopped = true;
                    let process = process.stage.process;
                    self.trouble(process, at, u64::MAX);
                }
            }
            36..42 => self.order_about_some_job(n, Order::Cancel),
            42..48 => self.order_about_some_job(n, Order::Redrive),
            48..50 => self.order(n, Order::Pause),
            50..54 => self.order(n, Order::Resume),
            54..80 => self.fault(n),
            80..92 => {
                let points = [Point::Commit, Point::BeforeWrite, Point::AfterWrite];
                let (point, passes) = (*self.rng.pick(&points), self.rng.below(4));
                if let Ok(process) = &mut self.places[n].1 {
                    if let Some(before) = process.doom.replace(point) {
                        process.faults.arm(before, 0);
                    }
                    process.faults.arm_after(point, u32::try_from(passes).unwrap_or_default(), 1);
                }
            }
            _ => {}
        }
    }

    fn trouble(&self, process: usize, from: u64, to: u64) {
        self.stage(0).history().troubles.push(Trouble { process, from, to });
    }

    fn kill(&mut self, n: usize, how: &str) {
        let (at, again) = (self.at(), self.rng.below(1_500));
        let Ok(process) = std::mem::replace(&mut self.places[n].1, Err(at + again)) else {
            return;
        };
        let process_number = process.stage.process;
        self.note(format_args!("p{process_number} {how}"));
        self.trouble(process_number, at, u64::MAX);
        self.crashes += 1;
        drop(process);
    }

    /// How long something stands still: so long that nobody is to notice, or that others take it
    /// for lost and start its jobs before it goes on.
    fn pause(&mut self) -> u64 {
        if self.rng.percent(50) {
            self.rng.between(10, LEASE)
        } else {
            self.rng.between(2 * LEASE, 3 * LEASE)
        }
    }

    fn stall(&mut self, n: usize, until: u64) {
        let at = self.at();
        let Ok(process) = &mut self.places[n].1 else { return };
        let from = process.stalled_until.max(at);
        process.stalled_until = until.max(from);
        self.late = self.late.max(process.stalled_until);
        let number = process.stage.process;
        self.note(format_args!("p{number} stands still until {until}"));
        if until.saturating_sub(at) >= NOTICED {
            self.trouble(number, at, until + LEASE);
        }
    }

    fn step_clock(&mut self, n: usize) {
        let far = if self.rng.percent(20) { 3_600_000 } else { 10_000 };
        let ms = i64::try_from(self.rng.below(2 * far)).unwrap_or_default() - far.cast_signed();
        self.places[n].0.step(ms);
        self.note(format_args!("the clock of place {n} steps by {ms}"));
    }

    fn order(&self, n: usize, order: Order) {
        if let Ok(process) = &self.places[n].1 {
            process.tell(order);
        }
    }

    fn tell_all(&self, order: impl Fn() -> Order) {
        (0..self.places.len()).for_each(|n| self.order(n, order()));
    }

    fn order_about_some_job(&mut self, n: usize, order: impl Fn(String) -> Order) {
        let known: Vec<_> = self.stage(0).history().starts.keys().cloned().collect();
        if !known.is_empty() {
            let id = self.rng.pick(&known).clone();
            self.order(n, order(id));
        }
    }

    fn fault(&mut self, n: usize) {
        let points = [
            Point::Commit,
            Point::Commit,
            Point::Commit,
            Point::Message,
            Point::LostAnswer,
            Point::LostAnswer,
            Point::Busy,
            Point::Full,
            Point::Io,
            Point::Store,
            Point::Worker,
            Point::Reaper,
            Point::Supervisor,
            Point::Heartbeat,
        ];
        let point = *self.rng.pick(&points);
        let times = if self.rng.percent(80) { 1 } else { 2 };
        let (at, delay) = (self.at(), self.rng.percent(30).then(|| self.pause()));
        let passes = self.rng.below(6);
        let Ok(process) = &self.places[n].1 else { return };
        let number = process.stage.process;
        if let Some(delay) = delay {
            process.faults.delay(u32::try_from(delay).unwrap_or_default());
            self.note(format_args!("p{number}: the store is late by {delay}"));
            if delay >= NOTICED {
                // Its next batch is soon there, and what waits behind it comes late too.
                let until = at + delay + LEASE;
                self.trouble(number, at, until + LEASE);
                self.late = self.late.max(until);
            }
        } else {
            let passes = u32::try_from(passes).unwrap_or_default();
            process.faults.arm_after(point, passes, times);
            self.note(format_args!("p{number}: {point:?} fails {times} times"));
            self.crashes += 1;
        }
    }

    /// From here on nothing more goes wrong, and all clocks agree on a time when all is due. Who
    /// stands still goes on when his time has come.
    fn heal(&mut self) {
        self.note(format_args!("heals"));
        for n in 0..self.places.len() {
            if self.places[n].1.as_ref().is_ok_and(|process| process.is_stopped) {
                self.kill(n, "is gone");
            }
        }
        let mut alive = self.places.iter().any(|(_, process)| process.is_ok());
        for (clock, process) in &mut self.places {
            clock.set(3 * 3_600_000);
            match process {
                // One is enough to do all that is left, and must be.
                Err(again) if !alive || self.rng.percent(30) => (*again, alive) = (0, true),
                Err(again) => *again = u64::MAX,
                Ok(process) => {
                    process.doom = None;
                    process.faults.calm();
                }
            }
        }
        self.revive();
        self.tell_all(|| Order::Resume);
    }

    /// How many jobs are live.
    fn left(&self) -> anyhow::Result<u64> {
        let sql = "SELECT count(*) FROM leasehold_job WHERE status IN (0, 1)";
        let mut statement = self.conn.prepare_cached(sql)?;
        Ok(statement.query_row([], |row| row.get::<_, i64>(0))?.unsigned_abs())
    }
}
