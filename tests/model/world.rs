//! What the test knows of every job, and the comparison with what the store says.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use leasehold::testing::Point;
use leasehold::{AttemptOutcome, Counts, JobId, JobRecord, Lease, Refusal, Status};

use super::app::{self, Mood};
use super::compare::{No, Played, count, difference, digest, plain, plain_transaction, same};
use super::hold::Write;
use super::profile::{Command, Profile};
use super::rng::Rng;
use super::rules::{self, ANY, KINDS, Kind, QUEUE_LIMIT};
use super::stage::{START, Stage, now};

/// A job, as it must be.
pub struct Known {
    pub id: JobId,
    pub kind: usize,
    /// Nothing once it is deleted.
    pub record: Option<JobRecord>,
    /// Saved values by key, each with the epoch of its attempt.
    pub saved: BTreeMap<String, (String, i64)>,
    pub committed_epoch: i64,
    /// The serial number of the lease that holds it.
    pub holder: Option<usize>,
    /// The last write of a holder: its lease's serial number, and its own.
    pub mark: Option<(usize, u32)>,
    /// Owed an ending, and out of the claims' way until it is tried again.
    pub aside: bool,
    /// The epochs and outcomes in its history.
    pub history: Vec<(i64, AttemptOutcome)>,
}

/// A lease as it was claimed, current or not.
pub struct Held {
    pub serial: usize,
    pub job: usize,
    pub epoch: i64,
    pub owner: &'static str,
    pub lease: Arc<Lease>,
    /// The number of its last write, and the write, where it can be repeated.
    pub number: u32,
    pub last: Option<Write>,
}

/// A key that stays taken for a time.
pub struct Kept {
    pub dedup: bool,
    pub key: &'static str,
    pub tenant: [Option<&'static str>; 2],
    pub id: JobId,
    pub until: i64,
}

/// What jobs count against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Kind(usize),
    Queue,
    Key(usize),
    Rate(usize),
}

pub struct World<'s> {
    pub stage: &'s mut Stage,
    pub profile: Profile,
    pub rng: Rng,
    pub now: i64,
    pub jobs: Vec<Known>,
    pub leases: Vec<Held>,
    pub serial: usize,
    pub facts: [Kind; 8],
    pub limits: [i64; 2],
    pub paused: Vec<(bool, &'static str)>,
    pub starts: Vec<i64>,
    pub gate: Option<i64>,
    pub retained_at: Option<i64>,
    pub kept: Vec<Kept>,
    /// The application's rows, by the id of their job.
    pub app: BTreeMap<String, app::Row>,
    pub mood: Mood,
    /// The next answer gets lost.
    pub lost: bool,
    batch: Option<Vec<Box<dyn FnMut() -> Played>>>,
    /// Application code may have run in this step.
    pub touched: bool,
    pub steps: usize,
    pub trace: Option<Vec<String>>,
}

impl<'s> World<'s> {
    pub fn start(stage: &'s mut Stage, seed: u64, traced: bool) -> Self {
        stage.clear(seed);
        let mut profile = Profile::of(seed);
        if stage.is_of_two() {
            // One process makes one transaction.
            profile.commands.retain(|command| *command != Command::Batch);
        }
        Self {
            stage,
            profile,
            rng: Rng::new(seed),
            now: START,
            jobs: Vec::new(),
            leases: Vec::new(),
            serial: 0,
            facts: KINDS,
            limits: rules::KEY_LIMITS.map(|(_, limit)| limit),
            paused: Vec::new(),
            starts: Vec::new(),
            gate: None,
            retained_at: None,
            kept: Vec::new(),
            app: BTreeMap::new(),
            mood: app::AGREES,
            lost: false,
            batch: None,
            touched: false,
            steps: 0,
            trace: traced.then(Vec::new),
        }
    }

