//! What only one snapshot has.
//!
//! What always holds here:
//! - Between two neighbours in time, `before` and `after`, a snapshot alone has exactly the nodes
//!   that are younger than `before` and that `after` does not have; for data blocks the same. Both
//!   neighbours may be missing: before the first snapshot there is nothing, after the last one
//!   comes the present.
//! - A node that `after` has stands there at the same level under the same keys, and with it
//!   everything below it: so it is found by one key, and what is below need not be looked at. Of a
//!   leaf that has another number of appended entries there, only the page is the same.
//! - A block hangs under the same key for as long as it is in use.
//!
//! A subtree that was cut out of a tree is as the only tree of a snapshot with nothing after it.

use super::page::Page;
use super::reader::{At, Fixed, Reader, Trust, copy_mapped};
use super::walk::{self, Nodes, damaged};
use crate::error::{Error, Result};
use crate::format::appends::{appends_of, page_of};
use crate::format::node::VALUE_MAX;
use crate::format::node::{self, AT_BIRTH, HEIGHT_MAX, Header, KeyBuf, Source};
use crate::format::{PAGE, PAGE_SHIFT, TREES};
use crate::layout::extent::{self, Extent};
use crate::layout::value::{self, ValueRun};
use crate::layout::{EXTENTS, TreeId, VALUES};
use crate::snapshot::{Newest, SNAPSHOT_TREES};
use crate::space::Run;
use alloc::boxed::Box;
use alloc::vec::Vec;
use holdfast_pmem::Region;

/// Pages and blocks that become free with a snapshot, or with a subtree.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    pub pages: Vec<u64>,
    pub data: Vec<Run>,
    /// Keys of the leaves that were looked at.
    pub keys: u64,
    /// Nothing is left to look at.
    pub is_all: bool,
}

/// Looks for the garbage of one snapshot.
struct Search<'a> {
    meta: &'a Region,
    snapshot: &'a Fixed,
    before: Option<Newest>,
    after: &'a Fixed,
    found: Garbage,
    /// Nodes, and entries with blocks, that may still be looked at.
    left: usize,
    /// Where it goes on once nothing is left.
    goes_on: Vec<u8>,
    /// Each leaf is looked at, for its keys.
    counts: bool,
}

/// How far a search came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub tree: TreeId,
    /// Everything below this key was found.
    pub from: Vec<u8>,
}

/// The neighbours in time of what becomes free.
#[derive(Clone, Copy)]
pub(crate) struct Between<'f> {
    pub before: Option<Newest>,
    pub after: &'f Fixed,
}

impl Garbage {
    /// What `snapshot` has and neither of its neighbours has, from `place` on; about as much as
    /// `left` says, which becomes what is left of it. `place` becomes where the rest begins. Nodes
    /// come after those below them.
    pub fn find_some(
        meta: &Region,
        snapshot: &Fixed,
        place: &mut Place,
        between: Between<'_>,
        left: &mut usize,
    ) -> Result<Garbage> {
        let mut search = Search::new(meta, snapshot, between, *left);
        search.look(place)?;
        *left = search.left;
        Ok(search.found)
    }

    /// As `find_some`, of a subtree that was cut out: as if it were a tree of a snapshot, with
    /// nothing after it. Each leaf is looked at, for its keys.
    pub fn find_in_cut(
        meta: &Region,
        cut: &Fixed,
        place: &mut Place,
        before: Option<Newest>,
        left: &mut usize,
    ) -> Result<Garbage> {
        let (seq, roots) = (cut.seq, Default::default());
        let after = &Fixed { seq, roots };
        let mut search = Search::new(meta, cut, Between { before, after }, *left);
        search.counts = true;
        search.look(place)?;
        *left = search.left;
        Ok(search.found)
    }
}

impl<'a> Search<'a> {
    fn new(meta: &'a Region, snapshot: &'a Fixed, between: Between<'a>, left: usize) -> Self {
        Search {
            meta,
            snapshot,
            before: between.before,
            after: between.after,
            found: Garbage::default(),
            left,
            goes_on: Vec::new(),
            counts: false,
        }
    }

