//! K14: payloads, results and errors that come back other than they went in.

use leasehold::testing::Lab;
use leasehold::{
    Client, Ctx, Error, Job, JobResult, Json, NewJob, Outcome, Refusal, Retry, Runtime, Settings,
    Status, Verdict,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{START, bench, by_hand, hand, place, query, seconds};
use crate::support::Bystander;

/// Hands its payload on as its result, and saves it, byte for byte.
#[derive(Serialize, Deserialize)]
struct Echo(Box<RawValue>);

impl Job for Echo {
    const KIND: &'static str = "echo";

    fn settings() -> Settings {
        Settings::new().retry(Retry::never())
    }
}

async fn echo(job: Echo, ctx: Ctx) -> JobResult {
    ctx.save(&job.0).await?;
    let saved: Box<RawValue> = ctx.checkpoint()?.ok_or("nothing was saved")?;
    assert_eq!(saved.get(), job.0.get());
    Ok(Outcome::done_with(&job.0))
}

/// What a handler makes of it when it wants numbers.
#[derive(Serialize, Deserialize)]
struct Numbers {
    id: i64,
    n: u64,
}

impl Job for Numbers {
    const KIND: &'static str = "numbers";

    fn settings() -> Settings {
        Settings::new().retry(Retry::never())
    }
}

async fn numbers(job: Numbers, _: Ctx) -> JobResult {
    Ok(Outcome::done_with(&(job.id, job.n)))
}

async fn lab(path: &std::path::Path) -> Lab {
    Lab::start(Runtime::builder(path).handle(echo).handle(numbers)).await.unwrap()
}

/// Ids of 64 bits were rounded where they were shown, and people looked for rows that do not
/// exist (`riverqueue/riverui#593`). Here JSON is kept as the text that it came in: each number,
/// each space, and a key that is there twice.
#[tokio::test]
async fn k14_payload_of_any_number_is_the_same_text_everywhere() {
    let (_dir, path) = place();
    let lab = lab(&path).await;
    let bystander = Bystander::enqueue(&lab.client()).await;
    let text = r#"{"id":1970670598291982290,"n":18446744073709551615,
        "big":123456789012345678901234567890,"f":0.1,"e":1e400,"z":-0.0,"dup":1,"dup":2,
        "s":"\u0000 \ud83d\ude00 \/ é"}"#;
    let json = || Json::parse(text).unwrap();
    lab.enqueue(NewJob::raw("echo", Some(json())).meta(json()).id("a")).await.unwrap();
    lab.enqueue(NewJob::raw("numbers", Some(json())).id("b")).await.unwrap();
    lab.settle().await;
    let job = lab.job("a").await.unwrap();
    assert_eq!(job.status, Status::Completed, "{job:?}");
    for shown in [job.payload.unwrap(), job.result.unwrap(), job.meta.unwrap()] {
        assert_eq!(shown.as_str(), text);
    }
    for column in ["payload", "result", "meta"] {
        let sql = format!("SELECT {column} FROM leasehold_jobs WHERE id = 'a'");
        assert_eq!(query::<String>(&path, &sql), text);
    }
    let job = lab.job("b").await.unwrap();
    let exact = "[1970670598291982290,18446744073709551615]";
    assert_eq!(job.result.map(|json| json.to_string()).as_deref(), Some(exact));
    // What a handler's own type cannot hold is an error of that job, and no rounded number.
    let too_big = r#"{"id":9223372036854775808,"n":1}"#;
    let job = NewJob::raw("numbers", Some(Json::parse(too_big).unwrap())).id("c");
    lab.enqueue(job).await.unwrap();
    lab.settle().await;
    let job = lab.job("c").await.unwrap();
    assert_eq!((job.status, job.verdict), (Status::Failed, Some(Verdict::Undecodable)));
    assert_eq!(job.payload.unwrap().as_str(), too_big);
    bystander.check().await;
}

fn nested(depth: usize) -> String {
    "[".repeat(depth) + &"]".repeat(depth)
}

