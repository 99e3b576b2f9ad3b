//! One set of changes to the trees and to space, that commits as a whole or not at all.
//!
//! What always holds here:
//! - The pool's last committed state stays as it is until the superblock of `commit`; dropping a
//!   batch puts space back as it was.
//! - There are always enough free pages to write every dirty node: a change that could need more
//!   is refused with `NoSpace` before it starts, and the batch goes on without it.

use super::dirty::{DIRTY, Dirty};
use super::entries::Entries;
use super::garbage::Garbage;
use super::page::{self, Page};
use super::reader::{Mapped, Trust, copy_mapped, open_mapped};
use super::walk::{self, Nodes, Out, damaged};
use crate::error::{Error, Result};
use crate::format::appends::page_of;
use crate::format::node::{
    AT_BIRTH, AT_COUNTS, CELL_MAX, HEIGHT_MAX, Header, KEY_MAX, KeyBuf, Place, Source, VALUE_MAX,
};
use crate::format::superblock::{Root, Superblock};
use crate::format::{PAGE, PAGE_SHIFT, TREES};
use crate::layout::{self, ReadTrees, TreeId};
use crate::pool::Pool;
use crate::snapshot::SNAPSHOT_TREES;
use crate::space::{Run, Space};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::ControlFlow;

/// Free pages that only erasing may use, so that a full pool can be emptied.
const ERASE_RESERVE: u64 = 64;

/// The nodes from a tree's root to a leaf, all dirty but the leaf, which may be the committed one;
/// and which child leads on from each.
#[derive(Clone, Copy, Default)]
pub(super) struct Path {
    pub valid: bool,
    pub tree: TreeId,
    pub depth: usize,
    pub steps: [Step; HEIGHT_MAX as usize],
}

#[derive(Clone, Copy, Default)]
pub(super) struct Step {
    pub addr: u64,
    pub pos: usize,
}

/// What to undo when the batch is dropped.
pub(super) enum Undo {
    Took(Run),
    Used(Run),
    Freed(Run),
}

/// Changes that become true together.
pub struct Batch<'p> {
    pub(super) pool: &'p mut Pool,
    pub(super) roots: [Root; TREES],
    pub(super) dirty: Dirty,
    /// Pages of committed nodes that this batch replaces, or only appends to: those are in use.
    pub(super) freed: Vec<u64>,
    pub(super) undo: Vec<Undo>,
    pub(super) path: Path,
    /// Where the last put went: leaf and place in it.
    pub(super) last_put: (u64, usize),
    pub(super) scratch: Entries,
    /// A cell that is about to be appended to a leaf.
    pub(super) append_cell: Vec<u8>,
    /// The value that it replaces.
    pub(super) old_value: Vec<u8>,
    /// Whether all values that are replaced or cut are shown.
    pub(super) shows_all: bool,
    pub(super) committed: bool,
    /// Subtrees that this batch cut out.
    pub(super) cut_out: u32,
    /// Why a change stopped half-way: then the batch can only be dropped.
    pub(super) broken: Option<Error>,
    /// Nodes were written ahead of the commit: then it can only be committed.
    pub(super) ahead: bool,
}

/// A node of a batch: in the mapping, or in private memory.
pub(super) enum Node<'a> {
    Committed(Mapped<'a>),
    Changed(&'a Page),
}

impl Source for Node<'_> {
    #[inline]
    fn word(&self, at: usize) -> u64 {
        match self {
            Node::Committed(node) => node.word(at),
            Node::Changed(node) => node.word(at),
        }
    }

    #[inline]
    fn copy(&self, at: usize, out: &mut [u8]) {
        match self {
            Node::Committed(node) => node.copy(at, out),
            Node::Changed(node) => node.copy(at, out),
        }
    }
}

impl Nodes for Batch<'_> {
    type Node<'n>
        = Node<'n>
    where
        Self: 'n;

    #[inline]
    fn open(&self, tree: TreeId, addr: u64, level: u8) -> Result<(Node<'_>, Header)> {
        if addr & DIRTY != 0 {
            let page = self.dirty.get(addr)?;
            return Ok((Node::Changed(page), page::header(page)));
        }
        let place = self.place(tree, addr, level);
        let (node, header) = open_mapped(&self.pool.meta, &place)?;
        Ok((Node::Committed(node), header))
    }

    fn copy(&self, tree: TreeId, addr: u64, level: u8, out: &mut Page) -> Result<Header> {
        if addr & DIRTY != 0 {
            out.copy_from_slice(self.dirty.get(addr)?);
            return Ok(page::header(out));
        }
        // Only this writer changes pages: what it wrote itself is well-formed.
        let known = self.pool.checked.all_set(page_of(addr), 1);
        let trust = if known {
            Trust::Nothing
        } else {
            Trust::Verified
        };
        copy_mapped(&self.pool.meta, &self.place(tree, addr, level), trust, out)
    }
}

