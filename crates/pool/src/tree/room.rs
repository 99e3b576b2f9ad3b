//! Giving full leaves room, so that the changes that follow are appended instead of copying them.
//!
//! What always holds here: no entry changes; leaves are laid out only below one parent, at most
//! `WINDOW` at a time, and none that a snapshot has; a change never fails for lack of the pages
//! that this takes.

use super::batch::Batch;
use super::compact::FILL;
use super::dirty::DIRTY;
use super::edit::Added;
use super::entries::Entries;
use super::page::{self, Page, Payload};
use super::walk::damaged;
use crate::error::Result;
use crate::format::PAGE;
use crate::format::appends::page_of;
use crate::format::node;
use crate::layout::TreeId;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

/// A leaf with fewer bytes between its arrays and its cells is short of room.
const ROOM_MIN: usize = PAGE / 8;
/// Where leaves have fewer entries, a fifth of a leaf is room for none.
const COUNT_MIN: usize = 8;
/// Leaves that share their room. As many that are full become one more, each with a fifth free.
const WINDOW: usize = 4;
/// Every leaf may become a quarter larger: pages for that must be free, beside others.
const GROWTH_PART: u64 = 4;

/// Neighbours below one parent, and the leaves that take their place.
#[derive(Default)]
struct Window {
    /// Which children of the parent they are.
    range: Range<usize>,
    old: Vec<u64>,
    parts: Vec<Range<usize>>,
}

impl Window {
    /// Whether what its leaves have fits the same number of them with a fifth free.
    fn has_room(&self) -> bool {
        self.parts.len() <= self.old.len()
    }
}

impl Batch<'_> {
    /// Lays the leaf of the path, which was copied for one change, out with its neighbours, if it
    /// has no room for the next ones to be appended.
    pub(super) fn make_room(&mut self) -> Result<()> {
        let depth = self.path.depth - 1;
        let leaf = self.dirty.get(self.path.steps[depth].addr)?;
        let h = page::header(leaf);
        let short = h.heap.saturating_sub(h.arrays_end()) < ROOM_MIN;
        if depth == 0 || !short || h.count < COUNT_MIN || !self.may_grow() {
            return Ok(());
        }
        let mut entries = core::mem::take(&mut self.scratch);
        let found = self.window(&mut entries);
        let done = found.and_then(|window| match window {
            Some(window) => self.spread(&window, &entries),
            None => Ok(()),
        });
        self.scratch = entries;
        done
    }

    fn may_grow(&self) -> bool {
        self.pages_left() > self.pool.meta_space.count_used() / GROWTH_PART
    }

    /// The fewest neighbours of the leaf of the path that have room for all their entries, or the
    /// most there may be; their entries. `None`: they are best left alone.
    fn window(&mut self, entries: &mut Entries) -> Result<Option<Window>> {
        let (tree, depth) = (self.path.tree, self.path.depth - 1);
        let parent = self.path.steps[depth - 1];
        let count = page::header(self.dirty.get(parent.addr)?).count;
        let mut window = Window {
            range: parent.pos..parent.pos,
            ..Window::default()
        };
        while window.range.len() < WINDOW {
            let right = window.range.end < count && self.is_free(parent.addr, window.range.end)?;
            let left = window.range.start.checked_sub(1);
            match left {
                _ if right => window.range.end += 1,
                Some(left) if self.is_free(parent.addr, left)? => window.range.start = left,
                _ => break,
            }
            self.gather_window(tree, parent.addr, &mut window, entries)?;
            if window.has_room() {
                return Ok(Some(window));
            }
        }
        // Two half empty leaves in place of a full one would take twice its space.
        Ok(Some(window).filter(|window| window.range.len() == WINDOW))
    }

    /// Whether child `at` of `parent` can be laid out anew without a snapshot keeping it, too.
    fn is_free(&self, parent: u64, at: usize) -> Result<bool> {
        let node = self.dirty.get(parent)?;
        let child = node::child(node, &page::header(node), at);
        Ok(child & DIRTY != 0 || !self.is_in_snapshot(page_of(child))?)
    }

    fn gather_window(
        &mut self,
        tree: TreeId,
        parent: u64,
        window: &mut Window,
        entries: &mut Entries,
    ) -> Result<()> {
        let node = self.dirty.get(parent)?;
        let h = page::header(node);
        let children = window.range.clone().map(|at| node::child(node, &h, at));
        window.old = children.collect();
        self.gather_leaves(tree, &window.old, entries)?;
        window.parts = entries.pack(0, FILL);
        Ok(())
    }

    /// Puts new leaves in the place of those of the window.
    fn spread(&mut self, window: &Window, entries: &Entries) -> Result<()> {
        let (tree, depth) = (self.path.tree, self.path.depth - 1);
        let parent = self.path.steps[depth - 1].addr;
        let mut added = Vec::with_capacity(window.parts.len());
        for part in &window.parts {
            let mut page: Box<Page> = self.dirty.buffer();
            let built = entries.build(&mut page, tree, 0, part);
            built.map_err(damaged(parent))?;
            added.push(Added {
                key: entries.separator(0, part),
                payload: Payload::Child(self.dirty.add(page)),
            });
        }
        for &leaf in &window.old {
            self.drop_node(leaf)?;
        }
        let Some((Payload::Child(first), others)) =
            added.split_first().map(|(a, b)| (a.payload, b))
        else {
            return Ok(());
        };
        let node = self.dirty.get_mut(parent)?;
        page::set_child(node, window.range.start, first);
        page::remove(node, window.range.start + 1, window.range.end);
        self.path.steps[depth - 1].pos = window.range.start;
        self.hang_siblings(depth, others)?;
        self.path.valid = false;
        self.last_put = (0, 0);
        Ok(())
    }
}
