//! What can go wrong, in three sorts: a [`Refusal`] is an answer, a fault is the store's trouble,
//! and the rest is about how the runtime was set up.

use std::error::Error as StdError;
use std::fmt::{self, Display};
use std::path::PathBuf;

use crate::job::JobId;
pub use crate::refusal::Refusal;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Trouble of the store. Whether the write landed is known except for
/// [`StoreFault::Unknown`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreFault {
    /// Somebody else kept the database locked for longer than the timeout.
    Busy,
    /// The disk is full.
    Full,
    /// The disk failed.
    Io(String),
    /// The file or its folder cannot be written.
    ReadOnly,
    /// The file is damaged, or no database.
    Corrupt(String),
    /// A newer leasehold has changed the schema in a way that this one does not know.
    TooNew {
        /// The oldest version that may write.
        oldest_compatible: i64,
    },
    /// The schema is older than this leasehold needs, and is not to be migrated by it.
    TooOld {
        /// The version that was found; 0 where there is none.
        version: i64,
        /// The version that is needed.
        needed: i64,
    },
    /// The commit's answer was lost: it may have landed or not.
    Unknown(String),
    /// Application code in the transaction panicked; its message was rolled back.
    Panicked(String),
    /// Application code in the transaction ran into its time limit and was rolled back.
    TimedOut,
    /// Application code left the transaction in a state that cannot be committed, and was
    /// rolled back.
    Application(String),
    /// Any other SQL error.
    Sql(String),
    /// The store has stopped.
    Stopped,
}

impl StoreFault {
    /// Whether the same call may work later.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Busy | Self::Full | Self::Io(_) | Self::Unknown(_) | Self::ReadOnly)
    }

    /// Whether it says something of the store rather than of one message's code.
    pub(crate) const fn is_of_the_store(&self) -> bool {
        !matches!(self, Self::Panicked(_) | Self::TimedOut | Self::Application(_) | Self::Stopped)
    }

    /// What to do about a file that cannot be opened for this reason, to follow its text.
    const fn way_out(&self) -> &'static str {
        match self {
            Self::Busy => "; find the process that holds the lock, or open it again later",
            Self::Full => "; make room on the disk",
            Self::Io(_) => "; the path must be of a file, in a folder that is there and writable",
            Self::ReadOnly => "; this process must be allowed to write the file and its folder",
            Self::Corrupt(_) => "; restore it from a backup, or open another file",
            _ => "",
        }
    }
}

impl Display for StoreFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("the database stayed locked by somebody else"),
            Self::Full => f.write_str("the disk is full"),
            Self::Io(error) => write!(f, "the disk failed: {error}"),
            Self::ReadOnly => f.write_str("the database cannot be written"),
            Self::Corrupt(error) => write!(f, "the database is damaged: {error}"),
            Self::TooNew { oldest_compatible } => write!(
                f,
                "the database needs a leasehold that knows schema {oldest_compatible}; upgrade"
            ),
            Self::TooOld { version, needed } => write!(
                f,
                "the schema is at version {version}, and {needed} is needed; run the migrations"
            ),
            Self::Unknown(error) => write!(f, "the commit may or may not have landed: {error}"),
            Self::Panicked(text) => write!(f, "code in the transaction panicked: {text}"),
            Self::TimedOut => f.write_str("code in the transaction ran into its time limit"),
            Self::Application(error) => write!(f, "code in the transaction failed: {error}"),
            Self::Sql(error) => write!(f, "SQL error: {error}"),
            Self::Stopped => f.write_str("the store has stopped"),
        }
    }
}

impl StdError for StoreFault {}

impl From<rusqlite::Error> for StoreFault {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode as Code;
        match error.sqlite_error_code() {
            Some(Code::DatabaseBusy | Code::DatabaseLocked) => Self::Busy,
            Some(Code::DiskFull) => Self::Full,
            Some(Code::SystemIoFailure | Code::CannotOpen) => Self::Io(error.to_string()),
            Some(Code::ReadOnly | Code::PermissionDenied) => Self::ReadOnly,
            Some(Code::DatabaseCorrupt | Code::NotADatabase) => Self::Corrupt(error.to_string()),
            Some(Code::OperationInterrupted) => Self::TimedOut,
            _ => Self::Sql(error.to_string()),
        }
    }
}

/// An error of this crate.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The answer is no; nothing was changed.
    Refused(Refusal),
    /// The store is in trouble.
    Store(StoreFault),
    /// The database could not be opened.
    Open {
        /// The file.
        path: PathBuf,
        /// What stood in the way.
        fault: StoreFault,
    },
    /// The runtime was put together in a way that cannot work; says how to mend it.
    Setup(String),
    /// A deadline passed before the job ended.
    Deadline {
        /// The job.
        id: JobId,
    },
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Store(fault) => fault.fmt(f),
            Self::Open { path, fault } => {
                write!(f, "cannot open {}: {fault}{}", path.display(), fault.way_out())
            }
            Self::Setup(text) => f.write_str(text),
            Self::Deadline { id } => write!(f, "job {id} has not ended by the deadline"),
        }
    }
}

// Its text says all that a source would.
impl StdError for Error {}

impl Error {
    /// The refusal, where the answer was no.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<StoreFault> for Error {
    fn from(fault: StoreFault) -> Self {
        Self::Store(fault)
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Why a save did not land.
#[derive(Debug)]
#[non_exhaustive]
pub enum SaveError {
    /// The job is somebody else's now.
    Lost(Refusal),
    /// The store is in trouble; the save may be tried again.
    Store(StoreFault),
    /// The value cannot be JSON, or breaks a rule.
    Value(String),
}

impl Display for SaveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(refusal) => write!(f, "the job was lost: {refusal}"),
            Self::Store(fault) => fault.fmt(f),
            Self::Value(error) => write!(f, "the value cannot be saved: {error}"),
        }
    }
}

impl StdError for SaveError {}

/// Why a fenced write did not land.
#[derive(Debug)]
#[non_exhaustive]
pub enum FencedError<E> {
    /// The job is somebody else's now; what the closure wrote was rolled back.
    Lost(Refusal),
    /// The store is in trouble, or the closure panicked or took too long.
    Store(StoreFault),
    /// The closure's own error; what it wrote was rolled back.
    Application(E),
}

impl<E: Display> Display for FencedError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(refusal) => write!(f, "the job was lost: {refusal}"),
            Self::Store(fault) => fault.fmt(f),
            Self::Application(error) => error.fmt(f),
        }
    }
}

impl<E: Display + fmt::Debug> StdError for FencedError<E> {}
