//! Pages of lists of thousands of jobs, of many kinds and with ties, while jobs come, end, come
//! back and go between two pages: a job that stays as it is is seen once, and in its place.
//!
//! `LEASEHOLD_SEED` replays one seed.

use std::collections::{BTreeMap, BTreeSet};

use leasehold::rusqlite::{Connection, params};
use leasehold::testing::{Bench, BenchSettings};
use leasehold::{Filter, Operator, Order, Paging, Scope, Status, Totals};

use crate::rng::Rng;

const JOBS: usize = 7_000;
const KINDS: usize = 40;
const ENDS: [Status; 3] = [Status::Completed, Status::Failed, Status::Cancelled];
const ORDERS: [Order; 4] = [Order::Newest, Order::Oldest, Order::EndedNewest, Order::EndedOldest];

/// A job as the test knows it.
#[derive(Clone, Debug)]
struct Known {
    id: String,
    kind: usize,
    status: Status,
    finished_at: Option<i64>,
    priority: i64,
    tenant: Option<usize>,
    subject: usize,
}

fn name(kind: usize) -> String {
    format!("k{kind:02}")
}

/// What a filter asks for, in the test's own terms.
#[derive(Debug, Default)]
struct Asked {
    kinds: BTreeSet<usize>,
    statuses: Vec<Status>,
    priority: Option<i64>,
    tenant: Option<usize>,
    subject: Option<usize>,
    ended: Option<(i64, i64)>,
    scope: Option<usize>,
}

impl Asked {
    fn draw(rng: &mut Rng) -> Self {
        let mut asked = Self::default();
        if rng.one_in(3) {
            // A few kinds, some of which no job has.
            asked.kinds = (0..=rng.below(4)).map(|_| rng.below(KINDS + 5)).collect();
        }
        if rng.one_in(3) {
            asked.statuses = (0..=rng.below(3)).map(|_| rng.of(Status::ALL)).collect();
        }
        asked.priority = rng.one_in(3).then_some(7);
        asked.tenant = rng.one_in(6).then(|| rng.below(3));
        asked.subject = rng.one_in(6).then(|| rng.below(20));
        asked.ended = rng.one_in(4).then(|| (rng.between(0, 20), rng.between(20, 60)));
        asked.scope = rng.one_in(6).then(|| rng.below(3));
        asked
    }

    fn filter(&self) -> Filter {
        let mut filter = Filter::new();
        for kind in &self.kinds {
            filter = filter.kind(name(*kind));
        }
        for status in &self.statuses {
            filter = filter.status(*status);
        }
        if let Some(priority) = self.priority {
            filter = filter.priority(priority);
        }
        if let Some(tenant) = self.tenant {
            filter = filter.tenant(format!("t{tenant}")).organization("o");
        }
        if let Some(subject) = self.subject {
            filter = filter.subject_id(format!("s{subject}"));
        }
        match self.ended {
            Some((from, before)) => filter.finished_at(from..before),
            None => filter,
        }
    }

    fn takes(&self, job: &Known) -> bool {
        (self.kinds.is_empty() || self.kinds.contains(&job.kind))
            && (self.statuses.is_empty() || self.statuses.contains(&job.status))
            && self.priority.is_none_or(|priority| priority == job.priority)
            && self.tenant.is_none_or(|tenant| job.tenant == Some(tenant))
            && self.scope.is_none_or(|tenant| job.tenant == Some(tenant))
            && self.subject.is_none_or(|subject| job.subject == subject)
            && self.ended.is_none_or(|(from, before)| {
                job.finished_at.is_some_and(|at| (from..before).contains(&at))
            })
    }
}

struct Scene {
    _dir: tempfile::TempDir,
    bench: Bench,
    rng: Rng,
    /// In the order of their keys; nothing where a job is deleted.
    jobs: Vec<Option<Known>>,
    totals: BTreeMap<usize, [i64; 3]>,
}

