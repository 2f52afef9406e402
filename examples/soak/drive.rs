//! Starts the workers and kills them, enqueues, cancels and redrives beside them, and waits until
//! all jobs have ended.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use leasehold::{Client, Filter, Operator, Order, Paging, Phase, Redrive};

use crate::dice::Dice;
use crate::said::{Heard, Log, Said, tell};
use crate::{hand, kinds, worker};

/// Nothing moves any more where nothing was heard for so long.
const STILL: Duration = Duration::from_secs(10);
/// Longer than a rescue may take.
const LATE: Duration = Duration::from_millis(1_200);
const SIGKILL: i32 = 9;
/// Whose draws these are; the workers are numbered from 1.
const KILLER: u64 = 1 << 32;
const ENQUEUER: u64 = KILLER + 1;
const CANCELLER: u64 = KILLER + 2;
const HOLDERS: [u64; 2] = [KILLER + 3, KILLER + 4];

/// What is to be done.
pub struct Plan {
    pub db: PathBuf,
    pub processes: u32,
    pub kills: u32,
    /// Kills a second, about.
    pub rate: u32,
    pub seed: u64,
    /// Tell on standard error how far it is.
    pub progress: bool,
}

/// What was done.
pub struct Run {
    pub heard: Vec<Heard>,
    /// The workers that were killed, by number.
    pub killed: BTreeMap<u32, Killed>,
    /// Jobs that were live when nothing moved any more.
    pub stuck: i64,
    pub took: Duration,
}

/// When a worker was killed.
pub struct Killed {
    /// Before that it lived, in UTC milliseconds.
    pub asked: i64,
    /// From then on it was dead, by the monotonic clock of the log, and in UTC milliseconds.
    pub dead: Duration,
    pub dead_utc: i64,
}

/// What all who work beside the workers share.
#[derive(Clone)]
pub struct Shared {
    pub client: Client,
    pub log: Log,
    pub seed: u64,
    draining: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
}

impl Shared {
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Takes so long; no time at the end, so that it comes to one.
    pub async fn work(&self, ms: u64) {
        if !self.is_draining() {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }
}

/// A worker process. It is killed with its owner.
struct Worker {
    number: u32,
    child: Child,
    stdin: Option<ChildStdin>,
    hears: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(plan: &Plan, log: &Log, number: u32) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--worker").arg(number.to_string()).arg("--db").arg(&plan.db);
        command.arg("--seed").arg(plan.seed.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("a worker could not be started")?;
        let pipe = child.stdout.take().context("a worker has no standard output")?;
        let log = log.clone();
        let hears = std::thread::spawn(move || log.hear(number, pipe));
        Ok(Self { number, stdin: child.stdin.take(), child, hears: Some(hears) })
    }

    /// `kill -9`.
    fn kill(&mut self, log: &Log) -> anyhow::Result<Killed> {
        let asked = hand::utc_ms();
        self.child.kill()?;
        let status = self.child.wait()?;
        let (dead, dead_utc) = (log.begun.elapsed(), hand::utc_ms());
        self.heard_out();
        if status.signal() != Some(SIGKILL) {
            bail!("worker {} had ended by itself: {status}", self.number);
        }
        Ok(Killed { asked, dead, dead_utc })
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("a worker has no standard input")?;
        stdin.write_all(b"drain\n").with_context(|| format!("worker {} has gone", self.number))
    }

    /// Lets it end by itself.
    fn end(mut self) -> anyhow::Result<()> {
        self.stdin.take();
        let status = self.child.wait()?;
        self.heard_out();
        if !status.success() {
            bail!("worker {} has not stopped well: {status}", self.number);
        }
        Ok(())
    }

    /// Waits until all that it has said was heard.
    fn heard_out(&mut self) {
        if self.hears.take().is_some_and(|hears| hears.join().is_err()) {
            log::error!("what worker {} has said was not heard to the end", self.number);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may be gone already.
        let _gone = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// Does what is planned.
pub fn run(plan: &Plan) -> anyhow::Result<Run> {
    let tokio =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let shared = tokio.block_on(open(plan))?;
    let beside = [
        tokio.spawn(enqueue(shared.clone())),
        tokio.spawn(cancel(shared.clone())),
        tokio.spawn(operate(shared.clone())),
        tokio.spawn(hand::hold(shared.clone(), HOLDERS[0])),
        tokio.spawn(hand::hold(shared.clone(), HOLDERS[1])),
    ];
    let said = shared.log.clone();
    tokio.spawn(tell(shared.client.events(), move |event| said.say(event)));

    let (workers, killed) = (Vec::new(), BTreeMap::new());
    let mut crew = Crew { plan, log: shared.log.clone(), workers, killed };
    crew.kill_all()?;
    let Crew { mut workers, killed, .. } = crew;
    shared.draining.store(true, Ordering::SeqCst);
    workers.iter_mut().try_for_each(Worker::drain)?;
    let stuck = drain(plan, &shared, &tokio)?;
    shared.over.store(true, Ordering::SeqCst);
    workers.into_iter().try_for_each(Worker::end)?;
    for task in beside {
        tokio.block_on(task)?;
    }
    let took = shared.log.begun.elapsed();
    let heard = std::mem::take(&mut *shared.log.heard());
    Ok(Run { heard, killed, stuck, took })
}

async fn open(plan: &Plan) -> anyhow::Result<Shared> {
    let client = Client::open(&plan.db).await?;
    let (kind, settings) = kinds::by_hand();
    client.register(kind, settings).await?;
    let tables = |tx: &mut leasehold::Tx<'_>| {
        kinds::TABLES.iter().try_for_each(|table| tx.execute(table, []).map(|_| ()))
    };
    client.transaction(tables).await?;
    let (log, seed) = (Log::new(), plan.seed);
    Ok(Shared { client, log, seed, draining: Arc::default(), over: Arc::default() })
}

/// The workers that live, and those that were killed.
struct Crew<'p> {
    plan: &'p Plan,
    log: Log,
    workers: Vec<Worker>,
    killed: BTreeMap<u32, Killed>,
}

impl Crew<'_> {
    /// Starts as many as are missing.
    fn fill(&mut self) -> anyhow::Result<()> {
        while self.workers.len() < self.plan.processes as usize {
            let number = 1 + u32::try_from(self.workers.len() + self.killed.len())?;
            self.workers.push(Worker::start(self.plan, &self.log, number)?);
        }
        Ok(())
    }

