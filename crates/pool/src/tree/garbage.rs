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

use super::page::Page;
use super::reader::{At, Fixed, Reader, Trust, copy_mapped};
use super::walk::{self, Nodes, damaged};
use crate::error::{Error, Result};
use crate::format::appends::{appends_of, page_of};
use crate::format::node::VALUE_MAX;
use crate::format::node::{self, AT_BIRTH, HEIGHT_MAX, Header, KeyBuf, Place, Source};
use crate::format::{PAGE, PAGE_SHIFT, TREES};
use crate::layout::extent::{self, Extent};
use crate::layout::value::{self, ValueRun};
use crate::layout::{EXTENTS, TreeId, VALUES};
use crate::snapshot::{Newest, SNAPSHOT_TREES};
use crate::space::Run;
use alloc::boxed::Box;
use alloc::vec::Vec;
use holdfast_pmem::{Record, Region};

/// Pages and blocks that become free with a snapshot.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    pub pages: Vec<u64>,
    pub data: Vec<Run>,
}

/// Looks for the garbage of one snapshot.
struct Search<'a, R: Record> {
    meta: &'a Region<R>,
    snapshot: &'a Fixed,
    before: Option<Newest>,
    after: &'a Fixed,
    found: Garbage,
}

impl Garbage {
    /// What `snapshot` has and neither its neighbour `before` nor its neighbour `after` has.
    pub fn find<R: Record>(
        meta: &Region<R>,
        snapshot: &Fixed,
        before: Option<Newest>,
        after: &Fixed,
    ) -> Result<Garbage> {
        let found = Garbage::default();
        let mut search = Search {
            meta,
            snapshot,
            before,
            after,
            found,
        };
        for tree in 0..SNAPSHOT_TREES.min(TREES) {
            let root = snapshot.roots[tree];
            if root.height > HEIGHT_MAX {
                return Err(Error::Damaged {
                    what: "height of a tree",
                    page: root.addr,
                });
            }
            if let Some(level) = root.height.checked_sub(1) {
                search.node(tree as TreeId, root.addr, level)?;
            }
        }
        Ok(search.found)
    }
}

impl<R: Record> Search<'_, R> {
    fn copy(&self, tree: TreeId, addr: u64, level: u8) -> Result<(Box<Page>, Header)> {
        let place = Place::of_link(addr, tree, level, self.snapshot.seq);
        let mut copy: Box<Page> = Box::new([0; PAGE]);
        let header = copy_mapped(self.meta, &place, Trust::Verified, &mut copy)?;
        Ok((copy, header))
    }

    fn node(&mut self, tree: TreeId, addr: u64, level: u8) -> Result<()> {
        let (node, h) = self.copy(tree, addr, level)?;
        let birth = node.word(AT_BIRTH);
        let in_before = self.before.is_some_and(|before| birth <= before.seq);
        // What was appended may be younger than the node.
        if in_before && appends_of(addr) == 0 {
            return Ok(());
        }
        let key = self.key_in(tree, &node, &h)?;
        let there = self.in_after(tree, level, key.as_slice())?;
        if there == Some(addr) {
            return Ok(());
        }
        if in_before || there.map(page_of) == Some(page_of(addr)) {
            // A leaf that had fewer entries appended, or has more.
            return match level {
                0 => self.leaf(tree, addr, &node, &h),
                _ => Ok(()),
            };
        }
        if self.found.pages.len() as u64 >= self.meta.len() as u64 >> PAGE_SHIFT {
            // More nodes than there are pages: some hang in many places.
            return Err(Error::Damaged {
                what: "a node of a snapshot",
                page: addr,
            });
        }
        self.found.pages.push(page_of(addr));
        if level == 0 {
            return self.leaf(tree, addr, &node, &h);
        }
        for i in 0..h.count {
            self.node(tree, node::child(&*node, &h, i), level - 1)?;
        }
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
        for entry in entries {
            let (ino, extent) = entry?;
            if self.before.is_none_or(|b| extent.period > b.period) {
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
        let after = Reader::of_snapshot(self.meta, self.after);
        for (key, blocks) in entries {
            let (blocks, mut bytes) = (blocks?, [0; VALUE_MAX]);
            let old = |run: &ValueRun| self.before.is_some_and(|b| run.period <= b.period);
            if blocks.runs().iter().all(old) {
                continue;
            }
            let len = Reader::get(&after, VALUES, &key, &mut bytes)?.unwrap_or(0);
            let now = bytes.get(..len).unwrap_or_default();
            if len == 0 || value::blocks_of(now)?.as_ref() != Some(&blocks) {
                let runs = blocks.runs().iter();
                let runs = runs.map(|run| Run::new(run.block, run.len.into()));
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
                self.found.data.push(Run::new(mine, len));
            }
            at += len;
        }
        Ok(())
    }
}
