//! The verbs `enqueue` and `enqueue_many`.

use std::time::Duration;

use leasehold::{Enqueued, NewJob, Refusal, Was};

use super::args::{Args, Stop, texts};
use super::stage::{Ran, Stage};
use super::value::Value;

/// The fields of a job that are texts, with their setters.
macro_rules! texts_of_a_job {
    ($($name:ident,)+) => {
        const TEXTS: &[&str] = &[$(stringify!($name),)+];

        fn set_texts(mut job: NewJob, args: &Args<'_>) -> Result<NewJob, Stop> {
            $(if let Some(text) = args.text(stringify!($name))? {
                job = job.$name(text);
            })+
            Ok(job)
        }
    };
}

texts_of_a_job! {
    id, idempotency_key, dedup_key, lock_key, limit_key, tenant, organization, reason,
    subject_type, subject_id,
}

const OTHERS: [&str; 7] =
    ["kind", "payload", "run_at", "delay", "priority", "max_attempts", "meta"];

fn new_job(given: &Value) -> Result<NewJob, Stop> {
    let known: Vec<&str> = TEXTS.iter().chain(&OTHERS).copied().collect();
    let args = Args::of("a job", given, &known)?;
    let kind = args.text("kind")?.unwrap_or_default();
    let payload = args.json("payload", Stop::invalid("payload"))?;
    let mut job = set_texts(NewJob::raw(kind, payload), &args)?;
    if let Some(run_at) = args.number("run_at")? {
        job = job.run_at(run_at);
    }
    if let Some(delay) = args.number("delay")? {
        job = job.delay(Duration::from_millis(delay));
    }
    if let Some(priority) = args.number("priority")? {
        job = job.priority(priority);
    }
    if let Some(attempts) = args.number("max_attempts")? {
        job = job.max_attempts(attempts);
    }
    if let Some(meta) = args.json("meta", Stop::invalid("meta"))? {
        job = job.meta(meta);
    }
    Ok(job)
}

fn answer(stage: &Stage, enqueued: &Enqueued) -> Value {
    let by = match enqueued.was {
        Was::New => Value::Null,
        Was::Existing { by } => Value::text(by),
    };
    Value::object([
        ("created", Value::Bool(enqueued.was == Was::New)),
        ("by", by),
        ("job", stage.shown(&enqueued.id)),
    ])
}

/// One job; `called` is its name.
pub async fn one(stage: &mut Stage, given: &Value, called: Option<&Value>) -> Ran {
    let job = new_job(given)?;
    let enqueued = stage.bench.client.enqueue(job).await.map_err(|error| stage.stop(error))?;
    if let Some(name) = called {
        let name = name.as_text().ok_or_else(|| Stop::Broken(format!("{name} is no name")))?;
        stage.name_job(name, &enqueued.id)?;
    }
    Ok(answer(stage, &enqueued))
}

/// Many in one call, each with an answer of its own.
pub async fn many(stage: &mut Stage, given: &Value, called: Option<&Value>) -> Ran {
    let Value::List(items) = given else {
        return Err(Stop::Broken(format!("enqueue_many takes a list, not {given}")));
    };
    let names = called.map(|names| texts("as", names)).transpose()?;
    if names.as_ref().is_some_and(|names| names.len() != items.len()) {
        return Err(Stop::broken("as must name every item of enqueue_many"));
    }
    let (mut jobs, mut early) = (Vec::new(), Vec::new());
    for item in items {
        match new_job(item) {
            Ok(job) => {
                jobs.push(job);
                early.push(None);
            }
            Err(Stop::Refused(refusal)) => early.push(Some(refusal)),
            Err(broken) => return Err(broken),
        }
    }
    let answers = stage.bench.client.enqueue_many(jobs).await;
    let mut answers = answers.map_err(|error| stage.stop(error))?.into_iter();
    let all: Vec<Result<Result<Enqueued, Refusal>, Value>> = early
        .into_iter()
        .map(|early| match early {
            Some(refusal) => Err(refusal),
            None => Ok(answers.next().expect("an answer for each item")),
        })
        .collect();
    for (name, answer) in names.iter().flatten().zip(&all) {
        if let Ok(Ok(enqueued)) = answer {
            stage.name_job(name, &enqueued.id)?;
        }
    }
    let shown = all.into_iter().map(|one| match one {
        Ok(Ok(enqueued)) => answer(stage, &enqueued),
        Ok(Err(refusal)) => refused(stage.refusal(&refusal)),
        Err(refusal) => refused(refusal),
    });
    Ok(Value::List(shown.collect()))
}

/// A refusal as one item's answer: its code as `refused`, and what goes with it.
fn refused(refusal: Value) -> Value {
    let Value::Object(fields) = refusal else { return refusal };
    let named = |(name, value): (String, Value)| {
        (if name == "code" { "refused".to_owned() } else { name }, value)
    };
    Value::Object(fields.into_iter().map(named).collect())
}
