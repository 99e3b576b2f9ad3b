//! Tree nodes, as `docs/spec/format.md` states them.
//!
//! Invariant: a parsed node has ascending keys; everything that it names lies inside the page.

use super::media::{le16, le32, le64};
use crate::checksum::crc32c;
use alloc::vec::Vec;

pub(super) const KEY_MAX: usize = 1088;
const VALUE_MAX: usize = 2048;
const ARRAYS: usize = 64;
const PREFIX_IN_HEADER: usize = 32;
/// Most links that are appended to an inner node.
const LINKS_MAX: usize = 32;
/// The tree to whose nodes entries are appended.
pub(super) const VALUES: u8 = 5;

/// An entry: where its value is, or its child.
pub(super) struct Entry {
    pub key: Vec<u8>,
    pub value: core::ops::Range<usize>,
    pub child: u64,
    /// The link to the child was appended: the child may be younger than the node.
    pub later: bool,
}

impl Entry {
    fn new(key: Vec<u8>, value: Range, child: u64) -> Entry {
        Entry {
            key,
            value,
            child,
            later: false,
        }
    }
}

/// What the node must be.
pub(super) struct Expected {
    pub page: u64,
    /// Entries appended to it, as its parent says.
    pub appended: usize,
    pub tree: u8,
    pub level: u8,
    /// It is not younger.
    pub limit: u64,
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
        entries.push(Entry::new(key, value, child));
    }
    check_cells(used)?;
    match (expected.appended, c.level) {
        (0, _) => {}
        (_, 0) => add_appended(b, &c, expected, &prefix, &mut entries)?,
        _ => set_links(b, &c, expected, &mut entries)?,
    }
    Ok(entries)
}

/// Adds what was appended to a leaf: what comes later replaces an entry of the same key.
fn add_appended(
    b: &[u8; 4096],
    c: &Counts,
    expected: &Expected,
    prefix: &[u8],
    entries: &mut Vec<Entry>,
) -> Result<(), &'static str> {
    let first = (ARRAYS + 10 * c.count).div_ceil(8) * 8;
    let behind = first + 16 * expected.appended;
    if expected.tree != VALUES || behind > c.heap {
        return Err("a node has impossible appended entries");
    }
    let mut low = c.heap;
    for at in (first..behind).step_by(16) {
        let cell = le16(b, at + 12);
        if cell < behind || !cell.is_multiple_of(4) || cell + 4 > low {
            return Err("an appended entry has no cell");
        }
        let (suffix, len) = (le16(b, cell), le16(b, cell + 2));
        let value = cell + 4 + suffix.saturating_sub(8);
        let end = (value + len).div_ceil(4) * 4;
        if end > low {
            return Err("the cell of an appended entry reaches beyond its place");
        }
        low = cell;
        let page = expected.page.to_le_bytes();
        let summed = [
            &page[..],
            &b[at..at + 8],
            &b[at + 12..at + 16],
            &b[cell..end],
        ]
        .concat();
        if crc32c(&summed) != le32(b, at + 8) {
            return Err("an appended entry has a wrong checksum");
        }
        let head: Vec<u8> = b[at..at + 8].iter().rev().copied().collect();
        let in_head = suffix.min(8);
        check_head(&head, in_head)?;
        let key = [prefix, &head[..in_head], &b[cell + 4..value]].concat();
        if key.len() > KEY_MAX || len > VALUE_MAX {
            return Err("a key or value is too long");
        }
        let (value, child) = (value..value + len, 0);
        match entries.binary_search_by(|e| e.key.cmp(&key)) {
            Ok(i) => entries[i].value = value,
            Err(i) => entries.insert(i, Entry::new(key, value, child)),
        }
    }
    Ok(())
}

/// Brings the links that were appended to an inner node to their places: the last one to a child
/// counts.
fn set_links(
    b: &[u8; 4096],
    c: &Counts,
    expected: &Expected,
    entries: &mut [Entry],
) -> Result<(), &'static str> {
    let numbers = (ARRAYS + 18 * c.count).div_ceil(8) * 8;
    let first = numbers + LINKS_MAX;
    let behind = first + 16 * expected.appended;
    if expected.tree != VALUES || expected.appended > LINKS_MAX || behind > c.heap {
        return Err("a node has impossible appended links");
    }
    for (at, child) in (first..behind).step_by(16).zip(&b[numbers..]) {
        let summed = [expected.page, u64::from(*child), le64(b, at)];
        if crc32c(summed.map(u64::to_le_bytes).as_flattened()) != le32(b, at + 8) {
            return Err("an appended link has a wrong checksum");
        }
        let Some(entry) = entries.get_mut(usize::from(*child)) else {
            return Err("an appended link is to no child");
        };
        (entry.child, entry.later) = (le64(b, at), true);
    }
    Ok(())
}

fn counts(b: &[u8; 4096], expected: &Expected) -> Result<Counts, &'static str> {
    if &b[..4] != b"HFN1" {
        return Err("a node has no magic");
    }
    let (count, prefix, heap) = (le16(b, 26), le16(b, 28), le16(b, 30));
    let per_entry = if b[25] == 0 { 10 } else { 18 };
    let arrays_end = ARRAYS + count * per_entry;
    let summed = match arrays_end <= heap && heap <= 4096 {
        true => [&b[8..arrays_end], &b[heap..]].concat(),
        false => b[8..].to_vec(),
    };
    if crc32c(&summed) != le32(b, 4) {
        return Err("a node has a wrong checksum");
    }
    if le64(b, 8) != expected.page {
        return Err("a node belongs to another page");
    }
    if le64(b, 16) > expected.limit {
        return Err("a node is younger than what it hangs on");
    }
    if b[24] != expected.tree || b[25] != expected.level {
        return Err("a node belongs to another tree or level");
    }
    let heap_end = 4096usize.saturating_sub(prefix.saturating_sub(PREFIX_IN_HEADER));
    if count == 0 || prefix > KEY_MAX || arrays_end > heap || heap > heap_end || heap % 4 != 0 {
        return Err("the counts of a node are impossible");
    }
    if b[24] != VALUES && b[arrays_end..heap].iter().any(|byte| *byte != 0) {
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
