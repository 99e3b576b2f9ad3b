//! Putting by appending to a committed leaf, which costs a fraction of copying it.
//!
//! What always holds here: only bytes are written that no committed root leads to, since the link
//! that counts them stands in a dirty node; a batch that is dropped leaves them without meaning.

use super::batch::Batch;
use super::dirty::DIRTY;
use super::page;
use super::reader::{Mapped, open_mapped};
use super::walk::{self, Nodes, damaged};
use crate::error::Result;
use crate::format::appends::{self, appends_of, link, page_of};
use crate::format::node::{self, Header, Source, VALUE_MAX, compare_prefix};
use crate::format::{PAGE, PAGE_LEN, PAGE_SHIFT};
use crate::layout::{TreeId, VALUES};
use holdfast_pmem::Record;

/// Trees whose leaves are appended to: those of many small changes far apart. Readers of the
/// others need not look for what was appended.
fn takes_appends(tree: TreeId) -> bool {
    tree == VALUES
}

/// Bytes of a leaf that are loaded ahead of a change: header, heads and what was appended.
const LEAF_START: usize = 512;

impl<R: Record> Batch<'_, R> {
    /// Starts loading the leaf of `key`, if it is near that of the last change. A hint.
    #[inline]
    pub fn expect(&self, tree: TreeId, key: &[u8]) {
        let path = &self.path;
        let Some(above) = path.depth.checked_sub(2).filter(|_| path.tree == tree) else {
            return;
        };
        let Ok(parent) = self.dirty.get(path.steps[above].addr) else {
            return;
        };
        let h = page::header(parent);
        let Ok(at) = node::find_child(parent, &h, key) else {
            return;
        };
        let child = node::child(parent, &h, at);
        if child & DIRTY == 0 {
            let page = page_of(child);
            self.pool
                .meta
                .prefetch(page.saturating_mul(PAGE_LEN), LEAF_START);
        }
    }

    /// Puts by appending to the leaf of the path, if it is committed, has room and is of a tree
    /// where that is done. Whether the key was there; its old value is shown to `see`.
    pub(super) fn append(
        &mut self,
        key: &[u8],
        value: &[u8],
        see: &mut dyn FnMut(&[u8]),
    ) -> Result<Option<bool>> {
        let (tree, addr) = (self.path.tree, self.path.steps[self.path.depth - 1].addr);
        if addr & DIRTY != 0 || !takes_appends(tree) {
            return Ok(None);
        }
        self.verify_once(tree, addr)?;
        let (leaf, h) = open_mapped(&self.pool.meta, &self.place(tree, addr, 0))?;
        if compare_prefix(&leaf, &h, key).is_ne() {
            return Ok(None);
        }
        let (page, entry) = (page_of(addr), (&key[h.prefix..], value));
        let cell = &mut self.append_cell[..];
        let Some((append, len)) = appends::lay_out(&leaf, &h, page, entry, cell) else {
            return Ok(None);
        };
        let found = show_old(&leaf, &h, addr, key, see)?;
        let (at, meta) = (page << PAGE_SHIFT, &self.pool.meta);
        meta.write_nt(at + append.cell_at as u64, &self.append_cell[..len])?;
        meta.write_nt(at + append.entry_at as u64, &append.entry)?;
        self.set_leaf(link(page, appends_of(addr) + 1))?;
        Ok(Some(found))
    }

    /// A leaf that this writer did not write is verified before it is built on.
    fn verify_once(&mut self, tree: TreeId, addr: u64) -> Result<()> {
        let page = page_of(addr);
        if !self.pool.checked.all_set(page, 1) {
            let mut copy = [0; PAGE];
            Nodes::copy(self, tree, addr, 0, &mut copy)?;
            self.pool.checked.set(page, 1);
        }
        Ok(())
    }
}

fn show_old<R: Record>(
    leaf: &Mapped<'_, R>,
    h: &Header,
    addr: u64,
    key: &[u8],
    see: &mut dyn FnMut(&[u8]),
) -> Result<bool> {
    let Some(cell) = walk::find_value(leaf, h, key).map_err(damaged(addr))? else {
        return Ok(false);
    };
    let mut value = [0; VALUE_MAX];
    let value = &mut value[..cell.value_len.min(VALUE_MAX)];
    leaf.copy(cell.value, value);
    see(value);
    Ok(true)
}
