//! Laying leaves out anew: fuller, and with what was appended to them in its place.
//!
//! What always holds here: no entry changes; the leaves below one parent are laid out together or
//! stay as they are.

use super::batch::Batch;
use super::dirty::DIRTY;
use super::entries::Entries;
use super::page::{self, Page, Payload};
use super::walk::{self, Nodes, damaged};
use crate::error::Result;
use crate::format::PAGE;
use crate::format::appends::{self, appends_of};
use crate::format::node::{self, KeyBuf};
use crate::layout::TreeId;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

/// Bytes of a leaf that are filled. The rest is for what comes: overwriting is cheapest when all
/// leaves have room for some entries, and that is what takes the least space, too.
pub(super) const FILL: usize = PAGE / 5 * 4;
/// Leaves below one parent are laid out anew when that saves this part of them, or when so many
/// entries were appended to each, on average.
const SAVES_PART: usize = 8;
const APPENDED: usize = 4;

/// What one look at the leaves below one parent came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compacted {
    /// They were laid out anew.
    Anew,
    /// They are as they best are.
    Same,
    /// There is no room for it.
    NoRoom,
}

impl Batch<'_> {
    /// Lays the leaves below the parent of the one where `from` belongs out anew, if that is worth
    /// it. `next` becomes where the leaves of the next parent begin; empty: this was the last.
    pub fn compact(&mut self, tree: TreeId, from: &[u8], next: &mut Vec<u8>) -> Result<Compacted> {
        next.clear();
        let Some(parent) = self.parent_of(tree, from, next)? else {
            return Ok(Compacted::Same);
        };
        let leaves = self.worth(tree, parent)?;
        // Not those that views read: for this no view is given up.
        let free = self.pool.meta_space.count_free();
        let left = free.saturating_sub(self.dirty.len() as u64);
        match leaves {
            0 => Ok(Compacted::Same),
            // Old and new ones have pages for some time.
            n if left < 4 * n as u64 => Ok(Compacted::NoRoom),
            _ => self.change(tree, false, |batch| batch.lay_out(tree, from)),
        }
    }

    /// What leads to the parent of the leaf where `from` belongs. `next`: see `compact`.
    fn parent_of(&self, tree: TreeId, from: &[u8], next: &mut Vec<u8>) -> Result<Option<u64>> {
        let root = self.root(tree)?;
        walk::check_height(&root)?;
        let mut addr = root.addr;
        if root.height < 2 {
            return Ok(None);
        }
        let mut key = KeyBuf::default();
        for level in (2..root.height).rev() {
            let (node, h) = self.open(tree, addr, level)?;
            let i = node::find_child(&node, &h, from).map_err(damaged(addr))?;
            if i + 1 < h.count {
                key.load(&node, &h, i + 1).map_err(damaged(addr))?;
                next.clear();
                next.extend_from_slice(key.as_slice());
            }
            addr = node::child(&node, &h, i);
        }
        Ok(Some(addr))
    }

    /// How many leaves the node at `parent` has; 0: to lay them out anew is not worth it.
    fn worth(&self, tree: TreeId, parent: u64) -> Result<usize> {
        let (node, h) = self.open(tree, parent, 1)?;
        let (mut used, mut appended) = (0, 0);
        for i in 0..h.count {
            let link = node::child(&node, &h, i);
            if link & DIRTY != 0 {
                return Ok(0);
            }
            let (leaf, h) = self.open(tree, link, 0)?;
            appended += appends_of(link);
            used += PAGE + appends::place(&h, h.appends) - appends::lowest(&leaf, &h);
        }
        let saves = used.div_ceil(FILL) + h.count / SAVES_PART < h.count;
        Ok(match saves || appended >= APPENDED * h.count {
            true => h.count,
            false => 0,
        })
    }

    fn lay_out(&mut self, tree: TreeId, from: &[u8]) -> Result<Compacted> {
        self.descend(tree, from)?;
        let path = self.path;
        self.path.valid = false;
        self.last_put = (0, 0);
        let parent = path.steps[path.depth - 2].addr;
        let node = self.dirty.get(parent)?;
        let h = page::header(node);
        let old: Vec<u64> = (0..h.count).map(|i| node::child(node, &h, i)).collect();
        let mut entries = core::mem::take(&mut self.scratch);
        let gathered = self.gather_leaves(tree, &old, &mut entries);
        let parts = entries.pack(0, FILL);
        let done = gathered.and_then(|()| self.replace_leaves(tree, parent, &entries, &parts));
        self.scratch = entries;
        if !done? {
            return Ok(Compacted::Same);
        }
        for leaf in old {
            self.drop_node(leaf)?;
        }
        Ok(Compacted::Anew)
    }

    pub(super) fn gather_leaves(
        &mut self,
        tree: TreeId,
        old: &[u64],
        all: &mut Entries,
    ) -> Result<()> {
        all.clear();
        let mut page: Box<Page> = self.dirty.buffer();
        for &leaf in old {
            let h = Nodes::copy(self, tree, leaf, 0, &mut page)?;
            all.gather(&page, 0..h.count, &[]).map_err(damaged(leaf))?;
        }
        self.dirty.recycle(page);
        Ok(())
    }

    /// Makes the parts new leaves below `parent`, in the place of those that it has; false when
    /// they do not fit there.
    fn replace_leaves(
        &mut self,
        tree: TreeId,
        parent: u64,
        entries: &Entries,
        parts: &[Range<usize>],
    ) -> Result<bool> {
        let mut above = Entries::default();
        let mut leaves = Vec::with_capacity(parts.len());
        for part in parts {
            let mut page = self.dirty.buffer();
            entries
                .build(&mut page, tree, 0, part)
                .map_err(damaged(parent))?;
            leaves.push(self.dirty.add(page));
        }
        for (i, (part, &leaf)) in parts.iter().zip(&leaves).enumerate() {
            let separator = match i {
                0 => &[],
                _ => entries.separator(0, part),
            };
            above.push(separator, Payload::Child(leaf));
        }
        let mut page = self.dirty.buffer();
        let all = 0..above.len();
        let fits = above.fit(1, 0);
        if fits {
            above
                .build(&mut page, tree, 1, &all)
                .map_err(damaged(parent))?;
            self.dirty.get_mut(parent)?.copy_from_slice(&page[..]);
        } else {
            leaves
                .into_iter()
                .try_for_each(|leaf| self.drop_node(leaf))?;
        }
        self.dirty.recycle(page);
        Ok(fits)
    }
}
