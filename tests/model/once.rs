//! What random commands have found once, in as few steps as it takes.

use futures_util::FutureExt as _;
use leasehold::testing::{Bench, BenchSettings};
use leasehold::{Json, NewJob, Operator, Refusal, Settings};

async fn bench() -> Bench {
    let bench = Bench::start(BenchSettings::default()).await.unwrap();
    bench.client.register("mail", Settings::new()).await.unwrap();
    bench
}

fn mail(id: &str) -> NewJob {
    NewJob::raw("mail", None).id(id)
}

fn by() -> Operator {
    Operator::named("ann")
}

/// The row of a new job must not take the place of a deleted one, which its holder still
/// writes to.
#[tokio::test]
async fn once_a_lease_of_a_deleted_job_reaches_no_other_job() {
    let client = bench().await.client;
    for id in ["b", "a"] {
        client.enqueue(mail("a")).await.unwrap();
        let late = client.claim_by_id("a", "w").await.unwrap().unwrap();
        client.claim_by_id("a", "w").await.unwrap();
        late.complete(None).await.unwrap();
        client.delete("a", by()).await.unwrap();
        client.enqueue(mail(id)).await.unwrap();
        let next = client.claim_by_id(id, "w").await.unwrap().unwrap();
        next.checkpoint("", Json::parse("1").unwrap()).await.unwrap();
        let before = client.job(id).await.unwrap();
        for refused in [late.complete(None).await, late.hand_back().await] {
            assert_eq!(refused.unwrap_err().refusal(), Some(&Refusal::NotFound));
        }
        assert_eq!(late.load().await.unwrap(), []);
        assert_eq!(client.job(id).await.unwrap(), before);
        assert_eq!(client.attempts(id).await.unwrap(), []);
        next.complete(None).await.unwrap();
        client.delete(id, by()).await.unwrap();
    }
}

/// A row that was due before the clock went back gives the place of its limit key to the next.
#[tokio::test]
async fn once_a_job_that_is_no_longer_due_holds_no_other_back() {
    let Bench { client, clock, .. } = bench().await;
    client.limit_key("one", 1).await.unwrap();
    let limited = |id: &str| mail(id).limit_key("one");
    client.enqueue(limited("a")).await.unwrap();
    let lease = client.claim(&["mail"], "w", 1).await.unwrap().remove(0);
    client.enqueue(limited("b").run_at(1_010_000).priority(-10)).await.unwrap();
    client.enqueue(limited("c")).await.unwrap();
    clock.advance(10_000);
    assert!(client.claim(&["mail"], "w", 3).await.unwrap().is_empty());
    lease.complete(None).await.unwrap();
    clock.advance(-10_000);
    let leases = client.claim(&["mail"], "w", 3).await.unwrap();
    let ids: Vec<_> = leases.iter().map(|lease| lease.job().to_string()).collect();
    assert_eq!(ids, ["c"]);
}

/// A place of a limit key that is free again goes to whom the next claim may take: where that has
/// no room for a suspect, to the best that is none.
#[tokio::test]
async fn once_a_suspect_keeps_no_other_from_a_free_place() {
    let bench = bench().await;
    let Bench { client, .. } = &bench;
    client.limit_key("one", 1).await.unwrap();
    let limited = |id: &str| mail(id).limit_key("one");
    client.enqueue(limited("suspect").priority(-10)).await.unwrap();
    client.claim_by_id("suspect", "w").await.unwrap().unwrap().hand_back().await.unwrap();
    client.enqueue(limited("holder").priority(-20)).await.unwrap();
    let holder = client.claim_by_id("holder", "w").await.unwrap().unwrap();
    client.enqueue(limited("other")).await.unwrap();
    assert!(bench.claim(&["mail"], "w", 3, 1).await.unwrap().is_empty());
    holder.complete(None).await.unwrap();
    let leases = bench.claim(&["mail"], "w", 3, 0).await.unwrap();
    let ids: Vec<_> = leases.iter().map(|lease| lease.job().to_string()).collect();
    assert_eq!(ids, ["other"]);
}

/// A claim meets what is due, also of jobs that are owed their ending: the clock went back.
#[tokio::test]
async fn once_a_claim_ends_no_job_that_is_not_due() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static AGREES: AtomicBool = AtomicBool::new(false);
    let hooks = leasehold::Hooks::new()
        .on_cancel(|_, _| if AGREES.load(Ordering::Relaxed) { Ok(()) } else { Err("no".into()) });
    let settings =
        BenchSettings { hooks: vec![("mail".into(), hooks)], ..BenchSettings::default() };
    let Bench { client, clock, .. } = Bench::start(settings).await.unwrap();
    client.register("mail", Settings::new()).await.unwrap();
    client.enqueue(mail("a")).await.unwrap();
    client.cancel("a", by()).await.unwrap_err();
    AGREES.store(true, Ordering::Relaxed);
    clock.advance(-1);
    assert!(client.claim(&["mail"], "w", 1).await.unwrap().is_empty());
    assert!(client.job("a").await.unwrap().unwrap().status.is_live());
    clock.advance(1);
    assert!(client.claim(&["mail"], "w", 1).await.unwrap().is_empty());
    assert_eq!(client.job("a").await.unwrap().unwrap().status.as_str(), "cancelled");
}

/// Two fenced writes of an attempt share a transaction: the one that takes it down fails alone.
#[tokio::test]
async fn once_a_fenced_write_answers_for_itself_alone() {
    let settings = BenchSettings { direct: true, ..BenchSettings::default() };
    let bench = Bench::start(settings).await.unwrap();
    bench.client.register("mail", Settings::new()).await.unwrap();
    let table = "CREATE TABLE app (id INTEGER PRIMARY KEY)";
    let made = bench.client.transaction(move |tx| tx.execute(table, [])).await;
    made.unwrap();
    bench.client.enqueue(mail("a")).await.unwrap();
    let lease = bench.client.claim_by_id("a", "w").await.unwrap().unwrap();
    bench.hold();
    let write = |sql: &'static str| {
        bench.fenced(&lease, None, move |tx| {
            tx.execute(sql, [])?;
            Ok(())
        })
    };
    let well = write("INSERT INTO app VALUES (1)");
    let badly = write("INSERT OR ROLLBACK INTO app VALUES (1)");
    let (mut well, mut badly) = (std::pin::pin!(well), std::pin::pin!(badly));
    assert!(well.as_mut().now_or_never().is_none());
    assert!(badly.as_mut().now_or_never().is_none());
    bench.release();
    well.await.unwrap();
    badly.await.unwrap_err();
}
