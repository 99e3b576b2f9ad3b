//! Making a batch true.
//!
//! What always holds here: nodes go to pages and bitmaps to copies that no valid superblock
//! reaches; one fence makes them durable before the superblock is written, one makes that
//! durable before readers are shown the new roots.

use super::batch::{Batch, Undo};
use super::dirty::DIRTY;
use super::page::{self, Page};
use crate::error::{Error, Result};
use crate::format::PAGE_SHIFT;
use crate::format::node;
use crate::format::superblock::Superblock;
use crate::space::Run;
use alloc::boxed::Box;
use alloc::vec::Vec;

impl Batch<'_> {
    /// Makes all changes durable and visible, together with `change` to the superblock (its
    /// identity, sizes, seq and roots are kept); returns the commit's seq.
    pub fn commit(mut self, change: impl FnOnce(&mut Superblock)) -> Result<u64> {
        if self.pool.poisoned {
            return Err(Error::Poisoned);
        }
        if let Some(e) = self.broken {
            return Err(e);
        }
        if self.pool.meta_space.count_free() < self.dirty.len() as u64 {
            self.pool.release_all()?;
        }
        if self.pool.meta_space.count_free() < self.dirty.len() as u64 {
            return Err(Error::NoSpace);
        }
        self.pool.back(self.dirty.len() as u64)?;
        // From here on a failure leaves memory and medium apart.
        self.committed = true;
        self.pool.poisoned = true;
        let seq = self.pool.superblock.seq + 1;
        for tree in 0..self.roots.len() {
            let root = self.roots[tree];
            self.roots[tree].addr = self.write_node(root.addr, seq)?;
        }
        let mut next = self.pool.superblock.clone();
        change(&mut next);
        next.roots = self.roots;
        self.pool.write_commit(next, seq)?;
        self.pool.poisoned = false;
        self.hold_freed(seq);
        Ok(seq)
    }

    /// Writes a dirty node after everything below it; returns what leads to it.
    fn write_node(&mut self, addr: u64, seq: u64) -> Result<u64> {
        if addr & DIRTY == 0 {
            return Ok(addr);
        }
        let mut node = self.dirty.remove(addr)?;
        let h = page::header(&node);
        for i in 0..if h.level > 0 { h.count } else { 0 } {
            let child = node::child(&*node, &h, i);
            if child & DIRTY != 0 {
                let real = self.write_node(child, seq)?;
                page::set_child(&mut node, i, real);
            }
        }
        self.write_page(node, seq)
    }

    /// Writes a node, of which nothing below is dirty, as one of commit `seq`, or appends to that
    /// of which it is a copy; returns what leads to it.
    pub(super) fn write_page(&mut self, mut node: Box<Page>, seq: u64) -> Result<u64> {
        if let Some(link) = self.append_links(&node)? {
            self.dirty.recycle(node);
            return Ok(link);
        }
        let space = &mut self.pool.meta_space;
        let run = space.alloc_one().ok_or(Error::NoSpace)?;
        space.mark_used(run)?;
        page::seal(&mut node, run.start, seq);
        self.pool
            .meta
            .write_nt(run.start << PAGE_SHIFT, &node[..])?;
        self.pool.checked.set(run.start, 1);
        self.dirty.recycle(node);
        Ok(run.start)
    }

    /// Keeps what this commit freed from use until older roots are given up.
    fn hold_freed(&mut self, seq: u64) {
        let mut pages = core::mem::take(&mut self.freed);
        // What was appended to stays.
        pages.retain(|page| self.pool.meta_space.is_unused(Run::new(*page, 1)));
        let data: Vec<Run> = self
            .undo
            .drain(..)
            .filter_map(|undo| match undo {
                Undo::Freed(run) => Some(run),
                _ => None,
            })
            .collect();
        self.pool.hold(seq, pages, data);
    }
}
