//! The commands of operators, and what they ask.

use leasehold::{
    Client, JobId, JobRecord, Operator, Preset, Redrive, Refusal, Status, Target, Waiting,
};

use super::app::Answer;
use super::compare::{No, Played, plain, same};
use super::produce::scope;
use super::rules::{self, KEY_LIMITS, KINDS, OTHERS};
use super::stage::now;
use super::world::{Limit, World};

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

/// How a job that has not ended is refused. Nobody holds one whose ending is owed.
fn live(job: &JobRecord) -> Refusal {
    let held = job.status == Status::Running && job.lease_until.is_some();
    let owner = job.owner.clone().filter(|_| held);
    Refusal::Live { status: job.status, epoch: job.epoch, owner }
}

impl World<'_> {
    /// A job, whether the client that asks may see it, and the client.
    fn asked_for(&mut self) -> Option<(usize, bool, Client)> {
        if self.jobs.is_empty() {
            return None;
        }
        let n = self.some_job();
        let client = self.stage.bench.client.clone();
        if !self.profile.tenants || !self.rng.one_in(3) {
            return Some((n, true, client));
        }
        let tenant = self.some_tenant();
        self.say(|| format!("in the scope {tenant:?}"));
        let sees = self.jobs[n]
            .record
            .as_ref()
            .is_none_or(|job| [job.tenant.as_deref(), job.organization.as_deref()] == tenant);
        Some((n, sees, client.scoped(scope(tenant))))
    }

    /// A job's id, and its record where whoever asks sees it.
    fn seen(&self, n: usize, sees: bool) -> (JobId, Option<&JobRecord>) {
        (self.jobs[n].id.clone(), self.jobs[n].record.as_ref().filter(|_| sees))
    }

    pub fn cancel(&mut self) -> Played {
        let Some((n, visible, client)) = self.asked_for() else { return Ok(()) };
        let by = self.rng.of(&["ann", "bob"]);
        let (id, record) = self.seen(n, visible);
        let expected = match record {
            None => Err(No::Refused(Refusal::NotFound)),
            Some(job) if !job.status.is_live() => {
                Err(No::Refused(Refusal::Terminal { status: job.status, epoch: job.epoch }))
            }
            Some(job) => {
                let mut after = job.clone();
                rules::cancelled(&mut after, by, self.now);
                let status = after.status;
                if status.is_live() {
                    self.jobs[n].record = Some(after);
                    Ok(status)
                } else {
                    self.jobs[n].aside = false;
                    self.end(n, after, None).map(|()| status)
                }
            }
        };
        self.say(|| format!("{by} cancels {id}: {expected:?}"));
        self.ask("the cancel", async move { client.cancel(id, op(by)).await }, expected)
    }

    /// Which of a job's keys another live job holds.
    fn held(&self, job: &JobRecord) -> Option<Refusal> {
        let holder = |same: &dyn Fn(&JobRecord) -> bool| {
            let here = |other: &&JobRecord| {
                (&other.tenant, &other.organization) == (&job.tenant, &job.organization)
            };
            self.live().filter(here).find(|other| same(other)).map(|other| other.id.clone())
        };
        let same = |a: &Option<String>, b: &Option<String>| a.is_some() && a == b;
        if let Some(by) = holder(&|other| same(&other.lock_key, &job.lock_key)) {
            return Some(Refusal::LockHeld { by });
        }
        let by = holder(&|other| same(&other.dedup_key, &job.dedup_key));
        by.map(|by| Refusal::DedupHeld { by })
    }

    fn redrive_refusal(&self, job: Option<&JobRecord>, how: Again) -> Option<Refusal> {
        let Some(job) = job else { return Some(Refusal::NotFound) };
        let epoch = job.epoch;
        if job.status.is_live() {
            return Some(live(job));
        }
        if job.status == Status::Completed && !how.finished {
            return Some(Refusal::NotRedrivable { epoch });
        }
        if job.verdict == Some(leasehold::Verdict::Unrecoverable) && !how.force {
            return Some(Refusal::NeedsForce { verdict: job.verdict, epoch });
        }
        let expected_epoch = how.expecting.filter(|expected| *expected != epoch);
        self.held(job).or_else(|| {
            Some(Refusal::EpochMoved { expected_epoch: expected_epoch?, current_epoch: epoch })
        })
    }

    pub fn redrive(&mut self) -> Played {
        let Some((n, visible, client)) = self.asked_for() else { return Ok(()) };
        let how = Again {
            preset: self.rng.of(&[Preset::Requeue, Preset::Redrive, Preset::Restart]),
            force: self.rng.one_in(2),
            finished: self.rng.one_in(2),
            expecting: self.pick(4, &[0, 1, 2]),
        };
        let (id, record) = self.seen(n, visible);
        let refusal = self.redrive_refusal(record, how);
        self.say(|| format!("redrive {id} {how:?}"));
        let expected = match refusal {
            Some(refusal) => Err(No::Refused(refusal)),
            None => self.redriven(n, how.preset),
        };
        let how = how.asked();
        self.ask("the redrive", async move { client.redrive(id, how, op("ann")).await }, expected)
    }

    fn redriven(&mut self, n: usize, preset: Preset) -> Result<(), No> {
        let job = &mut self.jobs[n];
        let Some(record) = &mut job.record else { return Ok(()) };
        if self.facts[job.kind].hooks {
            (self.touched, self.stage.written) = (true, true);
            if !matches!(self.mood.of(&job.id), Answer::Agrees | Answer::KeepsCancelled) {
                record.hook_failures += 1;
                return Err(No::Hook(record.hook_failures));
            }
            let row = self.app.entry(job.id.to_string()).or_default();
            "open".clone_into(&mut row.state);
        }
        rules::redriven(record, preset, self.now);
        if preset == Preset::Restart {
            job.saved.clear();
        }
        Ok(())
    }

    /// A new job like an ended one.
    pub fn run_again(&mut self) -> Played {
        let Some((n, visible, client)) = self.asked_for() else { return Ok(()) };
        let (id, record) = self.seen(n, visible);
        let refusal = match record {
            None => Some(Refusal::NotFound),
            Some(job) if job.status.is_live() => Some(live(job)),
            Some(job) => self.held(job),
        };
        self.say(|| format!("run {id} again: {refusal:?}"));
        self.arm();
        let seen = plain(now(client.run_again(&id, op("ann"))));
        let (Ok(new), None) = (&seen, &refusal) else {
            return same("the new run", &seen, &refusal.map_or(Ok(id), |no| Err(No::Refused(no))));
        };
        let old = self.jobs[n].record.clone().unwrap();
        let mut record = self.stage.blank.clone();
        record.id = new.clone();
        (record.kind, record.queue) = (old.kind, old.queue);
        (record.payload, record.priority) = (old.payload, old.priority);
        (record.created_at, record.updated_at, record.run_at) = (self.now, self.now, self.now);
        (record.dedup_key, record.lock_key) = (old.dedup_key, old.lock_key);
        (record.limit_key, record.max_attempts) = (old.limit_key, old.max_attempts);
        (record.tenant, record.organization) = (old.tenant, old.organization);
        (record.reason, record.copy_of) = (Some("redrive".into()), Some(id));
        self.known(self.jobs[n].kind, record);
        Ok(())
    }

    pub fn delete(&mut self) -> Played {
        let Some((n, visible, client)) = self.asked_for() else { return Ok(()) };
        let (id, record) = self.seen(n, visible);
        let expected = match record {
            None => Err(No::Refused(Refusal::NotFound)),
            Some(job) if job.status.is_live() => Err(No::Refused(live(job))),
            Some(job) => {
                let agrees = matches!(
                    self.mood.of(&job.id),
                    Answer::Agrees | Answer::KeepsCancelled | Answer::Misses
                );
                if agrees || !self.facts[self.jobs[n].kind].hooks {
                    self.remove(n);
                    Ok(())
                } else {
                    self.touch();
                    Err(No::Vetoed)
                }
            }
        };
        self.say(|| format!("delete {id}: {expected:?}"));
        self.ask("the delete", async move { client.delete(id, op("ann")).await }, expected)
    }

    pub fn remove(&mut self, n: usize) {
        self.jobs[n].record = None;
        self.jobs[n].saved.clear();
    }

    pub fn sweep(&mut self) -> Played {
        // Often just where a job has ended.
        let ends: Vec<i64> = self.kept().filter_map(|(_, job)| job.finished_at).collect();
        let before = if ends.is_empty() || self.rng.one_in(2) {
            self.now - self.rng.between(-5, 60_000)
        } else {
            self.rng.of(&ends) + self.rng.between(0, 1)
        };
        let limit = self.rng.below(4);
        let mut ended: Vec<_> = self
            .kept()
            .filter_map(|(n, job)| Some((job.finished_at?, n)))
            .filter(|ended| ended.0 < before)
            .collect();
        ended.sort_unstable();
        ended.truncate(limit);
        self.say(|| format!("sweep before {before} at most {limit}: {ended:?}"));
        for (_, n) in &ended {
            self.remove(*n);
        }
        let client = self.stage.bench.client.clone();
        let asked = async move { client.sweep(before, limit, op("ann")).await };
        self.ask("the sweep", asked, Ok(ended.len() as u64))
    }

    pub fn pause(&mut self) -> Played {
        let kind = self.facts[self.rng.of(&self.profile.kinds)];
        let what = if self.rng.one_in(2) { (false, kind.queue) } else { (true, kind.name) };
        let name = what.1.to_owned();
        let target = if what.0 { Target::Kind(name) } else { Target::Queue(name) };
        self.say(|| format!("pause or resume {what:?}"));
        let client = self.stage.bench.client.clone();
        if let Some(at) = self.paused.iter().position(|paused| *paused == what) {
            self.paused.remove(at);
            return self.ask("resume", async move { client.resume(target, op("a")).await }, Ok(()));
        }
        self.paused.push(what);
        self.ask("pause", async move { client.pause(target, op("a")).await }, Ok(()))
    }

    /// Another process registers a kind as something else, or as before.
    pub fn register(&mut self) {
        let kind = self.rng.of(&self.profile.kinds);
        let facts = if self.facts[kind] == KINDS[kind] { OTHERS[kind] } else { KINDS[kind] };
        self.say(|| format!("register {facts:?}"));
        self.facts[kind] = facts;
        self.lost = false;
        self.stage.register(kind, facts);
    }

    pub fn limit(&mut self) {
        let (key, running) = (self.rng.below(KEY_LIMITS.len()), self.rng.between(0, 3));
        self.say(|| format!("limit {} to {running}", KEY_LIMITS[key].0));
        self.limits[key] = running;
        self.lost = false;
        self.stage.limit(key, running);
    }

    pub fn why_waiting(&mut self) -> Played {
        let Some((n, visible, client)) = self.asked_for() else { return Ok(()) };
        let (id, record) = self.seen(n, visible);
        let expected = match record {
            None => Err(No::Refused(Refusal::NotFound)),
            Some(job) if job.status == Status::Running => Err(No::Refused(live(job))),
            Some(job) if job.status != Status::Pending => {
                Err(No::Refused(Refusal::Terminal { status: job.status, epoch: job.epoch }))
            }
            Some(job) => Ok(self.reason(n, job)),
        };
        self.say(|| format!("why does {id} wait? {expected:?}"));
        self.lost = false;
        let seen = plain(now(client.why_waiting(id))).map(|why| why.reason);
        same("why", &seen, &expected)
    }

    fn reason(&self, n: usize, job: &JobRecord) -> Waiting {
        let at = self.jobs[n].kind;
        let kind = &self.facts[at];
        let full = |rate: bool| {
            let mut limits = self.limits_of(n).into_iter();
            limits.any(|it| matches!(it, Limit::Rate(_)) == rate && self.room(it) <= 0)
        };
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
        } else if full(true) || self.gate_closed(at) {
            Waiting::RateLimited
        } else {
            Waiting::Next
        }
    }
}
