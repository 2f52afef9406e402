//! One test binary: `SQLite` is linked once.

mod panics;
mod running;
mod stopping;
mod support;
