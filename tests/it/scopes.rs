//! Scopes: a client of one tenant or organization sees and touches its own jobs, and no other is
//! there for it.

use std::time::Duration;

use leasehold::testing::{Bench, BenchSettings};
use leasehold::{
    By, Client, Enqueued, Error, JobId, JobRecord, NewJob, Operator, Redrive, Refusal, Scope,
    Settings, Sizes, Status, Target, Waiting, Was,
};

use crate::support::record;

const HOUR: Duration = Duration::from_secs(3600);

/// All scopes that a job can be of, as words.
const SCOPES: [(Option<&str>, Option<&str>); 5] = [
    (None, None),
    (Some("acme"), None),
    (Some("acme"), Some("sales")),
    (None, Some("sales")),
    (Some("sales"), Some("acme")),
];

fn scope((tenant, organization): (Option<&str>, Option<&str>)) -> Scope {
    let scope = tenant.map_or_else(Scope::of_nobody, Scope::tenant);
    organization.into_iter().fold(scope, Scope::organization)
}

fn job((tenant, organization): (Option<&str>, Option<&str>)) -> NewJob {
    let job = NewJob::raw("mail", None);
    let job = tenant.into_iter().fold(job, NewJob::tenant);
    organization.into_iter().fold(job, NewJob::organization)
}

fn ann() -> Operator {
    Operator::named("ann")
}

/// A database with a kind, and a client of each scope.
struct World {
    all: Client,
    own: Vec<Client>,
}

impl World {
    async fn open() -> Self {
        let all = Bench::start(BenchSettings::default()).await.unwrap().client;
        all.register("mail", Settings::new()).await.unwrap();
        let own = SCOPES.iter().map(|of| all.scoped(scope(*of))).collect();
        Self { all, own }
    }

    /// A job of each scope, and its record.
    async fn jobs(&self, prefix: &str) -> Vec<JobRecord> {
        let mut jobs = Vec::new();
        for (n, of) in SCOPES.iter().enumerate() {
            let id = format!("{prefix}-{n}");
            self.all.enqueue(job(*of).id(id.as_str())).await.unwrap();
            jobs.push(record(&self.all, &id.into()).await);
        }
        jobs
    }

    async fn end(&self, id: &JobId) {
        let lease = self.all.claim_by_id(id, "hand").await.unwrap().unwrap();
        lease.complete(None).await.unwrap();
    }

    async fn none_has_changed(&self, jobs: &[JobRecord]) {
        for before in jobs {
            assert_eq!(&record(&self.all, &before.id).await, before);
        }
    }
}

/// What a client says of a job, each read and action tried: `None` where it is not there.
async fn said(client: &Client, id: &JobId) -> Vec<(&'static str, bool)> {
    let there = |answer: Result<(), Error>| match answer {
        Err(Error::Refused(Refusal::NotFound)) => false,
        Err(error @ (Error::Store(_) | Error::Open { .. } | Error::Setup(_))) => panic!("{error}"),
        _ => true,
    };
    let run_again = client.run_again(id, ann()).await;
    if let Ok(copy) = &run_again {
        client.cancel(copy, ann()).await.unwrap();
        client.delete(copy, ann()).await.unwrap();
    }
    let claimed = client.claim_by_id(id, "hand").await.unwrap();
    if let Some(lease) = &claimed {
        lease.release().await.unwrap();
    }
    vec![
        ("job", client.job(id).await.unwrap().is_some()),
        ("attempts", there(client.attempts(id).await.map(drop))),
        ("why_waiting", there(client.why_waiting(id).await.map(drop))),
        ("wait", there(client.wait(id, Duration::ZERO).await.map(drop))),
        ("run_again", there(run_again.map(drop))),
        ("redrive", there(client.redrive(id, Redrive::default(), ann()).await)),
        ("cancel", there(client.cancel(id, ann()).await.map(drop))),
        ("delete", there(client.delete(id, ann()).await)),
    ]
}