fn refused(error: &Error) -> &'static str {
    match error.refusal() {
        Some(Refusal::Invalid { field, .. }) => field,
        other => panic!("{other:?}"),
    }
}

/// JSON that is nested deeper than 128 was written without complaint and could not be read back
/// (`serde-rs/json#334`).
#[tokio::test]
async fn k14_payload_that_is_accepted_can_be_read_back_and_a_deeper_one_is_refused() {
    let (_dir, path) = place();
    let lab = lab(&path).await;
    let bystander = Bystander::enqueue(&lab.client()).await;
    let hands = bench(&path, START).await.client;
    hands.register("hand", Settings::new()).await.unwrap();
    for depth in [127, 128, 129, 1_000, 100_000] {
        let id = format!("depth-{depth}");
        let json = || Json::parse(nested(depth)).unwrap();
        let enqueued = lab.enqueue(NewJob::raw("echo", Some(json())).id(&*id)).await;
        hands.enqueue(hand(&format!("by hand-{depth}"))).await.unwrap();
        let lease = hands.claim(&["hand"], "w", 1).await.unwrap().remove(0);
        let saved = lease.checkpoint("", json()).await;
        let completed = lease.complete(Some(json())).await;
        if depth <= 128 {
            enqueued.unwrap();
            saved.unwrap();
            completed.unwrap();
            lab.settle().await;
            let job = lab.job(&*id).await.unwrap();
            assert_eq!((job.status, job.last_error), (Status::Completed, None));
            assert_eq!(job.result.unwrap().as_str(), nested(depth));
            let job = lab.job(lease.job()).await.unwrap();
            assert_eq!(job.result.unwrap().as_str(), nested(depth));
        } else {
            assert_eq!(refused(&enqueued.unwrap_err()), "payload");
            assert_eq!(refused(&saved.unwrap_err()), "value");
            assert_eq!(refused(&completed.unwrap_err()), "result");
            assert!(lab.client().job(&*id).await.unwrap().is_none());
            lease.complete(None).await.unwrap();
        }
    }
    bystander.check().await;
}

/// The same report: rows that somebody wrote by hand, past every check.
#[tokio::test]
async fn k14_payload_that_cannot_be_read_ends_its_own_job_and_no_other() {
    let (_dir, path) = place();
    let client = Client::open(&path).await.unwrap();
    let json = |text: &str| Some(Json::parse(text).unwrap());
    let bad =
        [nested(1_000), nested(100_000), "no JSON".to_owned(), "1 2".to_owned(), String::new()];
    for n in 0..bad.len() {
        for name in ["bad", "good"] {
            let job = NewJob::raw("numbers", json(r#"{"id":1,"n":2}"#)).max_attempts(2);
            client.enqueue(job.id(format!("{name}-{n}"))).await.unwrap();
        }
    }
    let bystander = Bystander::enqueue(&client).await;
    for (n, text) in bad.iter().enumerate() {
        by_hand(
            &path,
            &format!(
                "UPDATE leasehold_payload SET payload = '{text}'
                 WHERE job = (SELECT key FROM leasehold_job WHERE id = 'bad-{n}')"
            ),
        );
    }
    let lab = lab(&path).await;
    lab.clock.advance(super::now() - START + 1_000);
    lab.settle().await;
    for _ in 0..3 {
        lab.advance(seconds(10)).await;
    }
    for (n, text) in bad.iter().enumerate() {
        let job = lab.job(format!("bad-{n}")).await.unwrap();
        assert_eq!((job.status, job.verdict), (Status::Failed, Some(Verdict::Undecodable)));
        assert_eq!((job.attempts, job.payload.unwrap().as_str()), (2, &**text));
        assert!(job.last_error.unwrap().contains("numbers"));
        assert_eq!(lab.job(format!("good-{n}")).await.unwrap().status, Status::Completed);
    }
    assert_eq!(lab.runtime.health().restarts, 0);
    bystander.check().await;
}
