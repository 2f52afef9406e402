//! Handlers in a process of their own.

use std::process::Command;
use std::time::Duration;

use leasehold::{Job, Operator, Retry, Runtime, Settings, Status};
use serde::{Deserialize, Serialize};

use crate::support::Bystander;

const PATIENCE: Duration = Duration::from_secs(60);

/// A shell script as a job.
#[derive(Serialize, Deserialize)]
struct Script {
    script: String,
}

impl Job for Script {
    const KIND: &'static str = "script";

    fn settings() -> Settings {
        Settings::new().retry(Retry::never())
    }
}

fn script(script: &str) -> Script {
    Script { script: script.into() }
}

async fn runtime(dir: &tempfile::TempDir, timeout: Duration) -> Runtime {
    Runtime::builder(dir.path().join("jobs.db"))
        .handle_process(|job: &Script| {
            let mut command = Command::new("sh");
            command.args(["-c", &job.script]);
            command
        })
        .configure::<Script>(move |settings| settings.timeout(timeout))
        .start()
        .await
        .unwrap()
}

#[tokio::test]
async fn its_input_is_the_payload_and_its_output_the_result() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = runtime(&dir, PATIENCE).await;
    for (job, status, result) in [
        ("cat", Status::Completed, Some(r#"{"script":"cat"}"#)),
        ("true", Status::Completed, None),
        (
            "printf '[1, 18446744073709551615]'",
            Status::Completed,
            Some("[1, 18446744073709551615]"),
        ),
        ("echo plain text", Status::Completed, Some(r#""plain text""#)),
        ("echo $LEASEHOLD_KIND-$LEASEHOLD_ATTEMPT", Status::Completed, Some(r#""script-1""#)),
        ("exit 3", Status::Failed, None),
    ] {
        let id = runtime.enqueue(script(job)).await.unwrap().id;
        let record = runtime.wait(id, PATIENCE).await.unwrap();
        assert_eq!(record.status, status, "{job}: {record:?}");
        assert_eq!(record.result.as_ref().map(leasehold::Json::as_str), result, "{job}");
    }
}

#[tokio::test]
async fn what_it_says_on_standard_error_is_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = runtime(&dir, PATIENCE).await;
    let id =
        runtime.enqueue(script("echo ignored; echo it is broken >&2; exit 3")).await.unwrap().id;
    let error = runtime.wait(id, PATIENCE).await.unwrap().last_error.unwrap();
    assert!(error.contains("it is broken") && error.contains('3'), "{error}");
}

#[tokio::test]
async fn it_is_killed_when_it_is_cancelled_when_its_time_is_up_and_at_a_stop() {
    let dir = tempfile::tempdir().unwrap();
    let first = runtime(&dir, PATIENCE).await;
    let client = first.client();
    let bystander = Bystander::enqueue(&client).await;
    // Each says that it runs, and would go on for ever; `exec`, so that it is the one killed.
    let endless = |name: &str| {
        let path = dir.path().join(name);
        script(&format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 100000", path.display()))
    };
    let pid = |name: &str| std::fs::read_to_string(dir.path().join(name)).ok();
    let cancelled = client.enqueue(endless("cancelled")).await.unwrap().id;
    while pid("cancelled").is_none() {
        tokio::task::yield_now().await;
    }
    client.cancel(&cancelled, Operator::named("test")).await.unwrap();
    let job = first.wait(&cancelled, PATIENCE).await.unwrap();
    assert_eq!(job.status, Status::Cancelled);

    let stopped = client.enqueue(endless("stopped")).await.unwrap().id;
    while pid("stopped").is_none() {
        tokio::task::yield_now().await;
    }
    assert!(first.stop(Duration::from_secs(5)).await.drained);
    let job = client.job(&stopped).await.unwrap().unwrap();
    assert_eq!((job.status, job.attempts, job.interruptions), (Status::Pending, 0, 1));
    client.cancel(&stopped, Operator::named("test")).await.unwrap();

    let second = runtime(&dir, Duration::from_millis(50)).await;
    let late = client.enqueue(endless("late")).await.unwrap().id;
    let job = second.wait(&late, PATIENCE).await.unwrap();
    assert_eq!(job.status, Status::Failed);
    assert!(job.last_error.unwrap().contains("TimedOut"));
    for name in ["cancelled", "stopped", "late"] {
        if let Some(pid) = pid(name) {
            let gone = !std::path::Path::new("/proc").join(pid.trim()).join("exe").exists();
            assert!(gone, "{name} still runs");
        }
    }
    bystander.check().await;
}
