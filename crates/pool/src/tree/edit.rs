//! Putting and erasing single keys.
//!
//! What always holds here: after each call the tree is balanced in levels, no node but a changed
//! path is private, and a node under a third full was merged with a neighbour if both fit one.

use super::append::takes_appends;
use super::batch::{Batch, Path, Step};
use super::dirty::DIRTY;
use super::entries::separator;
use super::page::{self, Page, Payload};
use super::walk::{self, Nodes, damaged};
use crate::error::{Error, Result};
use crate::format::PAGE;
use crate::format::node::{self, HEIGHT_MAX, KeyBuf};
use crate::format::superblock::Root;
use crate::layout::TreeId;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Ordering;

/// A node with fewer bytes in use looks for a neighbour to merge with.
const FILL_MIN: usize = PAGE / 3;
/// A node with more is full, however it is laid out.
const FILL_FULL: usize = PAGE * 7 / 8;
/// Keys that come in order leave this part of an inner node free, for links to be appended.
const LINKS_PART: usize = 8;
/// Bytes left free in a merged node, so that the next put does not split it again.
const MERGE_SPARE: usize = PAGE / 4;

/// An entry to add: a key's bytes and what goes with it.
pub(super) struct Added<'a> {
    pub key: &'a [u8],
    pub payload: Payload<'a>,
}