impl Scene {
    async fn open(seed: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.db");
        let keep = [Some(i64::MAX / 2); 3];
        let settings =
            BenchSettings { path: Some(path.clone()), keep, now: 30, ..BenchSettings::default() };
        let bench = Bench::start(settings).await.unwrap();
        let mut scene =
            Self { _dir: dir, bench, rng: Rng::new(seed), jobs: vec![], totals: BTreeMap::new() };
        scene.fill(&mut Connection::open(path).unwrap());
        scene
    }

    fn fill(&mut self, conn: &mut Connection) {
        let tx = conn.transaction().unwrap();
        tx.execute("INSERT INTO leasehold_names VALUES (1, 'default')", []).unwrap();
        for kind in 0..KINDS {
            let id = (kind + 2) as i64;
            tx.execute("INSERT INTO leasehold_names VALUES (?1, ?2)", params![id, name(kind)])
                .unwrap();
            tx.execute("INSERT INTO leasehold_lanes VALUES (?1, 1)", [id]).unwrap();
        }
        for n in 0..JOBS {
            let job = self.draw(n);
            let status = Status::ALL.iter().position(|one| *one == job.status).unwrap() as i64;
            let lane = (job.status == Status::Pending).then_some(1);
            let tenant = job.tenant.map(|tenant| format!("t{tenant}"));
            let organization = job.tenant.map(|_| "o");
            let row = params![
                n as i64 + 1,
                job.id,
                job.kind as i64 + 2,
                status,
                lane,
                job.priority,
                job.finished_at,
                tenant,
                organization
            ];
            tx.prepare_cached(
                "INSERT INTO leasehold_job (key, id, kind, queue, status, lane, priority, run_at, \
                 created_at, updated_at, attempts, max_attempts, epoch, stalls, seq, finished_at, \
                 tenant, organization) VALUES (?1, ?2, ?3, 1, ?4, ?5, ?6, 5, 5, 5, 0, 5, 0, 0, 0, \
                 ?7, ?8, ?9)",
            )
            .unwrap()
            .execute(row)
            .unwrap();
            let label = params![n as i64 + 1, format!("s{}", job.subject)];
            tx.prepare_cached("INSERT INTO leasehold_label (job, subject_id) VALUES (?1, ?2)")
                .unwrap()
                .execute(label)
                .unwrap();
            self.jobs.push(Some(job));
        }
        tx.commit().unwrap();
    }

    fn draw(&mut self, n: usize) -> Known {
        let rng = &mut self.rng;
        // Some kinds have many jobs, most have few.
        let kind = rng.below(KINDS) * rng.below(KINDS) / KINDS;
        let status = if rng.one_in(8) { Status::Pending } else { rng.of(&ENDS) };
        Known {
            id: format!("job-{n}"),
            kind,
            status,
            finished_at: (!status.is_live()).then(|| rng.between(0, 60)),
            priority: if rng.one_in(400) { 7 } else { 0 },
            tenant: if rng.one_in(2) { Some(rng.below(3)) } else { None },
            subject: rng.below(20),
        }
    }

    fn place(&self, order: Order, n: usize) -> (i64, i64) {
        let at = self.jobs[n].as_ref().and_then(|job| job.finished_at).unwrap_or_default();
        match order {
            Order::Newest => (0, -(n as i64)),
            Order::Oldest => (0, n as i64),
            Order::EndedNewest => (-at, -(n as i64)),
            Order::EndedOldest => (at, n as i64),
        }
    }

