//! The commands of producers: new jobs, and what their keys name.

use leasehold::{By, Enqueued, JobId, JobRecord, Json, NewJob, Refusal, Scope, Was};

use super::compare::{No, Played, plain, same};
use super::rules;
use super::stage::now;
use super::world::{Kept, Known, World};

/// A new job as it is drawn. What a tenant and an organization are said to be comes last.
#[derive(Clone, Debug, Default)]
struct Draft {
    kind: usize,
    id: Option<JobId>,
    priority: i64,
    run_at: Option<i64>,
    max: Option<i64>,
    idem: Option<&'static str>,
    dedup: Option<&'static str>,
    lock: Option<&'static str>,
    limit: Option<&'static str>,
    /// How long the idempotency and the dedup key stay taken.
    keep: Option<i64>,
    unique: Option<i64>,
    tenant: [Option<&'static str>; 2],
    /// Whether the client is scoped to them.
    scoped: bool,
}

type Answer = Result<(JobId, Was), Refusal>;

pub fn scope([tenant, organization]: [Option<&str>; 2]) -> Scope {
    let scope = tenant.map_or_else(Scope::of_nobody, Scope::tenant);
    organization.into_iter().fold(scope, Scope::organization)
}

fn period(ms: i64) -> std::time::Duration {
    std::time::Duration::from_millis(ms.try_into().unwrap())
}

impl World<'_> {
    pub fn pick<T: Clone>(&mut self, one_in: usize, of: &[T]) -> Option<T> {
        self.rng.one_in(one_in).then(|| self.rng.of(of))
    }

    /// The scope that is drawn for a job, a client or both.
    pub fn some_tenant(&mut self) -> [Option<&'static str>; 2] {
        if !self.profile.tenants {
            return [None, None];
        }
        [self.pick(3, &["t"]), self.pick(5, &["o"])]
    }

    fn draft(&mut self, named: bool) -> Draft {
        let known = self.jobs.len();
        let id = match self.rng.below(12) {
            0 if known > 0 => Some(self.jobs[self.rng.below(known)].id.clone()),
            1..6 => Some(JobId::new(&format!("j{known}"))),
            _ => named.then(|| JobId::new(&format!("n{}", self.rng.below(1_000)))),
        };
        let keys = ["k", "l"];
        let kind = self.rng.of(&self.profile.kinds);
        let hooks = self.facts[kind].hooks;
        let (idem, dedup) = (self.pick(6, &keys), self.pick(5, &keys));
        let run_at = self.rng.one_in(4).then(|| self.now + self.rng.between(-60_000, 60_000));
        Draft {
            kind,
            id,
            priority: self.rng.of(&[-1000, -1, 0, 0, 0, 1, 2, 1000]),
            run_at,
            max: self.pick(3, &[1, 1, 2, 3]),
            idem,
            dedup,
            lock: self.pick(5, &keys),
            limit: self.pick(3, &["one", "one", "two", "free"]).filter(|_| !hooks),
            keep: self.pick(3, &[1, 5_000, 90_000]).filter(|_| idem.is_some()),
            unique: self.pick(3, &[1, 5_000, 90_000]).filter(|_| dedup.is_some()),
            tenant: self.some_tenant(),
            scoped: self.profile.tenants && self.rng.one_in(4),
        }
    }

    fn new_job(&self, draft: &Draft) -> NewJob {
        let payload = Some(Json::of(&self.jobs.len()).unwrap());
        let mut job = NewJob::raw(self.facts[draft.kind].name, payload).priority(draft.priority);
        job = draft.id.iter().fold(job, NewJob::id);
        job = draft.run_at.iter().fold(job, |job, at| job.run_at(*at));
        job = draft.max.iter().fold(job, |job, max| job.max_attempts(*max));
        job = draft.idem.iter().fold(job, |job, key| job.idempotency_key(*key));
        job = draft.dedup.iter().fold(job, |job, key| job.dedup_key(*key));
        job = draft.lock.iter().fold(job, |job, key| job.lock_key(*key));
        job = draft.limit.iter().fold(job, |job, key| job.limit_key(*key));
        job = draft.keep.iter().fold(job, |job, ms| job.keep_key_for(period(*ms)));
        job = draft.unique.iter().fold(job, |job, ms| job.unique_for(period(*ms)));
        job = draft.tenant[0].iter().fold(job, |job, key| job.tenant(*key));
        draft.tenant[1].iter().fold(job, |job, key| job.organization(*key))
    }

