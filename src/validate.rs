//! The rules that input must meet before anything is written.

use std::time::Duration;

use crate::error::Refusal;
use crate::json::Json;
use crate::kind::MAX_ATTEMPTS;
use crate::new_job::NewJob;

/// The largest payload and result, in bytes of JSON text.
pub(crate) const MAX_PAYLOAD: usize = 1 << 20;
const MAX_META: usize = 64 << 10;
const MAX_KEY: usize = 512;
/// The first instant after 2199, in UTC milliseconds.
pub(crate) const END_OF_TIME: i64 = 7_258_118_400_000;

/// A kind's or a queue's name.
pub(crate) fn name(field: &'static str, name: &str) -> Result<(), Refusal> {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let good = name.len() <= 100
        && name.bytes().next().is_some_and(plain)
        && name.bytes().all(|c| plain(c) || matches!(c, b'_' | b'.' | b'-'));
    if good {
        return Ok(());
    }
    let rule = "1 to 100 characters of a-z, 0-9, '_', '.' and '-', the first a letter or digit";
    Err(Refusal::invalid(field, name, rule))
}

/// A key, an id, or another text that stands for something.
pub(crate) fn key(field: &'static str, text: &str) -> Result<(), Refusal> {
    if text.is_empty() || text.len() > MAX_KEY {
        let rule = format!("1 to {MAX_KEY} bytes, not {}", text.len());
        return Err(Refusal::invalid(field, text, rule));
    }
    if text.contains('\0') {
        return Err(Refusal::invalid(field, text, "free of NUL characters"));
    }
    Ok(())
}

fn json(field: &'static str, json: Option<&Json>, max_bytes: usize) -> Result<(), Refusal> {
    match json.and_then(|json| Some((json, json.broken_rule(max_bytes)?))) {
        Some((json, rule)) => Err(Refusal::invalid(field, json, rule)),
        None => Ok(()),
    }
}

/// A result, checked before any write.
pub(crate) fn result(result: Option<&Json>) -> Result<(), Refusal> {
    json("result", result, MAX_PAYLOAD)
}

/// A checkpoint's value.
pub(crate) fn checkpoint(value: &Json) -> Result<(), Refusal> {
    json("value", Some(value), MAX_PAYLOAD)
}

/// A duration in whole milliseconds.
pub(crate) fn duration(field: &'static str, duration: Duration) -> Result<i64, Refusal> {
    match i64::try_from(duration.as_millis()) {
        Ok(ms) if ms <= END_OF_TIME => Ok(ms),
        _ => Err(Refusal::invalid(field, format!("{duration:?}"), "at most 230 years")),
    }
}

/// The first rule that a new job breaks.
pub(crate) fn new_job(job: &NewJob) -> Result<(), Refusal> {
    name("kind", &job.kind)?;
    match &job.payload {
        Ok(payload) => json("payload", payload.as_ref(), MAX_PAYLOAD)?,
        Err(error) => {
            let rule = "a value that JSON can hold";
            return Err(Refusal::invalid("payload", error, rule));
        }
    }
    json("meta", job.meta.as_ref(), MAX_META)?;
    if let Some(text) = job.id.as_ref().and_then(|id| id.given()) {
        key("id", text)?;
    }
    for (field, text) in [
        ("idempotency_key", &job.idempotency_key),
        ("dedup_key", &job.dedup_key),
        ("lock_key", &job.lock_key),
        ("limit_key", &job.limit_key),
        ("tenant", &job.tenant),
        ("organization", &job.organization),
        ("subject_type", &job.subject_type),
        ("subject_id", &job.subject_id),
        ("trace_context", &job.trace_context),
    ] {
        if let Some(text) = text {
            key(field, text)?;
        }
    }
    if !(-1000..=1000).contains(&job.priority) {
        return Err(Refusal::invalid("priority", job.priority, "from -1000 to 1000"));
    }
    if let Some(run_at) = job.run_at.filter(|at| !(0..END_OF_TIME).contains(at)) {
        let rule = "UTC milliseconds of an instant from 1970 to the end of 2199";
        return Err(Refusal::invalid("run_at", run_at, rule));
    }
    if let Some(delay) = job.delay {
        duration("delay", delay)?;
    }
    match job.max_attempts {
        Some(n) if !(1..=MAX_ATTEMPTS).contains(&n) => {
            Err(Refusal::invalid("max_attempts", n, format!("from 1 to {MAX_ATTEMPTS}")))
        }
        _ => Ok(()),
    }
}
