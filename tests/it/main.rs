//! One test binary: `SQLite` is linked once.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails should say where")]
#![allow(unreachable_pub, missing_debug_implementations, reason = "nothing here is public")]
#![allow(clippy::needless_pass_by_value, reason = "handlers own their arguments")]
#![allow(clippy::unnecessary_wraps, clippy::unused_async, reason = "handlers have one shape")]
#![allow(clippy::cast_possible_wrap, reason = "small numbers")]
#![allow(clippy::duration_suboptimal_units, reason = "a bound in seconds beside others")]
#![allow(clippy::let_underscore_must_use, reason = "writing to a text cannot fail")]
#![allow(clippy::disallowed_methods, reason = "tests open files as applications do")]

mod application;
mod around;
mod bulk;
mod bulk_edges;
mod bulk_processes;
mod conformance;
mod disk;
mod events;
mod example;
mod facts;
mod faults;
mod fenced;
mod files;
mod fuzz;
mod hostile_rows;
mod hosts;
mod import;
mod keeping;
mod lab;
mod leases;
mod lists;
mod load;
mod own_connection;
mod pages;
mod panics;
mod plain_sql;
mod plain_statements;
mod process;
mod removing;
#[path = "../support/rng.rs"]
mod rng;
mod running;
mod scopes;
mod simulate;
mod stopping;
mod support;
mod threads;
mod tidy;
mod transactions;
mod upgrade;
mod waiting;
