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
use crate::format::node::{self, Flaw, Header, Source, compare_prefix};
use crate::format::{PAGE, PAGE_LEN, PAGE_SHIFT};
use crate::layout::{TreeId, VALUES, value};

/// Trees whose leaves are appended to: those of many small changes far apart. Readers of the
/// others need not look for what was appended.
pub(super) fn takes_appends(tree: TreeId) -> bool {
    tree == VALUES
}

/// Bytes of a leaf that are loaded ahead of a change: header, heads and what was appended.
const LEAF_START: usize = 512;
/// Bytes of a cell that are loaded ahead.
const CELL_LIKELY: usize = 128;

impl Batch<'_> {
    /// Starts loading the leaf of `key`, if it is near that of the last change. A hint; what it
    /// returns is for `expect_entry`.
    #[inline]
    pub fn expect(&self, tree: TreeId, key: &[u8]) -> u64 {
        let path = &self.path;
        let Some(above) = path.depth.checked_sub(2).filter(|_| path.tree == tree) else {
            return 0;
        };
        let Ok(parent) = self.dirty.get(path.steps[above].addr) else {
            return 0;
        };
        let h = page::header(parent);
        let Ok(at) = node::find_child(parent, &h, key) else {
            return 0;
        };
        let child = node::child(parent, &h, at);
        if child & DIRTY != 0 {
            return 0;
        }
        let page = page_of(child);
        self.pool
            .meta
            .prefetch(page.saturating_mul(PAGE_LEN), LEAF_START);
        child
    }

    /// Starts loading what a put of `key` looks at in the leaf that was expected before.
    #[inline]
    pub fn expect_entry(&self, tree: TreeId, leaf: u64, key: &[u8]) {
        if leaf == 0 {
            return;
        }
        let (page, meta) = (page_of(leaf), &self.pool.meta);
        let Ok((leaf, h)) = open_mapped(meta, &self.place(tree, leaf, 0)) else {
            return;
        };
        let load = |at: usize, len: usize| meta.prefetch((page << PAGE_SHIFT) + at as u64, len);
        let lowest = appends::lowest(&leaf, &h);
        load(lowest.saturating_sub(CELL_LIKELY), CELL_LIKELY);
        if let Some(cell) = appends::likely_cell(&leaf, &h, key) {
            load(cell, CELL_LIKELY.min(PAGE.saturating_sub(cell)));
        }
    }

    /// Puts by appending to the leaf of the path, if it is committed, has room and is of a tree
    /// where that is done. Whether the key was there; its old value is shown to `see`, if it is in
    /// blocks or expires, or all are.
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
        let page = page_of(addr);
        let known = self.pool.checked.all_set(page, 1);
        let (leaf, h) = open_mapped(&self.pool.meta, &self.place(tree, addr, 0))?;
        if compare_prefix(&leaf, &h, key).is_ne() {
            return Ok(None);
        }
        if !known {
            let last = appends::check_last(&leaf, &h, page, &mut self.append_cell);
            last.map_err(damaged(page))?;
        }
        let entry = (&key[h.prefix..], value);
        let laid_out = appends::lay_out(&leaf, &h, page, entry, &mut self.append_cell);
        let Some((append, len)) = laid_out else {
            return Ok(None);
        };
        let old = copy_old(&leaf, &h, key, self.shows_all, &mut self.old_value);
        let old = old.map_err(damaged(page))?;
        if let Some(len @ 1..) = old {
            if !known {
                self.verify(tree, addr)?;
            }
            see(&self.old_value[..len]);
        }
        let (at, meta) = (page << PAGE_SHIFT, &self.pool.meta);
        meta.write_nt(at + append.cell_at as u64, &self.append_cell[..len])?;
        meta.write_nt(at + append.entry_at as u64, &append.entry)?;
        self.set_leaf(link(page, appends_of(addr) + 1))?;
        Ok(Some(old.is_some()))
    }

    /// What is appended to a leaf that this writer did not write leaves the damage there may be
    /// as it is, for whoever copies the leaf to find. But nothing is freed on its word.
    fn verify(&mut self, tree: TreeId, addr: u64) -> Result<()> {
        let mut copy = [0; PAGE];
        Nodes::copy(self, tree, addr, 0, &mut copy)?;
        self.pool.checked.set(page_of(addr), 1);
        Ok(())
    }
}

/// Copies the value of `key` to the start of `out`, which has room for any; its length. Unless it
/// is to be `any`, of a value that is in its entry, and does not expire, nothing is copied.
fn copy_old(
    leaf: &Mapped<'_>,
    h: &Header,
    key: &[u8],
    any: bool,
    out: &mut [u8],
) -> core::result::Result<Option<usize>, Flaw> {
    let Some(cell) = walk::find_value(leaf, h, key)? else {
        return Ok(None);
    };
    let mut head = [0; value::HEAD];
    leaf.copy(cell.value, &mut head[..cell.value_len.min(value::HEAD)]);
    let plain = !any && !value::is_expiring(head[0]);
    if plain && matches!(value::Head::decode(&head), Ok(head) if head.inline) {
        return Ok(Some(0));
    }
    let Some(out) = out.get_mut(..cell.value_len) else {
        return Err("length of a value");
    };
    leaf.copy(cell.value, out);
    Ok(Some(cell.value_len))
}