#[tokio::test]
async fn jobs_of_others_are_not_there_whatever_is_asked_or_done() {
    let world = World::open().await;
    let waiting = world.jobs("waiting").await;
    let mut ended = world.jobs("ended").await;
    for job in &mut ended {
        world.end(&job.id).await;
        *job = record(&world.all, &job.id).await;
    }
    for (n, client) in world.own.iter().enumerate() {
        for jobs in [&waiting, &ended] {
            for (_, other) in jobs.iter().enumerate().filter(|(at, _)| *at != n) {
                for (what, there) in said(client, &other.id).await {
                    assert!(!there, "{what} of {} by {:?}", other.id, SCOPES[n]);
                }
                let claimed = client.claim_by_id(&other.id, "hand").await.unwrap();
                assert!(claimed.is_none());
            }
        }
        world.none_has_changed(&waiting).await;
        world.none_has_changed(&ended).await;
    }
    // An id that nobody has is answered in the same way.
    for (what, there) in said(&world.own[1], &"nobody".into()).await {
        assert!(!there, "{what}");
    }
    // Their own are there, for each of them.
    for (n, client) in world.own.iter().enumerate() {
        for jobs in [&waiting, &ended] {
            for (what, there) in said(client, &jobs[n].id).await {
                assert!(there, "{what} of {} by {:?}", jobs[n].id, SCOPES[n]);
            }
        }
        world.none_has_changed(&waiting[n + 1..]).await;
        world.none_has_changed(&ended[n + 1..]).await;
    }
    assert_eq!(world.all.counts().await.unwrap().completed, 0, "each has deleted its own");
}

#[tokio::test]
async fn what_a_scoped_client_enqueues_is_of_its_scope() {
    let world = World::open().await;
    let bystanders = world.jobs("bystander").await;
    for (n, client) in world.own.iter().enumerate() {
        let (tenant, organization) = SCOPES[n];
        for given in [job((None, None)), job(SCOPES[n])] {
            let made = client.enqueue(given).await.unwrap();
            assert_eq!(made.was, Was::New);
            let made = record(&world.all, &made.id).await;
            assert_eq!(made.tenant.as_deref(), tenant);
            assert_eq!(made.organization.as_deref(), organization);
        }
        let wrong = [
            (job((Some("other"), organization)), "tenant"),
            (job((tenant, Some("other"))), "organization"),
        ];
        // One item's answer, which stops no other.
        let jobs = wrong.iter().map(|(job, _)| job.clone()).chain([job(SCOPES[n])]);
        let answers = client.enqueue_many(jobs).await.unwrap();
        for (answer, (_, expected)) in answers.iter().zip(&wrong) {
            let Err(Refusal::Invalid { field, .. }) = answer else { panic!("{answer:?}") };
            assert_eq!(field, expected);
        }
        assert!(answers[2].as_ref().is_ok_and(|made| made.was == Was::New));
    }
    world.none_has_changed(&bystanders).await;
}

#[tokio::test]
async fn an_id_of_another_scope_is_taken_and_nothing_is_said_of_its_job() {
    let world = World::open().await;
    let theirs = world.jobs("job").await;
    for (n, client) in world.own.iter().enumerate() {
        for (at, other) in theirs.iter().enumerate() {
            let answer = client.enqueue(job((None, None)).id(other.id.clone())).await;
            if at == n {
                let was = Was::Existing { by: By::Id };
                assert_eq!(answer.unwrap(), Enqueued { id: other.id.clone(), was });
            } else {
                let refused = answer.unwrap_err();
                assert_eq!(refused.refusal(), Some(&Refusal::IdTaken));
                assert!(!refused.to_string().contains("acme"), "{refused}");
            }
        }
    }
    world.none_has_changed(&theirs).await;
}

#[tokio::test]
async fn keys_are_of_a_scope_and_a_missing_part_is_a_value_of_its_own() {
    let world = World::open().await;
    let keyed = || NewJob::raw("mail", None).idempotency_key("i").dedup_key("d").lock_key("l");
    let mut first = Vec::new();
    for client in &world.own {
        let made = client.enqueue(keyed().keep_key_for(HOUR).unique_for(HOUR)).await.unwrap();
        assert_eq!(made.was, Was::New);
        first.push(made.id);
    }
    for ended in [false, true] {
        for (client, first) in world.own.iter().zip(&first) {
            if ended {
                world.end(first).await;
                client.delete(first, ann()).await.unwrap();
            }
            for (key, by) in [
                (NewJob::raw("mail", None).idempotency_key("i"), By::IdempotencyKey),
                (NewJob::raw("mail", None).dedup_key("d"), By::DedupKey),
            ] {
                let found = client.enqueue(key).await.unwrap();
                assert_eq!(found, Enqueued { id: first.clone(), was: Was::Existing { by } });
            }
            let locked = client.enqueue(NewJob::raw("mail", None).lock_key("l")).await;
            if ended {
                client.cancel(locked.unwrap().id, ann()).await.unwrap();
            } else {
                let held = Refusal::LockHeld { by: first.clone() };
                assert_eq!(locked.unwrap_err().refusal(), Some(&held));
            }
        }
    }
}

