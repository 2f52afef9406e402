//! What outlives a job: keys that are kept for a time, and a copy that is run again.

use std::time::Duration;

use leasehold::rusqlite::Connection;
use leasehold::testing::{Bench, BenchSettings, Lab, Point};
use leasehold::{
    By, Client, Enqueued, Error, Failed, Json, ManualClock, NewJob, Operator, Refusal, Runtime,
    Settings, Status, Was,
};

use crate::support::{Act, Bystander, Signals, act, record};

const SECOND: Duration = Duration::from_secs(1);

fn ann() -> Operator {
    Operator::named("ann").because("to see")
}

fn mail() -> NewJob {
    NewJob::raw("mail", Some(Json::parse("[1, 2]").unwrap()))
}

type Make = fn() -> NewJob;

/// A file that nothing runs in.
struct Shop {
    _dir: tempfile::TempDir,
    client: Client,
    clock: ManualClock,
    app: Connection,
    bystander: Bystander,
}

impl Shop {
    async fn open() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.db");
        let settings = BenchSettings { path: Some(path.clone()), ..Default::default() };
        let Bench { client, clock, .. } = Bench::start(settings).await.unwrap();
        client.register("mail", Settings::new()).await.unwrap();
        let bystander = Bystander::enqueue(&client).await;
        let app = Connection::open(&path).unwrap();
        Self { _dir: dir, client, clock, app, bystander }
    }

    /// Enqueues a job, and completes it or has it fail for good.
    async fn ended(&self, job: NewJob, status: Status) -> leasehold::JobId {
        let id = self.client.enqueue(job.max_attempts(1)).await.unwrap().id;
        let lease = self.client.claim_by_id(&id, "hand").await.unwrap().unwrap();
        let result = Some(Json::parse("\"done\"").unwrap());
        let ended = match status {
            Status::Completed => lease.complete(result).await,
            Status::Cancelled => lease.cancelled().await,
            _ => lease.fail(Failed::transient("once")).await,
        };
        assert_eq!(ended.unwrap(), status);
        id
    }

    fn count(&self, sql: &str) -> i64 {
        self.app.query_row(sql, [], |row| row.get(0)).unwrap()
    }
}

#[tokio::test]
async fn a_key_is_kept_to_the_millisecond_whatever_becomes_of_its_job() {
    let shop = Shop::open().await;
    let keys: [(By, Make, Make); 2] = [
        (
            By::IdempotencyKey,
            || mail().idempotency_key("k").keep_key_for(SECOND),
            || mail().idempotency_key("k"),
        ),
        (By::DedupKey, || mail().dedup_key("k").unique_for(SECOND), || mail().dedup_key("k")),
    ];
    for (by, first, again) in keys {
        for deleted in [false, true] {
            let id = shop.ended(first(), Status::Completed).await;
            // Not again from the time of the second, nor made longer by it.
            let existing = Enqueued { id: id.clone(), was: Was::Existing { by } };
            shop.clock.advance(500);
            assert_eq!(shop.client.enqueue(first()).await.unwrap(), existing);
            if deleted {
                shop.client.delete(&id, ann()).await.unwrap();
            }
            shop.clock.advance(499);
            shop.client.reap_once().await.unwrap();
            assert_eq!(shop.client.enqueue(again()).await.unwrap(), existing);
            let other = shop.client.enqueue(again().tenant("t")).await.unwrap();
            assert_eq!(other.was, Was::New, "of another tenant");
            shop.client.cancel(&other.id, ann()).await.unwrap();
            shop.client.delete(&other.id, ann()).await.unwrap();
            shop.clock.advance(1);
            let kept = "SELECT count(*) FROM leasehold_kept_keys";
            if !deleted && by == By::IdempotencyKey {
                // The row has the key for as long as it is there.
                assert_eq!(shop.client.enqueue(again()).await.unwrap(), existing);
                shop.client.delete(&id, ann()).await.unwrap();
            } else {
                assert_eq!(shop.count(kept), 1);
            }
            // Renewed by the next job, also where the last one has not been swept.
            let next = shop.ended(first(), Status::Completed).await;
            shop.client.delete(&next, ann()).await.unwrap();
            shop.clock.advance(999);
            let found = shop.client.enqueue(again()).await.unwrap();
            assert_eq!(found, Enqueued { id: next, was: Was::Existing { by } });
            shop.clock.advance(1);
            assert_eq!(shop.count(kept), 1);
            shop.client.reap_once().await.unwrap();
            assert_eq!(shop.count(kept), 0, "swept once it is over");
        }
    }
    shop.bystander.check().await;
}

#[tokio::test]
async fn a_key_can_be_kept_only_where_there_is_one_and_for_some_time() {
    let shop = Shop::open().await;
    for (job, expected) in [
        (mail().keep_key_for(SECOND), "keep_key_for"),
        (mail().dedup_key("k").keep_key_for(SECOND), "keep_key_for"),
        (mail().idempotency_key("k").unique_for(SECOND), "unique_for"),
        (mail().dedup_key("k").unique_for(Duration::ZERO), "unique_for"),
        (mail().dedup_key("k").unique_for(Duration::MAX), "unique_for"),
    ] {
        let refused = shop.client.enqueue(job).await.unwrap_err();
        let Some(Refusal::Invalid { field, .. }) = refused.refusal() else { panic!("{refused}") };
        assert_eq!(*field, expected);
    }
    assert_eq!(shop.count("SELECT count(*) FROM leasehold_kept_keys"), 0);
    shop.bystander.check().await;
}

