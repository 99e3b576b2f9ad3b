//! Tree nodes, as `docs/spec/format.md` states them.
//!
//! Invariant: a parsed node has rising keys; everything that it names lies inside the page.

use super::media::{le16, le32, le64};
use crate::checksum::crc32c;
use alloc::vec::Vec;

pub(super) const KEY_MAX: usize = 1088;
const VALUE_MAX: usize = 2048;
const ARRAYS: usize = 64;
const PREFIX_IN_HEADER: usize = 32;

/// An entry: where its value is, or its child.
pub(super) struct Entry {
    pub key: Vec<u8>,
    pub value: core::ops::Range<usize>,
    pub child: u64,
}

/// What the node must be.
pub(super) struct Expected {
    pub page: u64,
    pub tree: u8,
    pub level: u8,
    pub seq: u64,
}

struct Counts {
    level: u8,
    count: usize,
    prefix: usize,
    heap: usize,
    heap_end: usize,
}

pub(super) fn parse(b: &[u8; 4096], expected: &Expected) -> Result<Vec<Entry>, &'static str> {
    let c = counts(b, expected)?;
    let prefix = prefix(b, &c);
    let mut used = Vec::new();
    let mut entries = Vec::<Entry>::new();
    for i in 0..c.count {
        let (suffix, value, cell) = cell(b, &c, i)?;
        used.extend(cell);
        let child = if c.level > 0 {
            le64(b, ARRAYS + 8 * (c.count + i))
        } else {
            0
        };
        let mut key = Vec::new();
        if c.level == 0 || i > 0 {
            key = [&prefix[..], &suffix].concat();
            let first = i == 0 || (c.level > 0 && i == 1);
            if !first && entries.last().is_some_and(|e| e.key >= key) {
                return Err("the keys of a node do not rise");
            }
        } else if !suffix.is_empty() {
            return Err("the first entry of an inner node has a key");
        }
        if key.len() > KEY_MAX || value.len() > VALUE_MAX {
            return Err("a key or value is too long");
        }
        entries.push(Entry { key, value, child });
    }
    check_cells(used)?;
    Ok(entries)
}

fn counts(b: &[u8; 4096], expected: &Expected) -> Result<Counts, &'static str> {
    if &b[..4] != b"HFN1" {
        return Err("a node has no magic");
    }
    if crc32c(&b[8..]) != le32(b, 4) {
        return Err("a node has a wrong checksum");
    }
    if le64(b, 8) != expected.page {
        return Err("a node belongs to another page");
    }
    if le64(b, 16) > expected.seq {
        return Err("a node is younger than its root");
    }
    if b[24] != expected.tree || b[25] != expected.level {
        return Err("a node belongs to another tree or level");
    }
    let (count, prefix, heap) = (le16(b, 26), le16(b, 28), le16(b, 30));
    let heap_end = 4096usize.saturating_sub(prefix.saturating_sub(PREFIX_IN_HEADER));
    let per_entry = if b[25] == 0 { 10 } else { 18 };
    let arrays_end = ARRAYS + count * per_entry;
    if count == 0 || prefix > KEY_MAX || arrays_end > heap || heap > heap_end || heap % 4 != 0 {
        return Err("the counts of a node are impossible");
    }
    if b[arrays_end..heap].iter().any(|byte| *byte != 0) {
        return Err("the unused part of a node is not zero");
    }
    Ok(Counts {
        level: b[25],
        count,
        prefix,
        heap,
        heap_end,
    })
}

fn prefix(b: &[u8; 4096], c: &Counts) -> Vec<u8> {
    let inline = c.prefix.min(PREFIX_IN_HEADER);
    [
        &b[32..32 + inline],
        &b[c.heap_end..c.heap_end + (c.prefix - inline)],
    ]
    .concat()
}

type Range = core::ops::Range<usize>;

/// Key bytes behind the prefix, where the value is, and where the cell is if there is one.
fn cell(
    b: &[u8; 4096],
    c: &Counts,
    i: usize,
) -> Result<(Vec<u8>, Range, Option<Range>), &'static str> {
    let slots = ARRAYS + c.count * if c.level == 0 { 8 } else { 16 };
    let slot = le16(b, slots + 2 * i);
    // The head is the number whose big-endian bytes are the first of the suffix.
    let head: Vec<u8> = b[ARRAYS + 8 * i..ARRAYS + 8 * i + 8]
        .iter()
        .rev()
        .copied()
        .collect();
    if c.level > 0 && slot <= 8 {
        return check_head(&head, slot).map(|()| (head[..slot].to_vec(), 0..0, None));
    }
    if slot < c.heap || !slot.is_multiple_of(4) || slot + 4 > c.heap_end {
        return Err("an entry of a node has no cell");
    }
    let (suffix, value) = (le16(b, slot), le16(b, slot + 2));
    let rest = slot + 4..slot + 4 + suffix.saturating_sub(8);
    let end = rest.end + value;
    if end > c.heap_end {
        return Err("a cell reaches beyond its node");
    }
    if c.level > 0 && value > 0 {
        return Err("an entry of an inner node has a value");
    }
    if c.level > 0 && suffix <= 8 {
        return Err("an entry of an inner node has a cell without need");
    }
    let in_head = suffix.min(8);
    check_head(&head, in_head)?;
    let key = [&head[..in_head], &b[rest.clone()]].concat();
    Ok((key, rest.end..end, Some(slot..end)))
}

fn check_head(head: &[u8], len: usize) -> Result<(), &'static str> {
    if head[len..].iter().all(|byte| *byte == 0) {
        Ok(())
    } else {
        Err("a key's head is longer than the key")
    }
}

fn check_cells(mut used: Vec<Range>) -> Result<(), &'static str> {
    used.sort_by_key(|cell| cell.start);
    let overlap = used.windows(2).any(|pair| pair[0].end > pair[1].start);
    if overlap {
        Err("cells of a node overlap")
    } else {
        Ok(())
    }
}