    /// Looks at all trees from `place` on, until enough was looked at.
    fn look(&mut self, place: &mut Place) -> Result<()> {
        let first = place.tree;
        for tree in first..SNAPSHOT_TREES.min(TREES) as TreeId {
            let root = self.snapshot.roots[usize::from(tree)];
            let wrong = Error::Damaged {
                what: "height of a tree",
                page: root.addr,
            };
            if root.height > HEIGHT_MAX {
                return Err(wrong);
            }
            let Some(level) = root.height.checked_sub(1) else {
                continue;
            };
            let from = core::mem::take(&mut place.from);
            place.tree = tree;
            if tree > first && self.left == 0 {
                return Ok(());
            }
            if !self.node(tree, root.addr, level, &from)? {
                place.from = core::mem::take(&mut self.goes_on);
                return Ok(());
            }
        }
        self.found.is_all = true;
        Ok(())
    }

    fn copy(&self, tree: TreeId, addr: u64, level: u8) -> Result<(Box<Page>, Header)> {
        let place = node::Place::of_link(addr, tree, level, self.snapshot.seq);
        let mut copy: Box<Page> = Box::new([0; PAGE]);
        let header = copy_mapped(self.meta, &place, Trust::Verified, &mut copy)?;
        Ok((copy, header))
    }

    /// Looks at a node and, after that, adds it to what is found: so there is a way to what is left
    /// of it. False: that begins at `goes_on`.
    fn node(&mut self, tree: TreeId, addr: u64, level: u8, from: &[u8]) -> Result<bool> {
        let (node, h) = self.copy(tree, addr, level)?;
        self.left = self.left.saturating_sub(1);
        let birth = node.word(AT_BIRTH);
        let in_before = self.before.is_some_and(|before| birth <= before.seq);
        // What was appended may be younger than the node.
        if in_before && appends_of(addr) == 0 && !self.counts {
            return Ok(true);
        }
        let key = self.key_in(tree, &node, &h)?;
        let there = self.in_after(tree, level, key.as_slice())?;
        if there == Some(addr) {
            return Ok(true);
        }
        let is_there = there.map(page_of) == Some(page_of(addr));
        let skips = is_there || in_before && !self.counts;
        if skips && level > 0 {
            return Ok(true);
        }
        if level > 0 && !self.below(tree, (&node, &h), from)? {
            return Ok(false);
        }
        if !in_before && !is_there {
            self.add_page(addr)?;
        }
        // Of a leaf that had fewer entries appended, or has more, only the entries may be free.
        if level == 0 && !(in_before && appends_of(addr) == 0) {
            self.leaf(tree, addr, &node, &h)?;
        }
        self.found.keys += if level == 0 { h.count as u64 } else { 0 };
        Ok(true)
    }