    /// What an enqueue must answer, asked of each key in its turn.
    fn expected(&self, draft: &Draft) -> Answer {
        let here =
            |job: &&JobRecord| [job.tenant.as_deref(), job.organization.as_deref()] == draft.tenant;
        let has = |key: &Option<String>, wanted: Option<&str>| {
            wanted.is_some() && key.as_deref() == wanted
        };
        let found = |id: &JobId, by| Ok((id.clone(), Was::Existing { by }));
        let all = || self.kept().map(|kept| kept.1);
        if let Some(other) = all().find(|job| Some(&job.id) == draft.id.as_ref()) {
            let hidden = draft.scoped && !here(&other);
            return if hidden { Err(Refusal::IdTaken) } else { found(&other.id, By::Id) };
        }
        let kept = |dedup: bool, key: Option<&str>| {
            self.kept.iter().find(|kept| {
                kept.dedup == dedup
                    && Some(kept.key) == key
                    && kept.tenant == draft.tenant
                    && kept.until > self.now
            })
        };
        if let Some(job) = all().filter(here).find(|job| has(&job.idempotency_key, draft.idem)) {
            return found(&job.id, By::IdempotencyKey);
        }
        if let Some(kept) = kept(false, draft.idem) {
            return found(&kept.id, By::IdempotencyKey);
        }
        if let Some(job) = self.live().filter(here).find(|job| has(&job.dedup_key, draft.dedup)) {
            return found(&job.id, By::DedupKey);
        }
        if let Some(kept) = kept(true, draft.dedup) {
            return found(&kept.id, By::DedupKey);
        }
        if let Some(job) = self.live().filter(here).find(|job| has(&job.lock_key, draft.lock)) {
            return Err(Refusal::LockHeld { by: job.id.clone() });
        }
        Ok((draft.id.clone().unwrap_or_else(|| JobId::new("new")), Was::New))
    }

    /// Takes a new job into the history.
    fn born(&mut self, draft: &Draft, id: &JobId) {
        let facts = &self.facts[draft.kind];
        let queue = rules::QUEUES.iter().position(|queue| *queue == facts.queue).unwrap();
        let max = if facts.registered { facts.max_attempts } else { 5 };
        let text = |key: Option<&'static str>| key.map(str::to_owned);
        let mut record = self.stage.blank.clone();
        record.id = id.clone();
        record.kind = self.stage.kinds[draft.kind].clone();
        record.queue = self.stage.queues[queue].clone();
        record.payload = Some(Json::of(&self.jobs.len()).unwrap());
        record.priority = draft.priority;
        record.run_at = draft.run_at.unwrap_or(self.now);
        (record.created_at, record.updated_at) = (self.now, self.now);
        record.max_attempts = draft.max.unwrap_or(max);
        (record.idempotency_key, record.dedup_key) = (text(draft.idem), text(draft.dedup));
        (record.lock_key, record.limit_key) = (text(draft.lock), text(draft.limit));
        (record.tenant, record.organization) = (text(draft.tenant[0]), text(draft.tenant[1]));
        for (dedup, key, period) in
            [(false, draft.idem, draft.keep), (true, draft.dedup, draft.unique)]
        {
            let (Some(key), Some(period)) = (key, period) else { continue };
            let same =
                |kept: &Kept| kept.dedup == dedup && kept.key == key && kept.tenant == draft.tenant;
            self.kept.retain(|kept| !same(kept));
            let (tenant, until) = (draft.tenant, self.now + period);
            self.kept.push(Kept { dedup, key, tenant, id: id.clone(), until });
        }
        self.known(draft.kind, record);
    }

    /// The same of a job as it must be.
    pub fn known(&mut self, kind: usize, record: JobRecord) {
        // An id may be used again once its job is deleted.
        let (id, gone) = (record.id.clone(), JobId::new(&format!("gone{}", self.jobs.len())));
        self.jobs.iter_mut().filter(|job| job.id == id).for_each(|job| job.id = gone.clone());
        self.jobs.push(Known {
            id,
            kind,
            record: Some(record),
            saved: std::collections::BTreeMap::new(),
            committed_epoch: 0,
            holder: None,
            mark: None,
            aside: false,
            history: Vec::new(),
        });
    }

