//! K17, as far as there is a surface: texts that would be run, or break out of where they are
//! shown, are kept and handed back as they are.

use leasehold::testing::Lab;
use leasehold::{
    Ctx, Job, JobError, JobResult, Json, NewJob, Operator, Outcome, Refusal, Retry, Runtime,
    Settings, Status, Target,
};
use serde::{Deserialize, Serialize};

use super::{START, bench, hand, outcomes, place, query};
use crate::support::Bystander;

const HOSTILE: [&str; 8] = [
    r#"<img src=x onerror="alert(1)">"#,
    "</script><script>alert(1)</script>",
    r#"" onmouseover="alert(1)" x=""#,
    "javascript:alert(document.domain)",
    "'; DROP TABLE leasehold_job; --",
    "a\"b\\c\nd\r\te{}=,\u{7f}\u{1b}[31m",
    "../../etc/passwd%00?x#y",
    "\u{202e}\u{2028}\u{feff}😀",
];

/// Fails or completes with its own text.
#[derive(Serialize, Deserialize)]
struct Says {
    text: String,
    fails: bool,
}

impl Job for Says {
    const KIND: &'static str = "says";

    fn settings() -> Settings {
        Settings::new().retry(Retry::never())
    }
}

async fn says(job: Says, ctx: Ctx) -> JobResult {
    ctx.step(&job.text, async || Ok(job.text.clone())).await?;
    if job.fails {
        return Err(JobError::retry(job.text.clone()).code(job.text));
    }
    Ok(Outcome::done_with(&job.text))
}

/// Names, arguments and errors of jobs reached a page as they were, and ran there
/// (`resque/resque#1946`). Here they are data: the same bytes in each answer and in the file.
#[tokio::test]
async fn k17_hostile_texts_are_kept_byte_for_byte_wherever_they_stand() {
    let (_dir, path) = place();
    let lab = Lab::start(Runtime::builder(&path).handle(says)).await.unwrap();
    let client = lab.client();
    let bystander = Bystander::enqueue(&client).await;
    for text in HOSTILE {
        let job = |fails| {
            let says = Says { text: text.into(), fails }.into_new();
            let says = says.meta(Json::of(text).unwrap()).tenant(text).organization(text);
            says.subject_type(text).subject_id(text).trace_context(text).limit_key(text)
        };
        let good = job(false).id(text).idempotency_key(text).dedup_key(text).lock_key(text);
        lab.enqueue(good).await.unwrap();
        let failed = lab.enqueue(job(true)).await.unwrap();
        lab.settle().await;
        let job = lab.job(text).await.unwrap();
        assert_eq!((job.status, job.id.to_string().as_str()), (Status::Completed, text));
        let some = Some(text.to_owned());
        for kept in [&job.tenant, &job.organization, &job.subject_type, &job.subject_id] {
            assert_eq!(*kept, some);
        }
        for kept in [&job.idempotency_key, &job.dedup_key, &job.lock_key, &job.limit_key] {
            assert_eq!(*kept, some);
        }
        assert_eq!(job.trace_context, some);
        assert_eq!(job.result.unwrap().to::<String>().unwrap(), text);
        assert_eq!(job.meta.unwrap().to::<String>().unwrap(), text);
        let failed = lab.job(failed).await.unwrap();
        assert_eq!((failed.status, failed.last_error), (Status::Failed, some.clone()));
        assert_eq!(failed.error_code, some);
        let history = client.attempts(&failed.id).await.unwrap();
        assert_eq!(history[0].error, some);
    }
    let jobs = "SELECT count(*) FROM leasehold_jobs WHERE kind = 'says'";
    assert_eq!(query::<i64>(&path, jobs), 2 * HOSTILE.len() as i64);
    let names = "SELECT count(DISTINCT id) FROM leasehold_jobs WHERE id = tenant";
    assert_eq!(query::<i64>(&path, names), HOSTILE.len() as i64);
    bystander.check().await;
}

/// The same for what operators and executors of another making say.
#[tokio::test]
async fn k17_hostile_names_of_operators_and_owners_are_kept_byte_for_byte() {
    let (_dir, path) = place();
    let client = bench(&path, START).await.client;
    client.register("hand", Settings::new()).await.unwrap();
    let bystander = Bystander::enqueue(&client).await;
    for (n, text) in HOSTILE.into_iter().enumerate() {
        let id = format!("job-{n}");
        client.enqueue(hand(&id)).await.unwrap();
        let lease = client.claim_by_id(&*id, text).await.unwrap().unwrap();
        client.cancel(&*id, Operator::named(text).because(text)).await.unwrap();
        lease.cancelled().await.unwrap();
        let job = client.job(&*id).await.unwrap().unwrap();
        assert_eq!((job.owner.as_deref(), job.status), (Some(text), Status::Cancelled));
        assert_eq!(job.cancel_requested_by.as_deref(), Some(text));
        assert_eq!(outcomes(&client, &id).await, ["cancelled"]);
    }
    let told = "SELECT count(*) FROM leasehold_actions WHERE actor = reason AND action = 'cancel'";
    assert_eq!(query::<i64>(&path, told), HOSTILE.len() as i64);
    bystander.check().await;
}

/// Names that end up in paths, labels and columns have an alphabet, and all else is refused.
#[tokio::test]
async fn k17_hostile_names_of_kinds_and_queues_are_refused_and_nothing_is_written() {
    let (_dir, path) = place();
    let client = bench(&path, START).await.client;
    let bystander = Bystander::enqueue(&client).await;
    let long = "x".repeat(101);
    let bad =
        ["", " ", "a b", "Upper", "-first", ".", "..", "a/b", "a?b", "a%2f", "é", "a\0", &*long];
    for name in HOSTILE.into_iter().chain(bad) {
        let field = |error: leasehold::Error| match error.refusal() {
            Some(Refusal::Invalid { field, .. }) => *field,
            other => panic!("{name:?}: {other:?}"),
        };
        let by = || Operator::named("test");
        assert_eq!(field(client.enqueue(NewJob::raw(name, None)).await.unwrap_err()), "kind");
        assert_eq!(field(client.register(name, Settings::new()).await.unwrap_err()), "kind");
        let queue = Settings::new().queue(name);
        assert_eq!(field(client.register("hand", queue).await.unwrap_err()), "queue");
        let paused = client.pause(Target::Queue(name.into()), by()).await;
        assert_eq!(field(paused.unwrap_err()), "queue");
        let paused = client.pause(Target::Kind(name.into()), by()).await;
        assert_eq!(field(paused.unwrap_err()), "kind");
        let reason = client.register_reason(name, "a label").await;
        assert_eq!(field(reason.unwrap_err()), "reason");
    }
    for table in ["leasehold_kinds", "leasehold_pauses", "leasehold_actions"] {
        assert_eq!(query::<i64>(&path, &format!("SELECT count(*) FROM {table}")), 0, "{table}");
    }
    assert_eq!(query::<i64>(&path, "SELECT count(*) FROM leasehold_job"), 1);
    bystander.check().await;
}
