//! The rules that input must meet before anything is written.

use std::time::Duration;

use crate::error::Refusal;
use crate::facts::MAX_ATTEMPTS;
use crate::json::Json;
use crate::new_job::NewJob;
use crate::operator::Operator;

/// How large what is given may be, in bytes; the same for every process on the database.
///
/// ```
/// # fn main() -> leasehold::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// use leasehold::{Runtime, Sizes};
///
/// let builder = Runtime::builder(dir.path().join("jobs.db"))
///     .sizes(Sizes::default().payload(4 << 20));
/// # drop(builder);
/// # Ok(())
/// # }
/// ```
///
/// Specified in SEMANTICS.md, “Validation”.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Sizes {
    pub(crate) payload: usize,
    pub(crate) result: usize,
    pub(crate) meta: usize,
    pub(crate) key: usize,
}

impl Default for Sizes {
    /// Payload, result and saved value 1 MiB each, meta 64 KiB, keys 512 bytes.
    fn default() -> Self {
        Self { payload: 1 << 20, result: 1 << 20, meta: 64 << 10, key: 512 }
    }
}

impl Sizes {
    /// The largest a size may be set to: what an SQLite value may well be.
    const MOST: usize = 256 << 20;

    /// The largest payload.
    pub fn payload(mut self, bytes: usize) -> Self {
        self.payload = bytes;
        self
    }

    /// The largest result, and the largest saved value.
    pub fn result(mut self, bytes: usize) -> Self {
        self.result = bytes;
        self
    }

    /// The largest meta.
    pub fn meta(mut self, bytes: usize) -> Self {
        self.meta = bytes;
        self
    }

    /// The longest id, key, tenant, organization, subject, trace context and step.
    pub fn key(mut self, bytes: usize) -> Self {
        self.key = bytes;
        self
    }

    /// Its parts by the names that the database has for them.
    pub(crate) fn parts(&mut self) -> [(&'static str, &mut usize); 4] {
        [
            ("max_payload", &mut self.payload),
            ("max_result", &mut self.result),
            ("max_meta", &mut self.meta),
            ("max_key", &mut self.key),
        ]
    }

    pub(crate) fn check(mut self) -> Result<(), Refusal> {
        for (field, bytes) in self.parts() {
            if !(1..=Self::MOST).contains(bytes) {
                let rule = format!("from 1 to {} bytes", Self::MOST);
                return Err(Refusal::invalid(field, *bytes, rule));
            }
        }
        Ok(())
    }
}

/// The longest reason of an operator, in bytes.
const MAX_WHY: usize = 4_096;
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
pub(crate) fn key(field: &'static str, text: &str, sizes: Sizes) -> Result<(), Refusal> {
    if text.is_empty() || text.len() > sizes.key {
        let rule = format!("1 to {} bytes, not {}", sizes.key, text.len());
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
pub(crate) fn result(result: Option<&Json>, sizes: Sizes) -> Result<(), Refusal> {
    json("result", result, sizes.result)
}

/// A checkpoint's value.
pub(crate) fn checkpoint(value: &Json, sizes: Sizes) -> Result<(), Refusal> {
    json("value", Some(value), sizes.result)
}

/// A duration in whole milliseconds.
pub(crate) fn duration(field: &'static str, duration: Duration) -> Result<i64, Refusal> {
    match i64::try_from(duration.as_millis()) {
        Ok(ms) if ms <= END_OF_TIME => Ok(ms),
        _ => Err(Refusal::invalid(field, format!("{duration:?}"), "at most 230 years")),
    }
}

/// Who acts, and why.
pub(crate) fn operator(by: &Operator, sizes: Sizes) -> Result<(), Refusal> {
    key("actor", &by.actor, sizes)?;
    match &by.reason {
        Some(reason) if reason.len() > MAX_WHY => {
            let rule = format!("at most {MAX_WHY} bytes");
            Err(Refusal::invalid("reason", reason, rule))
        }
        Some(reason) if reason.contains('\0') => {
            Err(Refusal::invalid("reason", reason, "free of NUL characters"))
        }
        _ => Ok(()),
    }
}

/// The first rule that a new job breaks.
pub(crate) fn new_job(job: &NewJob, sizes: Sizes) -> Result<(), Refusal> {
    name("kind", &job.kind)?;
    match &job.payload {
        Ok(payload) => json("payload", payload.as_ref(), sizes.payload)?,
        Err(error) => {
            let rule = "a value that JSON can hold";
            return Err(Refusal::invalid("payload", error, rule));
        }
    }
    json("meta", job.meta.as_ref(), sizes.meta)?;
    if let Some(id) = &job.id {
        key("id", &id.to_string(), sizes)?;
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
            key(field, text, sizes)?;
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
    for (field, period, key, needs) in [
        ("keep_key_for", job.keep_key_for, &job.idempotency_key, "an idempotency_key"),
        ("unique_for", job.unique_for, &job.dedup_key, "a dedup_key"),
    ] {
        let Some(period) = period else { continue };
        if duration(field, period)? < 1 {
            return Err(Refusal::invalid(field, format!("{period:?}"), "at least 1 ms"));
        }
        if key.is_none() {
            return Err(Refusal::invalid(field, format!("{period:?}"), format!("beside {needs}")));
        }
    }
    match job.max_attempts {
        Some(n) if !(1..=MAX_ATTEMPTS).contains(&n) => {
            Err(Refusal::invalid("max_attempts", n, format!("from 1 to {MAX_ATTEMPTS}")))
        }
        _ => Ok(()),
    }
}
