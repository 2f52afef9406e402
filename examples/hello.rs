//! Sends a welcome in the background, at least once whatever happens to this process.

use leasehold::{Ctx, Job, JobResult, Outcome, Runtime};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Serialize, Deserialize)]
struct Welcome {
    email: String,
}

impl Job for Welcome {
    const KIND: &'static str = "welcome";
}

async fn send_welcome(job: Welcome, ctx: Ctx) -> JobResult {
    println!("attempt {}: welcome, {}", ctx.attempt(), job.email);
    Ok(Outcome::done_with("sent")) // an error, by `?`, would be tried again later
}

#[tokio::main]
async fn main() -> leasehold::Result<()> {
    let path = std::env::temp_dir().join("leasehold-hello.db");
    let runtime = Runtime::builder(path).handle(send_welcome).start().await?;
    let job = runtime.enqueue(Welcome { email: "ada@example.com".into() }).await?;
    let done = runtime.wait(job.id, Duration::from_secs(10)).await?;
    println!("{}: {:?}", done.status, done.result);
    runtime.stop(Duration::from_secs(5)).await;
    Ok(())
}
