//! One test binary: `SQLite` is linked once.

mod running;
