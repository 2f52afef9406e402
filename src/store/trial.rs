//! Which application code took a whole transaction down, so that what was with it runs again
//! without it.
//!
//! Most of what application code can do wrong is undone alone. Two things are not: a statement
//! that `SQLite` answers by rolling the whole transaction back, and a foreign key left violated,
//! which shows at the commit. The batch then runs again, and knows better.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use rusqlite::Connection;

use crate::error::{Error, Refusal, StoreFault};

use super::statements as sql;

/// What is known about the batch that runs.
#[derive(Default)]
pub(super) struct Trial {
    guilty: RefCell<HashMap<String, Guilt>>,
    careful: Cell<bool>,
    learned: Cell<bool>,
}

/// What code that took its transaction down is refused with, instead of being run again.
#[derive(Clone)]
enum Guilt {
    Refused(Refusal),
    Fault(StoreFault),
}

/// How many rows violate a foreign key; none where that cannot be told.
pub(super) fn violated(conn: &Connection) -> i64 {
    let count = conn
        .prepare_cached(sql::VIOLATED)
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)));
    count.unwrap_or_default()
}

impl Trial {
    /// The transaction is gone after this code ran and answered with `error`.
    pub(super) fn convict(&self, what: &str, error: Option<&Error>) {
        let guilt = match error {
            Some(Error::Refused(refusal)) => Guilt::Refused(refusal.clone()),
            Some(Error::Store(fault @ (StoreFault::Panicked(_) | StoreFault::TimedOut))) => {
                Guilt::Fault(fault.clone())
            }
            _ => Guilt::Fault(StoreFault::Application("it rolled the transaction back".into())),
        };
        self.guilty.borrow_mut().insert(what.to_owned(), guilt);
        self.learned.set(true);
    }

    /// Why this code is not run again in this batch, if it is not.
    pub(super) fn guilt_of(&self, what: &str) -> Option<Error> {
        Some(match self.guilty.borrow().get(what)?.clone() {
            Guilt::Refused(refusal) => refusal.into(),
            Guilt::Fault(fault) => fault.into(),
        })
    }

    /// A commit met a violated constraint: from here on all code is looked at.
    pub(super) fn suspect_all(&self) {
        if !self.careful.replace(true) {
            self.learned.set(true);
        }
    }

    pub(super) fn is_careful(&self) -> bool {
        self.careful.get()
    }

    /// Whether the batch has a better chance than at its last run.
    pub(super) fn has_learned(&self) -> bool {
        self.learned.replace(false)
    }

    /// The batch is over.
    pub(super) fn close(&self) {
        self.guilty.borrow_mut().clear();
        self.careful.set(false);
        self.learned.set(false);
    }
}
