//! K06: a key or a place that outlives its job, or that stops jobs that have nothing to do
//! with it.

use leasehold::testing::Lab;
use leasehold::{
    By, Client, Clock, ErrorClass, Failed, Job, NewJob, Redrive, Refusal, Runtime, Settings,
    Status, Was,
};

use super::stuck::killed_holder;
use super::{LEASE, START, bench, by, hand, now, place, scale, seconds};
use crate::support::{Act, Bystander, Signals, act, record};

/// Enqueues a job with a key; answers the job that holds the key already.
async fn held_by(client: &Client, id: &str, key: &str) -> Option<String> {
    let enqueued = client.enqueue(hand(id).dedup_key(key)).await.unwrap();
    match enqueued.was {
        Was::New => None,
        Was::Existing { by } => {
            assert_eq!(by, By::DedupKey);
            Some(enqueued.id.to_string())
        }
    }
}

/// A job that was left running by a stop counted for uniqueness for ever, and the same work
/// could not be queued again (`oban-bg/oban#424`).
#[tokio::test]
async fn k06_unique_keys_the_key_of_a_killed_holders_job_is_free_once_that_job_has_ended() {
    let (dir, path) = place();
    let key = "invoice:7";
    let [_, (old, until)] = killed_holder(dir.path(), hand("by hand").dedup_key(key)).await;
    let lab = bench(&path, now()).await;
    let client = &lab.client;
    let bystander = Bystander::enqueue(client).await;
    assert_eq!(held_by(client, "at once", key).await.as_deref(), Some(old));
    lab.clock.advance(until + 1 - lab.clock.now());
    assert_eq!(held_by(client, "after the lease", key).await.as_deref(), Some(old));
    client.reap_once().await.unwrap();
    assert_eq!(record(client, &old.into()).await.status, Status::Pending);
    assert_eq!(held_by(client, "after the pass", key).await.as_deref(), Some(old));
    let lease = client.claim_by_id(old, "w2").await.unwrap().unwrap();
    let gone = Failed { class: ErrorClass::Terminal, ..Failed::transient("no such invoice") };
    lease.fail(gone).await.unwrap();
    assert_eq!(held_by(client, "second", key).await, None, "the old one has ended");
    assert_eq!(held_by(client, "third", key).await.as_deref(), Some("second"));
    // An old job that goes takes no key with it that is another's now.
    client.delete(old, by()).await.unwrap();
    assert_eq!(held_by(client, "third", key).await.as_deref(), Some("second"));
    client.cancel("second", by()).await.unwrap();
    client.delete("second", by()).await.unwrap();
    assert_eq!(held_by(client, "third", key).await, None);
    bystander.check().await;
}

/// A key held over some states only stopped one job from coming back, and with it every other
/// job of the same update (`oban-bg/oban#1259`). Here a key is held from the enqueue to the end.
#[tokio::test]
async fn k06_unique_keys_a_job_that_waits_for_its_retry_holds_its_key_and_no_other_back() {
    let lab = Lab::start(Runtime::in_memory().state(Signals::default()).handle(act)).await.unwrap();
    let bystander = Bystander::enqueue(&lab.client()).await;
    let fails = |id: String| Act::Fail.into_new().id(id);
    let others = scale(100, 10_000);
    lab.enqueue(fails("a".into()).dedup_key("k")).await.unwrap();
    let jobs = (0..others).map(|n| fails(format!("other-{n}")));
    lab.client().enqueue_many(jobs).await.unwrap();
    lab.settle().await;
    assert_eq!(lab.client().counts().await.unwrap().retrying, others as i64 + 1);
    let second = lab.client().enqueue(fails("b".into()).dedup_key("k")).await.unwrap();
    assert_eq!((second.id, second.was), ("a".into(), Was::Existing { by: By::DedupKey }));
    lab.advance(seconds(1)).await;
    for id in std::iter::once("a".to_owned()).chain((0..others).map(|n| format!("other-{n}"))) {
        let job = lab.job(&*id).await.unwrap();
        assert_eq!((job.status, job.attempts), (Status::Pending, 2), "{id}");
    }
    lab.advance(seconds(1)).await;
    assert_eq!(lab.client().counts().await.unwrap().dead, others as i64 + 1);
    assert!(lab.client().job("b").await.unwrap().is_none(), "and it was answered with the first");
    bystander.check().await;
}

