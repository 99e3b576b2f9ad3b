//! Erasing a range of keys in time that does not depend on how many there are in full subtrees.
//!
//! What always holds here:
//! - Of a subtree inside the range only inner nodes and the counts of leaves are read; only the two
//!   paths at the edges of the range are copied.
//! - A range is cut out in bounded time, unless all of it is to be shown: of what was committed
//!   before, a few leaves are dropped at once, and the links to the other subtrees inside the range
//!   go to tree `RECLAIM`.

use super::batch::Batch;
use super::dirty::DIRTY;
use super::edit::empty;
use super::page::{self, Page};
use super::walk::{Nodes, damaged};
use crate::error::{Error, Result};
use crate::format::PAGE;
use crate::format::appends::appends_of;
use crate::format::node::{self, Flaw, HEIGHT_MAX, KeyBuf};
use crate::format::superblock::Root;
use crate::layout::{RECLAIM, TreeId};
use crate::reclaim::{self, Cut};
use alloc::boxed::Box;
use alloc::vec::Vec;

const FILL_MIN: usize = PAGE / 3;

/// Where a subtree is after the cut, and how many keys it lost.
struct Left {
    /// None when nothing is left of it.
    addr: Option<u64>,
    keys: u64,
}

/// Leaves that are dropped at once when a range is cut out.
const LEAVES_AT_ONCE: usize = if cfg!(test) { 1 } else { 32 };
/// Pages that must be free for putting links to what is cut out; else everything is dropped.
const ROOM_FOR_LINKS: u64 = 256;

/// Shown key and value of what is erased.
type See<'s> = &'s mut dyn FnMut(&[u8], &[u8]);

/// How the keys of a range are erased.
struct Way<'s> {
    /// Leaves that may still be dropped at once.
    leaves: usize,
    /// What becomes of the others.
    links: Vec<Link>,
    see: Option<See<'s>>,
}

/// What leads to a committed node.
struct Link {
    addr: u64,
    level: u8,
}

#[derive(Clone, Copy)]
struct Range<'a> {
    from: Option<&'a [u8]>,
    to: Option<&'a [u8]>,
}

