//! A batch of a pool as a store.
//!
//! Invariant: inode numbers and counters change in the same commit as the trees.

use super::{Failure, Store, count, make_root};
use crate::error::Error;
use crate::format::superblock::{COUNTS, Superblock};
use crate::layout::{BlockAddr, ReadTrees, TreeId, VALUES};
use crate::pool::{Pool, WriteToken};
use crate::space::Run;
use crate::tree::Batch;
use core::ops::ControlFlow;

/// Changes that commit together.
pub struct PoolStore<'p> {
    batch: Batch<'p>,
    next_ino: u64,
    counts: [u64; COUNTS],
}

/// What a store has beside its batch, while that is parked.
#[derive(Debug)]
pub struct ParkedStore {
    next_ino: u64,
    counts: [u64; COUNTS],
}

impl<'p> PoolStore<'p> {
    /// Starts an empty batch.
    pub fn begin(pool: &'p mut Pool, token: &WriteToken) -> Self {
        PoolStore::new(pool.begin(token))
    }

    /// Starts from the pool's last commit.
    pub fn new(batch: Batch<'p>) -> Self {
        let superblock = batch.superblock();
        let (next_ino, counts) = (superblock.next_ino, superblock.counts);
        PoolStore {
            batch,
            next_ino,
            counts,
        }
    }

    /// The batch below.
    pub fn batch(&self) -> &Batch<'p> {
        &self.batch
    }

    /// Puts the batch aside, so that its owner can look after others; see `Batch::park`.
    pub fn park(self) -> ParkedStore {
        self.batch.park();
        ParkedStore {
            next_ino: self.next_ino,
            counts: self.counts,
        }
    }

    /// Goes on with a batch that was put aside.
    pub fn resume(pool: &'p mut Pool, token: &WriteToken, parked: ParkedStore) -> Self {
        PoolStore {
            batch: pool.resume(token),
            next_ino: parked.next_ino,
            counts: parked.counts,
        }
    }

    /// Has memory of the host behind what the commit will write, as far as `pages` of them.
    pub fn back(&mut self, pages: u64) -> core::result::Result<(), Error> {
        self.batch.back(pages)
    }

    /// Writes about `most` of the nodes that the commit would write; whether there are more. The
    /// batch can only be committed then.
    pub fn write_ahead(&mut self, most: usize) -> core::result::Result<bool, Error> {
        self.batch.write_ahead(most)
    }

    /// Objects, as the batch leaves them.
    pub fn objects(&self) -> u64 {
        count::objects(&self.counts)
    }

    /// Makes everything durable and visible, together with `change` to the superblock; the
    /// commit's seq.
    pub fn commit(self, change: impl FnOnce(&mut Superblock)) -> core::result::Result<u64, Error> {
        let PoolStore {
            batch,
            next_ino,
            counts,
        } = self;
        batch.commit(|superblock| {
            superblock.next_ino = next_ino;
            superblock.counts = counts;
            change(superblock);
        })
    }
}

/// Gives a new pool its root directory; `owner` is user and group.
pub fn make_pool_root(
    pool: &mut Pool,
    token: &WriteToken,
    owner: [u32; 2],
    mode: u32,
    time: i64,
) -> core::result::Result<u64, Failure<Error>> {
    let mut store = PoolStore::new(pool.begin(token));
    make_root(&mut store, mode, owner[0], owner[1], time)?;
    store.commit(|_| ()).map_err(Failure::Store)
}

