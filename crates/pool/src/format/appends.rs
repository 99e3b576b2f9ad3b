//! Entries that were appended to a leaf after it was written.
//!
//! What always holds here:
//! - How many there are is said by the link that leads to the leaf, not by the leaf: each root
//!   sees those that were there when it was made. Bytes behind them mean nothing.
//! - What a root may see is never changed. Of entries of one key the last appended one counts,
//!   and before all of those that the leaf was written with.
//! - Their keys start with the prefix of the leaf; their cells lie one below the other, from the
//!   cells of the leaf downwards.

use super::node::{
    self, AT_PAGE, CELL_ALIGN, CELL_HEADER, Cell, Flaw, HEAD, Header, Source, be8, cell_between,
    cell_size, compare_prefix, head_and_rest,
};
use super::{PAGE, array_at, put_at};
use crate::checksum::Crc;

/// Most of one leaf: a search looks at each.
pub const APPENDS_MAX: usize = 24;

/// Bits of a link that are the page number.
const PAGE_BITS: u32 = 48;
const APPENDS: u64 = 0xff << PAGE_BITS;

/// Head, checksum, place of the cell, nothing.
pub(crate) const ENTRY: usize = 16;
const AT_SUM: usize = 8;
const AT_CELL: usize = 12;

/// What leads to the node in `page`, to which `appends` entries were appended.
pub fn link(page: u64, appends: usize) -> u64 {
    page | ((appends & 0xff) as u64) << PAGE_BITS
}

/// The page of a link.
#[inline]
pub fn page_of(link: u64) -> u64 {
    link & !APPENDS
}

/// How many entries were appended to the node of a link.
#[inline]
pub fn appends_of(link: u64) -> usize {
    usize::from((link >> PAGE_BITS) as u8)
}

/// Where entry `i` is: behind the arrays.
#[inline]
pub(crate) fn place(h: &Header, i: usize) -> usize {
    h.arrays_end().next_multiple_of(8) + ENTRY * i
}

#[inline]
fn word_of_entry<S: Source + ?Sized>(s: &S, h: &Header, i: usize) -> u64 {
    s.word(place(h, i) + AT_SUM)
}

/// Where the cell of entry `i` is.
#[inline]
fn cell_at<S: Source + ?Sized>(s: &S, h: &Header, i: usize) -> usize {
    usize::from((word_of_entry(s, h, i) >> 32) as u16)
}

/// The cell of entry `i`, which must be below `h.appends`.
#[inline]
pub(crate) fn cell<S: Source + ?Sized>(s: &S, h: &Header, i: usize) -> Result<Cell, Flaw> {
    let cells = place(h, h.appends)..h.heap;
    cell_between(s, h, cell_at(s, h, i), cells).ok_or("cell of an appended entry")
}

/// The head of entry `i`.
#[inline]
pub(crate) fn head<S: Source + ?Sized>(s: &S, h: &Header, i: usize) -> u64 {
    s.word(place(h, i))
}

/// The cell of the last entry of `key`, if one was appended.
#[inline]
pub fn find<S: Source + ?Sized>(s: &S, h: &Header, key: &[u8]) -> Result<Option<Cell>, Flaw> {
    if h.appends == 0 || compare_prefix(s, h, key).is_ne() {
        return Ok(None);
    }
    let suffix = &key[h.prefix..];
    let wanted = be8(suffix);
    for i in (0..h.appends).rev() {
        if head(s, h, i) != wanted {
            continue;
        }
        let cell = cell(s, h, i)?;
        let rest = suffix.get(HEAD..).unwrap_or(&[]);
        let same = cell.suffix == suffix.len() && s.compare(cell.rest, rest.len(), rest).is_eq();
        if same {
            return Ok(Some(cell));
        }
    }
    Ok(None)
}

/// Where the next cell ends, if there is one more.
#[inline]
pub(crate) fn lowest<S: Source + ?Sized>(s: &S, h: &Header) -> usize {
    match h.appends {
        0 => h.heap,
        n => cell_at(s, h, n - 1).min(h.heap),
    }
}

