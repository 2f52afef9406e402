//! What the test knows of every job, and the comparison with what the store says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::testing::{Bench, BenchSettings};
use leasehold::{Counts, JobId, JobRecord, Json, Lease, Phase, Settings, Status};

use super::rules::{self, ANY, End, KEEP, KEY_LIMITS, KINDS, QUEUE_LIMIT};

/// splitmix64: every seed is a stream of its own.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below(usize::try_from(high - low + 1).unwrap()) as i64
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

/// A job, as it must be.
pub struct Known {
    pub id: JobId,
    /// Nothing once it is deleted.
    pub record: Option<JobRecord>,
    /// Saved values by key, each with the epoch of its attempt.
    pub saved: BTreeMap<String, (String, i64)>,
    pub committed_epoch: i64,
    /// The serial number of the lease that holds it.
    pub holder: Option<usize>,
    /// The epochs whose completion was accepted since the job was last made live.
    pub completions: BTreeSet<i64>,
}

/// A lease as it was claimed, current or not.
pub struct Held {
    pub serial: usize,
    pub job: usize,
    pub epoch: i64,
    pub lease: Lease,
}

pub struct World {
    pub seed: u64,
    pub bench: Bench,
    pub rng: Rng,
    pub now: i64,
    pub jobs: Vec<Known>,
    pub leases: Vec<Held>,
    pub serial: usize,
    pub paused: BTreeSet<(bool, &'static str)>,
    pub starts: Vec<i64>,
    pub gate: Option<i64>,
    pub retained_at: Option<i64>,
    pub log: Vec<String>,
}

const START: i64 = 1_000_000_000;

impl World {
    pub async fn start(seed: u64, path: Option<&std::path::Path>) -> Self {
        let settings = BenchSettings {
            now: START,
            keep: KEEP.map(Some),
            direct: path.is_none(),
            path: path.map(Into::into),
            ..BenchSettings::default()
        };
        let bench = Bench::start(settings).await.unwrap();
        for kind in KINDS.iter().filter(|kind| kind.registered) {
            let orphan = if kind.parks { "park" } else { "requeue" };
            let rate =
                kind.rate.map(|rate| serde_json::json!({"starts": rate.0, "window": rate.1}));
            let facts = serde_json::json!({
                "queue": kind.queue, "lease": kind.lease, "max_attempts": kind.max_attempts,
                "max_stalls": kind.max_stalls, "orphan": orphan, "concurrency": kind.concurrency,
                "defer": {"max_hits": kind.max_hits}, "orphan_backoff": {"base": kind.orphan_base},
                "rate": rate, "provider": kind.provider,
            });
            let settings = Settings::from_json(&Json::of(&facts).unwrap()).unwrap();
            bench.client.register(kind.name, settings).await.unwrap();
        }
        bench.client.limit_queue(QUEUE_LIMIT.0, QUEUE_LIMIT.1.try_into().unwrap()).await.unwrap();
        for (key, limit) in KEY_LIMITS {
            bench.client.limit_key(key, limit.try_into().unwrap()).await.unwrap();
        }
        Self {
            seed,
            bench,
            rng: Rng(seed),
            now: START,
            jobs: Vec::new(),
            leases: Vec::new(),
            serial: 0,
            paused: BTreeSet::new(),
            starts: Vec::new(),
            gate: None,
            retained_at: None,
            log: Vec::new(),
        }
    }

    pub fn fail(&self, text: impl std::fmt::Display) -> ! {
        let seed = self.seed;
        let last = self.log.len().saturating_sub(25);
        panic!(
            "{text}\n  at step {} of SEED={seed}; replay: LEASEHOLD_SEED={seed} \
             cargo test --test it model_every\n  {}",
            self.log.len(),
            self.log[last..].join("\n  ")
        )
    }

