//! A batch that is put aside for a while, so that its owner can look after others.
//!
//! Invariants:
//!  * While a batch is parked nothing is committed or made durable: the bitmaps are between two
//!    commits. Blocks may be granted, grants be taken back, and what older commits freed be used.
//!  * Its nodes may be written ahead of its commit, to pages that nothing else uses. From then on
//!    it can only be committed: dropping it leaves a pool that writes nothing more.

use super::batch::{Batch, Undo};
use super::dirty::{DIRTY, Dirty};
use super::page;
use crate::error::{Error, Result};
use crate::format::TREES;
use crate::format::node;
use crate::format::superblock::Root;
use crate::pool::{Pool, WriteToken};
use alloc::vec::Vec;

/// All of a batch but the pool.
pub(crate) struct Parked {
    roots: [Root; TREES],
    dirty: Dirty,
    freed: Vec<u64>,
    undo: Vec<Undo>,
    cut_out: u32,
    broken: Option<Error>,
    ahead: bool,
}

impl Batch<'_> {
    /// Puts the batch aside until `Pool::resume`.
    pub fn park(mut self) {
        let parked = Parked {
            roots: self.roots,
            dirty: core::mem::take(&mut self.dirty),
            freed: core::mem::take(&mut self.freed),
            undo: core::mem::take(&mut self.undo),
            cut_out: self.cut_out,
            broken: self.broken,
            ahead: self.ahead,
        };
        self.pool.parked = Some(parked);
        // Nothing is left that dropping it would put back.
        self.ahead = false;
    }

    /// Has memory of the host behind what the commit will write, as far as `pages` of them.
    pub fn back(&mut self, pages: u64) -> Result<()> {
        self.pool.back(pages.min(self.dirty.len() as u64))
    }

    /// Writes about `most` of the nodes that the commit would write; whether there are more.
    /// Nothing may be changed after that.
    pub fn write_ahead(&mut self, mut most: usize) -> Result<bool> {
        if let Some(e) = self.broken {
            return Err(e);
        }
        if self.pool.meta_space.count_free() < self.dirty.len() as u64 {
            return Err(Error::NoSpace);
        }
        self.path.valid = false;
        self.ahead = true;
        for tree in 0..TREES {
            self.roots[tree].addr = self.write_below(self.roots[tree].addr, &mut most)?;
        }
        Ok(self.dirty.len() > 0)
    }

    /// Writes what is dirty from a node down, as far as `left` goes; the node's address then.
    fn write_below(&mut self, addr: u64, left: &mut usize) -> Result<u64> {
        if addr & DIRTY == 0 || *left == 0 {
            return Ok(addr);
        }
        let h = page::header(self.dirty.get(addr)?);
        for i in 0..if h.level > 0 { h.count } else { 0 } {
            let child = node::child(self.dirty.get(addr)?, &h, i);
            let real = self.write_below(child, left)?;
            if real & DIRTY != 0 {
                return Ok(addr);
            }
            if real != child {
                page::set_child(self.dirty.get_mut(addr)?, i, real);
            }
        }
        if *left == 0 {
            return Ok(addr);
        }
        *left -= 1;
        let node = self.dirty.remove(addr)?;
        self.write_page(node, self.pool.superblock.seq + 1)
    }
}

impl Pool {
    /// Whether a batch is parked.
    pub fn is_parked(&self) -> bool {
        self.parked.is_some()
    }

    /// Goes on with the batch that was parked.
    pub fn resume(&mut self, token: &WriteToken) -> Batch<'_> {
        let Some(parked) = self.parked.take() else {
            return self.begin(token);
        };
        let mut batch = Batch::new(self);
        batch.roots = parked.roots;
        batch.dirty = parked.dirty;
        batch.freed = parked.freed;
        batch.undo = parked.undo;
        batch.cut_out = parked.cut_out;
        batch.broken = parked.broken;
        batch.ahead = parked.ahead;
        batch
    }
}
