//! What a power cut leaves of the files: all that was synced, and of the rest whatever the disk
//! has got round to.

use std::path::{Path, PathBuf};

use crate::disk::{FILES, Op};
use crate::rng::Rng;

/// What a disk writes whole or not at all, in bytes.
const SECTOR: usize = 512;

/// The files as they are left; nothing where one is not there.
pub type Image = [Option<Vec<u8>>; FILES.len()];

/// What of the changes that were not synced has reached the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Nothing,
    All,
    /// The first of them.
    First,
    /// The last of them: the end of a commit without its beginning.
    Last,
    /// Some of them.
    Some,
    /// Some sectors of them.
    Sectors,
    /// The same, and in place of the other sectors there is rubbish.
    Rubbish,
}

impl Kept {
    pub const ALL: [Self; 7] = [
        Self::Nothing,
        Self::All,
        Self::First,
        Self::Last,
        Self::Some,
        Self::Sectors,
        Self::Rubbish,
    ];
}

/// The files on the disk while a history goes on.
#[derive(Clone)]
pub struct Platter<'l> {
    safe: Image,
    /// Changes that were not synced, in their order over all files.
    pending: Vec<(usize, &'l Op)>,
    heeds_syncs: bool,
}

impl<'l> Platter<'l> {
    /// A disk with these files, which heeds syncs or ignores them.
    pub fn with(safe: Image, heeds_syncs: bool) -> Self {
        Self { safe, pending: Vec::new(), heeds_syncs }
    }

    /// Takes a change.
    pub fn take(&mut self, file: usize, op: &'l Op) {
        match op {
            Op::Sync { folder } if self.heeds_syncs => {
                self.safe[file] = self.keep(file, self.pending.len());
                for other in (0..FILES.len()).filter(|_| *folder) {
                    self.sync_name(other);
                }
            }
            Op::FailedSync if self.heeds_syncs => self.pending.retain(|(of, _)| *of != file),
            Op::Delete { synced: true } if self.heeds_syncs => {
                self.pending.push((file, op));
                self.sync_name(file);
            }
            Op::Sync { .. } | Op::FailedSync => {}
            change => self.pending.push((file, change)),
        }
    }

    /// Takes the changes of a file that are among the first so many off what is not safe; answers
    /// what the file is with them.
    fn keep(&mut self, file: usize, first: usize) -> Option<Vec<u8>> {
        let mut kept = self.safe[file].take();
        let ours = self.pending.extract_if(..first, |(of, _)| *of == file);
        ours.for_each(|(_, change)| apply(&mut kept, change));
        kept
    }

    /// Whether a file is there, and under which of its names, is safe; what is in it is not.
    fn sync_name(&mut self, file: usize) {
        let ours = |(of, op): &(usize, &Op)| *of == file && matches!(op, Op::Delete { .. });
        if let Some(last) = self.pending.iter().rposition(ours) {
            self.safe[file] = self.keep(file, last + 1);
        }
        if self.pending.iter().any(|(of, op)| *of == file && matches!(op, Op::Make)) {
            self.safe[file].get_or_insert_default();
        }
    }

    /// The files after a power cut.
    pub fn image(&self, kept: Kept, rng: &mut Rng) -> Image {
        let mut image = self.safe.clone();
        let mut old = [false; FILES.len()];
        let place = rng.below(self.pending.len() + 1);
        for (n, (file, op)) in self.pending.iter().enumerate() {
            let whole = match kept {
                Kept::Nothing => false,
                Kept::All => true,
                Kept::First => n < place,
                Kept::Last => n >= place,
                Kept::Some => rng.one_in(2),
                Kept::Sectors | Kept::Rubbish => {
                    if let Op::Write { at, bytes } = op
                        && !old[*file]
                    {
                        tear(&mut image[*file], *at, bytes, kept == Kept::Rubbish, rng);
                        continue;
                    }
                    rng.one_in(2)
                }
            };
            // A file whose removal is lost is the old one: what was written later is in another.
            old[*file] |= matches!(op, Op::Delete { .. }) && !whole;
            if whole && !old[*file] {
                apply(&mut image[*file], op);
            }
        }
        image
    }
}

