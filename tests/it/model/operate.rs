//! The commands of operators, and a pass of the reaper.

use leasehold::{JobRecord, Operator, Preset, Redrive, Refusal, Status, Target, Waiting};

use super::play::answer;
use super::rules::{self, KEEP, KINDS};
use super::world::World;

fn op(name: &str) -> Operator {
    Operator::named(name)
}

/// A redrive as it is drawn.
#[derive(Clone, Copy, Debug)]
struct Again {
    preset: Preset,
    force: bool,
    finished: bool,
    expecting: Option<i64>,
}

impl Again {
    fn asked(self) -> Redrive {
        let mut how = Redrive::new(self.preset);
        if self.force {
            how = how.force();
        }
        if self.finished {
            how = how.allow_finished();
        }
        self.expecting.map_or(how, |epoch| how.expecting(epoch))
    }
}

/// How a job that has not ended is refused.
fn live(job: &JobRecord) -> Refusal {
    let owner = job.owner.clone().filter(|_| job.status == Status::Running);
    Refusal::Live { status: job.status, epoch: job.epoch, owner }
}

impl World {
    pub async fn cancel(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let (n, by) = (self.some_job(), self.rng.of(&["ann", "bob"]));
        self.log.push(format!("cancel j{n}"));
        let now = self.now;
        let expected = match &mut self.jobs[n].record {
            None => Err(Refusal::NotFound),
            Some(job) if !job.status.is_live() => {
                Err(Refusal::Terminal { status: job.status, epoch: job.epoch })
            }
            Some(job) => {
                rules::cancelled(job, by, now);
                Ok(job.status)
            }
        };
        let id = self.jobs[n].id.clone();
        self.same("the cancel", answer(self.bench.client.cancel(id, op(by)).await), expected);
    }

    fn redrive_refusal(&self, n: usize, how: Again) -> Option<Refusal> {
        let Some(job) = &self.jobs[n].record else { return Some(Refusal::NotFound) };
        let holder = |same: &dyn Fn(&JobRecord) -> bool| {
            let here = |other: &&JobRecord| {
                (&other.tenant, &other.organization) == (&job.tenant, &job.organization)
            };
            self.live().filter(here).find(|other| same(other)).map(|other| other.id.clone())
        };
        let same = |a: &Option<String>, b: &Option<String>| a.is_some() && a == b;
        if job.status.is_live() {
            return Some(live(job));
        }
        let epoch = job.epoch;
        if job.status == Status::Completed && !how.finished {
            return Some(Refusal::NotRedrivable { epoch });
        }
        if job.verdict == Some(leasehold::Verdict::Unrecoverable) && !how.force {
            return Some(Refusal::NeedsForce { verdict: job.verdict, epoch });
        }
        if let Some(by) = holder(&|other| same(&other.lock_key, &job.lock_key)) {
            return Some(Refusal::LockHeld { by });
        }
        if let Some(by) = holder(&|other| same(&other.dedup_key, &job.dedup_key)) {
            return Some(Refusal::DedupHeld { by });
        }
        let expected_epoch = how.expecting.filter(|expected| *expected != epoch)?;
        Some(Refusal::EpochMoved { expected_epoch, current_epoch: epoch })
    }

    pub async fn redrive(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let n = self.some_job();
        let how = Again {
            preset: self.rng.of(&[Preset::Requeue, Preset::Redrive, Preset::Restart]),
            force: self.rng.one_in(2),
            finished: self.rng.one_in(2),
            expecting: self.pick(4, &[0, 1, 2]),
        };
        self.log.push(format!("redrive j{n} {how:?}"));
        let expected = self.redrive_refusal(n, how).map_or(Ok(()), Err);
        let (now, job) = (self.now, &mut self.jobs[n]);
        if let (Ok(()), Some(record)) = (&expected, &mut job.record) {
            rules::redriven(record, how.preset, now);
            job.completions.clear();
            if how.preset == Preset::Restart {
                job.saved.clear();
            }
        }
        let id = job.id.clone();
        let seen = answer(self.bench.client.redrive(id, how.asked(), op("ann")).await);
        self.same("the redrive", seen, expected);
    }