impl Batch<'_> {
    pub(super) fn erase_range_checked(
        &mut self,
        tree: TreeId,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<u64> {
        let mut way = Way {
            leaves: usize::MAX,
            links: Vec::new(),
            see: None,
        };
        self.erase_range_in(tree, from, to, &mut way)
    }

    pub(super) fn cut_range_checked(
        &mut self,
        tree: TreeId,
        from: &[u8],
        to: Option<&[u8]>,
        see: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let later = self.pages_left() > ROOM_FOR_LINKS && !self.shows_all;
        let mut way = Way {
            leaves: if later { LEAVES_AT_ONCE } else { usize::MAX },
            links: Vec::new(),
            see: Some(see),
        };
        self.erase_range_in(tree, from, to, &mut way)?;
        for link in &way.links {
            self.put_cut(tree, link)?;
        }
        Ok(())
    }

    /// Leaves a subtree to be freed later.
    fn put_cut(&mut self, tree: TreeId, link: &Link) -> Result<()> {
        let seq = self.pool.superblock.seq;
        let cut = Cut {
            tree,
            level: link.level,
            link: link.addr,
            seq,
            before: self.pool.newest,
        };
        let key = reclaim::key(seq + 1, self.cut_out);
        self.cut_out += 1;
        let value = cut.encode(&[]);
        self.put_seeing(RECLAIM, &key, &value, &mut |_| ())
            .map(drop)
    }

    fn erase_range_in(
        &mut self,
        tree: TreeId,
        from: &[u8],
        to: Option<&[u8]>,
        way: &mut Way<'_>,
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
        let cut = self.cut(tree, root.addr, root.height - 1, range, way)?;
        let keys = root.keys.saturating_sub(cut.keys);
        *self.root_mut(tree) = match cut.addr {
            Some(addr) => Root { addr, keys, ..root },
            None => empty(keys),
        };
        self.shrink_root(tree)?;
        Ok(cut.keys)
    }

    fn cut(
        &mut self,
        tree: TreeId,
        addr: u64,
        level: u8,
        range: Range<'_>,
        way: &mut Way<'_>,
    ) -> Result<Left> {
        if range.from.is_none() && range.to.is_none() {
            let keys = self.drop_subtree(tree, addr, level, way)?;
            return Ok(Left { addr: None, keys });
        }
        if level == 0 {
            self.cut_leaf(tree, addr, range, way)
        } else {
            self.cut_inner(tree, addr, level, range, way)
        }
    }

    fn cut_leaf(
        &mut self,
        tree: TreeId,
        mut addr: u64,
        range: Range<'_>,
        way: &mut Way<'_>,
    ) -> Result<Left> {
        if appends_of(addr) > 0 {
            addr = self.own(tree, addr, 0)?;
        }
        let (leaf, h) = self.open(tree, addr, 0)?;
        let find =
            |key: &[u8]| Ok::<_, Error>(node::find(&leaf, &h, 0, key).map_err(damaged(addr))?.0);
        let first = range.from.map_or(Ok(0), find)?;
        let last = range.to.map_or(Ok(h.count), find)?;
        let keys = last.saturating_sub(first) as u64;
        if way.see.is_some() {
            let mut page: Box<Page> = self.dirty.buffer();
            Nodes::copy(self, tree, addr, 0, &mut page)?;
            way.show(&page, first..last).map_err(damaged(addr))?;
            self.dirty.recycle(page);
        }
        if keys == h.count as u64 {
            self.drop_node(addr)?;
            return Ok(Left { addr: None, keys });
        }
        if keys == 0 {
            return Ok(Left {
                addr: Some(addr),
                keys,
            });
        }
        let own = self.own(tree, addr, 0)?;
        page::remove(self.dirty.get_mut(own)?, first, last);
        Ok(Left {
            addr: Some(own),
            keys,
        })
    }

    fn cut_inner(
        &mut self,
        tree: TreeId,
        addr: u64,
        level: u8,
        range: Range<'_>,
        way: &mut Way<'_>,
    ) -> Result<Left> {
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
            let cut = self.cut(tree, child, level - 1, part, way)?;
            keys += cut.keys;
            let node = self.dirty.get_mut(own)?;
            match cut.addr {
                Some(new) => page::set_child(node, i, new),
                None => page::remove(node, i, i + 1),
            }
        }
        if page::header(self.dirty.get(own)?).count == 0 {
            self.drop_node(own)?;
            return Ok(Left { addr: None, keys });
        }
        self.settle_children(tree, own, first, level - 1)?;
        Ok(Left {
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

    /// Drops a subtree, or leaves it to be freed later; returns how many keys are gone.
    fn drop_subtree(
        &mut self,
        tree: TreeId,
        addr: u64,
        level: u8,
        way: &mut Way<'_>,
    ) -> Result<u64> {
        if addr & DIRTY == 0 && way.leaves == 0 {
            way.links.push(Link { addr, level });
            return Ok(0);
        }
        if level == 0 {
            return self.drop_leaf(tree, addr, way);
        }
        let mut page: Box<Page> = self.dirty.buffer();
        let h = Nodes::copy(self, tree, addr, level, &mut page)?;
        if addr & DIRTY == 0 && level > 1 && way.is_bounded() {
            way.links.push(Link { addr, level });
            self.dirty.recycle(page);
            return Ok(0);
        }
        self.drop_node(addr)?;
        let mut keys = 0;
        for i in 0..h.count {
            keys += self.drop_subtree(tree, node::child(&*page, &h, i), level - 1, way)?;
        }
        self.dirty.recycle(page);
        Ok(keys)
    }

    fn drop_leaf(&mut self, tree: TreeId, addr: u64, way: &mut Way<'_>) -> Result<u64> {
        if addr & DIRTY == 0 && way.is_bounded() {
            way.leaves -= 1;
        }
        let count = if appends_of(addr) == 0 && way.see.is_none() {
            self.open(tree, addr, 0)?.1.count
        } else {
            let mut page: Box<Page> = self.dirty.buffer();
            let h = Nodes::copy(self, tree, addr, 0, &mut page)?;
            way.show(&page, 0..h.count).map_err(damaged(addr))?;
            self.dirty.recycle(page);
            h.count
        };
        self.drop_node(addr)?;
        Ok(count as u64)
    }
}

impl Way<'_> {
    fn is_bounded(&self) -> bool {
        self.leaves != usize::MAX
    }

    /// Shows entries of a leaf to whoever frees what they lead to.
    fn show(
        &mut self,
        leaf: &Page,
        range: core::ops::Range<usize>,
    ) -> core::result::Result<(), Flaw> {
        let Some(see) = &mut self.see else {
            return Ok(());
        };
        let (h, mut key) = (page::header(leaf), KeyBuf::default());
        for i in range {
            key.load(leaf, &h, i)?;
            let cell = node::cell(leaf, &h, i)?;
            let value = leaf.get(cell.value..cell.value + cell.value_len);
            see(key.as_slice(), value.unwrap_or_default());
        }
        Ok(())
    }
}