impl ReadTrees for PoolStore<'_> {
    type Error = Error;

    fn name_seed(&self) -> core::result::Result<u64, Error> {
        self.batch.name_seed()
    }

    fn get(
        &self,
        tree: TreeId,
        key: &[u8],
        value: &mut [u8],
    ) -> core::result::Result<Option<usize>, Error> {
        ReadTrees::get(&self.batch, tree, key, value)
    }

    fn at_or_after(
        &self,
        tree: TreeId,
        from: &[u8],
        key: &mut [u8],
        value: &mut [u8],
    ) -> core::result::Result<Option<(usize, usize)>, Error> {
        self.batch.at_or_after(tree, from, key, value)
    }

    fn at_or_before(
        &self,
        tree: TreeId,
        to: &[u8],
        key: &mut [u8],
        value: &mut [u8],
    ) -> core::result::Result<Option<(usize, usize)>, Error> {
        self.batch.at_or_before(tree, to, key, value)
    }
}

type Done = core::result::Result<(), Error>;

impl Store for PoolStore<'_> {
    fn put(&mut self, tree: TreeId, key: &[u8], value: &[u8]) -> Done {
        self.batch.put(tree, key, value).map(|_| ())
    }

    fn put_index(&mut self, key: &[u8], value: &[u8]) -> Done {
        if !self.batch.put(VALUES, key, value)? {
            self.add_count(count::INDEX, 1);
        }
        Ok(())
    }

    fn erase_index(&mut self, key: &[u8]) -> Done {
        if self.batch.erase(VALUES, key)? {
            self.add_count(count::INDEX, -1);
        }
        Ok(())
    }

    fn show_all(&mut self, all: bool) {
        self.batch.show_all(all);
    }

    fn replace(
        &mut self,
        tree: TreeId,
        key: &[u8],
        value: &[u8],
        see: &mut dyn FnMut(&[u8]),
    ) -> Done {
        self.batch.replace(tree, key, value, see).map(|_| ())
    }

    #[inline]
    fn expect(&self, tree: TreeId, key: &[u8]) -> u64 {
        self.batch.expect(tree, key)
    }

    #[inline]
    fn expect_entry(&self, tree: TreeId, expected: u64, key: &[u8]) {
        self.batch.expect_entry(tree, expected, key);
    }

    fn take_out(&mut self, tree: TreeId, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Done {
        self.batch.take_out(tree, key, see).map(|_| ())
    }

    fn each(
        &self,
        tree: TreeId,
        from: &[u8],
        to: &[u8],
        see: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> core::result::Result<bool, Error> {
        let mut all = true;
        self.batch.scan(tree, from, Some(to), |key, value| {
            all = see(key, value);
            match all {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
        Ok(all)
    }

    fn erase(&mut self, tree: TreeId, key: &[u8]) -> Done {
        self.batch.erase(tree, key).map(|_| ())
    }

    fn erase_range(&mut self, tree: TreeId, from: &[u8], to: &[u8]) -> Done {
        self.batch.erase_range(tree, from, Some(to)).map(|_| ())
    }

    fn cut_range(
        &mut self,
        tree: TreeId,
        from: &[u8],
        to: &[u8],
        see: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Done {
        self.batch.cut_range(tree, from, Some(to), see)
    }

    fn is_unused(&self, block: BlockAddr, len: u64) -> bool {
        self.batch.data_space().is_unused(Run::of_data(block, len))
    }

    fn mark_used(&mut self, block: BlockAddr, len: u64) -> Done {
        self.batch.use_data(Run::of_data(block, len))
    }

    fn mark_unused(&mut self, block: BlockAddr, len: u64, epoch: u32) -> Done {
        self.batch.drop_data(Run::of_data(block, len), epoch)
    }

    fn epoch(&self) -> u32 {
        self.batch.superblock().epoch
    }

    fn room(&self) -> u64 {
        self.batch.pages_left()
    }

    fn filled(&self) -> u64 {
        self.batch.superblock().used_pages
    }

    fn next_ino(&self) -> u64 {
        self.next_ino
    }

    fn set_next_ino(&mut self, ino: u64) {
        self.next_ino = ino;
    }

    fn add_count(&mut self, index: usize, change: i64) {
        if let Some(count) = self.counts.get_mut(index) {
            *count = count.saturating_add_signed(change);
        }
    }
}