impl Batch<'_> {
    pub(super) fn put_seeing(
        &mut self,
        tree: TreeId,
        key: &[u8],
        value: &[u8],
        see: &mut dyn FnMut(&[u8]),
    ) -> Result<bool> {
        if !self.turn(tree, key)? && !self.path_covers(tree, key)? {
            self.descend(tree, key)?;
        }
        if let Some(found) = self.append(key, value, see)? {
            let root = self.root_mut(tree);
            root.keys = root.keys.saturating_add(u64::from(!found));
            return Ok(found);
        }
        let depth = self.path.depth - 1;
        let was_dirty = self.path.steps[depth].addr & DIRTY != 0;
        let addr = self.own_leaf()?;
        let leaf = self.dirty.get_mut(addr)?;
        let (at, found) = find_private(leaf, addr, key)?;
        if found {
            see(value_of(leaf, addr, at)?);
        }
        let done = match found {
            true => page::set_value(leaf, at, value),
            false => page::insert(leaf, at, key, Payload::Value(value)),
        };
        let follows = self.last_put == (addr, at.wrapping_sub(1));
        self.last_put = (addr, at);
        let done = done || (follows && !found && self.start_leaf(at, key, value)?);
        if !done {
            let added = [Added {
                key,
                payload: Payload::Value(value),
            }];
            self.rebuild(depth, at, usize::from(found), &added, follows)?;
        } else if found && !was_dirty && takes_appends(tree) {
            self.make_room()?;
        }
        let root = self.root_mut(tree);
        root.keys = root.keys.saturating_add(u64::from(!found));
        Ok(found)
    }

    /// Puts a key that follows all those of the leaf of the path, which is full of them, into a new
    /// leaf behind it: what keys that come in order need. Whether it did.
    fn start_leaf(&mut self, at: usize, key: &[u8], value: &[u8]) -> Result<bool> {
        let (tree, depth) = (self.path.tree, self.path.depth - 1);
        let addr = self.path.steps[depth].addr;
        let leaf = self.dirty.get(addr)?;
        let h = page::header(leaf);
        let full = at == h.count && page::fills(leaf, FILL_FULL);
        if !full || depth == 0 || node::compare_prefix(leaf, &h, key).is_ne() {
            return Ok(false);
        }
        let mut last = KeyBuf::default();
        last.load(leaf, &h, at - 1).map_err(damaged(addr))?;
        let separator = separator(last.as_slice(), key);
        let mut new = self.dirty.buffer();
        page::init(&mut new, tree, 0, &key[..h.prefix]);
        if !page::insert(&mut new, 0, key, Payload::Value(value)) {
            self.dirty.recycle(new);
            return Ok(false);
        }
        let new = self.dirty.add(new);
        let added = [Added {
            key: separator,
            payload: Payload::Child(new),
        }];
        // Unless the parent is laid out anew, the path leads to the new leaf.
        self.path.steps[depth] = Step { addr: new, pos: 0 };
        self.hang_siblings(depth, &added)?;
        self.path.steps[depth - 1].pos += 1;
        self.last_put = (new, 0);
        Ok(true)
    }

    pub(super) fn erase_seeing(
        &mut self,
        tree: TreeId,
        key: &[u8],
        see: &mut dyn FnMut(&[u8]),
    ) -> Result<bool> {
        let covered = self.path_covers(tree, key)?;
        // Nothing is copied for a key that is not there.
        let copied = covered && self.path.steps[self.path.depth - 1].addr & DIRTY != 0;
        if !copied && walk::get(self, tree, &self.root(tree)?, key, &mut [])?.is_none() {
            return Ok(false);
        }
        if !covered {
            self.descend(tree, key)?;
        }
        let addr = self.own_leaf()?;
        let leaf = self.dirty.get_mut(addr)?;
        let (at, found) = find_private(leaf, addr, key)?;
        if !found {
            return Ok(false);
        }
        see(value_of(leaf, addr, at)?);
        page::remove(leaf, at, at + 1);
        let root = self.root_mut(tree);
        root.keys = root.keys.saturating_sub(1);
        self.last_put = (0, 0);
        self.settle()?;
        Ok(true)
    }

    /// Whether the current path leads to the leaf where `key` belongs, as far as its nodes tell.
    fn path_covers(&self, tree: TreeId, key: &[u8]) -> Result<bool> {
        let path = &self.path;
        if !path.valid || path.tree != tree {
            return Ok(false);
        }
        let flaw = damaged(0);
        let mut low = path.depth == 1;
        let mut high = low || rightmost(self, path, path.depth - 1)?;
        if path.depth > 1 {
            let Step { addr, pos } = path.steps[path.depth - 2];
            let parent = self.dirty.get(addr)?;
            let ph = page::header(parent);
            let order = |i| node::compare_entry(parent, &ph, i, key).map_err(&flaw);
            low = pos > 0 && order(pos)? != Ordering::Greater;
            high |= pos + 1 < ph.count && order(pos + 1)? == Ordering::Greater;
        }
        let addr = path.steps[path.depth - 1].addr;
        if addr & DIRTY == 0 {
            return Ok(low && high);
        }
        let leaf = self.dirty.get(addr)?;
        let h = page::header(leaf);
        let order = |i| node::compare_entry(leaf, &h, i, key).map_err(&flaw);
        low = low || (h.count > 0 && order(0)? != Ordering::Greater);
        high = high || (h.count > 0 && order(h.count - 1)? != Ordering::Less);
        Ok(low && high)
    }

    /// Leads the path to the leaf of `key`, if that is below the same parent.
    fn turn(&mut self, tree: TreeId, key: &[u8]) -> Result<bool> {
        let path = &self.path;
        let Some(above) = path.depth.checked_sub(2) else {
            return Ok(false);
        };
        if !path.valid || path.tree != tree {
            return Ok(false);
        }
        let addr = path.steps[above].addr;
        let node = self.dirty.get(addr)?;
        let h = page::header(node);
        let pos = node::find_child(node, &h, key).map_err(damaged(addr))?;
        // Between two of its entries it is below the node for sure.
        let between = pos > 0 && pos + 1 < h.count;
        if !between && !self.belongs_below(above, key)? {
            return Ok(false);
        }
        let leaf = node::child(node, &h, pos);
        self.path.steps[above].pos = pos;
        self.path.steps[above + 1] = Step { addr: leaf, pos: 0 };
        Ok(true)
    }

    /// Whether `key` belongs below path step `d`, as far as the step above tells.
    fn belongs_below(&self, d: usize, key: &[u8]) -> Result<bool> {
        let Some(above) = d.checked_sub(1) else {
            return Ok(true);
        };
        let Step { addr, pos } = self.path.steps[above];
        let parent = self.dirty.get(addr)?;
        let h = page::header(parent);
        let order = |i| node::compare_entry(parent, &h, i, key).map_err(damaged(addr));
        let low = pos > 0 && order(pos)? != Ordering::Greater;
        let high = match pos + 1 < h.count {
            true => order(pos + 1)? == Ordering::Greater,
            false => rightmost(self, &self.path, d)?,
        };
        Ok(low && high)
    }

    /// Makes the path to the leaf of `key` dirty, but not the leaf, in a tree that may be empty.
    pub(super) fn descend(&mut self, tree: TreeId, key: &[u8]) -> Result<()> {
        self.path.valid = false;
        let root = self.root(tree)?;
        if root.height == 0 {
            let mut leaf = self.dirty.buffer();
            page::init(&mut leaf, tree, 0, &[]);
            let addr = self.dirty.add(leaf);
            *self.root_mut(tree) = Root {
                addr,
                height: 1,
                ..root
            };
        } else if root.height > HEIGHT_MAX {
            return Err(Error::Damaged {
                what: "height of a tree",
                page: root.addr,
            });
        }
        let root = self.root(tree)?;
        let mut addr = root.addr;
        if root.height > 1 {
            addr = self.own(tree, addr, root.height - 1)?;
            self.root_mut(tree).addr = addr;
        }
        let mut path = Path {
            valid: true,
            tree,
            depth: root.height.into(),
            ..Path::default()
        };
        for level in (0..root.height).rev() {
            let step = &mut path.steps[usize::from(root.height - 1 - level)];
            *step = Step { addr, pos: 0 };
            if level == 0 {
                break;
            }
            let node = self.dirty.get(addr)?;
            let h = page::header(node);
            step.pos = node::find_child(node, &h, key).map_err(damaged(addr))?;
            let child = node::child(node, &h, step.pos);
            let owned = match level {
                1 => child,
                _ => self.own(tree, child, level - 1)?,
            };
            if owned != child {
                page::set_child(self.dirty.get_mut(addr)?, step.pos, owned);
            }
            addr = owned;
        }
        self.path = path;
        Ok(())
    }

    /// Makes the leaf of the path dirty, too; its address then.
    fn own_leaf(&mut self) -> Result<u64> {
        let depth = self.path.depth - 1;
        let addr = self.path.steps[depth].addr;
        let owned = self.own(self.path.tree, addr, 0)?;
        if owned != addr {
            self.set_leaf(owned)?;
        }
        Ok(owned)
    }

    /// The path, and what is above, leads to the leaf at `addr` from now on.
    pub(super) fn set_leaf(&mut self, addr: u64) -> Result<()> {
        let depth = self.path.depth - 1;
        self.path.steps[depth].addr = addr;
        match depth.checked_sub(1) {
            None => self.root_mut(self.path.tree).addr = addr,
            Some(above) => {
                let Step { addr: parent, pos } = self.path.steps[above];
                page::set_child(self.dirty.get_mut(parent)?, pos, addr);
            }
        }
        Ok(())
    }

    /// Lays the node at path step `d` out anew with `added` in place of `gone` entries at `at`,
    /// in as many nodes as that takes.
    fn rebuild(
        &mut self,
        d: usize,
        at: usize,
        gone: usize,
        added: &[Added<'_>],
        follows: bool,
    ) -> Result<()> {
        let tree = self.path.tree;
        let level = (self.path.depth - 1 - d) as u8;
        let addr = self.path.steps[d].addr;
        let appending = rightmost(self, &self.path, d)?;
        self.path.valid = false;
        let mut entries = core::mem::take(&mut self.scratch);
        entries.clear();
        let old = self.dirty.get(addr)?;
        let count = page::header(old).count;
        entries.gather(old, 0..at, &[]).map_err(damaged(addr))?;
        added.iter().for_each(|a| entries.push(a.key, a.payload));
        entries
            .gather(old, at + gone..count, &[])
            .map_err(damaged(addr))?;
        let hint = match level {
            0 if follows && at < count && entries.start_fits(0, at + 1) => Some(at + 1),
            0 if follows || (appending && at == count) => Some(at),
            _ if level > 0 && appending && at == count => Some(at - (at / LINKS_PART).max(1)),
            _ => None,
        };
        let parts = entries.split(level, hint);
        let mut siblings = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let mut page = self.dirty.buffer();
            entries
                .build(&mut page, tree, level, part)
                .map_err(damaged(addr))?;
            match i {
                0 => self.dirty.get_mut(addr)?.copy_from_slice(&page[..]),
                _ => siblings.push((i, self.dirty.add(page))),
            }
        }
        let separators = siblings.iter().map(|&(i, node)| Added {
            key: entries.separator(level, &parts[i]),
            payload: Payload::Child(node),
        });
        let separators: Vec<Added<'_>> = separators.collect();
        let done = self.hang_siblings(d, &separators);
        self.scratch = entries;
        done
    }

    /// Adds new right neighbours of the node at path step `d` to its parent.
    pub(super) fn hang_siblings(&mut self, d: usize, siblings: &[Added<'_>]) -> Result<()> {
        if siblings.is_empty() {
            return Ok(());
        }
        if d == 0 {
            return self.grow_root(siblings);
        }
        let Step { addr, pos } = self.path.steps[d - 1];
        let parent = self.dirty.get_mut(addr)?;
        for (i, added) in siblings.iter().enumerate() {
            if !page::insert(parent, pos + 1 + i, added.key, added.payload) {
                return self.rebuild(d - 1, pos + 1 + i, 0, &siblings[i..], false);
            }
        }
        Ok(())
    }

    fn grow_root(&mut self, siblings: &[Added<'_>]) -> Result<()> {
        let tree = self.path.tree;
        let root = self.root(tree)?;
        if root.height >= HEIGHT_MAX {
            return Err(Error::NoSpace);
        }
        let mut entries = super::entries::Entries::default();
        entries.push(&[], Payload::Child(root.addr));
        siblings.iter().for_each(|a| entries.push(a.key, a.payload));
        let mut page = self.dirty.buffer();
        let all = 0..entries.len();
        entries
            .build(&mut page, tree, root.height, &all)
            .map_err(damaged(root.addr))?;
        let addr = self.dirty.add(page);
        let root = self.root_mut(tree);
        root.addr = addr;
        root.height += 1;
        Ok(())
    }

    /// Takes empty and nearly empty nodes out along the path, from the leaf up.
    fn settle(&mut self) -> Result<()> {
        let path = self.path;
        for d in (1..path.depth).rev() {
            let node = self.dirty.get(path.steps[d].addr)?;
            let empty = page::header(node).count == 0;
            if !empty && page::fills(node, FILL_MIN) {
                break;
            }
            let Step { addr: parent, pos } = path.steps[d - 1];
            let level = (path.depth - 1 - d) as u8;
            if empty {
                self.drop_node(path.steps[d].addr)?;
                page::remove(self.dirty.get_mut(parent)?, pos, pos + 1);
            } else if !self.merge_child(path.tree, parent, pos, level)? {
                break;
            }
            self.path.valid = false;
        }
        self.shrink_root(path.tree)
    }

    /// Removes roots that lead nowhere else than to one child, and the root of an empty tree.
    pub(super) fn shrink_root(&mut self, tree: TreeId) -> Result<()> {
        loop {
            let root = self.root(tree)?;
            if root.height == 0 || root.addr & DIRTY == 0 {
                return Ok(());
            }
            let node = self.dirty.get(root.addr)?;
            let h = page::header(node);
            if h.count == 0 {
                *self.root_mut(tree) = empty(root.keys);
            } else if h.level > 0 && h.count == 1 {
                let child = node::child(node, &h, 0);
                let height = root.height - 1;
                *self.root_mut(tree) = Root {
                    addr: child,
                    height,
                    keys: root.keys,
                };
            } else {
                return Ok(());
            }
            self.path.valid = false;
            self.drop_node(root.addr)?;
        }
    }

    /// Merges child `pos` of `parent` with a neighbour, if both fit one node.
    pub(super) fn merge_child(
        &mut self,
        tree: TreeId,
        parent: u64,
        pos: usize,
        level: u8,
    ) -> Result<bool> {
        let h = page::header(self.dirty.get(parent)?);
        if pos + 1 < h.count && self.merge_pair(tree, parent, pos, level)? {
            return Ok(true);
        }
        Ok(pos > 0 && self.merge_pair(tree, parent, pos - 1, level)?)
    }

    /// Merges children `left` and `left + 1` of `parent`, if both fit one node.
    fn merge_pair(&mut self, tree: TreeId, parent: u64, left: usize, level: u8) -> Result<bool> {
        let node = self.dirty.get(parent)?;
        let h = page::header(node);
        let children = [node::child(node, &h, left), node::child(node, &h, left + 1)];
        let mut separator = KeyBuf::default();
        separator
            .load(node, &h, left + 1)
            .map_err(damaged(parent))?;
        let mut entries = core::mem::take(&mut self.scratch);
        entries.clear();
        let mut page: Box<Page> = self.dirty.buffer();
        let keys = [&[][..], separator.as_slice()];
        for (child, key) in children.into_iter().zip(keys) {
            let h = Nodes::copy(self, tree, child, level, &mut page)?;
            entries
                .gather(&page, 0..h.count, key)
                .map_err(damaged(child))?;
        }
        let fits = entries.fit(level, MERGE_SPARE);
        if fits {
            let all = 0..entries.len();
            entries
                .build(&mut page, tree, level, &all)
                .map_err(damaged(parent))?;
            self.drop_node(children[0])?;
            self.drop_node(children[1])?;
            let merged = self.dirty.add(page);
            let node = self.dirty.get_mut(parent)?;
            page::set_child(node, left, merged);
            page::remove(node, left + 1, left + 2);
            self.path.valid = false;
        } else {
            self.dirty.recycle(page);
        }
        self.scratch = entries;
        Ok(fits)
    }
}

/// A tree without nodes; `keys` are those of subtrees that were cut out of it.
pub(super) fn empty(keys: u64) -> Root {
    Root {
        keys,
        ..Root::default()
    }
}

/// The value of entry `at`.
fn value_of(leaf: &Page, addr: u64, at: usize) -> Result<&[u8]> {
    let cell = node::cell(leaf, &page::header(leaf), at).map_err(damaged(addr))?;
    let value = leaf.get(cell.value..cell.value + cell.value_len);
    value.ok_or("node cell").map_err(damaged(addr))
}

fn find_private(leaf: &Page, addr: u64, key: &[u8]) -> Result<(usize, bool)> {
    let h = page::header(leaf);
    node::find(leaf, &h, 0, key).map_err(damaged(addr))
}

/// Whether no node is right of path step `d` in its level.
fn rightmost(batch: &Batch<'_>, path: &Path, d: usize) -> Result<bool> {
    for step in &path.steps[..d] {
        if step.pos + 1 < page::header(batch.dirty.get(step.addr)?).count {
            return Ok(false);
        }
    }
    Ok(true)
}
