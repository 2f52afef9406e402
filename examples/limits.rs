//! How much runs at a time, and what holds back the rest: a limit by kind and one by key, a rate,
//! and a provider that asks for patience.
//!
//! `testing::Lab` runs it in memory, on a clock that stands still until it is moved: a quarter of
//! an hour is over in a moment. From `Builder::start` the same happens on the system's clock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::testing::Lab;
use leasehold::{Clock, Ctx, Job, JobError, JobResult, NewJob, Outcome, Runtime, Settings};
use serde::{Deserialize, Serialize};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);

#[derive(Serialize, Deserialize)]
struct Letter {
    to: String,
}

impl Job for Letter {
    const KIND: &'static str = "letter";

    /// Two at a time, in all processes on the database together.
    fn settings() -> Settings {
        Settings::new().provider("post").concurrency(2)
    }
}

#[derive(Serialize, Deserialize)]
struct Mail {
    to: String,
}

impl Job for Mail {
    const KIND: &'static str = "mail";

    /// Three starts in any minute. The provider is that of letters.
    fn settings() -> Settings {
        Settings::new().provider("post").rate(3, MINUTE)
    }
}

async fn letter(job: Letter, ctx: Ctx<Post>) -> JobResult {
    ctx.state().deliver(&ctx, job.to, MINUTE).await
}

async fn mail(job: Mail, ctx: Ctx<Post>) -> JobResult {
    ctx.state().deliver(&ctx, job.to, 10 * SECOND).await
}

/// The provider, and what it sees.
#[derive(Clone, Default)]
struct Post(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    delivered: Vec<Delivery>,
    /// Until when it refuses all, in UTC milliseconds, and how often it had to.
    closed_until: i64,
    refusals: usize,
}

struct Delivery {
    kind: String,
    to: String,
    from: i64,
    until: i64,
}

impl Post {
    fn see(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn deliver(&self, ctx: &Ctx<Self>, to: String, takes: Duration) -> JobResult {
        let from = ctx.now();
        let wait = u64::try_from(self.see().closed_until - from).unwrap_or(0);
        if wait > 0 {
            self.see().refusals += 1;
            // It costs no attempt, and holds back all kinds behind the same provider.
            return Err(JobError::rate_limited("slow down", Some(Duration::from_millis(wait))));
        }
        ctx.sleep(takes).await;
        let kind = ctx.kind().to_owned();
        self.see().delivered.push(Delivery { kind, to, from, until: ctx.now() });
        Ok(Outcome::Done)
    }

    /// Of the deliveries that are meant, how many were there at the most when one began: begun no
    /// later, and not over.
    fn most(&self, meant: impl Fn(&Delivery) -> bool, over: impl Fn(&Delivery) -> i64) -> usize {
        let seen = self.see();
        let all: Vec<_> = seen.delivered.iter().filter(|one| meant(one)).collect();
        let there = |at| all.iter().filter(|one| one.from <= at && at < over(one)).count();
        all.iter().map(|one| there(one.from)).max().unwrap_or(0)
    }
}

/// Enqueues jobs one after the other, says what holds each that does not run, and then moves the
/// clock until all have ended.
async fn play(lab: &Lab, title: &str, jobs: Vec<NewJob>) -> anyhow::Result<()> {
    println!("{title}");
    let mut ids = Vec::new();
    for job in jobs {
        ids.push(lab.enqueue(job).await?);
        lab.settle().await;
    }
    for id in &ids {
        // Refused for a job that runs or has ended.
        if let Ok(why) = lab.client().why_waiting(id).await {
            let by = why.by.map_or_else(String::new, |by| format!(", {by}"));
            println!("  a {} waits: {}{by}", lab.job(id).await?.kind, why.reason);
        }
    }
    for second in 0..600 {
        let counts = lab.client().counts().await?;
        if counts.kinds.is_empty() && counts.leased == 0 {
            println!("  all have ended after {second} s");
            return Ok(());
        }
        lab.advance(SECOND).await;
    }
    anyhow::bail!("something has not ended in ten minutes")
}

/// The customer is the limit key: one that has no limit set, as bob's has not, holds nothing back.
fn letter_to(to: &str) -> NewJob {
    Letter { to: to.into() }.into_new().limit_key(to)
}

fn mail_to(to: &str) -> NewJob {
    Mail { to: to.into() }.into_new().limit_key(to)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let post = Post::default();
    let builder = Runtime::in_memory().slots(8).limit_key("ada", 1).state(post.clone());
    let lab = Lab::start(builder.handle(letter).handle(mail)).await?;

    play(&lab, "five letters, two at a time", vec![letter_to("bob"); 5]).await?;
    play(&lab, "seven mails, three a minute", vec![mail_to("bob"); 7]).await?;
    let for_ada = vec![letter_to("ada"), mail_to("ada")];
    play(&lab, "a letter and a mail for a customer who has one at a time", for_ada).await?;
    post.see().closed_until = lab.clock.now() + 300_000;
    let behind = vec![letter_to("bob"), letter_to("bob"), mail_to("bob")];
    play(&lab, "the provider is closed for 300 s, and tells the first who asks", behind).await?;

    let over = |one: &Delivery| one.until;
    println!("letters at a time, at the most: {}", post.most(|one| one.kind == "letter", over));
    println!("for ada at a time, at the most: {}", post.most(|one| one.to == "ada", over));
    let minute = |one: &Delivery| one.from + 60_000;
    println!("mails in a minute, at the most: {}", post.most(|one| one.kind == "mail", minute));
    println!("refusals of the provider: {}", post.see().refusals);
    println!("completed: {} of 17", lab.client().counts().await?.completed);
    Ok(())
}
