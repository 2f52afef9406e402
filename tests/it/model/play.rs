//! The commands of producers and holders: each is drawn, played, and noted in the test's own
//! history.

use leasehold::{
    By, Enqueued, Error, ErrorClass, Failed, JobId, JobRecord, Json, NewJob, Refusal, Status, Was,
};

use super::rules::{self, ERROR, End, KINDS};
use super::world::{Held, Known, World, ms};

/// The answer or the refusal; trouble has no place here.
pub fn answer<T>(answer: leasehold::Result<T>) -> Result<T, Refusal> {
    match answer {
        Ok(value) => Ok(value),
        Err(Error::Refused(refusal)) => Err(refusal),
        Err(other) => panic!("the store is in trouble: {other}"),
    }
}

impl World {
    /// Plays one command, then looks at everything.
    pub async fn step(&mut self) {
        match self.rng.below(100) {
            0..21 => self.enqueue().await,
            21..36 => self.claim().await,
            36..42 => self.claim_by_id().await,
            42..47 => self.renew().await,
            47..64 => self.settle_some().await,
            64..70 => self.save().await,
            70..75 => self.cancel().await,
            75..80 => self.redrive().await,
            80..85 => self.delete().await,
            85..87 => self.pause().await,
            87..90 => self.reap().await,
            90..92 => self.why_waiting().await,
            _ => self.tick().await,
        }
        self.check().await;
    }

    async fn tick(&mut self) {
        let moments: Vec<i64> =
            self.live().map(|job| job.lease_until.unwrap_or(job.run_at) - self.now).collect();
        let by = match self.rng.below(10) {
            0..3 => self.rng.between(1, 2_000),
            // To the end of a lease, or when a job is due, and the milliseconds beside.
            3..6 if !moments.is_empty() => self.rng.of(&moments) + self.rng.between(-1, 1),
            3..8 => self.rng.between(1_000, 40_000),
            8 => -self.rng.between(1, 50_000),
            _ => self.rng.between(-200_000, 200_000),
        };
        self.log.push(format!("advance {by} to {}", self.now + by));
        self.advance(by);
        if self.rng.one_in(3) {
            self.reap().await;
        }
    }

    pub fn some_job(&mut self) -> usize {
        // The last ones have the most before them.
        let n = self.jobs.len();
        let back = if self.rng.one_in(3) { n } else { n.min(12) };
        n - 1 - self.rng.below(back)
    }

    pub fn pick<T: Clone>(&mut self, one_in: usize, of: &[T]) -> Option<T> {
        self.rng.one_in(one_in).then(|| self.rng.of(of))
    }

    async fn enqueue(&mut self) {
        let kind = &KINDS[self.rng.below(KINDS.len())];
        let mut job = NewJob::raw(kind.name, Some(Json::of(&self.jobs.len()).unwrap()));
        let known: Vec<JobId> = self.jobs.iter().map(|job| job.id.clone()).collect();
        let id = match self.rng.below(10) {
            0 if !known.is_empty() => Some(self.rng.of(&known)),
            1..6 => Some(JobId::new(&format!("j{}", known.len()))),
            _ => None,
        };
        let priority = self.rng.of(&[-1000, -1, 0, 0, 0, 1, 2, 1000]);
        let run_at = self.rng.one_in(2).then(|| self.now + self.rng.between(-60_000, 60_000));
        let max = self.pick(4, &[1, 2, 3]);
        let keys = ["k", "l", "m"];
        let (idem, dedup) = (self.pick(10, &keys), self.pick(6, &keys));
        let (lock, limit) = (self.pick(6, &keys), self.pick(3, &["one", "one", "two", "free"]));
        let (tenant, organization) = (self.pick(4, &["t"]), self.pick(6, &["o"]));
        self.log.push(format!(
            "enqueue {} {id:?} priority {priority} run_at {run_at:?} max {max:?} keys {idem:?} \
             {dedup:?} {lock:?} {limit:?} in {tenant:?} {organization:?}",
            kind.name
        ));
        job = job.priority(priority);
        job = id.iter().fold(job, NewJob::id);
        job = run_at.iter().fold(job, |job, at| job.run_at(*at));
        job = max.iter().fold(job, |job, max| job.max_attempts(*max));
        job = idem.iter().fold(job, |job, key| job.idempotency_key(*key));
        job = dedup.iter().fold(job, |job, key| job.dedup_key(*key));
        job = lock.iter().fold(job, |job, key| job.lock_key(*key));
        job = limit.iter().fold(job, |job, key| job.limit_key(*key));
        job = tenant.iter().fold(job, |job, key| job.tenant(*key));
        job = organization.iter().fold(job, |job, key| job.organization(*key));
        let expected = self.enqueued(id.as_ref(), [idem, dedup, lock], [tenant, organization]);
        let seen = answer(self.bench.client.enqueue(job).await);
        match (seen, expected) {
            (Ok(Enqueued { id: new, was: Was::New }), Ok((_, Was::New))) => {
                self.same("the id", Some(&new), Some(id.as_ref().unwrap_or(&new)));
                let run_at = run_at.unwrap_or(self.now);
                let max = max.unwrap_or(if kind.registered { kind.max_attempts } else { 5 });
                let queue = kind.queue;
                self.born(new, (run_at, priority, max), queue).await;
            }
            (seen, expected) => {
                let seen = seen.map(|seen| (seen.id, seen.was));
                self.same("the enqueue", seen, expected);
            }
        }
    }

