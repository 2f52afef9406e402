//! What schedules are played on, one after the other: a bench with the application's code.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt as _;
use leasehold::testing::{Bench, BenchSettings, Faults, Point};
use leasehold::{JobRecord, Json, NewJob, Settings};

use super::app;
use super::rules::{KEEP, KEY_LIMITS, KINDS, Kind, QUEUE_LIMIT, QUEUES};

pub const START: i64 = 1_000_000_000;

/// A direct bench answers at once.
pub fn now<T>(asked: impl Future<Output = T>) -> T {
    asked.now_or_never().expect("it has answered")
}

pub struct Stage {
    /// Whoever acts.
    pub bench: Bench,
    /// Another process on the same file, where there is one.
    other: Option<Bench>,
    /// What each kind is registered as, and the limits of keys.
    pub registered: [Kind; 8],
    pub limits: [i64; 2],
    pub kinds: [Arc<str>; 8],
    pub queues: [Arc<str>; 2],
    /// A job of which nothing is set.
    pub blank: JobRecord,
    /// The application's tables may have rows.
    pub written: bool,
}

fn settings(kind: &Kind) -> Settings {
    let orphan = if kind.parks { "park" } else { "requeue" };
    let rate = kind.rate.map(|rate| serde_json::json!({"starts": rate.0, "window": rate.1}));
    let facts = serde_json::json!({
        "queue": kind.queue, "lease": kind.lease, "max_attempts": kind.max_attempts,
        "max_stalls": kind.max_stalls, "orphan": orphan, "concurrency": kind.concurrency,
        "defer": {"max_hits": kind.max_hits}, "orphan_backoff": {"base": kind.orphan_base},
        "rate": rate, "provider": kind.provider,
    });
    Settings::from_json(&Json::of(&facts).unwrap()).unwrap()
}

/// A bench with the application's hooks.
fn bench(path: Option<&Path>, faults: Faults) -> Bench {
    let settings = BenchSettings {
        now: START,
        keep: KEEP.map(Some),
        hooks: vec![("hooked".into(), app::hooks())],
        direct: true,
        path: path.map(Into::into),
        faults,
        ..BenchSettings::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(Bench::start(settings)).unwrap()
}

fn register(bench: &Bench, kind: &Kind) {
    if kind.registered {
        now(bench.client.register(kind.name, settings(kind))).unwrap();
    }
}

impl Stage {
    pub fn new(path: Option<&Path>) -> Self {
        let bench = bench(path, Faults::default());
        for kind in &KINDS {
            register(&bench, kind);
        }
        let running = QUEUE_LIMIT.1.try_into().unwrap();
        now(bench.client.limit_queue(QUEUE_LIMIT.0, running)).unwrap();
        now(bench.client.transaction(app::make)).unwrap();
        let new = NewJob::raw("plain", Some(Json::of(&0).unwrap())).id("blank");
        now(bench.client.enqueue(new)).unwrap();
        let blank = now(bench.client.job("blank")).unwrap().unwrap();
        let mut stage = Self {
            bench,
            other: None,
            registered: KINDS,
            limits: [0, 0],
            kinds: KINDS.map(|kind| kind.name.into()),
            queues: QUEUES.map(Into::into),
            blank,
            written: false,
        };
        KEY_LIMITS.iter().enumerate().for_each(|(n, (_, limit))| stage.limit(n, *limit));
        stage
    }

    /// The same with two processes on a file.
    pub fn of_two(path: &Path) -> Self {
        let mut stage = Self::new(Some(path));
        stage.other = Some(bench(Some(path), stage.faults().clone()));
        stage
    }

    pub fn is_of_two(&self) -> bool {
        self.other.is_some()
    }

    /// The other process acts from here on.
    pub fn turn(&mut self) {
        if let Some(other) = &mut self.other {
            std::mem::swap(&mut self.bench, other);
        }
    }

    pub fn advance(&self, ms: i64) {
        self.bench.clock.advance(ms);
        self.other.iter().for_each(|other| other.clock.advance(ms));
    }

    pub fn faults(&self) -> &Faults {
        &self.bench.faults
    }

    /// Has the kind be another.
    pub fn register(&mut self, n: usize, kind: Kind) {
        if self.registered[n] != kind {
            register(&self.bench, &kind);
            self.registered[n] = kind;
        }
    }

    pub fn limit(&mut self, n: usize, running: i64) {
        if self.limits[n] != running {
            let limited = self.bench.client.limit_key(KEY_LIMITS[n].0, running.try_into().unwrap());
            now(limited).unwrap();
            self.limits[n] = running;
        }
    }

    /// As it was at first.
    pub fn clear(&mut self, seed: u64) {
        app::AGREES.set();
        self.faults().arm(Point::Commit, 0);
        self.faults().arm(Point::Message, 0);
        for (n, kind) in KINDS.iter().enumerate() {
            self.register(n, *kind);
        }
        for (n, (_, limit)) in KEY_LIMITS.iter().enumerate() {
            self.limit(n, *limit);
        }
        if std::mem::take(&mut self.written) {
            now(self.bench.client.transaction(app::clear)).unwrap();
        }
        // Last, so that nothing of the above takes from the seed.
        now(self.bench.clear(START, seed)).unwrap();
        if let Some(other) = &self.other {
            now(other.clear(START, !seed)).unwrap();
        }
    }
}