    /// Ends, brings back or deletes a job; answers which.
    async fn change(&mut self) -> usize {
        let by = Operator::named("ann");
        let client = &self.bench.client;
        let n = self.rng.below(self.jobs.len());
        let Some(job) = &mut self.jobs[n] else { return n };
        if self.rng.one_in(10) {
            // Forward and back.
            let ms = if client.counts().await.unwrap().dead % 2 == 0 { 1 } else { -1 };
            self.bench.clock.advance(ms);
        }
        if job.status.is_live() {
            client.cancel(job.id.as_str(), by).await.unwrap();
            job.status = Status::Cancelled;
            let seen = client.job(job.id.as_str()).await.unwrap().unwrap();
            job.finished_at = seen.finished_at;
        } else if self.rng.one_in(2) {
            client.delete(job.id.as_str(), by).await.unwrap();
            let which = ENDS.iter().position(|end| *end == job.status).unwrap();
            self.totals.entry(job.kind).or_default()[which] += 1;
            self.jobs[n] = None;
        } else {
            let how = leasehold::Redrive::default().force().allow_finished();
            client.redrive(job.id.as_str(), how, by).await.unwrap();
            (job.status, job.finished_at) = (Status::Pending, None);
        }
        n
    }

    /// Reads a list to its end, with changes between two pages.
    async fn read(&mut self, order: Order) {
        let asked = Asked::draw(&mut self.rng);
        let filter = asked.filter();
        let by_end = matches!(order, Order::EndedNewest | Order::EndedOldest);
        let takes = |job: &Known| asked.takes(job) && (!by_end || !job.status.is_live());
        let limit = self.rng.of(&[1, 7, 50, 200, 1_000]);
        let limit = if self.expected(takes, order).len() > 500 { limit.max(200) } else { limit };
        let client = match asked.scope {
            None => self.bench.client.clone(),
            Some(t) => self.bench.client.scoped(Scope::tenant(format!("t{t}")).organization("o")),
        };
        let (mut seen, mut touched) = (Vec::new(), BTreeSet::new());
        let mut paging = Paging::first(order, limit);
        loop {
            let page = client.list(&filter, paging).await.unwrap();
            assert!(page.jobs.len() <= limit);
            seen.extend(page.jobs.into_iter().map(|job| job.id.to_string()));
            let Some(next) = page.next else { break };
            paging = Paging::first(order, limit).after(next);
            for _ in 0..self.rng.below(4) {
                let n = self.change().await;
                touched.insert(format!("job-{n}"));
            }
        }
        let mut expected = self.expected(takes, order);
        expected.retain(|id| !touched.contains(id));
        seen.retain(|id| !touched.contains(id));
        assert_eq!(seen, expected, "{order}, {limit} a page, {asked:?}");
    }

    fn expected(&self, takes: impl Fn(&Known) -> bool, order: Order) -> Vec<String> {
        let all = self.jobs.iter().enumerate();
        let kept = all.filter_map(|(n, job)| Some((n, job.as_ref().filter(|job| takes(job))?)));
        let mut kept: Vec<_> = kept.map(|(n, job)| (self.place(order, n), &job.id)).collect();
        kept.sort();
        kept.into_iter().map(|(_, id)| id.clone()).collect()
    }

    async fn check_totals(&self) {
        let mut totals = self.totals.clone();
        for job in self.jobs.iter().flatten() {
            if let Some(which) = ENDS.iter().position(|end| *end == job.status) {
                totals.entry(job.kind).or_default()[which] += 1;
            }
        }
        let seen = self.bench.client.totals().await.unwrap();
        let seen: BTreeMap<_, _> = seen
            .into_iter()
            .map(|(kind, Totals { completed, failed, cancelled, .. })| {
                (kind, [completed, failed, cancelled])
            })
            .collect();
        let totals: BTreeMap<_, _> = totals.into_iter().map(|(k, n)| (name(k), n)).collect();
        assert_eq!(seen, totals);
    }
}

#[tokio::test]
async fn a_job_that_stays_is_seen_once_and_in_its_place_whatever_others_do() {
    let seed = std::env::var("LEASEHOLD_SEED").ok().map(|text| text.parse().unwrap());
    for seed in seed.map_or(1..=3, |seed: u64| seed..=seed) {
        println!("seed {seed}");
        let mut scene = Scene::open(seed).await;
        for round in 0..12 {
            scene.read(ORDERS[round % ORDERS.len()]).await;
        }
        scene.check_totals().await;
    }
}