fn apply(file: &mut Option<Vec<u8>>, op: &Op) {
    match op {
        Op::Write { at, bytes } => put(file, *at, bytes),
        Op::Truncate(size) => file.get_or_insert_default().resize(*size, 0),
        Op::Delete { .. } => *file = None,
        Op::Make => drop(file.get_or_insert_default()),
        Op::Sync { .. } | Op::FailedSync => {}
    }
}

fn put(file: &mut Option<Vec<u8>>, at: usize, bytes: &[u8]) {
    let file = file.get_or_insert_default();
    if file.len() < at {
        file.extend_from_slice(&vec![0; at - file.len()]);
    }
    let (over, beyond) = bytes.split_at(bytes.len().min(file.len() - at));
    file[at..at + over.len()].copy_from_slice(over);
    file.extend_from_slice(beyond);
}

/// Writes some sectors of it.
fn tear(file: &mut Option<Vec<u8>>, at: usize, bytes: &[u8], rubbish: bool, rng: &mut Rng) {
    let mut done = 0;
    while done < bytes.len() {
        let most = SECTOR - (at + done) % SECTOR;
        let part = &bytes[done..bytes.len().min(done + most)];
        if rng.one_in(2) {
            put(file, at + done, part);
        } else if rubbish {
            let junk: Vec<_> = part.iter().map(|byte| byte ^ 0x5a).collect();
            put(file, at + done, &junk);
        }
        done += part.len();
    }
}

/// Writes the files into a folder, under a name of their own; answers the database's.
pub fn lay_out(image: &Image, folder: &Path, name: &str) -> PathBuf {
    for (file, end) in image.iter().zip(FILES) {
        if let Some(bytes) = file {
            std::fs::write(folder.join(format!("{name}{end}")), bytes).unwrap();
        }
    }
    folder.join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(at: usize, bytes: &[u8]) -> Op {
        Op::Write { at, bytes: bytes.to_vec() }
    }

    /// What is left of the log where nothing is kept that was not safe.
    fn left(ops: &[(usize, Op)]) -> Option<Vec<u8>> {
        let mut platter = Platter::with(Image::default(), true);
        for (file, op) in ops {
            platter.take(*file, op);
        }
        let [_, log, _] = platter.image(Kept::Nothing, &mut Rng::new(1));
        log
    }

    #[test]
    fn what_was_synced_is_left_and_nothing_else() {
        let synced = || (1, Op::Sync { folder: false });
        let one = || (1, write(0, b"one"));
        assert_eq!(left(&[one()]), None);
        assert_eq!(left(&[one(), synced()]), Some(b"one".to_vec()));
        assert_eq!(left(&[one(), synced(), (1, write(1, b"NE"))]), Some(b"one".to_vec()));
        let other = (0, Op::Sync { folder: true });
        assert_eq!(left(&[(1, Op::Make), one(), other]), Some(Vec::new()), "its name alone");
    }

    #[test]
    fn what_a_failed_sync_was_to_make_safe_never_is() {
        let ops = [(1, write(0, b"one")), (1, Op::FailedSync), (1, write(3, b"two"))];
        let synced = [(1, Op::Sync { folder: false })];
        let ops: Vec<_> = ops.into_iter().chain(synced).collect();
        assert_eq!(left(&ops), Some(b"\0\0\0two".to_vec()));
    }

    #[test]
    fn a_file_whose_removal_is_not_safe_may_be_there_again() {
        let gone = || {
            let old = [(1, write(0, b"old")), (1, Op::Sync { folder: false })];
            old.into_iter().chain([(1, Op::Delete { synced: false }), (1, write(0, b"new"))])
        };
        assert_eq!(left(&gone().collect::<Vec<_>>()), Some(b"old".to_vec()));
        let folder = (0, Op::Sync { folder: true });
        assert_eq!(left(&gone().chain([folder]).collect::<Vec<_>>()), None);
    }
}
