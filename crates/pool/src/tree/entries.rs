//! Entries taken out of nodes, and how they are laid into nodes again.
//!
//! What always holds here: entries are in key order; every part that [`Entries::split`] gives
//! fits one node; in an inner node the first entry's key is kept aside, as the separator that
//! stands in the parent.

use super::page::{self, Page, Payload};
use crate::format::PAGE;
use crate::format::node::{self, AT_HEADS, Flaw, HEAD, KeyBuf, cell_size};
use alloc::vec::Vec;
use core::ops::Range;

/// Nodes with fewer entries do not stretch their prefix into the heads: the next key would
/// likely not share it.
const LONG_PREFIX_COUNT: usize = 8;

struct Entry {
    key: Range<usize>,
    value: Range<usize>,
    child: u64,
}

/// A list of entries with their bytes.
#[derive(Default)]
pub(crate) struct Entries {
    bytes: Vec<u8>,
    list: Vec<Entry>,
    key: KeyBuf,
}

impl Entries {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.list.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    fn keep(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    pub(crate) fn push(&mut self, key: &[u8], payload: Payload<'_>) {
        let (key, value) = (self.keep(key), self.keep(payload.value()));
        let child = match payload {
            Payload::Child(child) => child,
            Payload::Value(_) => 0,
        };
        self.list.push(Entry { key, value, child });
    }

    /// Adds entries `range` of a node. The first entry of an inner node gets `separator`.
    pub(crate) fn gather(
        &mut self,
        page: &Page,
        range: Range<usize>,
        separator: &[u8],
    ) -> Result<(), Flaw> {
        let h = page::header(page);
        for i in range {
            if h.level > 0 {
                let child = node::child(page, &h, i);
                if i == 0 {
                    self.push(separator, Payload::Child(child));
                    continue;
                }
                let mut key = core::mem::take(&mut self.key);
                let found = key.load(page, &h, i);
                self.push(key.as_slice(), Payload::Child(child));
                self.key = key;
                found?;
            } else {
                self.gather_leaf(page, &h, i)?;
            }
        }
        Ok(())
    }

    fn gather_leaf(&mut self, page: &Page, h: &node::Header, i: usize) -> Result<(), Flaw> {
        self.key.load(page, h, i)?;
        let cell = node::cell(page, h, i)?;
        let value = page
            .get(cell.value..cell.value + cell.value_len)
            .unwrap_or(&[]);
        let start = self.bytes.len();
        self.bytes.extend_from_slice(self.key.as_slice());
        let mid = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.list.push(Entry {
            key: start..mid,
            value: mid..self.bytes.len(),
            child: 0,
        });
        Ok(())
    }

    pub(crate) fn key(&self, i: usize) -> &[u8] {
        self.list.get(i).map_or(&[], |e| &self.bytes[e.key.clone()])
    }

    fn keyed(level: u8, part: &Range<usize>) -> Range<usize> {
        part.start + usize::from(level > 0)..part.end
    }

    /// The prefix of a node that holds `part`.
    fn prefix_len(&self, level: u8, part: &Range<usize>) -> usize {
        let keyed = Self::keyed(level, part);
        if keyed.is_empty() {
            return 0;
        }
        let common = common_prefix(self.key(keyed.start), self.key(keyed.end - 1));
        if keyed.len() >= LONG_PREFIX_COUNT {
            return common;
        }
        let shortest = keyed.map(|i| self.list[i].key.len()).min().unwrap_or(0);
        common.min(shortest.saturating_sub(HEAD))
    }

    /// Bytes of a node that holds `part`.
    fn size(&self, level: u8, part: &Range<usize>) -> usize {
        let prefix = self.prefix_len(level, part);
        let arrays = part.len() * if level == 0 { HEAD + 2 } else { HEAD + 10 };
        let cells: usize = Self::keyed(level, part)
            .map(|i| {
                // Keys out of order, as an enemy writes them, may be shorter than the prefix
                // of the first and the last; `build` refuses them.
                let suffix = self.list[i].key.len().saturating_sub(prefix);
                let celled = level == 0 || suffix > HEAD;
                if celled {
                    cell_size(suffix, self.list[i].value.len())
                } else {
                    0
                }
            })
            .sum();
        let behind = prefix
            .saturating_sub(node::PREFIX_INLINE)
            .next_multiple_of(node::CELL_ALIGN);
        AT_HEADS + arrays + cells + behind
    }

    /// True when all entries fit one node with `spare` bytes left.
    pub(crate) fn fit(&self, level: u8, spare: usize) -> bool {
        self.size(level, &(0..self.len())) + spare <= PAGE
    }

    /// Cuts all entries into parts that fit, the first cut at `hint` if one is needed.
    pub(crate) fn split(&self, level: u8, hint: Option<usize>) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        let all = 0..self.len();
        match hint {
            Some(at) if at > 0 && at < all.end && self.size(level, &all) > PAGE => {
                self.cut(level, 0..at, &mut parts);
                self.cut(level, at..all.end, &mut parts);
            }
            _ => self.cut(level, all, &mut parts),
        }
        parts
    }

