//! Running handlers: what is running, on which threads, and how it ends. No actor, no SQL.

pub(crate) mod pool;
pub(crate) mod run;
pub(crate) mod session;
pub(crate) mod standing;
pub(crate) mod stats;
pub(crate) mod stop;
mod watch;
