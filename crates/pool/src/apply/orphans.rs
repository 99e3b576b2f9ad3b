//! Objects without a name, and how objects end.
//!
//! Invariant: an object is in `ORPHANS` exactly while its `nlink` is 0.

use super::{Applier, Failure, Grants, InodeBuf, Result, Store, Why, count, ensure};
use crate::layout::inode::{InodeRecord, TYPE_DIR, TYPE_FILE, TYPE_MASK, TYPE_SYMLINK};
use crate::layout::{ORPHANS, XATTRS, ino_key};

fn counter(mode: u32) -> usize {
    match mode & TYPE_MASK {
        TYPE_FILE => count::FILES,
        TYPE_DIR => count::DIRS,
        TYPE_SYMLINK => count::SYMLINKS,
        _ => count::SPECIAL,
    }
}

impl<S: Store, G: Grants> Applier<'_, S, G> {
    /// Frees every orphan: nobody can have one open when recovery runs. At most `limit` of them,
    /// so that the caller can commit in between; how many there were, 0 at the end.
    pub fn free_orphans(&mut self, limit: usize) -> Result<usize, S> {
        let mut freed = 0;
        while freed < limit {
            let Some(ino) = self.first_orphan()? else {
                break;
            };
            let mut buf = InodeBuf::default();
            let record = self.live(ino, &mut buf)?;
            self.destroy(ino, &record)?;
            freed += 1;
        }
        Ok(freed)
    }

    fn first_orphan(&self) -> Result<Option<u64>, S> {
        let mut key = [0; 8];
        let found = self.store.at_or_after(ORPHANS, &[], &mut key, &mut []);
        Ok(found
            .map_err(Failure::Store)?
            .map(|_| u64::from_be_bytes(key)))
    }

    pub(super) fn is_orphan(&self, ino: u64) -> Result<bool, S> {
        let found = self.store.get(ORPHANS, &ino_key(ino), &mut []);
        Ok(found.map_err(Failure::Store)?.is_some())
    }

    pub(super) fn add_orphan(&mut self, ino: u64) -> Result<(), S> {
        self.store
            .put(ORPHANS, &ino_key(ino), &[])
            .map_err(Failure::Store)
    }

    pub(super) fn erase_orphan(&mut self, ino: u64) -> Result<(), S> {
        self.store
            .erase(ORPHANS, &ino_key(ino))
            .map_err(Failure::Store)
    }

    pub(super) fn count_new(&mut self, mode: u32) {
        self.store.add_count(counter(mode), 1);
    }

    pub(super) fn release(&mut self, ino: u64) -> Result<(), S> {
        let mut buf = InodeBuf::default();
        let record = self.live(ino, &mut buf)?;
        ensure(
            record.nlink == 0 && self.is_orphan(ino)?,
            ino,
            Why::NotAnOrphan,
        )?;
        self.destroy(ino, &record)
    }

    /// One name of `ino` is gone: its last one ends it, unless it is kept.
    pub(super) fn drop_name(&mut self, ino: u64, keep: bool, time: i64) -> Result<(), S> {
        let mut buf = InodeBuf::default();
        let mut record = self.live(ino, &mut buf)?;
        record.nlink = if record.is_dir() {
            0
        } else {
            record.nlink.saturating_sub(1)
        };
        if record.nlink == 0 && !keep {
            return self.destroy(ino, &record);
        }
        record.ctime = time;
        if record.nlink == 0 {
            self.add_orphan(ino)?;
        }
        self.put_inode(ino, &record)
    }

    /// Everything that belongs to `ino` goes.
    fn destroy(&mut self, ino: u64, record: &InodeRecord<'_>) -> Result<(), S> {
        if record.blocks > 0 {
            self.drop_extents(ino)?;
        }
        let (key, end) = (ino_key(ino), ino_key(ino + 1));
        let store = &mut *self.store;
        if record.flags & !crate::layout::inode::INLINE != 0 {
            store
                .erase_range(XATTRS, &key, &end)
                .map_err(Failure::Store)?;
        }
        store.erase(ORPHANS, &key).map_err(Failure::Store)?;
        store.add_count(counter(record.mode), -1);
        self.erase_inode(ino)
    }
}