    /// Looks at the children of a node from the one on where `from` belongs.
    fn below(&mut self, tree: TreeId, (node, h): (&Page, &Header), from: &[u8]) -> Result<bool> {
        let first = match from {
            [] => 0,
            from => node::find_child(node, h, from).map_err(damaged(0))?,
        };
        for i in first..h.count {
            if i > first && self.left == 0 {
                let mut key = KeyBuf::default();
                key.load(node, h, i).map_err(damaged(0))?;
                self.goes_on = key.as_slice().to_vec();
                return Ok(false);
            }
            let from = if i == first { from } else { &[] };
            if !self.node(tree, node::child(node, h, i), h.level - 1, from)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn add_page(&mut self, addr: u64) -> Result<()> {
        if self.found.pages.len() as u64 >= self.meta.len() as u64 >> PAGE_SHIFT {
            // More nodes than there are pages: some hang in many places.
            return Err(Error::Damaged {
                what: "a node of a snapshot",
                page: addr,
            });
        }
        self.found.pages.push(page_of(addr));
        Ok(())
    }

    /// A key that belongs under the node. The first entry of an inner node has none.
    fn key_in(&self, tree: TreeId, node: &Page, h: &Header) -> Result<KeyBuf> {
        let mut key = KeyBuf::default();
        let at = usize::from(h.level > 0);
        if at < h.count {
            key.load(node, h, at).map_err(damaged(0))?;
            return Ok(key);
        }
        let (child, below) = self.copy(tree, node::child(node, h, 0), h.level - 1)?;
        self.key_in(tree, &child, &below)
    }

    /// The link to the node of this level in `after` under which `key` belongs.
    fn in_after(&self, tree: TreeId, level: u8, key: &[u8]) -> Result<Option<u64>> {
        let root = self.after.roots[usize::from(tree)];
        let nodes = At {
            meta: self.meta,
            seq: self.after.seq,
            verified: None,
        };
        let mut at = root.addr;
        for here in (level..root.height).rev() {
            if here == level {
                return Ok(Some(at));
            }
            let (node, h) = nodes.open(tree, at, here)?;
            let i = node::find_child(&node, &h, key).map_err(damaged(at))?;
            at = node::child(&node, &h, i);
        }
        Ok(None)
    }

    /// The blocks that only the snapshot has, of those in a leaf.
    fn leaf(&mut self, tree: TreeId, addr: u64, leaf: &Page, h: &Header) -> Result<()> {
        match tree {
            EXTENTS => {}
            VALUES => return self.leaf_of_values(addr, leaf, h),
            _ => return Ok(()),
        }
        let mut entries = Vec::new();
        let mut take = |key: &[u8], value: &[u8]| {
            let read = || {
                let (ino, file_block) = extent::parse_key(key)?;
                Ok::<_, Error>((ino, Extent::decode(file_block, value)?))
            };
            entries.push(read());
            true
        };
        walk::visit_leaf(leaf, h, &[], None, &mut KeyBuf::default(), &mut take)
            .map_err(damaged(addr))?;
        self.left = self.left.saturating_sub(entries.len());
        for entry in entries {
            let (ino, extent) = entry?;
            if self.before.is_none_or(|b| extent.epoch > b.epoch) {
                self.extent(ino, extent)?;
            }
        }
        Ok(())
    }

    /// As `leaf`, of values: those that `after` does not have in the same blocks.
    fn leaf_of_values(&mut self, addr: u64, leaf: &Page, h: &Header) -> Result<()> {
        let mut entries = Vec::new();
        let mut take = |key: &[u8], value: &[u8]| {
            if let Some(blocks) = value::blocks_of(value).transpose() {
                entries.push((key.to_vec(), blocks));
            }
            true
        };
        walk::visit_leaf(leaf, h, &[], None, &mut KeyBuf::default(), &mut take)
            .map_err(damaged(addr))?;
        self.left = self.left.saturating_sub(entries.len());
        let after = Reader::of_snapshot(self.meta, self.after);
        for (key, blocks) in entries {
            let (blocks, mut bytes) = (blocks?, [0; VALUE_MAX]);
            let old = |run: &ValueRun| self.before.is_some_and(|b| run.epoch <= b.epoch);
            if blocks.runs().iter().all(old) {
                continue;
            }
            let len = Reader::get(&after, VALUES, &key, &mut bytes)?.unwrap_or(0);
            let now = bytes.get(..len).unwrap_or_default();
            if len == 0 || value::blocks_of(now)?.as_ref() != Some(&blocks) {
                let runs = blocks.runs().iter();
                let runs = runs.map(|run| Run::of_data(run.block, run.len.into()));
                self.found.data.extend(runs);
            }
        }
        Ok(())
    }

    /// The parts of an extent whose blocks are not those of the same file blocks in `after`.
    fn extent(&mut self, ino: u64, e: Extent) -> Result<()> {
        let after = Reader::of_snapshot(self.meta, self.after);
        let mut at = e.file_block;
        while at < e.end() {
            let mine = e.block + (at - e.file_block);
            let (kept, len) = match extent::find(&after, ino, at)? {
                extent::Run::Blocks { block, len, .. } => (block == mine, len),
                extent::Run::Hole(len) => (false, len),
            };
            let len = len.clamp(1, e.end() - at);
            if !kept {
                self.found.data.push(Run::of_data(mine, len));
            }
            at += len;
        }
        Ok(())
    }
}
