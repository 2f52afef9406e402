//! A simulation: several processes on one database, a hostile world, and a judge.
//!
//! Everything happens on one thread, in an order that follows from the seed alone.

mod clock;
mod history;
mod job;
mod judge;
mod process;
mod rng;
mod world;

pub use history::Figures;
pub use world::{Theatre, play};