#[tokio::test]
async fn counts_are_of_the_scope_alone() {
    let world = World::open().await;
    for (n, of) in SCOPES.iter().enumerate() {
        for at in 0..=n {
            let id = format!("{n}-{at}");
            world.all.enqueue(job(*of).id(id)).await.unwrap();
        }
        world.all.enqueue(job(*of).delay(HOUR)).await.unwrap();
        let ended = world.all.enqueue(job(*of)).await.unwrap().id;
        world.all.cancel(ended, ann()).await.unwrap();
        let dead = world.all.enqueue(job(*of)).await.unwrap().id;
        let lease = world.all.claim_by_id(dead, "hand").await.unwrap().unwrap();
        lease.fail(leasehold::Failed::transient("once")).await.unwrap();
        let held = world.all.enqueue(job(*of)).await.unwrap().id;
        world.all.claim_by_id(held, "hand").await.unwrap().unwrap();
    }
    let mut sum = 0;
    for (n, client) in world.own.iter().enumerate() {
        let counts = client.counts().await.unwrap();
        let ready = i64::try_from(n).unwrap() + 1;
        assert_eq!((counts.ready, counts.scheduled, counts.retrying), (ready, 1, 1));
        assert_eq!((counts.leased, counts.cancelled, counts.completed), (1, 1, 0));
        assert_eq!(counts.kinds.get("mail").copied(), Some(ready + 2));
        sum += counts.ready;
    }
    assert_eq!(world.all.counts().await.unwrap().ready, sum);
    let nobody = world.all.scoped(Scope::tenant("nobody"));
    assert_eq!(nobody.counts().await.unwrap(), leasehold::Counts::default());
}

#[tokio::test]
async fn what_is_about_the_whole_database_is_out_of_scope() {
    let world = World::open().await;
    let bystanders = world.jobs("bystander").await;
    let client = &world.own[1];
    let mail = Settings::new().queue("other");
    for (what, answer) in [
        ("claim", client.claim(&["mail"], "hand", 9).await.map(drop)),
        ("totals", client.totals().await.map(drop)),
        ("sweep", client.sweep(i64::MAX, 9, ann()).await.map(drop)),
        ("pause", client.pause(Target::Kind("mail".into()), ann()).await),
        ("resume", client.resume(Target::Queue("default".into()), ann()).await),
        ("register", client.register("mail", mail).await),
        ("limit_queue", client.limit_queue("default", 0).await),
        ("limit_key", client.limit_key("k", 0).await),
        ("reason", client.register_reason("own", "Own").await),
        ("sizes", client.set_sizes(Sizes::default().payload(1)).await),
        ("reap", client.reap_once().await.map(drop)),
    ] {
        let refused = answer.expect_err(what);
        assert!(matches!(refused.refusal(), Some(Refusal::OutOfScope { .. })), "{what}: {refused}");
    }
    world.none_has_changed(&bystanders).await;
    assert_eq!(world.all.why_waiting(&bystanders[0].id).await.unwrap().reason, Waiting::Next);
    world.all.enqueue(NewJob::raw("mail", None).id("after")).await.unwrap();
    assert_eq!(record(&world.all, &"after".into()).await.queue.as_ref(), "default");
}

#[tokio::test]
async fn the_last_scope_counts_and_the_client_it_came_from_has_none() {
    let world = World::open().await;
    let theirs = world.jobs("job").await;
    let narrowed = world.own[1].scoped(Scope::tenant("acme").organization("sales"));
    assert!(narrowed.job(&theirs[2].id).await.unwrap().is_some());
    assert!(narrowed.job(&theirs[1].id).await.unwrap().is_none());
    assert_eq!(world.all.cancel(&theirs[0].id, ann()).await.unwrap(), Status::Cancelled);
    world.none_has_changed(&theirs[1..]).await;
}
