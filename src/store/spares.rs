//! Connections that outlive whoever had them: for runtimes that play at being processes, of which
//! thousands start and die, so that not each has to prepare every statement anew.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;

use super::open::Place;
use super::txn::FenceView;

/// Connections that nobody uses. A runtime has none to share unless a test gives it some.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spares(Option<Arc<Kept>>);

#[derive(Default)]
struct Kept(Mutex<Vec<(Place, Spare)>>);

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

/// A connection, and the fence that is set up on it where it is one that writes.
pub(super) struct Spare {
    pub(super) conn: Connection,
    pub(super) fence: Option<FenceView>,
}

impl Spares {
    /// A place for connections, empty at first.
    pub(crate) fn new() -> Self {
        Self(Some(Arc::default()))
    }

    /// A connection to this place.
    pub(super) fn take(&self, place: &Place, writes: bool) -> Option<Spare> {
        let mut kept = self.0.as_ref()?.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The last that came, so that whoever lets go of one and comes back has the same.
        let found =
            kept.iter().rposition(|one| one.0 == *place && one.1.fence.is_some() == writes)?;
        Some(kept.remove(found).1)
    }

    /// Keeps a connection that nobody uses any more, if it is as good as new.
    pub(super) fn keep(&self, place: &Place, spare: Spare) {
        let conn = &spare.conn;
        if let Some(kept) = self.0.as_ref().filter(|_| conn.is_autocommit() && !conn.is_busy()) {
            let mut kept = kept.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push((place.clone(), spare));
        }
    }
}
