#![doc = include_str!("../README.md")]
//!
//! # Where to start
//!
//! [`Runtime`], [`Job`] and [`Ctx`]; [`testing::Lab`] runs the same with a frozen clock.

#![forbid(unsafe_code)]

mod actors;
mod after;
mod around;
mod ask;
mod bugs;
mod builder;
mod bulk;
mod client;
mod clock;
mod context;
mod entropy;
mod error;
mod events;
mod facts;
mod faults;
mod filter;
mod finite;
mod handler;
mod health;
mod home;
mod hooks;
mod host;
mod job;
mod json;
mod kind;
mod lease;
mod list;
mod new_job;
mod operator;
mod options;
mod owner;
mod process;
mod record;
mod refusal;
mod rules;
mod runtime;
mod scope;
mod store;
pub mod testing;
mod transaction;
mod validate;
mod words;
mod work;

pub use around::{Call, Next};
pub use builder::{Builder, OnHost, OwnThreads};
pub use bulk::{Bulk, BulkAction, BulkOutcome, BulkState, NewBulk, Preview};
pub use client::Client;
pub use clock::{Clock, ManualClock, Sleep, SystemClock};
pub use context::Ctx;
pub use entropy::{Entropy, FixedEntropy, SystemEntropy};
pub use error::{Error, FencedError, Refusal, Result, SaveError, StoreFault};
pub use events::{Event, Events, JobEvent, What};
pub use facts::Orphan;
pub use filter::Filter;
pub use handler::{JobError, JobOutput, JobResult, Outcome};
pub use health::HealthReport;
pub use hooks::{BoxError, Hooks, Tx};
pub use job::{
    Action, AttemptOutcome, By, ErrorClass, Job, JobId, Phase, Preset, State, Status, Verdict,
    Waiting,
};
pub use json::Json;
pub use kind::{Retry, Settings};
pub use lease::{Failed, Lease};
pub use list::{JobSummary, Order, Page, Paging};
pub use new_job::{Enqueued, NewJob, Was, dedup_key_for};
pub use operator::{Done, Operator, Paused, Target};
pub use record::{Attempt, Counts, JobRecord, Totals, Why};
pub use rules::operate::Redrive;
pub use rules::table::{Allowed, allowed};
pub use runtime::{Policy, Runtime};
pub use rusqlite;
pub use scope::Scope;
pub use store::reaper::ReapReport;
pub use store::{Checkpoints, Durability, Migrate, migrations};
pub use transaction::TransactionError;
pub use validate::Sizes;
pub use work::run::StopReason;
pub use work::stats::Stats;
pub use work::stop::{InFlight, StopReport};

/// Runs a future to its end on this thread.
pub(crate) fn block_on<F: std::future::Future>(future: F) -> F::Output {
    use std::task::{Context, Poll, Wake, Waker};
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
