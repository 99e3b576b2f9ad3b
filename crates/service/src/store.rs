//! The trees of a pool as the applier of journal records sees them.
//!
//! Invariant: everything done here is part of one batch and becomes true with its commit, the
//! inode counter and the object counts included.

use crate::runs::Runs;
use holdfast_pool::apply::{Grants, Store};
use holdfast_pool::format::superblock::{COUNTS, Superblock};
use holdfast_pool::layout::{ReadTrees, TreeId};
use holdfast_pool::space::Run;
use holdfast_pool::{Batch, Error, Pool, WriteToken};

type Done<T> = std::result::Result<T, Error>;

/// One batch of changes.
pub struct BatchStore<'p> {
    batch: Batch<'p>,
    next_ino: u64,
    counts: [i64; COUNTS],
}

impl<'p> BatchStore<'p> {
    /// Starts an empty batch.
    pub fn begin(pool: &'p mut Pool, token: &WriteToken) -> BatchStore<'p> {
        let next_ino = pool.superblock().next_ino;
        BatchStore {
            batch: pool.begin(token),
            next_ino,
            counts: [0; COUNTS],
        }
    }

    /// Makes the batch true, together with `change`.
    pub fn commit(self, change: impl FnOnce(&mut Superblock)) -> Done<u64> {
        let BatchStore {
            batch,
            next_ino,
            counts,
        } = self;
        batch.commit(|superblock| {
            superblock.next_ino = next_ino;
            for (count, change) in superblock.counts.iter_mut().zip(counts) {
                *count = count.saturating_add_signed(change);
            }
            change(superblock);
        })
    }
}

impl ReadTrees for BatchStore<'_> {
    type Error = Error;

    fn get(&self, tree: TreeId, key: &[u8], value: &mut [u8]) -> Done<Option<usize>> {
        ReadTrees::get(&self.batch, tree, key, value)
    }

    fn at_or_after(
        &self,
        tree: TreeId,
        from: &[u8],
        key: &mut [u8],
        value: &mut [u8],
    ) -> Done<Option<(usize, usize)>> {
        self.batch.at_or_after(tree, from, key, value)
    }

    fn at_or_before(
        &self,
        tree: TreeId,
        to: &[u8],
        key: &mut [u8],
        value: &mut [u8],
    ) -> Done<Option<(usize, usize)>> {
        self.batch.at_or_before(tree, to, key, value)
    }
}

impl Store for BatchStore<'_> {
    fn put(&mut self, tree: TreeId, key: &[u8], value: &[u8]) -> Done<()> {
        self.batch.put(tree, key, value).map(|_| ())
    }

    fn erase(&mut self, tree: TreeId, key: &[u8]) -> Done<()> {
        self.batch.erase(tree, key).map(|_| ())
    }

    fn erase_range(&mut self, tree: TreeId, from: &[u8], to: &[u8]) -> Done<()> {
        self.batch.erase_range(tree, from, Some(to)).map(|_| ())
    }

    fn is_unused(&self, block: u64, len: u64) -> bool {
        self.batch.data_space().is_unused(Run::new(block, len))
    }

    fn mark_used(&mut self, block: u64, len: u64) -> Done<()> {
        self.batch.use_data(Run::new(block, len))
    }

    fn mark_unused(&mut self, block: u64, len: u64) -> Done<()> {
        self.batch.free_data(Run::new(block, len))
    }

    fn next_ino(&self) -> u64 {
        self.next_ino
    }

    fn set_next_ino(&mut self, ino: u64) {
        self.next_ino = ino;
    }

    fn add_count(&mut self, index: usize, change: i64) {
        if let Some(count) = self.counts.get_mut(index) {
            *count = count.saturating_add(change);
        }
    }
}

/// Blocks that were handed out and are not used yet.
#[derive(Debug)]
pub struct Held<'a>(pub &'a mut Runs);

impl Grants for Held<'_> {
    fn holds(&self, block: u64, len: u64) -> bool {
        self.0.contains(block, len)
    }

    fn take(&mut self, block: u64, len: u64) {
        self.0.remove(block, len);
    }
}