    pub async fn delete(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        if self.rng.one_in(3) {
            return self.sweep().await;
        }
        // Often the newest.
        let n = if self.rng.one_in(2) { self.jobs.len() - 1 } else { self.some_job() };
        self.log.push(format!("delete j{n}"));
        let expected = match &self.jobs[n].record {
            None => Err(Refusal::NotFound),
            Some(job) if job.status.is_live() => Err(live(job)),
            Some(_) => Ok(()),
        };
        if expected.is_ok() {
            self.remove(n);
        }
        let id = self.jobs[n].id.clone();
        self.same("the delete", answer(self.bench.client.delete(id, op("ann")).await), expected);
    }

    fn remove(&mut self, n: usize) {
        self.jobs[n].record = None;
        self.jobs[n].saved.clear();
    }

    async fn sweep(&mut self) {
        let (before, limit) = (self.now - self.rng.between(-5, 60_000), self.rng.below(4));
        let mut ended: Vec<_> = self
            .kept()
            .filter_map(|(n, job)| Some((job.finished_at?, n)))
            .filter(|ended| ended.0 < before)
            .collect();
        ended.sort_unstable();
        ended.truncate(limit);
        self.log.push(format!("sweep before {before} at most {limit}: {ended:?}"));
        for (_, n) in &ended {
            self.remove(*n);
        }
        let seen = self.bench.client.sweep(before, limit, op("ann")).await.unwrap();
        self.same("the sweep", seen, ended.len() as u64);
    }

    pub async fn pause(&mut self) {
        let what = if self.rng.one_in(3) {
            (false, self.rng.of(&["default", "slow"]))
        } else {
            (true, KINDS[self.rng.below(KINDS.len())].name)
        };
        let name = what.1.to_owned();
        let target = if what.0 { Target::Kind(name) } else { Target::Queue(name) };
        self.log.push(format!("pause or resume {what:?}"));
        if self.paused.remove(&what) {
            self.bench.client.resume(target, op("ann")).await.unwrap();
        } else {
            self.paused.insert(what);
            self.bench.client.pause(target, op("ann")).await.unwrap();
        }
    }

    pub async fn reap(&mut self) {
        self.log.push("reap".into());
        let now = self.now;
        for job in &mut self.jobs {
            let Some(record) = job.record.as_mut().filter(|job| rules::is_lost(job, now)) else {
                continue;
            };
            rules::lost(record, job.committed_epoch == record.epoch, now);
            job.holder = None;
        }
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
                }
            }
        }
        let report = self.bench.client.reap_once().await.unwrap();
        self.same("errors of the pass", report.errors, 0);
    }

    pub async fn why_waiting(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let n = self.some_job();
        self.log.push(format!("why_waiting j{n}"));
        let expected = match &self.jobs[n].record {
            None => Err(Refusal::NotFound),
            Some(job) if job.status == Status::Running => Err(live(job)),
            Some(job) if job.status != Status::Pending => {
                Err(Refusal::Terminal { status: job.status, epoch: job.epoch })
            }
            Some(job) => Ok(self.reason(job)),
        };
        let id = self.jobs[n].id.clone();
        self.same(
            "why",
            answer(self.bench.client.why_waiting(id).await).map(|why| why.reason),
            expected,
        );
    }

    fn reason(&self, job: &JobRecord) -> Waiting {
        let kind = rules::kind(&job.kind);
        let rooms = self.rooms(job);
        let full =
            |rate: bool| rooms.iter().any(|(name, left)| (name == "rate") == rate && *left <= 0);
        if job.run_at > self.now {
            Waiting::Scheduled
        } else if !kind.registered {
            Waiting::NotRegistered
        } else if self.paused.contains(&(false, kind.queue)) {
            Waiting::QueuePaused
        } else if self.paused.contains(&(true, kind.name)) {
            Waiting::KindPaused
        } else if full(false) {
            Waiting::LimitFull
        } else if full(true) || self.gate_closed(job) {
            Waiting::RateLimited
        } else {
            Waiting::Next
        }
    }
}
