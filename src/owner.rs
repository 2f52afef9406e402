//! Owners and their locks: a process that holds a kernel lock is alive, and one whose lock is
//! free is gone, whatever its leases say.
//!
//! Each runtime on a file has a small file of its own in the folder `<database>-leasehold`,
//! named by its 128-bit id and locked for as long as the process lives. The file says which
//! boot of which host it belongs to, and is trusted only where both are ours. The database
//! itself is never opened beside `SQLite`.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where owners have their locks.
#[derive(Clone, Debug, Default)]
pub(crate) enum Locks {
    /// In the folder beside the database, held by the kernel.
    #[default]
    Files,
    /// In this process, whether each is held: for runtimes that play at being processes.
    Played(Played),
}

/// Locks by owner, and whether each is held.
pub(crate) type Played = Arc<Mutex<BTreeMap<Arc<str>, bool>>>;

/// This runtime's own lock, held until it is dropped.
#[derive(Debug)]
pub(crate) enum OwnerLock {
    File {
        path: PathBuf,
        /// Held, not read: the lock goes with it.
        _file: File,
    },
    Played(Played, Arc<str>),
}

/// The folder beside a database.
pub(crate) fn folder(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-leasehold");
    PathBuf::from(name)
}

/// Which boot of which host this is; nothing where that cannot be told.
fn here() -> Option<String> {
    let line = |path: &str| {
        let text = fs::read_to_string(path).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let boot = line("/proc/sys/kernel/random/boot_id")?;
    let host = line("/etc/machine-id").or_else(|| line("/proc/sys/kernel/hostname"))?;
    Some(format!("boot {boot}\nhost {host}\n"))
}

impl Locks {
    /// Takes a lock for an owner; nothing where locks cannot be told apart by host.
    pub(crate) fn take(&self, database: &Path, owner: &str) -> io::Result<Option<OwnerLock>> {
        match self {
            Self::Files => OwnerLock::take(database, owner),
            Self::Played(locks) => {
                let owner = Arc::from(owner);
                locked(locks).insert(Arc::clone(&owner), true);
                Ok(Some(OwnerLock::Played(locks.clone(), owner)))
            }
        }
    }

    /// Looks at the locks of all owners on this host but `own`, without SQL.
    pub(crate) fn probe(&self, database: &Path, own: &str) -> Probe {
        match self {
            Self::Files => probe(database, own),
            Self::Played(locks) => {
                let mut found = Probe::default();
                for (owner, held) in locked(locks).iter_mut() {
                    if std::mem::replace(held, true) {
                        found.alive.insert(owner.clone());
                    } else {
                        let lock = OwnerLock::Played(locks.clone(), owner.clone());
                        found.dead.push(DeadOwner { owner: owner.clone(), lock });
                    }
                }
                found
            }
        }
    }
}

/// Asks whether owners are alive at this moment.
#[derive(Clone, Debug)]
pub(crate) struct Alive {
    pub(crate) locks: Locks,
    pub(crate) database: PathBuf,
}

impl Alive {
    /// Whether an owner on this host holds its lock now.
    pub(crate) fn is(&self, owner: &str) -> bool {
        match &self.locks {
            Locks::Played(locks) => locked(locks).get(owner).is_some_and(|held| *held),
            Locks::Files if is_owner(owner) => here().is_some_and(|here| {
                matches!(probe_one(&folder(&self.database).join(owner), &here), Ok(None))
            }),
            Locks::Files => false,
        }
    }
}

fn locked(locks: &Played) -> MutexGuard<'_, BTreeMap<Arc<str>, bool>> {
    locks.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for OwnerLock {
    fn drop(&mut self) {
        if let Self::Played(locks, owner) = self
            && let Some(held) = locked(locks).get_mut(owner)
        {
            *held = false;
        }
    }
}

impl OwnerLock {
    fn take(database: &Path, owner: &str) -> io::Result<Option<Self>> {
        let Some(here) = here() else { return Ok(None) };
        let folder = folder(database);
        fs::create_dir_all(&folder)?;
        let path = folder.join(owner);
        loop {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
            file.lock()?;
            // Until it says whose it is nobody takes it for an owner's, but it may be cleared
            // away: then it is made again.
            if is_at(&file, &path) {
                file.write_all(here.as_bytes())?;
                return Ok(Some(Self::File { path, _file: file }));
            }
        }
    }

    /// Removes the file: the owner's last row is decided.
    pub(crate) fn remove(self) {
        match &self {
            Self::File { path, .. } => {
                if let Err(error) = fs::remove_file(path) {
                    log::info!(error:% = error; "the owner's lock file could not be removed");
                }
            }
            Self::Played(locks, owner) => {
                locked(locks).remove(owner);
            }
        }
    }
}

/// A dead owner, with its lock held by us so that nobody else decides about it.
#[derive(Debug)]
pub(crate) struct DeadOwner {
    pub(crate) owner: Arc<str>,
    lock: OwnerLock,
}

impl DeadOwner {
    /// Removes the file: the owner's last row is decided.
    pub(crate) fn remove(self) {
        self.lock.remove();
    }
}

/// What a look at the locks has found.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    pub(crate) alive: HashSet<Arc<str>>,
    pub(crate) dead: Vec<DeadOwner>,
}

