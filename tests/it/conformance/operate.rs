//! The verbs of operators and of the reaper, and those that look.

use leasehold::{Operator, Preset, Redrive, Target};

use super::args::{Args, Stop};
use super::columns::column;
use super::stage::{Ran, Stage};
use super::value::Value;

fn somebody() -> Operator {
    Operator::named("somebody")
}

pub async fn cancel(stage: &Stage, given: &Value) -> Ran {
    let args = Args::of("cancel", given, &["job", "by", "reason"])?;
    let id = stage.job_of(&args)?;
    let mut by = args.text("by")?.map_or_else(somebody, Operator::named);
    if let Some(reason) = args.text("reason")? {
        by = by.because(reason);
    }
    let status = stage.bench.client.cancel(id, by).await.map_err(|error| stage.stop(error))?;
    Ok(Value::object([("status", Value::text(status))]))
}

pub async fn redrive(stage: &Stage, given: &Value) -> Ran {
    let known = ["job", "preset", "force", "allow_finished", "expected_epoch"];
    let args = Args::of("redrive", given, &known)?;
    let id = stage.job_of(&args)?;
    let mut how = Redrive::default();
    if let Some(preset) = args.text("preset")? {
        let known = Preset::parse(preset);
        how = known.ok_or_else(|| Stop::Broken(format!("{preset:?} is no preset")))?.into();
    }
    if args.flag("force")?.unwrap_or(false) {
        how = how.force();
    }
    if args.flag("allow_finished")?.unwrap_or(false) {
        how = how.allow_finished();
    }
    if let Some(epoch) = args.number("expected_epoch")? {
        how = how.expecting(epoch);
    }
    let done = stage.bench.client.redrive(id, how, somebody()).await;
    done.map(|()| Value::Null).map_err(|error| stage.stop(error))
}

pub async fn delete(stage: &Stage, given: &Value) -> Ran {
    let id = stage.job_of(&Args::of("delete", given, &["job"])?)?;
    let done = stage.bench.client.delete(id, somebody()).await;
    done.map(|()| Value::Null).map_err(|error| stage.stop(error))
}

pub async fn sweep(stage: &Stage, given: &Value) -> Ran {
    let args = Args::of("sweep", given, &["settled_before", "limit"])?;
    let before = args.number("settled_before")?;
    let before = before.ok_or_else(|| Stop::invalid("settled_before"))?;
    let limit = args.number("limit")?.unwrap_or(100);
    let removed = stage.bench.client.sweep(before, limit, somebody()).await;
    let removed = removed.map_err(|error| stage.stop(error))?;
    Ok(Value::object([("removed", Value::number(removed))]))
}

/// `pause` and `resume`.
pub async fn pause(stage: &Stage, verb: &str, given: &Value) -> Ran {
    let args = Args::of(verb, given, &["queue", "kind"])?;
    let target = match (args.text("queue")?, args.text("kind")?) {
        (Some(queue), None) => Target::Queue(queue.to_owned()),
        (None, Some(kind)) => Target::Kind(kind.to_owned()),
        _ => return Err(Stop::Broken(format!("{verb} takes a queue or a kind, not {given}"))),
    };
    let client = &stage.bench.client;
    let done = match verb {
        "pause" => client.pause(target, somebody()).await,
        _ => client.resume(target, somebody()).await,
    };
    done.map(|()| Value::Null).map_err(|error| stage.stop(error))
}

pub async fn reap(stage: &Stage, given: &Value) -> Ran {
    Args::of("reap", given, &[])?;
    let report = stage.bench.client.reap_once().await.map_err(|error| stage.stop(error))?;
    Ok(Value::object([
        ("scanned", Value::number(report.scanned)),
        ("cancelled", Value::number(report.cancelled)),
        ("requeued", Value::number(report.requeued)),
        ("failed", Value::number(report.failed)),
        ("parked", Value::number(report.parked)),
        ("swept", Value::number(report.swept)),
        ("errors", Value::number(report.errors)),
    ]))
}

pub async fn counts(stage: &Stage, given: &Value) -> Ran {
    Args::of("counts", given, &[])?;
    let counts = stage.bench.client.counts().await.map_err(|error| stage.stop(error))?;
    let kinds = counts.kinds.iter().map(|(kind, n)| (kind.clone(), Value::number(n))).collect();
    Ok(Value::object([
        ("scheduled", Value::number(counts.scheduled)),
        ("retrying", Value::number(counts.retrying)),
        ("ready", Value::number(counts.ready)),
        ("leased", Value::number(counts.leased)),
        ("orphaned", Value::number(counts.orphaned)),
        ("completed", Value::number(counts.completed)),
        ("cancelled", Value::number(counts.cancelled)),
        ("dead", Value::number(counts.dead)),
        ("parked", Value::number(counts.parked)),
        ("kinds", Value::Object(kinds)),
    ]))
}

pub async fn why_waiting(stage: &Stage, given: &Value) -> Ran {
    let id = stage.job_of(&Args::of("why_waiting", given, &["job"])?)?;
    let why = stage.bench.client.why_waiting(id).await.map_err(|error| stage.stop(error))?;
    let reason = why.reason;
    Ok(Value::object([("reason", Value::text(reason))]))
}

/// The columns of a job that are asked for, as they are.
pub async fn columns(stage: &Stage, given: &Value) -> Ran {
    let Some(fields) = given.fields() else {
        return Err(Stop::Broken(format!("expect takes an object, not {given}")));
    };
    let names: Vec<&str> = fields.iter().map(|field| field.0.as_str()).collect();
    let id = stage.job_of(&Args::of("expect", given, &names)?)?;
    let record = stage.bench.client.job(id).await.map_err(|error| stage.stop(error))?;
    let not_found = Value::object([("code", Value::text("not_found"))]);
    let record = record.ok_or(Stop::Refused(not_found))?;
    let shown = |name: &&str| Ok(((*name).to_owned(), column(&record, name)?));
    let names = names.iter().filter(|name| **name != "job");
    Ok(Value::Object(names.map(shown).collect::<Result<_, Stop>>()?))
}

/// `absent`: whether there is no such job.
pub async fn absent(stage: &Stage, given: &Value) -> Result<bool, Stop> {
    let word = given.as_text().ok_or_else(|| Stop::Broken(format!("{given} is no job")))?;
    let found = stage.bench.client.job(stage.job(word)).await;
    Ok(found.map_err(|error| stage.stop(error))?.is_none())
}
