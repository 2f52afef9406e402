//! The verbs of whoever claims and holds jobs.

use std::time::Duration;

use leasehold::{ErrorClass, Failed, Status};

use super::args::{Args, Stop, json, texts};
use super::stage::{Ran, Stage};
use super::value::Value;

fn status(status: Status) -> Value {
    Value::object([("status", Value::text(status))])
}

/// `claim`; `called` names the leases in claim order.
pub async fn claim(stage: &mut Stage, given: &Value, called: Option<&Value>) -> Ran {
    let args = Args::of("claim", given, &["kinds", "owner", "limit"])?;
    let kinds = texts("kinds", args.needed("kinds")?)?;
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    args.needed("limit")?;
    let limit = args.number("limit")?.unwrap_or_default();
    let owner = args.text("owner")?.unwrap_or("somebody");
    let claimed = stage.bench.client.claim(&kinds, owner, limit).await;
    let leases = claimed.map_err(|error| stage.stop(error))?;
    let jobs: Vec<_> = leases.iter().map(|lease| lease.job().clone()).collect();
    if let Some(names) = called {
        let names = texts("as", names)?;
        if names.len() > leases.len() {
            let shown: Vec<_> = jobs.iter().map(|id| stage.shown(id)).collect();
            let expected = format!("leases for {names:?}");
            return Err(Stop::Differs { expected, seen: Value::List(shown).to_string() });
        }
        for (name, lease) in names.iter().zip(leases) {
            stage.name_lease(name, lease)?;
        }
    }
    Ok(Value::object([
        ("count", Value::number(jobs.len())),
        ("jobs", Value::List(jobs.iter().map(|id| stage.shown(id)).collect())),
    ]))
}

/// `claim_by_id`; `called` names the lease.
pub async fn claim_by_id(stage: &mut Stage, given: &Value, called: Option<&Value>) -> Ran {
    let args = Args::of("claim_by_id", given, &["job", "owner"])?;
    let id = stage.job_of(&args)?;
    let owner = args.text("owner")?.unwrap_or("somebody");
    let claimed = stage.bench.client.claim_by_id(id, owner).await;
    let lease = claimed.map_err(|error| stage.stop(error))?;
    let count = Value::number(usize::from(lease.is_some()));
    if let Some(name) = called {
        let name = name.as_text().ok_or_else(|| Stop::Broken(format!("{name} is no name")))?;
        let (expected, seen) = (format!("a lease for {name:?}"), "none".to_owned());
        let lease = lease.ok_or(Stop::Differs { expected, seen })?;
        stage.name_lease(name, lease)?;
    }
    Ok(Value::object([("count", count)]))
}

/// The verbs that take a lease and nothing else.
pub async fn plain(stage: &Stage, verb: &str, lease: &Value) -> Ran {
    let lease = stage.lease(lease)?;
    let ended = match verb {
        "renew" => {
            let until = lease.renew().await.map_err(|error| stage.stop(error))?;
            return Ok(Value::object([("lease_until", Value::number(until))]));
        }
        "yield" => lease.hand_back().await,
        "interrupt" => lease.interrupt().await,
        "release" => lease.release().await,
        _ => lease.cancelled().await,
    };
    ended.map(status).map_err(|error| stage.stop(error))
}

pub async fn complete(stage: &Stage, given: &Value) -> Ran {
    let args = Args::of("complete", given, &["lease", "result"])?;
    let lease = stage.lease(args.needed("lease")?)?;
    let unrepresentable = Value::object([("code", Value::text("unrepresentable"))]);
    let result = args.json("result", Stop::Refused(unrepresentable))?;
    lease.complete(result).await.map(status).map_err(|error| stage.stop(error))
}

pub async fn fail(stage: &Stage, given: &Value) -> Ran {
    let known = ["lease", "error", "class", "code", "retry_after"];
    let args = Args::of("fail", given, &known)?;
    let lease = stage.lease(args.needed("lease")?)?;
    let mut failed = Failed::transient(args.text("error")?.unwrap_or_default());
    if let Some(class) = args.text("class")? {
        let known = ErrorClass::parse(class);
        failed.class = known.ok_or_else(|| Stop::Broken(format!("{class:?} is no class")))?;
    }
    failed.code = args.text("code")?.map(str::to_owned);
    failed.retry_after = args.number("retry_after")?.map(Duration::from_millis);
    lease.fail(failed).await.map(status).map_err(|error| stage.stop(error))
}

pub async fn snooze(stage: &Stage, given: &Value) -> Ran {
    let args = Args::of("snooze", given, &["lease", "ms"])?;
    let lease = stage.lease(args.needed("lease")?)?;
    args.needed("ms")?;
    let wait = args.number("ms")?.map(Duration::from_millis).unwrap_or_default();
    lease.snooze(wait).await.map(status).map_err(|error| stage.stop(error))
}

pub async fn checkpoint(stage: &Stage, given: &Value) -> Ran {
    let args = Args::of("checkpoint", given, &["lease", "key", "value"])?;
    let lease = stage.lease(args.needed("lease")?)?;
    let key = args.text("key")?.unwrap_or_default();
    let value = args.given("value").unwrap_or(&Value::Null);
    let unrepresentable = Value::object([("code", Value::text("unrepresentable"))]);
    let value = json(value, Stop::Refused(unrepresentable))?;
    lease.checkpoint(key, value).await.map_err(|error| stage.stop(error))?;
    Ok(Value::Null)
}

pub async fn progress(stage: &Stage, given: &Value) -> Ran {
    let args = Args::of("progress", given, &["lease", "done", "total"])?;
    let lease = stage.lease(args.needed("lease")?)?;
    args.needed("done")?;
    let done = args.number("done")?.unwrap_or_default();
    let total = args.number("total")?;
    lease.progress(done, total).await.map_err(|error| stage.stop(error))?;
    Ok(Value::Null)
}

/// `load`: all values that the attempt sees, by key.
pub async fn load(stage: &Stage, lease: &Value) -> Ran {
    let values = stage.lease(lease)?.load().await.map_err(|error| stage.stop(error))?;
    let read = |(key, json): (String, leasehold::Json)| {
        Value::parse(json.as_str()).map(|value| (key, value)).map_err(Stop::Broken)
    };
    Ok(Value::Object(values.into_iter().map(read).collect::<Result<_, _>>()?))
}
