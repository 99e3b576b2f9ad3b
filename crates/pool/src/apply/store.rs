//! What records are applied to.
//!
//! Invariant: nothing that a store changes is visible to readers or survives a crash before its
//! owner commits it; dropping it instead leaves the pool as it was.

use crate::layout::{BlockAddr, ReadTrees, TreeId};

/// Indexes of the superblock's counters.
pub mod count {
    use crate::format::superblock::COUNTS;

    /// Regular files.
    pub const FILES: usize = 0;
    /// Directories, the root among them.
    pub const DIRS: usize = 1;
    /// Symbolic links.
    pub const SYMLINKS: usize = 2;
    /// Devices, pipes and sockets.
    pub const SPECIAL: usize = 3;
    /// Entries of the index of expiry, which are no objects.
    pub const INDEX: usize = 4;

    /// How many objects there are of all kinds.
    pub fn objects(counts: &[u64; COUNTS]) -> u64 {
        counts[..INDEX].iter().sum()
    }
}

/// Trees and data blocks of one uncommitted batch.
pub trait Store: ReadTrees {
    /// Inserts or replaces.
    fn put(&mut self, tree: TreeId, key: &[u8], value: &[u8]) -> Result<(), Self::Error>;

    /// As `put` of an entry of the index of expiry, which is counted if it is new.
    fn put_index(&mut self, key: &[u8], value: &[u8]) -> Result<(), Self::Error>;

    /// As `erase` of such an entry.
    fn erase_index(&mut self, key: &[u8]) -> Result<(), Self::Error>;

    /// Whether all values that are replaced or cut are to be shown.
    fn show_all(&mut self, all: bool);

    /// As `put`; a value that is replaced is shown to `see` before, but, unless all are, perhaps
    /// not one of a keyspace that is in its entry and does not expire.
    fn replace(
        &mut self,
        tree: TreeId,
        key: &[u8],
        value: &[u8],
        see: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Self::Error>;

    /// A change of `key` is near: what it will look at can be loaded.
    fn expect(&self, _tree: TreeId, _key: &[u8]) -> u64 {
        0
    }

    /// `key`, of which `expect` returned this, will be put even sooner. A hint.
    fn expect_entry(&self, _tree: TreeId, _expected: u64, _key: &[u8]) {}

    /// As `erase`; a value that goes is shown to `see` before.
    fn take_out(
        &mut self,
        tree: TreeId,
        key: &[u8],
        see: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Self::Error>;

    /// Shows the keys from `from` on and below `to`, with their values, to `see`, until that says
    /// false; whether it never did.
    fn each(
        &self,
        tree: TreeId,
        from: &[u8],
        to: &[u8],
        see: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<bool, Self::Error>;

    /// Removes the key, which may be missing.
    fn erase(&mut self, tree: TreeId, key: &[u8]) -> Result<(), Self::Error>;

    /// Removes all keys from `from` on and below `to`.
    fn erase_range(&mut self, tree: TreeId, from: &[u8], to: &[u8]) -> Result<(), Self::Error>;

    /// As `erase_range`: entries are shown to `see`, or, in bounded time, freed later with all that
    /// they lead to.
    fn cut_range(
        &mut self,
        tree: TreeId,
        from: &[u8],
        to: &[u8],
        see: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), Self::Error>;

    /// Whether the blocks lie in the pool and no extent uses any of them.
    fn is_unused(&self, block: BlockAddr, len: u64) -> bool;

    /// Unused blocks become used.
    fn mark_used(&mut self, block: BlockAddr, len: u64) -> Result<(), Self::Error>;

    /// Blocks that were in use since `epoch` leave the present. Nobody gets them before the
    /// batch, the roots and the snapshots that know them are durably past.
    fn mark_unused(&mut self, block: BlockAddr, len: u64, epoch: u32) -> Result<(), Self::Error>;

    /// The epoch of the pool: what comes into use is born in it.
    fn epoch(&self) -> u32;

    /// Pages that the batch can still fill.
    fn room(&self) -> u64;

    /// Pages that were filled when the batch began, at least those of all trees.
    fn filled(&self) -> u64;

    /// No object has this inode number or a higher one.
    fn next_ino(&self) -> u64;

    /// Raises `next_ino`.
    fn set_next_ino(&mut self, ino: u64);

    /// Changes a counter; see `count`.
    fn add_count(&mut self, index: usize, change: i64);
}

/// Free blocks that the session may use, as the service remembers them.
pub trait Grants {
    /// Whether all of the blocks are granted and unused.
    fn holds(&self, block: BlockAddr, len: u64) -> bool;

    /// The blocks are used now and no longer granted.
    fn take(&mut self, block: BlockAddr, len: u64);
}
