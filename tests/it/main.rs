//! One test binary: `SQLite` is linked once.

mod example;
mod import;
mod running;
