//! What stands behind the files of one database: it keeps every change of them in order, and makes
//! calls fail.

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use leasehold::rusqlite::ffi;
use tokio::sync::Notify;

/// The files that `SQLite` keeps of a database, by what is added to its name.
pub const FILES: [&str; 3] = ["", "-wal", "-journal"];

/// A call on one of them.
pub enum Call<'c> {
    Open,
    Read,
    Write {
        at: usize,
        bytes: &'c [u8],
    },
    Truncate(usize),
    Sync,
    Size,
    Delete {
        synced: bool,
    },
    /// Of the memory that connections share, which is a file too.
    Map,
}

/// Sorts of calls, by what can go wrong in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sort {
    Read,
    Write,
    Sync,
    Map,
    Other,
}

impl Call<'_> {
    const fn sort(&self) -> Sort {
        match self {
            Self::Read => Sort::Read,
            Self::Write { .. } => Sort::Write,
            Self::Sync => Sort::Sync,
            Self::Map => Sort::Map,
            Self::Open | Self::Truncate(_) | Self::Size | Self::Delete { .. } => Sort::Other,
        }
    }
}

/// What becomes of a call.
pub enum Fate {
    Done,
    /// Nothing happens.
    Fails(c_int),
    /// So many bytes are written or read before it fails.
    Torn(usize, c_int),
}

impl Fate {
    /// The error, where it fails.
    pub const fn error(&self) -> Option<c_int> {
        match self {
            Self::Done => None,
            Self::Fails(code) | Self::Torn(_, code) => Some(*code),
        }
    }
}

/// A change of a file, or the promise that those before it will last.
pub enum Op {
    Make,
    Write {
        at: usize,
        bytes: Vec<u8>,
    },
    Truncate(usize),
    Sync {
        /// The folder too: what was made or removed in it.
        folder: bool,
    },
    /// What was not safe yet never will be, although it can still be read.
    FailedSync,
    Delete {
        synced: bool,
    },
}

/// How calls fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The disk answers an error, and has done nothing.
    Error,
    /// It has done a half.
    Torn,
    /// There is no room.
    Full,
    /// What was written cannot be made safe.
    Sync,
    /// No file can be opened.
    Open,
}

impl How {
    /// What becomes of a call where the disk is in this state.
    fn fate(self, call: &Call<'_>) -> Fate {
        let error = match call {
            Call::Open => ffi::SQLITE_CANTOPEN,
            Call::Read => ffi::SQLITE_IOERR_READ,
            Call::Write { .. } => ffi::SQLITE_IOERR_WRITE,
            Call::Truncate(_) => ffi::SQLITE_IOERR_TRUNCATE,
            Call::Sync => ffi::SQLITE_IOERR_FSYNC,
            Call::Size => ffi::SQLITE_IOERR_FSTAT,
            Call::Delete { .. } => ffi::SQLITE_IOERR_DELETE,
            Call::Map => ffi::SQLITE_IOERR_SHMSIZE,
        };
        match (self, call) {
            (Self::Torn, Call::Write { bytes, .. }) => Fate::Torn(bytes.len() / 2, error),
            (Self::Torn, Call::Read) => Fate::Torn(0, error),
            (Self::Error | Self::Torn, _)
            | (Self::Sync, Call::Sync)
            | (Self::Open, Call::Open)
            | (Self::Full, Call::Map) => Fate::Fails(error),
            (Self::Full, Call::Write { bytes, .. }) => {
                Fate::Torn(bytes.len() / 2, ffi::SQLITE_FULL)
            }
            (Self::Full | Self::Sync | Self::Open, _) => Fate::Done,
        }
    }
}

/// Which calls are to fail: the first that can from the one with this number on, and then no other,
/// again after so many, or every one.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub at: usize,
    pub how: How,
    pub then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Well,
    Every(usize),
    ForEver,
}

#[derive(Default)]
struct State {
    log: Vec<(usize, Op)>,
    /// The calls that there were while calls might fail.
    calls: Vec<Sort>,
    plan: Option<Plan>,
    paused: bool,
    failed: usize,
    /// Open files whose sync has failed, and how often one of them was written or synced since.
    distrusted: Vec<u64>,
    reused: usize,
    /// The open database that nobody else may use: the last to be closed, which writes back.
    alone: Option<u64>,
    handles: u64,
}

/// A database whose files are under care.
pub struct Disk {
    path: PathBuf,
    state: Mutex<State>,
    broke: Notify,
}

/// An open file of it.
pub struct Handle {
    disk: Arc<Disk>,
    file: usize,
    number: u64,
    /// It has not been synced: `SQLite` syncs the folder with the first sync of a log or journal.
    fresh: AtomicBool,
}

static DISKS: Mutex<Vec<Arc<Disk>>> = Mutex::new(Vec::new());

impl Disk {
    /// Takes a database into care.
    pub fn of(path: &Path) -> Arc<Self> {
        crate::vfs::install();
        let (path, state, broke) = (path.to_owned(), Mutex::default(), Notify::new());
        let disk = Arc::new(Self { path, state, broke });
        DISKS.lock().unwrap().push(disk.clone());
        disk
    }

    /// Lets go of it: files that are opened from here on are none of its own.
    pub fn let_go(self: &Arc<Self>) {
        DISKS.lock().unwrap().retain(|disk| !Arc::ptr_eq(disk, self));
    }