/// The same report, by an operator's hand: one job whose key is taken stays, the others go.
#[tokio::test]
async fn k06_unique_keys_a_redrive_whose_key_is_taken_is_refused_alone() {
    let (_dir, path) = place();
    let client = bench(&path, START).await.client;
    client.register("hand", Settings::new()).await.unwrap();
    let bystander = Bystander::enqueue(&client).await;
    let ids: Vec<_> = (0..20).map(|n| format!("job-{n}")).collect();
    for id in &ids {
        client.enqueue(hand(id).dedup_key(id).lock_key(id)).await.unwrap();
        client.cancel(&**id, by()).await.unwrap();
    }
    client.enqueue(hand("holds a key").dedup_key("job-3")).await.unwrap();
    client.enqueue(hand("holds a lock").lock_key("job-4")).await.unwrap();
    for id in &ids {
        let redriven = client.redrive(&**id, Redrive::default(), by()).await;
        let refusal = redriven.err().and_then(|error| error.refusal().cloned());
        let expected = match &**id {
            "job-3" => Some(Refusal::DedupHeld { by: "holds a key".into() }),
            "job-4" => Some(Refusal::LockHeld { by: "holds a lock".into() }),
            _ => None,
        };
        let status = record(&client, &(**id).into()).await.status;
        assert_eq!(status.is_live(), expected.is_none(), "{id}");
        assert_eq!(refusal, expected, "{id}");
    }
    bystander.check().await;
}

/// One key was shared by two kinds, and the one kind's jobs kept the other's away
/// (`graphile/worker#312`). Here a key's scope is the tenant and the organization, whatever the
/// kind: who wants the kind in it writes it into the key.
#[tokio::test]
async fn k06_unique_keys_a_key_is_one_within_a_tenant_and_an_organization() {
    let (_dir, path) = place();
    let client = bench(&path, START).await.client;
    let of = |kind: &str| NewJob::raw(kind, None).dedup_key("7");
    let (jobs, expected): (Vec<_>, Vec<_>) = [
        (of("invoice"), true),
        (of("reminder"), false),
        (of("invoice").tenant("a"), true),
        (of("invoice").organization("a"), true),
        (of("invoice").tenant("a").organization("a"), true),
        (of("reminder").tenant("a").organization("a"), false),
        (NewJob::raw("reminder", None).dedup_key("reminder:7"), true),
    ]
    .into_iter()
    .unzip();
    let answers = client.enqueue_many(jobs).await.unwrap();
    let new: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().was == Was::New).collect();
    assert_eq!(new, expected, "and a key that is held is no error of the batch");
}

/// A place was given back twice, or never, and a limit leaked (`taylorchu/work#67`). Here places
/// are counted from the rows: whatever holders do, no more run than the limit allows.
#[tokio::test]
async fn k06_unique_slots_a_place_is_neither_given_back_twice_nor_lost_with_its_holder() {
    let (_dir, path) = place();
    let lab = bench(&path, START).await;
    let client = &lab.client;
    client.register("hand", Settings::new().max_stalls(1_000)).await.unwrap();
    client.limit_key("provider", 2).await.unwrap();
    let bystander = Bystander::enqueue(client).await;
    let jobs = (0..10).map(|n| hand(&format!("job-{n}")).limit_key("provider").max_attempts(1_000));
    client.enqueue_many(jobs).await.unwrap();
    let mut late = Vec::new();
    for round in 0..scale(20, 900) {
        let leases = client.claim(&["hand"], "w1", 10).await.unwrap();
        assert_eq!(leases.len(), 2, "round {round}");
        // What former holders give back is nobody's place any more.
        for lease in late.drain(..) {
            let lease: leasehold::Lease = lease;
            assert!(lease.release().await.is_err());
            assert!(lease.complete(None).await.is_err());
        }
        assert!(client.claim(&["hand"], "w2", 10).await.unwrap().is_empty(), "both are taken");
        let mut leases = leases.into_iter();
        leases.next().unwrap().release().await.unwrap();
        late.extend(leases);
        lab.clock.advance(LEASE + 1);
        assert_eq!(client.reap_once().await.unwrap().requeued, 1);
    }
    let counts = client.counts().await.unwrap();
    assert_eq!((counts.leased, counts.orphaned, counts.ready), (0, 0, 11));
    bystander.check().await;
}