    fn kill(&mut self, place: usize) -> anyhow::Result<()> {
        let mut worker = self.workers.swap_remove(place);
        self.killed.insert(worker.number, worker.kill(&self.log)?);
        Ok(())
    }

    fn left(&self) -> usize {
        self.plan.kills as usize - self.killed.len()
    }

    /// Kills one worker after the other, and starts another in its place. One kill in eight is of
    /// all, for which the wait is as many times longer. One in twenty is replaced only when others
    /// must have found what it held, which is otherwise found by the one that starts.
    fn kill_all(&mut self) -> anyhow::Result<()> {
        let mut dice = Dice::new(self.plan.seed, KILLER);
        let mut told = Instant::now();
        self.fill()?;
        while self.left() > 0 {
            let (all, late) = (dice.once_in(8), dice.once_in(20));
            let kills = if all { self.workers.len() } else { 1 };
            let between = 2_000_000 * kills as u64 / u64::from(self.plan.rate);
            std::thread::sleep(Duration::from_micros(dice.below(between)));
            for _ in 0..kills.min(self.left()) {
                self.kill(dice.place(self.workers.len()))?;
            }
            if late && !self.workers.is_empty() {
                std::thread::sleep(LATE);
            }
            self.fill()?;
            if self.plan.progress && told.elapsed() >= Duration::from_secs(1) {
                told = Instant::now();
                let (kills, heard) = (self.plan.kills, self.log.heard().len());
                eprintln!("{} of {kills} kills, {heard} lines heard", self.killed.len());
            }
        }
        Ok(())
    }
}

/// Waits until all jobs have ended, and answers how many have not when nothing moves any more.
fn drain(plan: &Plan, shared: &Shared, tokio: &tokio::runtime::Runtime) -> anyhow::Result<i64> {
    let (mut seen, mut since) = (None, Instant::now());
    loop {
        let counts = tokio.block_on(shared.client.counts())?;
        if counts.live() + counts.parked == 0 {
            return Ok(0);
        }
        let now = (shared.log.heard().len(), counts.live());
        if seen != Some(now) {
            (seen, since) = (Some(now), Instant::now());
        } else if since.elapsed() >= STILL {
            return Ok(counts.live());
        }
        if plan.progress && since.elapsed() >= STILL / 4 {
            eprintln!("{} jobs are live, and nothing was heard for a while", counts.live());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

async fn enqueue(shared: Shared) {
    let mut dice = Dice::new(shared.seed, ENQUEUER);
    while !shared.is_draining() {
        if let Some(job) = worker::enqueue(&shared.client, &mut dice).await {
            shared.log.say(Said::Queued { job });
        }
        tokio::time::sleep(Duration::from_millis(10 + dice.below(30))).await;
    }
}

/// Asks for some of the jobs that were enqueued lately to be cancelled.
async fn cancel(shared: Shared) {
    let mut dice = Dice::new(shared.seed, CANCELLER);
    while !shared.is_draining() {
        tokio::time::sleep(Duration::from_millis(50 + dice.below(100))).await;
        let lately: Vec<_> = {
            let heard = shared.log.heard();
            let queued = heard.iter().rev().take(200).filter_map(|heard| match &heard.said {
                Said::Queued { job } => Some(job.clone()),
                _ => None,
            });
            queued.collect()
        };
        let Some(job) = lately.get(dice.place(lately.len())) else { continue };
        shared.log.say(Said::Cancelling { job: job.clone() });
        // Refused where it has ended, and where its hooks are asked by the workers.
        let asked = shared.client.cancel(job.as_str(), operator()).await;
        if let Err(error) = asked
            && error.refusal().is_none()
        {
            log::error!("a cancel: {error}");
        }
    }
}

/// Redrives what was parked: jobs that were killed too often in a row.
async fn operate(shared: Shared) {
    let parked = Filter::new().phase(Phase::Parked);
    while !shared.is_over() {
        let page = shared.client.list(&parked, Paging::first(Order::Newest, 100)).await;
        for job in page.map(|page| page.jobs).unwrap_or_default() {
            let how = Redrive::default().expecting(job.epoch);
            match shared.client.redrive(&job.id, how, operator()).await {
                Ok(()) => {
                    let (job, epoch) = (job.id.to_string(), job.epoch);
                    shared.log.say(Said::Redriven { job, epoch });
                }
                // Refused while another job has its dedup key: it is tried again.
                Err(error) => log::warn!("a redrive of {}: {error}", job.id),
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn operator() -> Operator {
    Operator::named("soak")
}
