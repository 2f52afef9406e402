//! What has happened, as one sees it who sees everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// How a handler ended its attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Done,
    /// It failed, or panicked, and may be tried again.
    Failed,
    /// It gave up, or said that it was cancelled: no more tries.
    Over,
    /// It handed back: a slice, a snooze, a deferral.
    HandedBack,
    /// It was dropped where it stood.
    Dropped,
}

/// A start of a handler.
#[derive(Clone, Debug)]
pub struct Start {
    pub at: u64,
    /// The process, by its number: one that starts again has another.
    pub process: usize,
    pub epoch: i64,
    pub end: Option<(u64, End)>,
}

/// A time in which a process could not do its duty.
#[derive(Clone, Debug)]
pub struct Trouble {
    pub process: usize,
    pub from: u64,
    pub to: u64,
}

/// What came to be known of one enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Acked,
    /// No answer, or one that says so.
    Unknown,
    /// The answer was that there is another like it.
    Refused,
}

#[derive(Debug, Default)]
pub struct History {
    /// Enqueues by the number of the job.
    pub asked: BTreeMap<u64, Asked>,
    pub starts: BTreeMap<String, Vec<Start>>,
    /// Effects of fenced writes that were acknowledged, and that were refused.
    pub acked: BTreeSet<(String, String)>,
    pub refused: BTreeSet<(String, String)>,
    pub troubles: Vec<Trouble>,
    /// When jobs were redriven: between the call and its answer, if one came.
    pub redrives: BTreeMap<String, Vec<(u64, u64)>>,
    /// When jobs were cancelled: the answers, and whether the job was running.
    pub cancels: BTreeMap<String, Vec<(u64, bool)>>,
    /// Completions that were heard of after their commit.
    pub settled: BTreeMap<String, Vec<i64>>,
    pub trace: Option<String>,
    pub hash: u64,
}

impl History {
    /// Redrives of a job that have landed, or may have.
    pub fn redriven(&self, id: &str) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.redrives.get(id).into_iter().flatten().copied().filter(|(from, to)| from <= to)
    }

    /// Notes a line of the trace.
    pub fn note(&mut self, at: u64, line: std::fmt::Arguments<'_>) {
        let before = self.hash;
        if let Some(trace) = &mut self.trace {
            let _ok = writeln!(trace, "{at:>8} {line}");
        }
        let text = format!("{at} {line}");
        self.hash = text.bytes().fold(before ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    }
}

/// What schedules have come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub schedules: u64,
    pub jobs: u64,
    pub crashes: u64,
    pub virtual_ms: u64,
    pub acked: u64,
    pub starts: u64,
    pub repeats: u64,
    pub rescues: u64,
    pub lost: u64,
    pub double_settled: u64,
    pub stale_accepted: u64,
    pub unexplained_repeats: u64,
    pub stuck: u64,
    /// What tells these schedules from others: the same seeds have the same number.
    pub trace: u64,
}

impl Figures {
    pub fn add(&mut self, other: &Self) {
        self.schedules += other.schedules;
        self.jobs += other.jobs;
        self.crashes += other.crashes;
        self.virtual_ms += other.virtual_ms;
        self.acked += other.acked;
        self.starts += other.starts;
        self.repeats += other.repeats;
        self.rescues += other.rescues;
        self.lost += other.lost;
        self.double_settled += other.double_settled;
        self.stale_accepted += other.stale_accepted;
        self.unexplained_repeats += other.unexplained_repeats;
        self.stuck += other.stuck;
        self.trace ^= other.trace;
    }

    /// Whether every promise was kept.
    pub fn is_clean(&self) -> bool {
        self.lost
            + self.double_settled
            + self.stale_accepted
            + self.unexplained_repeats
            + self.stuck
            == 0
    }
}
