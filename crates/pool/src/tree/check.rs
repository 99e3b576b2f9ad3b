//! Re-deriving what must hold between trees and the bitmap of meta pages.
//!
//! What always holds here: nothing is changed; every node is verified with its checksum, its
//! keys lie between the separators above it, and no page hangs in two places.

use super::page::Page;
use super::reader::{Trust, copy_mapped};
use super::walk::damaged;
use crate::error::{Error, Result};
use crate::format::node::{self, HEIGHT_MAX, KeyBuf, Place};
use crate::format::superblock::Root;
use crate::format::{PAGE, PAGE_LEN};
use crate::layout::{RECLAIM, TreeId};
use crate::pool::Pool;
use crate::reclaim::Cut;
use crate::space::{Bits, Run, Space};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use holdfast_pmem::Region;

/// What a walk over all trees found.
struct Walk<'a> {
    meta: &'a Region,
    space: &'a Space,
    seq: u64,
    seen: Bits,
    /// Keys of subtrees that were cut out of a tree.
    cut: Vec<(TreeId, u64)>,
    /// Of the subtree that is walked, what is below it is free already.
    from: Vec<u8>,
}

/// Verifies every node of every tree; returns how many pages of `meta.seg` are in use by them
/// and by what stands before the first node.
pub fn reachable(pool: &Pool) -> Result<u64> {
    let meta = pool.meta();
    let words = (meta.len() as u64 / PAGE_LEN).div_ceil(64) as usize;
    let superblock = pool.superblock();
    let (seq, space) = (superblock.seq, pool.meta_space());
    let mut walk = Walk {
        meta,
        space,
        seq,
        seen: Bits::new(words),
        cut: Vec::new(),
        from: Vec::new(),
    };
    let mut cuts = Vec::new();
    pool.reader().scan(RECLAIM, &[], None, |_, value| {
        cuts.push(Cut::decode(value).map(|(cut, from)| (cut, from.to_vec())));
        ControlFlow::Continue(())
    })?;
    for cut in cuts {
        let (cut, from) = cut?;
        walk.cut_out(&cut, &from)?;
    }
    for (tree, root) in superblock.roots.iter().enumerate() {
        walk.tree(tree as TreeId, root)?;
    }
    let geometry = superblock.geometry(meta.len() as u64)?;
    Ok(walk.seen.count() + geometry.first_node())
}

fn wrong<T>(what: &'static str, page: u64) -> Result<T> {
    Err(Error::Damaged { what, page })
}

impl Walk<'_> {
    /// Verifies what is left of a subtree without snapshots.
    fn cut_out(&mut self, cut: &Cut, from: &[u8]) -> Result<()> {
        self.from = from.to_vec();
        let keys = self.node(cut.tree, cut.link, cut.level, &[], None)?;
        self.from.clear();
        self.cut.push((cut.tree, keys));
        Ok(())
    }

    fn tree(&mut self, tree: TreeId, root: &Root) -> Result<()> {
        if root.height > HEIGHT_MAX {
            return wrong("height of a tree", root.addr);
        }
        let cut = self.cut.iter().filter(|(of, ..)| *of == tree);
        let cut = cut.map(|(_, keys)| keys).sum::<u64>();
        if root.height == 0 {
            return match root.addr == 0 && root.keys == cut {
                true => Ok(()),
                false => wrong("root", root.addr),
            };
        }
        let keys = self.node(tree, root.addr, root.height - 1, &[], None)?;
        if keys + cut == root.keys {
            Ok(())
        } else {
            wrong("count of keys of a tree", root.addr)
        }
    }

    /// Verifies a subtree whose keys are in `low .. high`; returns how many there are.
    fn node(
        &mut self,
        tree: TreeId,
        addr: u64,
        level: u8,
        low: &[u8],
        high: Option<&[u8]>,
    ) -> Result<u64> {
        let mut page: Box<Page> = Box::new([0; PAGE]);
        let place = Place::of_link(addr, tree, level, self.seq);
        let addr = place.page;
        let h = copy_mapped(self.meta, &place, Trust::Verified, &mut page)?;
        if !self.space.is_used(Run::new(addr, 1)) {
            return wrong("a node that is not in use", addr);
        }
        if self.seen.all_set(addr, 1) {
            return wrong("a node that hangs in two places", addr);
        }
        self.seen.set(addr, 1);
        let keys = keys(&page, &h, addr, low, high)?;
        if level == 0 {
            return Ok(h.count as u64);
        }
        let mut total = 0;
        for i in 0..h.count {
            let low = if i == 0 { low } else { &keys[i] };
            let high = keys.get(i + 1).map(|k| &k[..]).or(high);
            if high.is_some_and(|high| high <= &self.from[..]) {
                continue;
            }
            total += self.node(tree, node::child(&*page, &h, i), level - 1, low, high)?;
        }
        Ok(total)
    }
}

/// The keys of a node, which rise and lie in `low .. high`.
fn keys(
    page: &Page,
    h: &node::Header,
    addr: u64,
    low: &[u8],
    high: Option<&[u8]>,
) -> Result<Vec<Vec<u8>>> {
    let (mut keys, mut key) = (Vec::<Vec<u8>>::new(), KeyBuf::default());
    for i in 0..h.count {
        key.load(page, h, i).map_err(damaged(addr))?;
        let keyless = h.level > 0 && i == 0;
        let key = key.as_slice();
        let inside = key >= low && high.is_none_or(|high| key < high);
        let rises = i == 0 || keys.last().is_none_or(|last| key > &last[..]);
        if !(keyless || (rises && inside)) {
            return wrong("order of keys", addr);
        }
        keys.push(key.to_vec());
    }
    Ok(keys)
}