    /// The disk with a file of this name.
    pub fn find(name: &str) -> Option<Handle> {
        let disks = DISKS.lock().unwrap();
        disks.iter().find_map(|disk| {
            let end = name.strip_prefix(disk.path.to_str()?)?;
            let file = FILES.iter().position(|file| *file == end)?;
            let mut state = disk.state();
            state.handles += 1;
            let fresh = AtomicBool::new(file > 0);
            Some(Handle { disk: disk.clone(), file, number: state.handles, fresh })
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// How many changes and syncs there have been.
    pub fn len(&self) -> usize {
        self.state().log.len()
    }

    /// How many pages the log has, and whether it has been written back since so many changes.
    pub fn log_pages(&self, since: usize) -> (usize, bool) {
        let state = self.state();
        let begins = |(file, op): &(usize, Op)| {
            *file == 1 && matches!(op, Op::Write { at: 0, .. } | Op::Truncate(0))
        };
        let begin = state.log.iter().rposition(begins).unwrap_or_default();
        let header = |(file, op): &&(usize, Op)| {
            *file == 1 && matches!(op, Op::Write { bytes, .. } if bytes.len() == 24)
        };
        let back = state.log[since..]
            .iter()
            .any(|(file, op)| *file == 0 && matches!(op, Op::Write { .. }));
        (state.log[begin..].iter().filter(header).count(), back)
    }

    /// All of them, each with its file.
    pub fn take_log(&self) -> Vec<(usize, Op)> {
        std::mem::take(&mut self.state().log)
    }

    /// The calls that there were while calls might fail.
    pub fn calls(&self) -> Vec<Sort> {
        self.state().calls.clone()
    }

    /// Has calls fail, or none.
    pub fn plan(&self, plan: Option<Plan>) {
        self.state().plan = plan;
    }

    /// No calls fail, and none are counted, or again.
    pub fn pause(&self, paused: bool) {
        self.state().paused = paused;
    }

    /// How many calls have failed.
    pub fn failed(&self) -> usize {
        self.state().failed
    }

    /// Whether a sync has failed.
    pub fn failed_to_sync(&self) -> bool {
        !self.state().distrusted.is_empty()
    }

    /// How often a file whose sync had failed was written or synced again.
    pub fn reused(&self) -> usize {
        self.state().reused
    }

    /// Whether calls fail, and will.
    pub fn is_broken(&self) -> bool {
        self.state().is_broken()
    }

    /// Ends when calls fail, and will.
    pub async fn broken(&self) {
        loop {
            let broke = self.broke.notified();
            if self.is_broken() {
                return;
            }
            broke.await;
        }
    }
}

impl State {
    fn is_broken(&self) -> bool {
        self.failed > 0 && !self.paused && self.plan.is_some_and(|plan| plan.then == Then::ForEver)
    }

    /// What becomes of a call.
    fn fate(&mut self, call: &Call<'_>) -> Fate {
        if self.paused {
            return Fate::Done;
        }
        let number = self.calls.len();
        self.calls.push(call.sort());
        let Some(plan) = self.plan.filter(|plan| number >= plan.at) else { return Fate::Done };
        let fate = plan.how.fate(call);
        if !matches!(fate, Fate::Done) {
            self.failed += 1;
            match plan.then {
                Then::Well => self.plan = None,
                Then::Every(calls) => self.plan = Some(Plan { at: plan.at + calls, ..plan }),
                Then::ForEver => {}
            }
        }
        fate
    }
}

impl Handle {
    /// Nobody else may use the database now, or others may.
    pub fn is_alone(&self, alone: bool) {
        let mut state = self.disk.state();
        if alone || state.alone == Some(self.number) {
            state.alone = alone.then_some(self.number);
        }
    }

    /// What becomes of a call.
    pub fn asks(&self, call: &Call<'_>) -> Fate {
        let mut state = self.disk.state();
        let fate = state.fate(call);
        if state.is_broken() {
            self.disk.broke.notify_waiters();
        }
        if matches!(call, Call::Write { .. } | Call::Sync)
            && state.distrusted.contains(&self.number)
            && state.alone.is_none()
        {
            state.reused += 1;
        }
        if matches!((&fate, call), (Fate::Fails(_), Call::Sync)) {
            state.distrusted.push(self.number);
        }
        if let Some(mut op) = change(call, &fate) {
            if let Op::Sync { folder } = &mut op {
                *folder = self.fresh.swap(false, Ordering::Relaxed);
            }
            state.log.push((self.file, op));
        }
        fate
    }
}

/// What a call changes.
fn change(call: &Call<'_>, fate: &Fate) -> Option<Op> {
    match (call, fate) {
        (Call::Sync, Fate::Fails(_)) => Some(Op::FailedSync),
        (Call::Write { at, bytes }, Fate::Torn(written, _)) => {
            Some(Op::Write { at: *at, bytes: bytes[..*written].to_vec() })
        }
        (_, Fate::Fails(_) | Fate::Torn(..)) | (Call::Read | Call::Size | Call::Map, _) => None,
        (Call::Open, _) => Some(Op::Make),
        (Call::Write { at, bytes }, _) => Some(Op::Write { at: *at, bytes: bytes.to_vec() }),
        (Call::Truncate(size), _) => Some(Op::Truncate(*size)),
        (Call::Sync, _) => Some(Op::Sync { folder: false }),
        (Call::Delete { synced }, _) => Some(Op::Delete { synced: *synced }),
    }
}