    #[track_caller]
    pub fn same<T: std::fmt::Debug>(&self, what: &str, seen: T, expected: T) {
        let (seen, expected) = (format!("{seen:?}"), format!("{expected:?}"));
        if seen != expected {
            self.fail(format!("{what}: expected\n    {expected}\n  and saw\n    {seen}"));
        }
    }

    pub fn summary(&self) -> String {
        format!("{} jobs, {} leases\n{}", self.jobs.len(), self.serial, self.log.join("\n"))
    }

    pub fn live(&self) -> impl Iterator<Item = &JobRecord> {
        self.jobs.iter().filter_map(|job| job.record.as_ref()).filter(|job| job.status.is_live())
    }

    /// Jobs by their place in the history, with their records.
    pub fn kept(&self) -> impl Iterator<Item = (usize, &JobRecord)> {
        self.jobs.iter().enumerate().filter_map(|(n, job)| Some((n, job.record.as_ref()?)))
    }

    fn running(&self, which: impl Fn(&JobRecord) -> bool) -> i64 {
        self.live().filter(|job| job.status == Status::Running && which(job)).count() as i64
    }

    /// Room in all limits that a job counts against, by the name of each.
    pub fn rooms(&self, job: &JobRecord) -> Vec<(String, i64)> {
        let kind = rules::kind(&job.kind);
        let mut rooms = Vec::new();
        if let Some(limit) = kind.concurrency {
            let running = self.running(|other| other.kind == job.kind);
            rooms.push((format!("kind {}", kind.name), limit - running));
        }
        if kind.queue == QUEUE_LIMIT.0 {
            let running = self.running(|other| &*other.queue == QUEUE_LIMIT.0);
            rooms.push(("queue".into(), QUEUE_LIMIT.1 - running));
        }
        if let Some((key, limit)) =
            KEY_LIMITS.iter().find(|it| Some(it.0) == job.limit_key.as_deref())
        {
            let running = self.running(|other| other.limit_key == job.limit_key);
            rooms.push((format!("key {key}"), limit - running));
        }
        if let Some((starts, window)) = kind.rate {
            let near = self.now - window + 1..=self.now + window;
            let counted = self.starts.iter().filter(|at| near.contains(at)).count() as i64;
            rooms.push(("rate".into(), starts - counted));
        }
        rooms
    }

    pub fn gate_closed(&self, job: &JobRecord) -> bool {
        rules::kind(&job.kind).provider.is_some() && self.gate.is_some_and(|until| until > self.now)
    }

    /// The jobs that a claim must answer, in its order.
    pub fn best(&self, kinds: &[&str], limit: usize) -> Vec<usize> {
        let mut due: Vec<_> = self
            .kept()
            .filter(|(_, job)| job.status == Status::Pending && job.run_at <= self.now)
            .filter(|(_, job)| kinds.contains(&&*job.kind) && rules::kind(&job.kind).registered)
            .filter(|(_, job)| !self.paused.contains(&(true, rules::kind(&job.kind).name)))
            .filter(|(_, job)| !self.paused.contains(&(false, rules::kind(&job.kind).queue)))
            .filter(|(_, job)| !self.gate_closed(job))
            .collect();
        due.sort_by_key(|(_, job)| rules::place(job));
        let mut taken: BTreeMap<String, i64> = BTreeMap::new();
        let mut best = Vec::new();
        for (n, job) in due {
            let rooms = self.rooms(job);
            let full = |(name, room): &(String, i64)| taken.get(name).unwrap_or(&0) >= room;
            if best.len() < limit && !rooms.iter().any(full) {
                for (name, _) in rooms {
                    *taken.entry(name).or_default() += 1;
                }
                best.push(n);
            }
        }
        best
    }

