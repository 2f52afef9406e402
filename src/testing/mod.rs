//! Testing with a frozen clock; docs/testing.md shows it step by step.

mod bench;
mod hand;
mod lab;
mod machine;

use std::collections::BTreeMap;

use crate::runtime::Runtime;

#[cfg(feature = "__bugs")]
pub use crate::bugs::{Bug, plant};
pub use crate::faults::{Faults, Point};
pub use bench::{Bench, BenchSettings};
pub use hand::Ran;
pub use lab::Lab;
pub use machine::Machine;

/// The examples of the page, which are run as those in the source are.
#[cfg(doctest)]
#[doc = include_str!("../../docs/testing.md")]
struct Page;

/// How many things a runtime keeps in memory for jobs, by sort: all 0 where none runs and nobody
/// waits, however many have been through it.
#[must_use]
pub fn kept(runtime: &Runtime) -> BTreeMap<&'static str, usize> {
    runtime.session().kept()
}