/// The bytes that a key or a value may have.
fn check_len(what: &'static str, len: usize, max: usize) -> Result<()> {
    if len > max {
        Err(Error::TooLarge { what, len })
    } else {
        Ok(())
    }
}

impl<'p> Batch<'p> {
    pub(crate) fn new(pool: &'p mut Pool) -> Batch<'p> {
        let roots = pool.superblock.roots;
        let dirty = core::mem::take(&mut pool.buffers);
        Batch {
            pool,
            roots,
            dirty,
            freed: Vec::new(),
            undo: Vec::new(),
            path: Path::default(),
            last_put: (0, 0),
            scratch: Entries::default(),
            append_cell: vec![0; CELL_MAX],
            old_value: vec![0; VALUE_MAX],
            shows_all: false,
            committed: false,
            cut_out: 0,
            broken: None,
            ahead: false,
        }
    }

    pub(super) fn place(&self, tree: TreeId, addr: u64, level: u8) -> Place {
        Place::of_link(addr, tree, level, self.pool.superblock.seq)
    }

    #[inline]
    pub(super) fn root(&self, tree: TreeId) -> Result<Root> {
        let found = self.roots.get(usize::from(tree)).copied();
        found.ok_or(Error::TooLarge {
            what: "tree number",
            len: usize::from(tree),
        })
    }

    pub(super) fn root_mut(&mut self, tree: TreeId) -> &mut Root {
        &mut self.roots[usize::from(tree)]
    }

    /// Keys in `tree`, with the changes of this batch.
    pub fn keys(&self, tree: TreeId) -> Result<u64> {
        Ok(self.root(tree)?.keys)
    }

    /// Dirty nodes: what commit will write.
    pub fn dirty_nodes(&self) -> usize {
        self.dirty.len()
    }

    /// Where the nodes are. Those that the last commit left do not change before this one.
    pub(crate) fn meta(&self) -> &holdfast_pmem::Region {
        &self.pool.meta
    }

    /// The superblock that this batch started from.
    pub fn superblock(&self) -> &Superblock {
        &self.pool.superblock
    }

    /// Pages that commit can write to.
    pub fn pages_left(&self) -> u64 {
        self.pool
            .pages_ready()
            .saturating_sub(self.dirty.len() as u64)
    }

    /// Refuses a change that could leave a dirty node without a page. It copies at most two
    /// paths, and at each level it may split a node in three or merge two.
    fn check_room(&self, root: &Root, erasing: bool) -> Result<()> {
        let reserve = if erasing { 0 } else { ERASE_RESERVE };
        let need = 4 * u64::from(root.height) + 4 + reserve;
        if self.pages_left() < need {
            Err(Error::NoSpace)
        } else {
            Ok(())
        }
    }

    /// Makes the node at `addr` private to this batch; returns its new address.
    pub(super) fn own(&mut self, tree: TreeId, addr: u64, level: u8) -> Result<u64> {
        if addr & DIRTY != 0 {
            return Ok(addr);
        }
        let mut page = self.dirty.buffer();
        if let Err(e) = Nodes::copy(self, tree, addr, level, &mut page) {
            self.dirty.recycle(page);
            return Err(e);
        }
        self.free_page(addr)?;
        page::set_origin(&mut page, addr);
        Ok(self.dirty.add(page))
    }

    /// A committed node leaves the present: its page is free, unless a snapshot has it. One that
    /// is free already hangs in two places: damage.
    pub(super) fn free_page(&mut self, addr: u64) -> Result<()> {
        let addr = page_of(addr);
        let run = Run::new(addr, 1);
        if self.pool.meta_space.is_used(run) && self.is_in_snapshot(addr)? {
            return Ok(());
        }
        self.free_for_good(addr)
    }

    /// Whether a snapshot has the node in page `addr`, which the present has had until now: so it
    /// is in the newest one if it was there already.
    pub(super) fn is_in_snapshot(&self, addr: u64) -> Result<bool> {
        let Some(newest) = self.pool.newest else {
            return Ok(false);
        };
        let word = |at: usize| {
            let at = (addr << PAGE_SHIFT) + at as u64;
            self.pool.meta.load_u64(at)
        };
        let tree = Header::unpack(word(AT_COUNTS)?).tree;
        Ok(usize::from(tree) < SNAPSHOT_TREES && word(AT_BIRTH)? <= newest.seq)
    }

    /// Frees the page of a node that nothing has any more.
    pub(crate) fn free_for_good(&mut self, addr: u64) -> Result<()> {
        let run = Run::new(addr, 1);
        let once = self.pool.meta_space.mark_unused(run);
        once.map_err(|_| Error::Damaged {
            what: "a node that is not in use",
            page: addr,
        })?;
        self.freed.push(addr);
        Ok(())
    }

    /// Frees what nothing has any more.
    pub(crate) fn free_garbage(&mut self, garbage: &Garbage) -> Result<()> {
        for page in &garbage.pages {
            self.free_for_good(*page)?;
        }
        garbage.data.iter().try_for_each(|run| self.free_data(*run))
    }

    /// Keys that were in subtrees that were cut out of `tree` are gone.
    pub(crate) fn forget_keys(&mut self, tree: TreeId, keys: u64) {
        let root = self.root_mut(tree);
        root.keys = root.keys.saturating_sub(keys);
    }

    /// Forgets a node, dirty or not.
    pub(super) fn drop_node(&mut self, addr: u64) -> Result<()> {
        if addr & DIRTY == 0 {
            return self.free_page(addr);
        }
        let page = self.dirty.remove(addr)?;
        self.dirty.recycle(page);
        Ok(())
    }

    /// Copies the value of `key` to the start of `value`, as much as there is room for; returns
    /// the value's full length.
    pub fn get(&self, tree: TreeId, key: &[u8], value: &mut [u8]) -> Result<Option<usize>> {
        walk::get(self, tree, &self.root(tree)?, key, value)
    }

    /// Runs a change of `tree`. An error in the middle of it leaves a tree that must not commit.
    pub(super) fn change<T>(
        &mut self,
        tree: TreeId,
        erasing: bool,
        make: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        if let Some(e) = self.broken {
            return Err(e);
        }
        assert!(!self.ahead, "a change behind what was written ahead");
        let root = self.root(tree)?;
        self.check_room(&root, erasing)?;
        let done = make(self);
        self.broken = done.as_ref().err().copied();
        done
    }

    /// Sets `key` to `value`; true when the key was there before.
    pub fn put(&mut self, tree: TreeId, key: &[u8], value: &[u8]) -> Result<bool> {
        self.replace(tree, key, value, &mut |_| {})
    }

    /// Whether all values that are replaced or cut are shown.
    pub fn show_all(&mut self, all: bool) {
        self.shows_all = all;
    }

    /// As [`put`](Batch::put); a value that is replaced is shown to `see` before, but, unless all
    /// are, perhaps not one of a keyspace that is in its entry.
    pub fn replace(
        &mut self,
        tree: TreeId,
        key: &[u8],
        value: &[u8],
        see: &mut dyn FnMut(&[u8]),
    ) -> Result<bool> {
        check_len("key", key.len(), KEY_MAX)?;
        check_len("value", value.len(), VALUE_MAX)?;
        self.change(tree, false, |batch| batch.put_seeing(tree, key, value, see))
    }

    /// Removes `key`; true when it was there.
    pub fn erase(&mut self, tree: TreeId, key: &[u8]) -> Result<bool> {
        self.take_out(tree, key, &mut |_| {})
    }

    /// As [`erase`](Batch::erase); the value is shown to `see` before.
    pub fn take_out(
        &mut self,
        tree: TreeId,
        key: &[u8],
        see: &mut dyn FnMut(&[u8]),
    ) -> Result<bool> {
        check_len("key", key.len(), KEY_MAX)?;
        self.change(tree, true, |batch| batch.erase_seeing(tree, key, see))
    }

    /// Removes every key in `from .. to` (no end when `None`); returns how many there were.
    /// Subtrees inside the range are freed without looking at their keys.
    pub fn erase_range(&mut self, tree: TreeId, from: &[u8], to: Option<&[u8]>) -> Result<u64> {
        self.change(tree, true, |batch| {
            batch.erase_range_checked(tree, from, to)
        })
    }

    /// As [`erase_range`](Batch::erase_range), in time that does not depend on how many keys there
    /// are, unless all are shown: whole subtrees are cut out and freed later, by
    /// [`Pool::reclaim_some`]. `see` is shown the entries that are not in one of these: what they
    /// lead to is the caller's to free.
    pub fn cut_range(
        &mut self,
        tree: TreeId,
        from: &[u8],
        to: Option<&[u8]>,
        see: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        self.change(tree, true, |batch| {
            batch.cut_range_checked(tree, from, to, see)
        })
    }

    /// Shows every entry with a key in `from .. to` (no end when `None`) to `visit`, in order,
    /// this batch's own changes included.
    pub fn scan(
        &self,
        tree: TreeId,
        from: &[u8],
        to: Option<&[u8]>,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        check_len("key", from.len(), KEY_MAX)?;
        let root = self.root(tree)?;
        let mut leaf: Box<Page> = Box::new([0; PAGE]);
        let (mut at, mut next, mut key) = (KeyBuf::default(), KeyBuf::default(), KeyBuf::default());
        at.set(from);
        let mut visit = |key: &[u8], value: &[u8]| visit(key, value).is_continue();
        loop {
            let found = walk::leaf_of(self, tree, &root, at.as_slice(), &mut leaf, &mut next)?;
            let Some((h, more, _)) = found else {
                return Ok(());
            };
            let go_on = walk::visit_leaf(&leaf, &h, at.as_slice(), to, &mut key, &mut visit)
                .map_err(damaged(0))?;
            if !go_on || !more {
                return Ok(());
            }
            core::mem::swap(&mut at, &mut next);
        }
    }

    /// The data blocks as this batch leaves them.
    pub fn data_space(&self) -> &Space {
        &self.pool.data_space
    }

    /// Takes up to `want` free data blocks, aligned when possible; still to be marked used.
    pub fn alloc_data(&mut self, want: u64, align: u64) -> Result<Run> {
        let run = self.pool.grant(want, align)?;
        self.undo.push(Undo::Took(run));
        Ok(run)
    }

    /// Marks granted or allocated data blocks used.
    pub fn use_data(&mut self, run: Run) -> Result<()> {
        self.pool.data_space.mark_used(run)?;
        self.undo.push(Undo::Used(run));
        Ok(())
    }

    /// Frees used data blocks. They can be granted again once this batch is durable and readers
    /// of older roots are gone.
    pub fn free_data(&mut self, run: Run) -> Result<()> {
        self.pool.data_space.mark_unused(run)?;
        self.undo.push(Undo::Freed(run));
        Ok(())
    }

    /// Used data blocks, born in `epoch`, leave the present: they are free unless a snapshot has
    /// them.
    pub fn drop_data(&mut self, run: Run, epoch: u32) -> Result<()> {
        match self.pool.newest {
            Some(newest) if epoch <= newest.epoch && self.pool.data_space.is_used(run) => Ok(()),
            _ => self.free_data(run),
        }
    }

    /// Raises the length of file data to `len` bytes, at most `data_len_max`.
    pub fn grow_data(&mut self, len: u64) -> Result<()> {
        self.pool.grow_data(len)
    }

    fn put_back(&mut self) {
        let pool = &mut self.pool;
        pool.poisoned |= self.ahead;
        let mut good = true;
        for undo in self.undo.drain(..).rev() {
            good &= match undo {
                Undo::Took(run) => pool.data_space.release(run),
                Undo::Used(run) => pool.data_space.mark_unused(run),
                Undo::Freed(run) => pool.data_space.mark_used(run),
            }
            .is_ok();
        }
        for page in self.freed.drain(..) {
            good &= pool.meta_space.mark_used(Run::new(page, 1)).is_ok();
        }
        pool.poisoned |= !good;
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if !self.committed {
            self.put_back();
        }
        self.dirty.clear();
        self.pool.buffers = core::mem::take(&mut self.dirty);
    }
}

impl ReadTrees for Batch<'_> {
    type Error = Error;

    fn name_seed(&self) -> Result<u64> {
        Ok(layout::name_seed(self.pool.superblock.uuid))
    }

    fn get(&self, tree: TreeId, key: &[u8], value: &mut [u8]) -> Result<Option<usize>> {
        let room = value.len();
        match Batch::get(self, tree, key, value)? {
            Some(len) if len > room => Err(Error::Damaged {
                what: "length of a value",
                page: 0,
            }),
            found => Ok(found),
        }
    }

    fn at_or_after(
        &self,
        tree: TreeId,
        from: &[u8],
        key: &mut [u8],
        value: &mut [u8],
    ) -> Result<Option<(usize, usize)>> {
        walk::at_or_after(self, tree, &self.root(tree)?, from, &mut Out { key, value })
    }

    fn at_or_before(
        &self,
        tree: TreeId,
        to: &[u8],
        key: &mut [u8],
        value: &mut [u8],
    ) -> Result<Option<(usize, usize)>> {
        walk::at_or_before(self, tree, &self.root(tree)?, to, &mut Out { key, value })
    }
}