    /// Cuts all entries into parts that take `fill` bytes of a node, or what one entry takes.
    pub(crate) fn pack(&self, level: u8, fill: usize) -> Vec<Range<usize>> {
        let (mut parts, mut start) = (Vec::new(), 0);
        while start < self.len() {
            let mut end = start + 1 + self.at_least(start, fill);
            while end < self.len() && self.size(level, &(start..end + 1)) <= fill {
                end += 1;
            }
            parts.push(start..end);
            start = end;
        }
        parts
    }

    /// How many entries behind `start` take `fill` bytes together with it, whatever their prefix.
    fn at_least(&self, start: usize, fill: usize) -> usize {
        let mut left = fill.saturating_sub(AT_HEADS);
        let fits = |e: &&Entry| {
            let size = cell_size(e.key.len(), e.value.len()) + 2 * HEAD + 2;
            left.checked_sub(size).is_some_and(|rest| {
                left = rest;
                true
            })
        };
        self.list[start..]
            .iter()
            .take_while(fits)
            .count()
            .saturating_sub(1)
    }

    /// True when the first `count` entries fit one node.
    pub(crate) fn start_fits(&self, level: u8, count: usize) -> bool {
        self.size(level, &(0..count.min(self.len()))) <= PAGE
    }

    fn cut(&self, level: u8, part: Range<usize>, parts: &mut Vec<Range<usize>>) {
        if part.len() == 1 || self.size(level, &part) <= PAGE {
            parts.push(part);
            return;
        }
        let mid = self.middle(&part);
        self.cut(level, part.start..mid, parts);
        self.cut(level, mid..part.end, parts);
    }

    /// Where the bytes of `part` are halved, leaving at least one entry on each side.
    fn middle(&self, part: &Range<usize>) -> usize {
        let weight = |i: usize| self.list[i].key.len() + self.list[i].value.len() + HEAD;
        let total: usize = part.clone().map(weight).sum();
        let mut seen = 0;
        for i in part.clone() {
            seen += weight(i);
            if 2 * seen >= total {
                return (i + 1).clamp(part.start + 1, part.end - 1);
            }
        }
        part.end - 1
    }

    /// Makes `page` the node that holds `part`.
    pub(crate) fn build(
        &self,
        page: &mut Page,
        tree: u8,
        level: u8,
        part: &Range<usize>,
    ) -> Result<(), Flaw> {
        let prefix = self.prefix_len(level, part);
        let first = Self::keyed(level, part).start;
        page::init(page, tree, level, &self.key(first)[..prefix]);
        for (at, i) in part.clone().enumerate() {
            let entry = &self.list[i];
            let payload = match level {
                0 => Payload::Value(&self.bytes[entry.value.clone()]),
                _ => Payload::Child(entry.child),
            };
            if !page::insert(page, at, self.key(i), payload) {
                return Err("node entries do not fit");
            }
        }
        Ok(())
    }

    /// The shortest key that separates `part` from what is before it.
    pub(crate) fn separator(&self, level: u8, part: &Range<usize>) -> &[u8] {
        let key = self.key(part.start);
        if level > 0 || part.start == 0 {
            return key;
        }
        separator(self.key(part.start - 1), key)
    }
}

/// The shortest key that is above `before` and not above `key`, which follows it.
pub(crate) fn separator<'k>(before: &[u8], key: &'k [u8]) -> &'k [u8] {
    let common = common_prefix(before, key);
    &key[..(common + 1).min(key.len())]
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}