#[tokio::test]
async fn a_job_that_is_run_again_is_a_new_one_and_the_old_one_stays_as_it_is() {
    let shop = Shop::open().await;
    let first = mail()
        .idempotency_key("i")
        .dedup_key("d")
        .lock_key("l")
        .limit_key("m")
        .tenant("t")
        .organization("o")
        .subject_type("order")
        .subject_id("7")
        .meta(Json::parse("{}").unwrap())
        .trace_context("trace")
        .priority(3);
    for status in [Status::Completed, Status::Failed, Status::Cancelled] {
        let id = shop.ended(first.clone(), status).await;
        let old = record(&shop.client, &id).await;
        let attempts = shop.client.attempts(&id).await.unwrap();
        shop.clock.advance(5);
        let copy = shop.client.run_again(&id, ann()).await.unwrap();
        assert_ne!(copy, id);
        let copy = record(&shop.client, &copy).await;
        assert_eq!(record(&shop.client, &id).await, old);
        assert_eq!(shop.client.attempts(&id).await.unwrap(), attempts);
        assert_eq!((copy.copy_of.as_ref(), copy.reason.as_deref()), (Some(&id), Some("redrive")));
        assert_eq!((copy.status, copy.epoch, copy.attempts), (Status::Pending, 0, 0));
        assert_eq!((copy.run_at, copy.created_at), (old.created_at + 5, old.created_at + 5));
        assert_eq!((copy.idempotency_key, copy.result), (None, None));
        assert_eq!((copy.dedup_key, copy.lock_key), (old.dedup_key, old.lock_key));
        assert_eq!((copy.limit_key, copy.priority), (old.limit_key, 3));
        assert_eq!((copy.tenant, copy.organization), (old.tenant, old.organization));
        assert_eq!((copy.subject_type, copy.subject_id), (old.subject_type, old.subject_id));
        assert_eq!((copy.payload, copy.meta), (old.payload, old.meta));
        assert_eq!((copy.trace_context, copy.max_attempts), (old.trace_context, 1));
        let action = format!(
            "SELECT count(*) FROM leasehold_actions WHERE action = 'run_again' \
             AND target = '{id}' AND actor = 'ann' AND reason = 'to see'"
        );
        assert_eq!(shop.count(&action), 1);
        shop.client.cancel(&copy.id, ann()).await.unwrap();
        shop.client.delete(&copy.id, ann()).await.unwrap();
        shop.client.delete(&id, ann()).await.unwrap();
    }
    shop.bystander.check().await;
}

#[tokio::test]
async fn a_job_is_not_run_again_while_it_lives_or_another_has_its_keys() {
    let shop = Shop::open().await;
    let again = async |id: &leasehold::JobId| match shop.client.run_again(id, ann()).await {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    assert_eq!(again(&"nobody".into()).await, Refusal::NotFound);
    let live = shop.client.enqueue(mail()).await.unwrap().id;
    assert!(matches!(again(&live).await, Refusal::Live { status: Status::Pending, .. }));
    let held = shop.client.claim_by_id(&live, "hand").await.unwrap().unwrap();
    assert!(matches!(again(&live).await, Refusal::Live { status: Status::Running, .. }));
    held.complete(None).await.unwrap();
    let deduped = shop.ended(mail().dedup_key("d"), Status::Failed).await;
    let locked = shop.ended(mail().lock_key("l"), Status::Failed).await;
    let by = shop.client.enqueue(mail().dedup_key("d").lock_key("l")).await.unwrap().id;
    let jobs = shop.count("SELECT count(*) FROM leasehold_job");
    assert_eq!(again(&deduped).await, Refusal::DedupHeld { by: by.clone() });
    assert_eq!(again(&locked).await, Refusal::LockHeld { by: by.clone() });
    assert_eq!(shop.count("SELECT count(*) FROM leasehold_job"), jobs);
    shop.client.cancel(&by, ann()).await.unwrap();
    shop.client.run_again(&deduped, ann()).await.unwrap();
    shop.client.run_again(&locked, ann()).await.unwrap();
    shop.bystander.check().await;
}

#[tokio::test]
async fn a_lost_answer_to_run_again_makes_one_copy() {
    let dir = tempfile::tempdir().unwrap();
    let builder = Runtime::builder(dir.path().join("shop.db")).state(Signals::default());
    let lab = Lab::start(builder.handle(act)).await.unwrap();
    let id = lab.enqueue(Act::Done).await.unwrap();
    lab.settle().await;
    lab.runtime.quiet();
    let bystander = Bystander::enqueue(&lab.client()).await;
    lab.faults.arm(Point::Commit, 2);
    let copy = lab.client().run_again(&id, ann()).await.unwrap();
    assert_eq!(lab.faults.left(Point::Commit), 0);
    assert_eq!(lab.job(&copy).await.unwrap().copy_of, Some(id));
    assert_eq!(lab.client().counts().await.unwrap().ready, 2);
    bystander.check().await;
    let actions = "SELECT count(*) FROM leasehold_actions";
    let app = Connection::open(dir.path().join("shop.db")).unwrap();
    assert_eq!(app.query_row(actions, [], |row| row.get(0)), Ok(1));
}
