//! Time that passes, and passes of the reaper.

use leasehold::{ReapReport, Status};

use super::app::Answer;
use super::compare::Played;
use super::rules::{self, KEEP};
use super::world::World;

impl World<'_> {
    /// What a pass must come to.
    fn pass(&mut self) -> ReapReport {
        let now = self.now;
        let longest = self.facts.iter().map(|kind| kind.lease).max().unwrap_or(0).max(30_000);
        let mut report = ReapReport::default();
        for n in 0..self.jobs.len() {
            let job = &self.jobs[n];
            let Some(record) = &job.record else { continue };
            let owed = rules::is_owed(record);
            if !owed && !rules::is_lost(record, longest, now) {
                continue;
            }
            report.scanned += 1;
            let mut after = record.clone();
            let epoch = record.epoch;
            let outcome = if owed {
                rules::finished(&mut after, now)
            } else {
                let committed = job.committed_epoch == epoch;
                rules::lost(&mut after, &self.facts[job.kind], committed, now)
            };
            let job = &mut self.jobs[n];
            (job.holder, job.aside) = (None, false);
            if after.status.is_live() {
                job.record = Some(after);
                job.history.push((epoch, outcome));
                report.requeued += 1;
            } else if self.end(n, after, Some(outcome)).is_err() {
                report.errors += 1;
            } else {
                let job = self.jobs[n].record.as_ref().unwrap();
                *match job.status {
                    Status::Cancelled => &mut report.cancelled,
                    _ if job.parked_at.is_some() => &mut report.parked,
                    _ => &mut report.failed,
                } += 1;
            }
        }
        self.kept.retain(|kept| kept.until > now);
        if self.retained_at.is_none_or(|at| !(at..at + 60_000).contains(&now)) {
            self.retained_at = Some(now);
            for n in 0..self.jobs.len() {
                let Some(job) = &self.jobs[n].record else { continue };
                let keep = match job.status {
                    Status::Completed => KEEP[0],
                    Status::Cancelled => KEEP[1],
                    _ => KEEP[2],
                };
                if job.finished_at.is_some_and(|at| at < now - keep) {
                    self.remove(n);
                    report.swept += 1;
                }
            }
        }
        report
    }

    pub fn reap(&mut self) -> Played {
        let expected = self.pass();
        self.say(|| format!("reap: {expected:?}"));
        let client = self.stage.bench.client.clone();
        self.ask("the pass", async move { client.reap_once().await }, Ok(expected))
    }

    /// Hooks that do not agree for longer than endings wait for them.
    pub fn stubborn(&mut self) -> Played {
        if self.profile.trouble {
            (self.mood.answer, self.mood.half) = (Answer::Fails, None);
            self.mood.set();
        }
        let owed = |world: &Self| world.kept().any(|(_, job)| rules::is_owed(job));
        if !owed(self) && !self.jobs.is_empty() {
            self.cancel()?;
        }
        let times = if owed(self) { 21 } else { 1 };
        (0..times).try_for_each(|_| self.reap())
    }

    pub fn tick(&mut self) -> Played {
        if !self.kept.is_empty() && self.rng.one_in(4) {
            return self.enqueue_kept();
        }
        let by = match self.rng.below(10) {
            0..2 => self.rng.between(1, 2_000),
            2..6 => self.some_moment() + self.rng.of(&[-1, 0, 0, 1]),
            6..8 => self.rng.between(1_000, 40_000),
            8 => -self.rng.between(1, 50_000),
            _ => self.rng.between(-200_000, 200_000),
        };
        self.advance(by);
        let now = self.now;
        self.say(|| format!("advance {by} to {now}"));
        match self.rng.below(3) {
            0 => self.reap(),
            1 => self.claim(),
            _ => Ok(()),
        }
    }

    /// How long until something changes by time alone: to the millisecond, and those beside.
    fn some_moment(&mut self) -> i64 {
        let mut moments: Vec<i64> = Vec::new();
        for (_, job) in self.kept() {
            let keep = if job.status == Status::Cancelled { KEEP[1] } else { KEEP[0] };
            moments.push(match job.status {
                Status::Pending => job.run_at,
                Status::Running => job.lease_until.unwrap_or(self.now),
                _ => job.finished_at.unwrap_or_default() + keep,
            });
        }
        let window = self.facts[rules::RATED].rate.map_or(0, |rate| rate.1);
        // A rate has room again with the oldest start alone.
        moments.extend([0; 4].iter().filter_map(|_| Some(self.starts.iter().min()? + window)));
        moments.extend(self.gate);
        moments.extend(self.kept.iter().map(|kept| kept.until));
        if moments.is_empty() { 0 } else { self.rng.of(&moments) - self.now }
    }
}
