//! What runs: four actors, each a file, each opening with what it owns and how it ends.
//!
//! ```text
//!   your code ──> Client ──> StoreActor ──> rules, SQL ──> file
//!                   ^            │  ^ ^
//!                   └─ answers ──┘  │ └── ReaperActor       passes
//!                        leases to  │
//!                   WorkerActor ────┘     nudges; its handlers' settles go straight to the store
//!                        ^                       ^
//!                        └── SupervisorActor ────┘  renewals, limits, restarts, the stop
//! ```
//!
//! Threads: the store has one; the supervisor and the reaper share the control thread, which
//! neither SQL nor handlers may block; the worker's loop has one; handlers have theirs.

pub(crate) mod reaper;
pub(crate) mod store;
pub(crate) mod supervise;
pub(crate) mod supervisor;
pub(crate) mod worker;
