//! Erasing a range of keys in time that does not depend on how many there are in full subtrees.
//!
//! What always holds here: of a subtree inside the range only inner nodes and the counts of
//! leaves are read; only the two paths at the edges of the range are copied.

use super::batch::Batch;
use super::dirty::DIRTY;
use super::page::{self, Page};
use super::walk::{Nodes, damaged};
use crate::error::{Error, Result};
use crate::format::PAGE;
use crate::format::appends::appends_of;
use crate::format::node::{self, HEIGHT_MAX};
use crate::layout::TreeId;
use alloc::boxed::Box;
use holdfast_pmem::Record;

const FILL_MIN: usize = PAGE / 3;

/// Where a subtree is after the cut, and how many keys it lost.
struct Cut {
    /// None when nothing is left of it.
    addr: Option<u64>,
    keys: u64,
}

#[derive(Clone, Copy)]
struct Range<'a> {
    from: Option<&'a [u8]>,
    to: Option<&'a [u8]>,
}

impl<R: Record> Batch<'_, R> {
    pub(super) fn erase_range_checked(
        &mut self,
        tree: TreeId,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<u64> {
        let root = self.root(tree)?;
        if root.height == 0 || to.is_some_and(|to| to <= from) {
            return Ok(0);
        }
        if root.height > HEIGHT_MAX {
            return Err(Error::Damaged {
                what: "height of a tree",
                page: root.addr,
            });
        }
        self.path.valid = false;
        let range = Range {
            from: (!from.is_empty()).then_some(from),
            to,
        };
        let cut = self.cut(tree, root.addr, root.height - 1, range)?;
        let new = self.root_mut(tree);
        match cut.addr {
            Some(addr) => new.addr = addr,
            None => *new = Default::default(),
        }
        new.keys = new.keys.saturating_sub(cut.keys);
        self.shrink_root(tree)?;
        Ok(cut.keys)
    }

    fn cut(&mut self, tree: TreeId, addr: u64, level: u8, range: Range<'_>) -> Result<Cut> {
        if range.from.is_none() && range.to.is_none() {
            let keys = self.drop_subtree(tree, addr, level)?;
            return Ok(Cut { addr: None, keys });
        }
        if level == 0 {
            self.cut_leaf(tree, addr, range)
        } else {
            self.cut_inner(tree, addr, level, range)
        }
    }

    fn cut_leaf(&mut self, tree: TreeId, mut addr: u64, range: Range<'_>) -> Result<Cut> {
        if appends_of(addr) > 0 {
            addr = self.own(tree, addr, 0)?;
        }
        let (leaf, h) = self.open(tree, addr, 0)?;
        let find =
            |key: &[u8]| Ok::<_, Error>(node::find(&leaf, &h, 0, key).map_err(damaged(addr))?.0);
        let first = range.from.map_or(Ok(0), find)?;
        let last = range.to.map_or(Ok(h.count), find)?;
        let keys = last.saturating_sub(first) as u64;
        if keys == h.count as u64 {
            self.drop_node(addr)?;
            return Ok(Cut { addr: None, keys });
        }
        if keys == 0 {
            return Ok(Cut {
                addr: Some(addr),
                keys,
            });
        }
        let own = self.own(tree, addr, 0)?;
        page::remove(self.dirty.get_mut(own)?, first, last);
        Ok(Cut {
            addr: Some(own),
            keys,
        })
    }

    fn cut_inner(&mut self, tree: TreeId, addr: u64, level: u8, range: Range<'_>) -> Result<Cut> {
        let own = self.own(tree, addr, level)?;
        let node = self.dirty.get(own)?;
        let h = page::header(node);
        let find = |key: &[u8]| node::find_child(node, &h, key).map_err(damaged(addr));
        let first = range.from.map_or(Ok(0), find)?;
        let last = range.to.map_or(Ok(h.count - 1), find)?;
        let mut keys = 0;
        // From the right, so that removing a child does not move those still to be cut.
        for i in (first..=last).rev() {
            let part = Range {
                from: if i == first { range.from } else { None },
                to: if i == last { range.to } else { None },
            };
            let node = self.dirty.get(own)?;
            let child = node::child(node, &page::header(node), i);
            let cut = self.cut(tree, child, level - 1, part)?;
            keys += cut.keys;
            let node = self.dirty.get_mut(own)?;
            match cut.addr {
                Some(new) => page::set_child(node, i, new),
                None => page::remove(node, i, i + 1),
            }
        }
        if page::header(self.dirty.get(own)?).count == 0 {
            self.drop_node(own)?;
            return Ok(Cut { addr: None, keys });
        }
        self.settle_children(tree, own, first, level - 1)?;
        Ok(Cut {
            addr: Some(own),
            keys,
        })
    }

    /// Merges what the cut left nearly empty: the child at `first` and the one after it.
    fn settle_children(&mut self, tree: TreeId, own: u64, first: usize, level: u8) -> Result<()> {
        for pos in [first + 1, first] {
            let node = self.dirty.get(own)?;
            let h = page::header(node);
            if pos >= h.count || h.count < 2 {
                continue;
            }
            let child = node::child(node, &h, pos);
            if child & DIRTY != 0 && !page::fills(self.dirty.get(child)?, FILL_MIN) {
                self.merge_child(tree, own, pos, level)?;
            }
        }
        Ok(())
    }

    /// Frees every node of a subtree; returns how many keys it had.
    fn drop_subtree(&mut self, tree: TreeId, addr: u64, level: u8) -> Result<u64> {
        if level == 0 && appends_of(addr) == 0 {
            let (_, h) = self.open(tree, addr, 0)?;
            self.drop_node(addr)?;
            return Ok(h.count as u64);
        }
        let mut page: Box<Page> = self.dirty.buffer();
        let h = Nodes::copy(self, tree, addr, level, &mut page)?;
        self.drop_node(addr)?;
        if level == 0 {
            self.dirty.recycle(page);
            return Ok(h.count as u64);
        }
        let mut keys = 0;
        for i in 0..h.count {
            keys += self.drop_subtree(tree, node::child(&*page, &h, i), level - 1)?;
        }
        self.dirty.recycle(page);
        Ok(keys)
    }
}
