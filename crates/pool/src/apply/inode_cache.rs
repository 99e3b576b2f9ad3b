//! The write-back cache of inodes that a batch changes repeatedly: they enter the tree when it
//! ends.
//!
//! Invariants: a cached inode is newer than the tree's; an inode is cached once at most; after
//! `settle` the tree has all of them. Dropping the cache instead leaves the store as it was before
//! those changes, as dropping the store itself does.

use super::InodeBuf;

/// A directory that fills, the file that is written, and room for what comes between.
const ENTRIES: usize = 4;

struct Entry {
    /// 0: nothing.
    ino: u64,
    bytes: InodeBuf,
    len: usize,
    used: u64,
}

/// Encoded inodes by number.
pub(super) struct InodeCache {
    entries: [Entry; ENTRIES],
    clock: u64,
}

impl InodeCache {
    pub fn new() -> InodeCache {
        InodeCache {
            entries: core::array::from_fn(|_| Entry {
                ino: 0,
                bytes: InodeBuf::default(),
                len: 0,
                used: 0,
            }),
            clock: 0,
        }
    }

    /// The inode as it is now, if it is kept.
    pub fn get(&self, ino: u64) -> Option<&[u8]> {
        let entry = self.entries.iter().find(|e| e.ino == ino && ino != 0)?;
        entry.bytes.0.get(..entry.len)
    }

    /// Keeps an inode; what has to leave for it goes through `write` first.
    pub fn put<E>(
        &mut self,
        ino: u64,
        bytes: &[u8],
        write: impl FnOnce(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.clock += 1;
        let place = match self.entries.iter().position(|e| e.ino == ino) {
            Some(place) => place,
            None => self.oldest(),
        };
        let Some(entry) = self.entries.get_mut(place) else {
            return write(ino, bytes);
        };
        if bytes.len() > entry.bytes.0.len() {
            // Nothing that `InodeRecord::encode` makes.
            self.forget(ino);
            return write(ino, bytes);
        }
        if entry.ino != 0 && entry.ino != ino {
            write(entry.ino, &entry.bytes.0[..entry.len])?;
        }
        if let Some(room) = entry.bytes.0.get_mut(..bytes.len()) {
            room.copy_from_slice(bytes);
        }
        (entry.ino, entry.len, entry.used) = (ino, bytes.len(), self.clock);
        Ok(())
    }

    fn oldest(&self) -> usize {
        let used = |i: &usize| self.entries.get(*i).map_or(0, |e| e.used);
        (0..ENTRIES).min_by_key(used).unwrap_or(0)
    }

    /// The inode has ended.
    pub fn forget(&mut self, ino: u64) {
        for entry in self.entries.iter_mut().filter(|e| e.ino == ino) {
            (entry.ino, entry.used) = (0, 0);
        }
    }

    /// Writes everything that is kept.
    pub fn settle<E>(
        &mut self,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for entry in self.entries.iter_mut().filter(|e| e.ino != 0) {
            write(entry.ino, &entry.bytes.0[..entry.len])?;
            (entry.ino, entry.used) = (0, 0);
        }
        Ok(())
    }
}
