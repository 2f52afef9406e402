//! One test binary: `SQLite` is linked once.

mod conformance;
mod panics;
mod running;
mod stopping;
mod support;