    pub fn say(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(text());
        }
    }

    /// Asks the store, and compares its answer; at once, or with the batch that is being made.
    pub fn ask<T, F>(&mut self, what: &'static str, asked: F, expected: Result<T, No>) -> Played
    where
        T: Debug + PartialEq + 'static,
        F: Future<Output = leasehold::Result<T>> + 'static,
    {
        let expected = if self.lost { Err(No::Unknown) } else { expected };
        self.ask_surely(what, asked, expected)
    }

    /// The same of what is asked again by itself where its answer is lost.
    pub fn ask_surely<T, F>(
        &mut self,
        what: &'static str,
        asked: F,
        expected: Result<T, No>,
    ) -> Played
    where
        T: Debug + PartialEq + 'static,
        F: Future<Output = leasehold::Result<T>> + 'static,
    {
        if let Some(batch) = &mut self.batch {
            let mut asked = Box::pin(asked);
            let mut poll = move || asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(poll().is_pending(), "it waits for the batch");
            batch.push(Box::new(move || match poll() {
                Poll::Ready(seen) => same(what, &plain(seen), &expected),
                Poll::Pending => Err(format!("{what} was not answered")),
            }));
            return Ok(());
        }
        self.arm();
        same(what, &plain(now(asked)), &expected)
    }

    /// Has the next answer be lost, where it is to be.
    pub fn arm(&mut self) {
        if std::mem::take(&mut self.lost) {
            self.stage.faults().arm(Point::Commit, 1);
        }
    }

    pub fn in_batch(&self) -> bool {
        self.batch.is_some()
    }

    /// Plays several commands in one transaction. Where `fails`, it is rolled back at first.
    pub fn together(
        &mut self,
        times: usize,
        fails: bool,
        mut one: impl FnMut(&mut Self) -> Played,
    ) -> Played {
        self.stage.bench.hold();
        self.batch = Some(Vec::new());
        let played = (0..times).try_for_each(|_| one(self));
        let batch = self.batch.take().unwrap_or_default();
        if fails && batch.len() > 1 && !self.lost {
            self.stage.faults().arm(Point::Message, 1);
        }
        if !batch.is_empty() {
            self.arm();
        }
        self.stage.bench.release();
        played?;
        batch.into_iter().try_for_each(|mut answer| answer())
    }

    pub fn live(&self) -> impl Iterator<Item = &JobRecord> {
        self.jobs.iter().filter_map(|job| job.record.as_ref()).filter(|job| job.status.is_live())
    }

    /// Jobs by their place in the history, with their records.
    pub fn kept(&self) -> impl Iterator<Item = (usize, &JobRecord)> {
        self.jobs.iter().enumerate().filter_map(|(n, job)| Some((n, job.record.as_ref()?)))
    }

    /// The limits that a job counts against.
    pub fn limits_of(&self, n: usize) -> Vec<Limit> {
        let job = &self.jobs[n];
        let facts = &self.facts[job.kind];
        let key = job.record.as_ref().and_then(|record| record.limit_key.as_deref());
        let key = rules::KEY_LIMITS.iter().position(|it| Some(it.0) == key);
        let kind = facts.concurrency.map(|_| Limit::Kind(job.kind));
        let queue = (facts.queue == QUEUE_LIMIT.0).then_some(Limit::Queue);
        let rate = facts.rate.map(|_| Limit::Rate(job.kind));
        [kind, queue, key.map(Limit::Key), rate].into_iter().flatten().collect()
    }

    /// How many more may run.
    pub fn room(&self, limit: Limit) -> i64 {
        let running = |which: &dyn Fn(&Known, &JobRecord) -> bool| {
            let running = |job: &&Known| {
                let record = job.record.as_ref().filter(|it| it.status == Status::Running);
                record.is_some_and(|record| which(job, record))
            };
            self.jobs.iter().filter(running).count() as i64
        };
        match limit {
            Limit::Kind(kind) => {
                let limit = self.facts[kind].concurrency.unwrap_or(i64::MAX);
                limit - running(&|job, _| job.kind == kind)
            }
            Limit::Queue => QUEUE_LIMIT.1 - running(&|_, job| &*job.queue == QUEUE_LIMIT.0),
            Limit::Key(key) => {
                let name = Some(rules::KEY_LIMITS[key].0);
                self.limits[key] - running(&|_, job| job.limit_key.as_deref() == name)
            }
            Limit::Rate(kind) => {
                let (starts, window) = self.facts[kind].rate.unwrap_or((i64::MAX, 0));
                // A start further ahead is of a clock that has been set back.
                let near = self.now - window + 1..=self.now.saturating_add(window);
                starts - self.starts.iter().filter(|at| near.contains(at)).count() as i64
            }
        }
    }

    pub fn has_room(&self, n: usize) -> bool {
        self.limits_of(n).into_iter().all(|limit| self.room(limit) > 0)
    }

    pub fn gate_closed(&self, kind: usize) -> bool {
        self.facts[kind].provider.is_some() && self.gate.is_some_and(|until| until > self.now)
    }

    /// Compares the whole store with what must be in it.
    pub fn check(&mut self) -> Played {
        let seen = now(self.stage.bench.jobs()).map_err(|error| error.to_string())?;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("  {:x}", digest(&seen)));
        }
        let now = self.now;
        let kept = self.jobs.iter_mut().filter_map(|job| job.record.as_mut());
        let mut counted = 0;
        for (expected, seen) in kept.zip(&seen) {
            if expected.last_error.as_deref() == Some(ANY) && seen.last_error.is_some() {
                expected.last_error.clone_from(&seen.last_error);
            }
            expected.phase = rules::phase(expected, now);
            if seen != expected {
                return Err(difference(expected, seen));
            }
            counted += 1;
        }
        same("how many jobs there are", &seen.len(), &counted)?;
        same("how many jobs there are", &self.kept().count(), &counted)?;
        if self.touched { self.check_application() } else { Ok(()) }
    }

    /// Notes that application code may run.
    pub fn touch(&mut self) {
        (self.touched, self.stage.written) = (true, true);
    }

    fn check_application(&mut self) -> Played {
        let seen = plain_transaction(now(self.stage.bench.client.transaction(app::rows)))?;
        let kept = seen.iter().map(|(id, row)| (id, row));
        if !kept.eq(&self.app) {
            return Err(format!(
                "the application's rows: expected {:?}\n  and saw {seen:?}",
                self.app
            ));
        }
        Ok(())
    }

    /// Looks at what is not looked at after every step.
    pub fn finish(&mut self) -> Played {
        let client = self.stage.bench.client.clone();
        let mut counts = Counts::default();
        self.kept().for_each(|(_, job)| count(&mut counts, job));
        same("the counts", &now(client.counts()).map_err(|error| error.to_string()), &Ok(counts))?;
        if self.stage.written {
            self.check_application()?;
        }
        let gate = plain_transaction(now(self.stage.bench.client.transaction(app::gate)));
        same("the gate", &gate, &Ok(self.gate))?;
        self.keys()?;
        for held in &self.leases {
            self.look_at_saved(held.job, held.epoch, &held.lease)?;
        }
        for job in &self.jobs {
            let seen = plain(now(client.attempts(&job.id)));
            let seen =
                seen.map(|all| all.iter().map(|one| (one.epoch, one.outcome)).collect::<Vec<_>>());
            let expected = match &job.record {
                Some(_) => Ok(job.history.clone()),
                None => Err(No::Refused(Refusal::NotFound)),
            };
            same("a job's history", &seen, &expected)?;
        }
        Ok(())
    }

    /// At most one live job holds a key in its scope.
    fn keys(&self) -> Played {
        let mut held = Vec::new();
        for job in self.live() {
            let scope = (&job.tenant, &job.organization);
            for (sort, key) in [("dedup", &job.dedup_key), ("lock", &job.lock_key)] {
                let holds = (sort, key, scope);
                if key.is_some() && held.contains(&holds) {
                    return Err(format!("two live jobs hold {holds:?}"));
                }
                held.push(holds);
            }
        }
        Ok(())
    }

    /// The refusal of a write by a lease that does not hold its job, or nothing if it does.
    pub fn refusal(&self, held: &Held) -> Option<Refusal> {
        let job = &self.jobs[held.job];
        let Some(record) = &job.record else { return Some(Refusal::NotFound) };
        if job.holder == Some(held.serial) {
            return None;
        }
        Some(match record.status {
            Status::Running => {
                let (held_epoch, current_epoch) = (held.epoch, record.epoch);
                let owner = record.owner.clone();
                Refusal::Superseded { held_epoch, current_epoch, owner }
            }
            status => Refusal::NotRunning { status, epoch: record.epoch },
        })
    }

    pub fn advance(&mut self, ms: i64) {
        self.now += ms;
        self.stage.advance(ms);
    }
}