fn probe(database: &Path, own: &str) -> Probe {
    let mut found = Probe::default();
    let Some(here) = here() else { return found };
    let Ok(entries) = fs::read_dir(folder(database)) else { return found };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(owner) = name.to_str().filter(|name| is_owner(name)) else { continue };
        if owner == own {
            found.alive.insert(owner.into());
            continue;
        }
        match probe_one(&entry.path(), &here) {
            Ok(Some(file)) => {
                let lock = OwnerLock::File { path: entry.path(), _file: file };
                found.dead.push(DeadOwner { owner: owner.into(), lock });
            }
            Ok(None) => {
                found.alive.insert(owner.into());
            }
            Err(_) => {}
        }
    }
    found
}

/// The file with its lock where the owner is gone, nothing where it is alive; an error where
/// nothing can be told.
fn probe_one(path: &Path, here: &str) -> io::Result<Option<File>> {
    let mut file = File::open(path)?;
    let mut text = String::new();
    io::Read::by_ref(&mut file).take(1_024).read_to_string(&mut text)?;
    if text.is_empty() && file.try_lock().is_ok() {
        // Its process died while it was made, and has never owned anything.
        fs::remove_file(path)?;
    }
    if text != here {
        return Err(io::Error::other("of another boot or host"));
    }
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether an open file is still the one at a path.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// Whether a name can be an owner's: 32 hexadecimal digits. Any other is never probed.
fn is_owner(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
}

/// An owner's name from its random bytes.
pub(crate) fn name(bytes: [u8; 16]) -> Arc<str> {
    uuid::Uuid::from_bytes(bytes).simple().to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_is_alive_and_a_free_one_dead() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("jobs.db");
        let (one, two) = (name([1; 16]), name([2; 16]));
        let held = OwnerLock::take(&database, &one).unwrap().unwrap();
        let gone = OwnerLock::take(&database, &two).unwrap().unwrap();
        let probed = probe(&database, "somebody else");
        assert_eq!(probed.alive, HashSet::from([one.clone(), two.clone()]));
        assert!(probed.dead.is_empty());
        drop(gone);
        let mut probed = probe(&database, "somebody else");
        assert_eq!(probed.alive, HashSet::from([one.clone()]));
        let dead = probed.dead.pop().unwrap();
        assert_eq!(dead.owner, two);
        assert!(probe(&database, "").dead.is_empty(), "the prober holds the lock");
        dead.remove();
        held.remove();
        assert!(probe(&database, "").alive.is_empty());
    }

    #[test]
    fn files_that_are_no_lock_of_ours_are_never_taken_for_one() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("jobs.db");
        let folder = folder(&database);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("notes.txt"), "mine").unwrap();
        fs::write(folder.join(&*name([3; 16])), "boot other\nhost other\n").unwrap();
        // Of a process that died while it made the file.
        let unfinished = folder.join(&*name([4; 16]));
        fs::write(&unfinished, "").unwrap();
        let probed = probe(&database, "");
        assert!(probed.alive.is_empty() && probed.dead.is_empty());
        assert!(folder.join("notes.txt").exists());
        assert!(!unfinished.exists());
    }
}
