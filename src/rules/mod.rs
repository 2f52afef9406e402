//! Decisions, and nothing else: no actor, no SQL, no clock, no chance.
//!
//! The same inputs always give the same answer. A decision takes a row as it was read, the
//! facts of its kind, the event and `now`, and answers the row as it is to be, or a refusal:
//!
//! ```text
//!                    enqueue
//!                       v
//!   .--- retry, --- [pending] --- cancel ------------------> [cancelled]
//!   |    yield,         | claim                                   ^
//!   |    snooze,        v                                         |
//!   '--- lost ----- [running] --- stopped, or ended on request ---'
//!                    |      |
//!           complete |      | budget spent, verdict, poison
//!                    v      v
//!             [completed]  [failed]      redrive: any of the three -> [pending]
//! ```

// A new state or event breaks the build wherever it matters.
#![deny(clippy::wildcard_enum_match_arm)]

pub(crate) mod backoff;
pub(crate) mod budget;
pub(crate) mod claim;
pub(crate) mod ladder;
pub(crate) mod operate;
pub(crate) mod reap;
pub(crate) mod row;
pub(crate) mod settle;
pub(crate) mod table;
pub(crate) mod text;

#[cfg(test)]
mod grid;

use crate::job::{AttemptOutcome, Verdict};
use crate::json::Json;
use row::Row;

/// One attempt's claim on a job, as its holder shows it with every write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) token: [u8; 16],
    pub(crate) epoch: i64,
}

/// What a decision changes: the row as it is to be, and what goes with it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    pub(crate) row: Row,
    pub(crate) result: Option<Json>,
    pub(crate) drop_checkpoints: bool,
    pub(crate) history: Option<History>,
    pub(crate) gate: Option<Gate>,
}

/// An attempt's entry in the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct History {
    pub(crate) outcome: AttemptOutcome,
    pub(crate) error: Option<String>,
}

/// What becomes of the gate of a kind's provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    CloseUntil(i64),
    Open,
}

impl Change {
    pub(crate) fn to(row: Row) -> Self {
        Self { row, result: None, drop_checkpoints: false, history: None, gate: None }
    }

    fn noting(mut self, outcome: AttemptOutcome, error: Option<&str>) -> Self {
        self.history = Some(History { outcome, error: error.map(str::to_owned) });
        self
    }
}

/// Whether a verdict asks for a person.
pub(crate) const fn parks(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Poison | Verdict::Orphaned)
}