    fn has_enough(&self) -> bool {
        self.kept().count() >= self.profile.most
    }

    pub fn enqueue(&mut self) -> Played {
        if self.has_enough() && !self.rng.one_in(4) {
            return self.claim();
        }
        let draft = self.draft(false);
        self.enqueue_as(&draft)
    }

    /// The same of a key that stays taken, when that ends.
    pub fn enqueue_kept(&mut self) -> Played {
        if self.kept.is_empty() {
            return self.enqueue();
        }
        let last = self.kept.len() - 1;
        let kept = &self.kept[last];
        let (key, tenant, dedup, until) = (kept.key, kept.tenant, kept.dedup, kept.until);
        let early = self.rng.between(0, 1);
        self.advance(until - early - self.now);
        let draft = Draft { tenant, lock: None, ..self.draft(true) };
        self.enqueue_as(&if dedup {
            Draft { idem: None, keep: None, dedup: Some(key), unique: None, ..draft }
        } else {
            Draft { dedup: None, unique: None, idem: Some(key), keep: None, ..draft }
        })
    }

    fn enqueue_as(&mut self, draft: &Draft) -> Played {
        self.say(|| format!("enqueue {draft:?}"));
        let job = self.new_job(draft);
        let expected = self.expected(draft).map(|answer| self.asked_twice(draft, answer));
        self.arm();
        let client = &self.stage.bench.client;
        let scoped = client.scoped(scope(draft.tenant));
        let seen = plain(now((if draft.scoped { &scoped } else { client }).enqueue(job)));
        let seen = seen.map(|Enqueued { id, was }| (id, was));
        // A minted id is known from its answer alone.
        let expected = match (&seen, expected) {
            (Ok((id, _)), Ok((_, Was::New))) if draft.id.is_none() => Ok((id.clone(), Was::New)),
            (_, expected) => expected.map_err(No::Refused),
        };
        same("the enqueue", &seen, &expected)?;
        if let Ok((id, was)) = expected
            && (was == Was::New || self.kept().all(|(_, job)| job.id != id) && self.is_new(draft))
        {
            self.born(draft, &id);
        }
        Ok(())
    }

    /// Whether the draft is a new job, whatever its answer says.
    fn is_new(&self, draft: &Draft) -> bool {
        matches!(self.expected(draft), Ok((_, Was::New)))
    }

    /// Where the answer gets lost, it is asked for again, and finds the id that was given.
    fn asked_twice(&self, draft: &Draft, (id, was): (JobId, Was)) -> (JobId, Was) {
        let found = self.lost && was == Was::New && draft.id.is_some();
        (id, if found { Was::Existing { by: By::Id } } else { was })
    }

    /// Several in one message: a conflict is the answer of its item.
    pub fn enqueue_many(&mut self) -> Played {
        // What is asked again after a batch would find what came behind it.
        if self.has_enough() && !self.rng.one_in(3) || self.in_batch() && self.lost {
            return Ok(());
        }
        let times = 2 + self.rng.below(2);
        let (mut jobs, mut expected, mut drafts) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..times {
            let draft = Draft { scoped: false, ..self.draft(true) };
            self.say(|| format!("enqueue among {times} {draft:?}"));
            jobs.push(self.new_job(&draft));
            let answer = self.expected(&draft);
            if let Ok((id, Was::New)) = &answer {
                self.born(&draft, id);
            }
            expected.push(answer);
            drafts.push(draft);
        }
        if self.lost {
            // It is asked again, and finds what it made.
            expected = drafts.iter().map(|draft| self.expected(draft)).collect();
        }
        let client = self.stage.bench.client.clone();
        let asked = async move {
            let answers = client.enqueue_many(jobs).await?;
            Ok(answers.into_iter().map(|one| one.map(|one| (one.id, one.was))).collect::<Vec<_>>())
        };
        self.ask_surely("the enqueues", asked, Ok(expected))
    }
}
