//! Nodes that a batch has copied or made, in private memory.
//!
//! What always holds here: an address with [`DIRTY`] set names one of these nodes and is only
//! ever stored in other dirty nodes or in a batch's roots; commit replaces it by a page.

use super::page::Page;
use crate::error::{Error, Result};
use crate::format::PAGE;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Set in the address of a node that is not on the medium.
pub(crate) const DIRTY: u64 = 1 << 63;
/// Buffers kept for the next batch.
const SPARE_MAX: usize = 4096;

/// Dirty nodes and their buffers.
#[derive(Default)]
pub(crate) struct Dirty {
    nodes: Vec<Option<Box<Page>>>,
    vacant: Vec<usize>,
    spare: Vec<Box<Page>>,
}

fn lost(addr: u64) -> Error {
    Error::Damaged {
        what: "address of a changed node",
        page: addr & !DIRTY,
    }
}

impl Dirty {
    /// Nodes now dirty.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - self.vacant.len()
    }

    /// A buffer with any contents.
    pub(crate) fn buffer(&mut self) -> Box<Page> {
        self.spare.pop().unwrap_or_else(|| Box::new([0; PAGE]))
    }

    /// Gives a buffer back.
    pub(crate) fn recycle(&mut self, page: Box<Page>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(page);
        }
    }

    /// Adds a node; returns its address.
    pub(crate) fn add(&mut self, page: Box<Page>) -> u64 {
        match self.vacant.pop() {
            Some(i) => {
                self.nodes[i] = Some(page);
                i as u64 | DIRTY
            }
            None => {
                self.nodes.push(Some(page));
                (self.nodes.len() - 1) as u64 | DIRTY
            }
        }
    }

    /// Takes a node out for good.
    pub(crate) fn remove(&mut self, addr: u64) -> Result<Box<Page>> {
        let i = (addr & !DIRTY) as usize;
        let page = self
            .nodes
            .get_mut(i)
            .and_then(Option::take)
            .ok_or(lost(addr))?;
        self.vacant.push(i);
        Ok(page)
    }

    #[inline]
    pub(crate) fn get(&self, addr: u64) -> Result<&Page> {
        let found = self
            .nodes
            .get((addr & !DIRTY) as usize)
            .and_then(Option::as_deref);
        found.ok_or(lost(addr))
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, addr: u64) -> Result<&mut Page> {
        let found = self
            .nodes
            .get_mut((addr & !DIRTY) as usize)
            .and_then(Option::as_deref_mut);
        found.ok_or(lost(addr))
    }

    /// Forgets every node and keeps their buffers.
    pub(crate) fn clear(&mut self) {
        for page in core::mem::take(&mut self.nodes).into_iter().flatten() {
            self.recycle(page);
        }
        self.vacant.clear();
    }
}
