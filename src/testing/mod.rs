//! Testing with a frozen clock; docs/testing.md shows it step by step.

mod bench;
mod hand;
mod lab;
mod machine;

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
