//! The figures, and what is wrong.

use std::time::Duration;

use serde::Serialize;

/// What a run came to.
#[derive(Default, Serialize)]
pub struct Figures {
    pub processes: u32,
    pub kills: u32,
    /// Rows in the file.
    pub jobs: u64,
    /// Enqueues that have answered.
    pub acked: u64,
    /// Jobs of which something that was acknowledged is not in the file: the job itself, its end,
    /// an attempt's end, a fenced write.
    pub lost: u64,
    /// Jobs that ended more often than once, or with a piece of work that is there twice.
    pub double_settled: u64,
    /// Writes that were accepted of attempts that did not hold their job any more.
    pub stale_accepted: u64,
    /// Writes of such attempts, by hand, that were refused.
    pub stale_refused: u64,
    /// Starts that were heard of.
    pub starts: u64,
    /// Attempts whose process was killed before it could say that they start.
    pub unsaid: u64,
    /// Attempts beyond the first of each job, slices and redrives apart.
    pub repeats: u64,
    /// Those that follow the loss of a holder, by the rows.
    pub rescues: u64,
    /// Those that follow a failed attempt, by the rows.
    pub retries: u64,
    /// Those that follow an attempt that handed back.
    pub yields: u64,
    /// Those that an operator asked for.
    pub redriven: u64,
    /// Attempts that neither the rows nor the kills explain.
    pub unexplained_repeats: u64,
    pub rescue_p50_ms: u128,
    pub rescue_p99_ms: u128,
    pub rescue_max_ms: u128,
    /// How many rescues were timed: those from processes that were killed.
    pub timed: usize,
    /// Jobs that are live when nothing moves any more.
    pub stuck: i64,
    pub seconds: f64,
    pub seed: u64,
}

impl Figures {
    /// The times of rescues, from the kill to the first that was heard of it.
    pub fn time(&mut self, mut rescues: Vec<Duration>) {
        rescues.sort_unstable();
        let at = |percent: usize| {
            let rank = (rescues.len() * percent).div_ceil(100).max(1) - 1;
            rescues.get(rank).map_or(0, Duration::as_millis)
        };
        (self.rescue_p50_ms, self.rescue_p99_ms) = (at(50), at(99));
        (self.rescue_max_ms, self.timed) = (at(100), rescues.len());
    }

    /// Prints them, one a line.
    pub fn print(&self) {
        if let Ok(serde_json::Value::Object(figures)) = serde_json::to_value(self) {
            // In the order of their declaration.
            let text = serde_json::to_string(self).unwrap_or_default();
            let mut names: Vec<_> = figures.keys().collect();
            names.sort_by_key(|name| text.find(&format!("\"{name}\":")));
            for name in names {
                println!("{name:<20} {:>12}", figures[name].to_string());
            }
        }
    }
}
