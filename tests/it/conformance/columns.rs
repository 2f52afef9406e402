//! A job's columns as scenarios name them.

use leasehold::{JobRecord, Json};

use super::args::Stop;
use super::value::Value;

/// Any type of a column as a value.
trait Shown {
    fn shown(&self) -> Value;
}

impl Shown for i64 {
    fn shown(&self) -> Value {
        Value::number(self)
    }
}

/// Types that are shown as texts.
macro_rules! as_text {
    ($($type:ty,)+) => {
        $(impl Shown for $type {
            fn shown(&self) -> Value {
                Value::text(self)
            }
        })+
    };
}

as_text! {
    String,
    std::sync::Arc<str>,
    leasehold::JobId,
    leasehold::Status,
    leasehold::Phase,
    leasehold::Verdict,
    leasehold::ErrorClass,
}

impl Shown for Json {
    fn shown(&self) -> Value {
        Value::parse(self.as_str()).expect("what is stored as JSON is JSON")
    }
}

impl<T: Shown> Shown for Option<T> {
    fn shown(&self) -> Value {
        self.as_ref().map_or(Value::Null, Shown::shown)
    }
}

/// A column by its name.
macro_rules! columns {
    ($record:ident, $name:ident, $($column:ident,)+) => {
        match $name {
            $(stringify!($column) => Ok($record.$column.shown()),)+
            _ => Err(Stop::Broken(format!("a job has no column {:?}", $name))),
        }
    };
}

/// The value of a column.
pub fn column(record: &JobRecord, name: &str) -> Result<Value, Stop> {
    columns!(
        record,
        name,
        // identity
        id,
        kind,
        queue,
        tenant,
        organization,
        reason,
        subject_type,
        subject_id,
        meta,
        trace_context,
        // data
        payload,
        result,
        progress_done,
        progress_total,
        // keys
        idempotency_key,
        dedup_key,
        lock_key,
        // state and order
        status,
        phase,
        limit_key,
        priority,
        run_at,
        created_at,
        // lease
        epoch,
        owner,
        lease_until,
        heartbeat_at,
        // budgets
        attempts,
        max_attempts,
        stalls,
        seq,
        redrives,
        interruptions,
        rate_limit_hits,
        rate_limited_at,
        hook_failures,
        last_committed_at,
        // verdict
        verdict,
        error_class,
        error_code,
        last_error,
        // control
        cancel_requested_at,
        cancel_requested_by,
        parked_at,
        settled_epoch,
        hooked_at,
        // life
        updated_at,
        started_at,
        finished_at,
    )
}