    /// What an enqueue must answer, asked of each key in its turn.
    fn enqueued(
        &self,
        id: Option<&JobId>,
        [idem, dedup, lock]: [Option<&str>; 3],
        [tenant, organization]: [Option<&str>; 2],
    ) -> Result<(JobId, Was), Refusal> {
        let here = |other: &&JobRecord| {
            other.tenant.as_deref() == tenant && other.organization.as_deref() == organization
        };
        let all = || self.kept().map(|kept| kept.1);
        let by = |job: &JobRecord, by| Ok((job.id.clone(), Was::Existing { by }));
        let has = |key: &Option<String>, wanted: Option<&str>| {
            wanted.is_some() && key.as_deref() == wanted
        };
        if let Some(other) = all().find(|job| Some(&job.id) == id) {
            by(other, By::Id)
        } else if let Some(other) = all().filter(here).find(|job| has(&job.idempotency_key, idem)) {
            by(other, By::IdempotencyKey)
        } else if let Some(other) = self.live().filter(here).find(|job| has(&job.dedup_key, dedup))
        {
            by(other, By::DedupKey)
        } else if let Some(other) = self.live().filter(here).find(|job| has(&job.lock_key, lock)) {
            Err(Refusal::LockHeld { by: other.id.clone() })
        } else {
            Ok((JobId::new("new"), Was::New))
        }
    }

    /// Takes a new job into the history, after a look at it.
    async fn born(&mut self, id: JobId, numbers: (i64, i64, i64), queue: &str) {
        let Some(new) = self.bench.client.job(&id).await.unwrap() else {
            self.fail(format!("{id} was enqueued and is not there"))
        };
        let seen = (new.run_at, new.priority, new.max_attempts, &*new.queue, new.status);
        let expected = (numbers.0, numbers.1, numbers.2, queue, Status::Pending);
        self.same("the new job", seen, expected);
        let zeros = (new.epoch, new.attempts, new.stalls, new.seq, new.created_at, new.updated_at);
        self.same("the new job's numbers", zeros, (0, 0, 0, 0, self.now, self.now));
        // An id may be used again once its job is deleted.
        let other = JobId::new(&format!("gone{}", self.log.len()));
        self.jobs.iter_mut().filter(|job| job.id == id).for_each(|job| job.id = other.clone());
        self.jobs.push(Known {
            id,
            record: Some(new),
            saved: std::collections::BTreeMap::new(),
            committed_epoch: 0,
            holder: None,
            completions: std::collections::BTreeSet::new(),
        });
    }

    fn took(&mut self, n: usize, lease: leasehold::Lease, owner: &str) {
        let (now, serial) = (self.now, self.serial);
        let job = &mut self.jobs[n];
        let Some(record) = &mut job.record else { return };
        rules::claimed(record, owner, now);
        job.holder = Some(serial);
        let epoch = record.epoch;
        if let Some((_, window)) = rules::kind(&record.kind).rate {
            self.starts.retain(|at| *at > now - window);
            self.starts.push(now);
        }
        let payload = (lease.epoch(), lease.payload().cloned());
        self.same("the lease", payload, (epoch, self.jobs[n].record.clone().unwrap().payload));
        self.leases.push(Held { serial, job: n, epoch, lease });
        self.serial += 1;
        if self.leases.len() > 24 {
            let drop = self.rng.below(12);
            self.leases.remove(drop);
        }
    }

    async fn claim(&mut self) {
        let mut kinds: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
        if self.rng.one_in(2) {
            kinds = (0..self.rng.below(4)).map(|_| self.rng.of(&kinds)).collect();
        }
        let (limit, owner) = (self.rng.below(6), self.rng.of(&["ann", "bob"]));
        let expected = self.best(&kinds, limit);
        self.log.push(format!("claim {kinds:?} limit {limit}: {expected:?}"));
        let leases = self.bench.client.claim(&kinds, owner, limit).await.unwrap();
        let place = |id: &JobId| self.jobs.iter().position(|job| job.id == *id).unwrap();
        let seen: Vec<_> = leases.iter().map(|lease| place(lease.job())).collect();
        self.same("the claim", &seen, &expected);
        for (n, lease) in seen.into_iter().zip(leases) {
            self.took(n, lease, owner);
        }
    }

    async fn claim_by_id(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let n = self.some_job();
        let owner = self.rng.of(&["ann", "bob"]);
        let can = self.jobs[n].record.as_ref().is_some_and(|job| {
            job.status == Status::Pending
                && rules::kind(&job.kind).registered
                && !self.gate_closed(job)
                && self.rooms(job).iter().all(|(_, room)| *room > 0)
        });
        self.log.push(format!("claim_by_id j{n}: {can}"));
        let id = self.jobs[n].id.clone();
        let lease = self.bench.client.claim_by_id(&id, owner).await.unwrap();
        self.same("whether it was claimed", lease.is_some(), can);
        if let Some(lease) = lease {
            self.took(n, lease, owner);
        }
    }

