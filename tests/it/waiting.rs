//! What holds a job back, by its name and its time; and what a handler can know of its own job.

use std::time::Duration;

use futures_util::future::join;
use leasehold::testing::{Bench, BenchSettings, Lab};
use leasehold::{
    Client, Ctx, Failed, Job, JobError, JobResult, NewJob, Operator, Outcome, Preset, Retry,
    Runtime, Settings, Status, Target, Waiting,
};
use serde::{Deserialize, Serialize};

use crate::support::Bystander;

const NOW: i64 = 1_000_000;

async fn why(client: &Client, id: &str) -> (Waiting, Option<String>, Option<i64>) {
    let why = client.why_waiting(id).await.unwrap();
    (why.reason, why.by, why.until)
}

fn by(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[tokio::test]
async fn what_holds_a_job_is_named_and_until_when() {
    let bench = Bench::start(BenchSettings::default()).await.unwrap();
    let client = &bench.client;
    let settings = || Settings::new().queue("post");
    let job = |kind: &str, id: &str| NewJob::raw(kind, None).id(id);
    client.enqueue(job("mail", "a").delay(Duration::from_millis(7))).await.unwrap();
    assert_eq!(why(client, "a").await, (Waiting::Scheduled, None, Some(NOW + 7)));
    bench.clock.advance(7);
    assert_eq!(why(client, "a").await, (Waiting::NotRegistered, by("kind mail"), None));
    client.register("mail", settings()).await.unwrap();
    client.enqueue(job("mail", "b").limit_key("ada")).await.unwrap();
    let ann = || Operator::named("ann");
    client.pause(Target::Queue("post".into()), ann()).await.unwrap();
    assert_eq!(why(client, "b").await, (Waiting::QueuePaused, by("queue post"), None));
    client.resume(Target::Queue("post".into()), ann()).await.unwrap();
    client.pause(Target::Kind("mail".into()), ann()).await.unwrap();
    assert_eq!(why(client, "b").await, (Waiting::KindPaused, by("kind mail"), None));
    client.resume(Target::Kind("mail".into()), ann()).await.unwrap();
    client.limit_key("ada", 0).await.unwrap();
    assert_eq!(why(client, "b").await, (Waiting::LimitFull, by("limit_key ada"), None));
    client.limit_queue("post", 0).await.unwrap();
    assert_eq!(why(client, "b").await, (Waiting::LimitFull, by("queue post"), None));
    client.limit_queue("post", 9).await.unwrap();
    client.limit_key("ada", 9).await.unwrap();
    client.register("mail", settings().concurrency(1)).await.unwrap();
    let running = client.claim_by_id("a", "w").await.unwrap().unwrap();
    assert_eq!(why(client, "b").await, (Waiting::LimitFull, by("kind mail"), None));
    running.complete(None).await.unwrap();
    assert_eq!(why(client, "b").await, (Waiting::Next, None, None));
}

#[tokio::test]
async fn a_rate_and_a_gate_say_when_they_let_the_next_one_through() {
    let bench = Bench::start(BenchSettings::default()).await.unwrap();
    let client = &bench.client;
    let minute = Duration::from_secs(60);
    client.register("mail", Settings::new().rate(2, minute).provider("post")).await.unwrap();
    client.enqueue_many((0..4).map(|n| NewJob::raw("mail", None).id(n.to_string()))).await.unwrap();
    for _ in 0..2 {
        client.claim(&["mail"], "w", 1).await.unwrap().remove(0).complete(None).await.unwrap();
        bench.clock.advance(1_000);
    }
    let limited = (Waiting::RateLimited, by("kind mail"), Some(NOW + 60_000));
    assert_eq!(why(client, "2").await, limited, "the first of the two leaves the window then");
    bench.clock.advance(58_000);
    assert_eq!(why(client, "2").await.0, Waiting::Next);
    let lease = client.claim(&["mail"], "w", 1).await.unwrap().remove(0);
    let wait = Some(Duration::from_secs(3_600));
    let class = leasehold::ErrorClass::RateLimited;
    let failed = Failed { class, retry_after: wait, ..Failed::transient("slow down") };
    lease.fail(failed).await.unwrap();
    let closed = (Waiting::RateLimited, by("provider post"), Some(NOW + 60_000 + 3_600_000));
    assert_eq!(why(client, "3").await, closed);
}

/// A job that tells its keys.
#[derive(Serialize, Deserialize)]
struct Keys;

impl Job for Keys {
    const KIND: &'static str = "keys";

    fn settings() -> Settings {
        Settings::new().retry(Retry::fixed(Duration::from_secs(1)).no_jitter().attempts(9))
    }
}

async fn keys(_: Keys, ctx: Ctx) -> JobResult {
    let key = || async { Ok::<_, JobError>(ctx.idempotency_key()) };
    let before = ctx.idempotency_key();
    let (one, two) = join(ctx.step("one", key), ctx.step("two", key)).await;
    let outer = ctx.step("outer", || async { ctx.step("inner", key).await }).await?;
    let subject = ctx.job().await?.subject_id;
    if ctx.attempt() == 1 && ctx.epoch() == 1 {
        ctx.save(&1).await?;
        Err("again")?;
    }
    let all = (before, one?, two?, outer, ctx.idempotency_key(), subject);
    Ok(Outcome::done_with(&all))
}

#[tokio::test]
async fn a_step_has_a_key_of_its_own_until_the_job_is_restarted() {
    let lab = Lab::start(Runtime::in_memory().handle(keys)).await.unwrap();
    let client = lab.client();
    let bystander = Bystander::enqueue(&client).await;
    let id = lab.enqueue(Keys.into_new().id("j").subject_id("42")).await.unwrap();
    lab.settle().await;
    lab.advance(Duration::from_secs(1)).await;
    let seen = async || {
        let job = lab.job(&id).await.unwrap();
        assert_eq!(job.status, Status::Completed);
        job.result.unwrap().to::<[String; 6]>().unwrap()
    };
    assert_eq!(seen().await, ["j:1", "j:0:one", "j:0:two", "j:0:inner", "j:1", "42"]);
    let again = leasehold::Redrive::new(Preset::Restart).allow_finished();
    client.redrive(&id.to_string(), again, Operator::named("ann")).await.unwrap();
    lab.settle().await;
    assert_eq!(seen().await, ["j:2", "j:1:one", "j:1:two", "j:1:inner", "j:2", "42"]);
    bystander.check().await;
}

#[tokio::test]
async fn a_kind_is_configured_before_or_after_its_handler_and_never_without() {
    let slow = |settings: Settings| settings.queue("slow");
    let before = Runtime::in_memory().configure::<Keys>(slow).handle(keys);
    let after = Runtime::in_memory().handle(keys).configure::<Keys>(slow);
    for builder in [before, after] {
        let lab = Lab::start(builder).await.unwrap();
        let id = lab.enqueue(Keys).await.unwrap();
        assert_eq!(&*lab.job(&id).await.unwrap().queue, "slow");
    }
    let wrong = Runtime::in_memory().configure::<Keys>(slow).start().await.unwrap_err();
    assert_eq!(wrong.to_string(), "kind keys is configured but has no handler; add it");
}