/// Where the cell of `key` is, if it has one and its head is that of no other: a hint.
#[inline]
pub(crate) fn likely_cell<S: Source + ?Sized>(s: &S, h: &Header, key: &[u8]) -> Option<usize> {
    let wanted = be8(key.get(h.prefix..)?);
    let appended = (0..h.appends).rev().find(|i| head(s, h, *i) == wanted);
    match appended {
        Some(i) => Some(cell_at(s, h, i)),
        None => node::likely_slot(s, h, wanted),
    }
}

/// An entry that is to be appended: what to write where.
pub(crate) struct Append {
    pub entry_at: usize,
    pub entry: [u8; ENTRY],
    pub cell_at: usize,
}

/// Lays out one more entry for a leaf whose page number is `page`; its cell goes to the start of
/// `cell`, of which that length is used. `None`: there is no room.
pub(crate) fn lay_out<S: Source + ?Sized>(
    s: &S,
    h: &Header,
    page: u64,
    (suffix, value): (&[u8], &[u8]),
    cell: &mut [u8],
) -> Option<(Append, usize)> {
    let low = lowest(s, h);
    let size = cell_size(suffix.len(), value.len());
    let entry_at = place(h, h.appends);
    if h.appends >= APPENDS_MAX || entry_at + ENTRY + size > low {
        return None;
    }
    let (head, rest) = head_and_rest(suffix);
    let cell_at = (low - size) / CELL_ALIGN * CELL_ALIGN;
    let bytes = cell.get_mut(..size)?;
    bytes.fill(0);
    put_at(bytes, 0, &(suffix.len() as u16).to_le_bytes());
    put_at(bytes, 2, &(value.len() as u16).to_le_bytes());
    put_at(bytes, CELL_HEADER, rest);
    put_at(bytes, CELL_HEADER + rest.len(), value);
    let mut entry = [0; ENTRY];
    put_at(&mut entry, 0, &head.to_le_bytes());
    put_at(&mut entry, AT_CELL, &(cell_at as u16).to_le_bytes());
    let sum = sum(page, &entry, bytes);
    put_at(&mut entry, AT_SUM, &sum.to_le_bytes());
    let append = Append {
        entry_at,
        entry,
        cell_at,
    };
    Some((append, size))
}

/// The checksum of an entry: over the page number, the entry without it, and the cell.
fn sum(page: u64, entry: &[u8; ENTRY], cell: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(&page.to_le_bytes());
    crc.update(&entry[..AT_SUM]);
    crc.update(&entry[AT_CELL..]);
    crc.update(cell);
    crc.finish()
}

/// Checks the last entry, which says where the next one's cell goes. `room` has room for any cell.
pub(crate) fn check_last<S: Source + ?Sized>(
    s: &S,
    h: &Header,
    page: u64,
    room: &mut [u8],
) -> Result<(), Flaw> {
    let Some(i) = h.appends.checked_sub(1) else {
        return Ok(());
    };
    let found = cell(s, h, i)?;
    let size = cell_size(found.suffix, found.value_len);
    let Some(bytes) = room.get_mut(..size) else {
        return Err("cell of an appended entry");
    };
    s.copy(found.rest - CELL_HEADER, bytes);
    let mut entry = [0; ENTRY];
    s.copy(place(h, i), &mut entry);
    let stored = u32::from_le_bytes(array_at(&entry, AT_SUM));
    match stored == sum(page, &entry, bytes) {
        true => Ok(()),
        false => Err("checksum of an appended entry"),
    }
}

/// Checks everything that is relied on of a leaf that passed `node::check`: every cell, that they
/// follow each other downwards, and every checksum.
pub fn check(page: &[u8; PAGE], h: &Header) -> Result<(), Flaw> {
    let mut low = h.heap;
    for i in 0..h.appends {
        let found = cell(page, h, i)?;
        let size = cell_size(found.suffix, found.value_len);
        let at = found.rest - CELL_HEADER;
        if at + size > low {
            return Err("order of appended cells");
        }
        low = at;
        let entry: [u8; ENTRY] = array_at(page, place(h, i));
        let stored = u32::from_le_bytes(array_at(&entry, AT_SUM));
        let number = u64::from_le_bytes(array_at(page, AT_PAGE));
        if stored != sum(number, &entry, &page[at..at + size]) {
            return Err("checksum of an appended entry");
        }
    }
    Ok(())
}

// Where an appended entry was, there is room for it among those that the leaf is written with.
const _: () = assert!(ENTRY >= HEAD + 2);