    /// Takes a lease out of the history, to be put back.
    fn some_lease(&mut self) -> Option<Held> {
        if self.leases.is_empty() {
            return None;
        }
        let n = self.rng.below(self.leases.len());
        Some(self.leases.remove(n))
    }

    async fn renew(&mut self) {
        let Some(held) = self.some_lease() else { return };
        self.log.push(format!("renew j{} epoch {}", held.job, held.epoch));
        let now = self.now;
        let seen = answer(held.lease.renew().await);
        let expected = if let Some(refusal) = self.refusal(&held) {
            Err(refusal)
        } else {
            let record = self.jobs[held.job].record.as_mut().unwrap();
            let until = record.lease_until.unwrap();
            if until <= now {
                Err(Refusal::Expired { by_ms: now - until })
            } else {
                rules::renewed(record, now);
                Ok(record.lease_until.unwrap())
            }
        };
        self.same("the renewal", seen, expected);
        self.leases.push(held);
    }

    fn some_end(&mut self) -> End {
        match self.rng.below(16) {
            0..4 => End::Complete(self.rng.one_in(2).then(|| "[1]".to_owned())),
            4..8 => {
                let classes = [
                    ErrorClass::Transient,
                    ErrorClass::Transient,
                    ErrorClass::RateLimited,
                    ErrorClass::RateLimited,
                    ErrorClass::Terminal,
                    ErrorClass::Unrecoverable,
                ];
                End::Fail(self.rng.of(&classes), self.pick(3, &[0, 700, 400_000]))
            }
            8..11 => End::Yield,
            11 => End::Interrupt,
            12 => End::Snooze(self.rng.between(0, 20_000)),
            13..15 => End::Release,
            _ => End::Cancelled,
        }
    }

    async fn settle_some(&mut self) {
        let Some(held) = self.some_lease() else { return };
        let how = self.some_end();
        let times = if self.rng.one_in(4) { 2 } else { 1 };
        for _ in 0..times {
            self.log.push(format!("j{} epoch {}: {how:?}", held.job, held.epoch));
            let lease = &held.lease;
            let seen = answer(match &how {
                End::Complete(result) => {
                    lease.complete(result.clone().map(|text| Json::parse(text).unwrap())).await
                }
                End::Fail(class, floor) => {
                    let failed = Failed { class: *class, ..Failed::transient(ERROR) };
                    lease.fail(Failed { retry_after: floor.map(ms), ..failed }).await
                }
                End::Yield => lease.hand_back().await,
                End::Interrupt => lease.interrupt().await,
                End::Snooze(wait) => lease.snooze(ms(*wait)).await,
                End::Release => lease.release().await,
                End::Cancelled => lease.cancelled().await,
            });
            let expected = match self.refusal(&held) {
                None => {
                    self.settle(held.job, &how);
                    Ok(self.jobs[held.job].record.as_ref().unwrap().status)
                }
                Some(refusal) => match &self.jobs[held.job].record {
                    Some(job) if rules::is_repeat(job, &how, held.epoch) => Ok(job.status),
                    _ => Err(refusal),
                },
            };
            self.same("the settle", seen, expected);
        }
        self.leases.push(held);
    }

    async fn save(&mut self) {
        let Some(held) = self.some_lease() else { return };
        let refusal = self.refusal(&held);
        let now = self.now;
        let n = held.job;
        let seen = if self.rng.one_in(3) {
            let (done, total) = (self.rng.between(0, 9), self.pick(2, &[10]));
            self.log.push(format!("j{n} epoch {}: progress {done}", held.epoch));
            if let (None, Some(job)) = (&refusal, &mut self.jobs[n].record) {
                rules::progressed(job, done, total, now);
            }
            answer(held.lease.progress(done, total).await)
        } else {
            let (key, value) = (self.rng.of(&["", "a", "b"]), self.log.len().to_string());
            self.log.push(format!("j{n} epoch {}: checkpoint {key:?} {value}", held.epoch));
            if let (None, Some(job)) = (&refusal, &mut self.jobs[n].record) {
                rules::saved(job, now);
                self.jobs[n].committed_epoch = held.epoch;
                self.jobs[n].saved.insert(key.to_owned(), (value.clone(), held.epoch));
            }
            answer(held.lease.checkpoint(key, Json::parse(value).unwrap()).await)
        };
        self.same("the save", seen, refusal.map_or(Ok(()), Err));
        let expected = self.jobs[n].saved.iter().filter(|saved| saved.1.1 <= held.epoch);
        let expected: Vec<_> =
            expected.map(|(key, value)| (key.clone(), value.0.clone())).collect();
        let seen = held.lease.load().await.unwrap();
        let seen: Vec<_> =
            seen.into_iter().map(|(key, value)| (key, value.as_str().to_owned())).collect();
        self.same("what is saved", seen, expected);
        self.leases.push(held);
    }
}
