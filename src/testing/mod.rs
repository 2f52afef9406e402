//! Testing with a frozen clock.

mod bench;
mod lab;
mod machine;

pub use crate::faults::{Faults, Point};
pub use bench::{Bench, BenchSettings};
pub use lab::Lab;
pub use machine::Machine;
