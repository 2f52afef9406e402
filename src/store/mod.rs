//! The store: the only place with SQL.
//!
//! [`Engine`] owns the writing connection and runs batches of messages, one transaction a
//! batch. [`txn::Txn`] is such a transaction; the other files are what can be done in it. Each
//! loads rows, asks [`crate::rules`], and writes the answer guarded by what it read.

pub(crate) mod bench;
mod bulk;
mod cache;
pub(crate) mod claim;
mod counts;
mod disk;
mod engine;
mod enqueue;
pub(crate) mod holder;
mod list;
pub(crate) mod messages;
mod open;
pub(crate) mod operator;
pub(crate) mod questions;
mod reads;
pub(crate) mod reaper;
mod retention;
mod room;
mod rows;
mod show;
mod spares;
mod statements;
#[cfg(test)]
mod tests;
mod trial;
pub(crate) mod txn;
mod upkeep;
mod why;

pub(crate) use engine::{Claimer, Engine, Pending};
pub(crate) use enqueue::enqueue_in;
pub(crate) use open::Place;
pub use open::migrations;
pub(crate) use reads::{FileWatch, Readers};
pub(crate) use spares::Spares;

use crate::facts::Retention;

/// How safe a commit is when it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Synced to the disk: a power cut loses nothing.
    Full,
    /// Safe from the death of the process; a power cut may lose the last moments.
    Normal,
}

/// What becomes of a schema that is older than this code, or missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migrate {
    /// It is brought up to date in one transaction when the database is opened.
    Auto,
    /// The open is refused: the application runs [`migrations`] itself.
    Require,
}

/// Who writes the log back into the database file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpoints {
    /// This runtime, as the log grows and at a stop.
    Auto,
    /// Somebody else, such as a program that replicates the log.
    Never,
}

/// What a store is told when it is opened.
#[derive(Clone)]
pub(crate) struct StoreSettings {
    pub(crate) durability: Durability,
    /// Added to a lease before it counts as lost, in milliseconds.
    pub(crate) grace: i64,
    pub(crate) retention: Retention,
    /// The time limit of application code in a transaction, in milliseconds.
    pub(crate) code_limit: i64,
    /// How long to wait for somebody else's lock, in milliseconds.
    pub(crate) busy_timeout: u64,
    pub(crate) migrate: Migrate,
    pub(crate) checkpoints: Checkpoints,
    /// A ballast file is kept beside the database.
    pub(crate) ballast: bool,
    pub(crate) hooks: txn::HookTable,
    pub(crate) events: crate::events::Hub,
    /// The application's own sweeps, by name.
    pub(crate) sweeps: Vec<(std::sync::Arc<str>, txn::SweepCode)>,
    pub(crate) spares: Spares,
}

const DAY: i64 = 24 * 60 * 60 * 1_000;

impl Default for StoreSettings {
    fn default() -> Self {
        let week = Some(7 * DAY);
        Self {
            durability: Durability::Full,
            grace: 0,
            retention: Retention { completed: week, cancelled: week, failed: Some(30 * DAY) },
            code_limit: 5_000,
            busy_timeout: open::BUSY_TIMEOUT,
            migrate: Migrate::Auto,
            checkpoints: Checkpoints::Auto,
            ballast: true,
            hooks: txn::HookTable::new(),
            events: crate::events::Hub::default(),
            sweeps: Vec::new(),
            spares: Spares::default(),
        }
    }
}