    /// Compares the whole store with what must be in it.
    pub async fn check(&mut self) {
        let client = self.bench.client.clone();
        // What is gone is looked for now and then, and a last time at the end.
        let all = self.log.len().is_multiple_of(20);
        let looked: Vec<_> =
            (0..self.jobs.len()).filter(|n| all || self.jobs[*n].record.is_some()).collect();
        let records = join_all(looked.iter().map(|n| client.job(&self.jobs[*n].id))).await;
        let mut counts = Counts::default();
        for (n, seen) in looked.into_iter().zip(records) {
            let seen = seen.unwrap();
            let (Some(seen), Some(expected)) = (&seen, &mut self.jobs[n].record) else {
                let (seen, expected) = (seen.is_some(), self.jobs[n].record.is_some());
                self.same(&format!("whether j{n} exists"), seen, expected);
                continue;
            };
            if expected.last_error.as_deref() == Some(ANY) && seen.last_error.is_some() {
                expected.last_error.clone_from(&seen.last_error);
            }
            expected.phase = rules::phase(expected, self.now);
            if seen != expected {
                let expected = expected.clone();
                self.same(&format!("job j{n}"), seen, &expected);
                self.fail(format!("j{n} differs: {seen:?}"));
            }
            if seen.attempts > seen.max_attempts || seen.epoch < seen.attempts {
                self.fail(format!("attempts of j{n}: {seen:?}"));
            }
            count(&mut counts, seen);
        }
        self.same("the counts", client.counts().await.unwrap(), counts);
        self.keys();
    }

    /// At most one live job holds a key in its scope.
    fn keys(&self) {
        let mut held = BTreeSet::new();
        for job in self.live() {
            let scope = (&job.tenant, &job.organization);
            for (sort, key) in [("dedup", &job.dedup_key), ("lock", &job.lock_key)] {
                if key.is_some() && !held.insert((sort, key, scope)) {
                    self.fail(format!("two live jobs hold {sort} key {key:?} in {scope:?}"));
                }
            }
        }
    }

    /// The refusal of a write by a lease that does not hold its job, or nothing if it does.
    pub fn refusal(&self, held: &Held) -> Option<leasehold::Refusal> {
        use leasehold::Refusal;
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

    /// Notes the end of an attempt by its holder.
    pub fn settle(&mut self, n: usize, how: &End) {
        let (now, job) = (self.now, &mut self.jobs[n]);
        let Some(record) = &mut job.record else { return };
        let committed = job.committed_epoch == record.epoch;
        rules::settled(record, how, committed, now);
        job.holder = None;
        let provider = rules::kind(&record.kind).provider.is_some();
        if let End::Complete(result) = how {
            record.result = result.clone().map(|text| Json::parse(text).unwrap());
            job.saved.clear();
            let (epoch, completions) = (record.epoch, job.completions.len());
            job.completions.insert(epoch);
            if provider {
                self.gate = None;
            }
            self.same("completions accepted before", completions, 0);
        } else if provider
            && record.status == Status::Pending
            && record.rate_limited_at == Some(now)
            && matches!(how, End::Fail(leasehold::ErrorClass::RateLimited, _))
        {
            self.gate = Some(self.gate.unwrap_or(i64::MIN).max(record.run_at));
        }
    }

    pub fn advance(&mut self, ms: i64) {
        self.now += ms;
        self.bench.clock.advance(ms);
    }
}

fn count(counts: &mut Counts, job: &JobRecord) {
    *match job.phase {
        Phase::Scheduled => &mut counts.scheduled,
        Phase::Retrying => &mut counts.retrying,
        Phase::Ready => &mut counts.ready,
        Phase::Leased => &mut counts.leased,
        Phase::Orphaned => &mut counts.orphaned,
        Phase::Completed => &mut counts.completed,
        Phase::Cancelled => &mut counts.cancelled,
        Phase::Dead => &mut counts.dead,
        Phase::Parked => &mut counts.parked,
    } += 1;
    if job.status == Status::Pending {
        *counts.kinds.entry(job.kind.to_string()).or_default() += 1;
    }
}

pub fn ms(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap())
}
