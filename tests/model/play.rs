//! Steps: a command is drawn, played, and noted in the test's own history; claims first of all.

use leasehold::{Lease, Status};

use super::app::{self, Answer};
use super::compare::{No, Played, plain, same};
use super::profile::Command;
use super::rng::Rng;
use super::rules;
use super::stage::now;
use super::world::{Held, Limit, World};

const OWNERS: [&str; 2] = ["ann", "bob"];

impl World<'_> {
    /// Plays one command that all follows from a seed of its own, then looks at everything.
    pub fn step(&mut self, seed: u64) -> Played {
        self.steps += 1;
        self.touched = false;
        self.rng = Rng::new(seed);
        let command = self.rng.of(&self.profile.commands);
        if self.rng.one_in(2) {
            self.stage.turn();
        }
        self.mood = app::AGREES;
        self.lost = false;
        if self.profile.trouble {
            if self.rng.one_in(3) {
                self.draw_mood();
            }
            self.lost = self.rng.one_in(10);
        }
        self.mood.set();
        let played = self.play(self.possible(command));
        self.lost = false;
        played?;
        self.check()
    }

    /// A command that has something to be about: a job, or a lease.
    fn possible(&self, command: Command) -> Command {
        use Command::{Again, Cancel, Claim, ClaimById, Delete, Enqueue, Reap, Redrive, Renew};
        use Command::{RunAgain, Save, Settle, Stubborn, Sweep, WhyWaiting};
        let jobs = self.kept().next().is_some();
        match command {
            Again | Save | Settle | Renew if self.leases.is_empty() && jobs => Claim,
            Cancel | Claim | ClaimById | Delete | Reap | Redrive | RunAgain | Sweep | Stubborn
            | WhyWaiting | Again | Save | Settle | Renew
                if !jobs =>
            {
                Enqueue
            }
            possible => possible,
        }
    }

    fn draw_mood(&mut self) {
        use Answer::{Fails, KeepsCancelled, Misses, Panics, Violates};
        self.mood.answer = self.rng.of(&[Fails, KeepsCancelled, Misses, Panics, Violates]);
        self.mood.half = self.rng.of(&[None, None, Some(true), Some(false)]);
    }

    fn play(&mut self, command: Command) -> Played {
        match command {
            Command::Enqueue => self.enqueue(),
            Command::EnqueueMany => self.enqueue_many(),
            Command::Claim => self.claim(),
            Command::ClaimById => self.claim_by_id(),
            Command::Renew => self.renew(),
            Command::Settle => self.settle(),
            Command::Save => self.save(),
            Command::Again => self.again(),
            Command::Cancel => self.cancel(),
            Command::Redrive => self.redrive(),
            Command::RunAgain => self.run_again(),
            Command::Delete => self.delete(),
            Command::Sweep => self.sweep(),
            Command::Pause => self.pause(),
            Command::Reap => self.reap(),
            Command::Stubborn => self.stubborn(),
            Command::WhyWaiting => self.why_waiting(),
            Command::Tick => self.tick(),
            Command::Register => {
                self.register();
                Ok(())
            }
            Command::Limit => {
                self.limit();
                Ok(())
            }
            Command::Batch => self.batch(),
            Command::Crash => {
                let owner = self.rng.of(&OWNERS);
                self.say(|| format!("{owner} crashes"));
                self.leases.retain(|held| held.owner != owner);
                Ok(())
            }
        }
    }

    fn batch(&mut self) -> Played {
        let (times, fails) = (2 + self.rng.below(3), self.rng.one_in(3));
        self.say(|| format!("{times} in one transaction, which fails at first: {fails}"));
        self.together(times, fails, |world| match world.rng.below(10) {
            0..3 => world.settle(),
            3..6 => world.save(),
            6 => world.again(),
            7 => world.cancel(),
            8 => world.redrive(),
            _ => world.enqueue_many(),
        })
    }

    pub fn some_job(&mut self) -> usize {
        // The last ones have the most before them.
        let n = self.jobs.len();
        let back = if self.rng.one_in(3) { n } else { n.min(8) };
        n - 1 - self.rng.below(back)
    }

    pub fn took(&mut self, n: usize, lease: Option<Lease>, owner: &'static str) -> Played {
        let (now, serial) = (self.now, self.serial);
        let job = &mut self.jobs[n];
        let facts = &self.facts[job.kind];
        let Some(record) = &mut job.record else { return Ok(()) };
        rules::claimed(record, facts, owner, now);
        job.holder = Some(serial);
        let (epoch, payload) = (record.epoch, record.payload.clone());
        if let Some((_, window)) = facts.rate {
            self.starts.retain(|at| *at > now - window);
            self.starts.push(now);
        }
        self.serial += 1;
        if let Some(lease) = lease {
            same("the lease", &(lease.epoch(), lease.payload()), &(epoch, payload.as_ref()))?;
            let (lease, number, last) = (lease.into(), 0, None);
            self.leases.push(Held { serial, job: n, epoch, owner, lease, number, last });
        }
        if self.leases.len() > 16 {
            let drop = self.rng.below(8);
            self.leases.remove(drop);
        }
        Ok(())
    }

    /// What a claim meets, in its order: the jobs that it takes.
    fn best(&mut self, kinds: &[&str], limit: usize, mut suspects: usize) -> Vec<usize> {
        let mut due: Vec<usize> = (0..self.jobs.len()).filter(|n| self.is_due(*n, kinds)).collect();
        let record = |world: &Self, n: usize| world.jobs[n].record.clone().unwrap();
        due.sort_by(|a, b| {
            let of = |n: usize| self.jobs[n].record.as_ref().unwrap();
            rules::order(of(*a), of(*b))
        });
        let (mut best, mut taken) = (Vec::new(), Vec::new());
        for n in due {
            let limits = self.limits_of(n);
            let full = |limit: &&Limit| {
                let taken = taken.iter().filter(|other| other == limit).count();
                self.room(**limit) <= taken as i64
            };
            let job = record(self, n);
            if best.len() == limit || limits.iter().any(|limit| full(&limit)) {
                continue;
            }
            if job.stalls > 0 && suspects == 0 {
                continue;
            }
            if rules::is_owed(&job) {
                self.finish_owed(n);
                continue;
            }
            suspects -= usize::from(job.stalls > 0);
            taken.extend(limits);
            best.push(n);
        }
        best
    }

    fn is_due(&self, n: usize, kinds: &[&str]) -> bool {
        let job = &self.jobs[n];
        let facts = &self.facts[job.kind];
        let Some(record) = &job.record else { return false };
        record.status == Status::Pending
            && record.run_at <= self.now
            && !job.aside
            && kinds.contains(&facts.name)
            && facts.registered
            && !self.paused.contains(&(true, facts.name))
            && !self.paused.contains(&(false, facts.queue))
            && !self.gate_closed(job.kind)
    }

    /// A claim has met a job that is owed its ending.
    fn finish_owed(&mut self, n: usize) {
        let mut intended = self.jobs[n].record.clone().unwrap();
        let outcome = rules::finished(&mut intended, self.now);
        self.jobs[n].aside = self.end(n, intended, Some(outcome)).is_err();
    }

    pub fn claim(&mut self) -> Played {
        let mut kinds: Vec<_> =
            self.profile.kinds.iter().map(|kind| self.facts[*kind].name).collect();
        if self.rng.one_in(6) {
            kinds = (0..self.rng.below(4)).map(|_| self.rng.of(&kinds)).collect();
        }
        let limit = if self.rng.one_in(12) { 0 } else { 1 + self.rng.below(4) };
        let owner = self.rng.of(&OWNERS);
        let suspects = self.rng.of(&[0, 1, 1, 1, usize::MAX, usize::MAX]);
        let expected = if kinds.is_empty() || limit == 0 {
            Vec::new()
        } else {
            self.best(&kinds, limit, suspects)
        };
        self.say(|| {
            format!("{owner} claims {kinds:?} limit {limit} suspects {suspects}: {expected:?}")
        });
        let lost = self.lost;
        self.arm();
        let seen = now(self.stage.bench.claim(&kinds, owner, limit, suspects));
        if lost {
            same("the claim", &plain(seen).map(|_| ()), &Err(No::Unknown))?;
            return expected.into_iter().try_for_each(|n| self.took(n, None, owner));
        }
        let leases = seen.map_err(|error| error.to_string())?;
        let ids = |n: &usize| self.jobs[*n].id.clone();
        let seen: Vec<_> = leases.iter().map(|lease| lease.job().clone()).collect();
        same("the claim", &seen, &expected.iter().map(ids).collect())?;
        expected.into_iter().zip(leases).try_for_each(|(n, lease)| self.took(n, Some(lease), owner))
    }

    fn claim_by_id(&mut self) -> Played {
        if self.jobs.is_empty() {
            return Ok(());
        }
        let (n, owner) = (self.some_job(), self.rng.of(&OWNERS));
        let job = &self.jobs[n];
        let pending = job.record.as_ref().is_some_and(|job| job.status == Status::Pending);
        let mut can = pending
            && self.facts[job.kind].registered
            && !self.gate_closed(job.kind)
            && self.has_room(n);
        if can && rules::is_owed(self.jobs[n].record.as_ref().unwrap()) {
            self.finish_owed(n);
            can = false;
        }
        self.say(|| format!("{owner} claims j{n} by its id: {can}"));
        let id = self.jobs[n].id.clone();
        let lost = self.lost;
        self.arm();
        let seen = plain(now(self.stage.bench.client.claim_by_id(&id, owner)));
        if lost {
            same("the claim", &seen.map(|_| ()), &Err(No::Unknown))?;
            return if can { self.took(n, None, owner) } else { Ok(()) };
        }
        let lease = seen.map_err(|error| format!("{error:?}"))?;
        same("whether it was claimed", &lease.is_some(), &can)?;
        lease.map_or(Ok(()), |lease| self.took(n, Some(lease), owner))
    }
}
