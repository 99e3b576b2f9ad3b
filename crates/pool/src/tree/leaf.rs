//! A private copy of a leaf, for scans that give entries out one by one.
//!
//! Invariants: entries are checked when they are looked at; a copy that was torn by a reused page
//! gives errors or nonsense, never a panic, and its taker asks afterwards whether the root was
//! still intact.

use super::page::Page;
use super::walk::{Hang, damaged};
use crate::error::{Error, Result};
use crate::format::PAGE;
use crate::format::node::{self, Header, KeyBuf};
use core::ops::Range;

/// A copied leaf and where its neighbour begins.
pub struct Leaf {
    pub(super) page: Page,
    header: Option<Header>,
    /// The key where the next leaf starts, or where this one does: see `more`.
    pub(super) beyond: KeyBuf,
    more: bool,
    /// Where it was found, if the one behind it may be near.
    pub(super) hang: Option<Hang>,
    /// The key of the entry that was looked at last, and where its value is.
    key: KeyBuf,
    value: Range<usize>,
}

impl Default for Leaf {
    fn default() -> Leaf {
        Leaf {
            page: [0; PAGE],
            header: None,
            beyond: KeyBuf::default(),
            more: false,
            hang: None,
            key: KeyBuf::default(),
            value: 0..0,
        }
    }
}

impl Leaf {
    pub(super) fn set(&mut self, found: Option<(Header, bool, Option<Hang>)>) {
        self.header = found.map(|(header, _, _)| header);
        self.more = found.is_some_and(|(_, more, _)| more);
        self.hang = found.and_then(|(_, _, hang)| hang);
        if let Some(h) = &self.header {
            self.key.load_prefix(&self.page, h);
        }
        self.value = 0..0;
    }

    /// Entries.
    pub fn count(&self) -> usize {
        self.header.map_or(0, |h| h.count)
    }

    /// The key where the scan goes on in the next leaf of its direction, if there is one.
    pub fn beyond(&self) -> Option<&[u8]> {
        self.more.then_some(self.beyond.as_slice())
    }

    /// The first entry whose key is not below `key`.
    pub fn find(&self, key: &[u8]) -> Result<usize> {
        match &self.header {
            Some(h) => Ok(node::find(&self.page, h, 0, key).map_err(damaged(0))?.0),
            None => Ok(0),
        }
    }

    /// Key and value of entry `i`.
    #[inline]
    pub fn entry(&mut self, i: usize) -> Result<(&[u8], &[u8])> {
        let missing = Error::Damaged {
            what: "entry of a leaf",
            page: 0,
        };
        let h = self.header.filter(|h| i < h.count).ok_or(missing)?;
        let cell = node::cell(&self.page, &h, i).map_err(damaged(0))?;
        self.key.load_suffix(&self.page, &h, i, &cell);
        self.value = cell.value..cell.value + cell.value_len;
        Ok((self.key(), self.value()))
    }

    /// The value of entry `i`, without going there.
    #[inline]
    pub fn value_at(&self, i: usize) -> Option<&[u8]> {
        let h = self.header.filter(|h| i < h.count)?;
        let cell = node::cell(&self.page, &h, i).ok()?;
        self.page.get(cell.value..cell.value + cell.value_len)
    }

    /// The key of the entry that was looked at last.
    #[inline]
    pub fn key(&self) -> &[u8] {
        self.key.as_slice()
    }

    /// Its value.
    #[inline]
    pub fn value(&self) -> &[u8] {
        self.page.get(self.value.clone()).unwrap_or_default()
    }
}
