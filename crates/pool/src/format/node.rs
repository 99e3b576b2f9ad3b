//! A tree node: 4 KiB, sorted, searched without being copied.
//!
//! What always holds here:
//! - An entry's key is the node's prefix, then up to 8 bytes kept as a number (its head), then
//!   the rest in a cell; heads never decrease, and equal heads are ordered by the rest.
//! - In an inner node entry 0 has no key: it stands for everything below entry 1.
//! - Searching checks every offset that it follows; a bad one is a [`Flaw`], never a panic.
//!   After [`check`] no accessor of the same bytes reports a flaw.

use super::{PAGE, appends, array_at, links};
use core::cmp::Ordering;

/// Longest key.
pub const KEY_MAX: usize = 1088;
/// Longest value.
pub const VALUE_MAX: usize = 2048;
/// Most levels of a tree.
pub const HEIGHT_MAX: u8 = 12;

pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"HFN1");
pub(crate) const AT_CRC: usize = 4;
pub(crate) const AT_PAGE: usize = 8;
pub(crate) const AT_BIRTH: usize = 16;
pub(crate) const AT_COUNTS: usize = 24;
pub(crate) const AT_PREFIX: usize = 32;
/// Prefix bytes that the header holds; more are at the end of the node.
pub(crate) const PREFIX_INLINE: usize = 32;
pub(crate) const AT_HEADS: usize = 64;
pub(crate) const HEAD: usize = 8;
/// Lengths at the start of a cell.
pub(crate) const CELL_HEADER: usize = 4;
pub(crate) const CELL_ALIGN: usize = 4;
/// Most bytes of a cell.
pub(crate) const CELL_MAX: usize = cell_size(KEY_MAX, VALUE_MAX);

/// What is wrong with a node.
pub type Flaw = &'static str;

/// Bytes of one node, wherever they are.
pub trait Source {
    /// The aligned word at `at`; 0 outside of the node.
    fn word(&self, at: usize) -> u64;

    /// Copies from `at` on; zeroes from outside of the node.
    fn copy(&self, at: usize, out: &mut [u8]);

    /// Eight bytes from any place; zeroes from outside of the node.
    #[inline]
    fn eight(&self, at: usize) -> u64 {
        let (base, shift) = (at & !7, (at & 7) * 8);
        let low = self.word(base) >> shift;
        if shift == 0 {
            low
        } else {
            low | self.word(base + 8) << (64 - shift)
        }
    }

    /// Compares `len` bytes at `at` with `other`, as memcmp and then by length.
    #[inline]
    fn compare(&self, at: usize, len: usize, other: &[u8]) -> Ordering {
        let common = len.min(other.len());
        let mut done = 0;
        while done < common {
            let take = (common - done).min(8);
            let mask = u64::MAX << (64 - 8 * take);
            let mine = self.eight(at + done).swap_bytes() & mask;
            let theirs = be8(&other[done..]) & mask;
            if mine != theirs {
                return mine.cmp(&theirs);
            }
            done += take;
        }
        len.cmp(&other.len())
    }
}

impl Source for [u8; PAGE] {
    #[inline]
    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(array_at(self, at))
    }

    #[inline]
    fn copy(&self, at: usize, out: &mut [u8]) {
        match self.get(at..at + out.len()) {
            Some(from) => out.copy_from_slice(from),
            None => out.fill(0),
        }
    }

    #[inline]
    fn compare(&self, at: usize, len: usize, other: &[u8]) -> Ordering {
        self.get(at..at + len).unwrap_or(&[]).cmp(other)
    }
}

/// The first eight bytes as a number in memcmp order, zeroes where there are fewer.
#[inline]
pub(crate) fn be8(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => {
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(eight)
        }
    }
}

/// What a node must be to stand where it was found.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub page: u64,
    /// Entries that were appended to it: what the link to it says.
    pub appends: usize,
    pub tree: u8,
    pub level: u8,
    /// No node of the root is younger.
    pub seq: u64,
}

impl Place {
    /// Where `link` leads.
    #[inline]
    pub fn of_link(link: u64, tree: u8, level: u8, seq: u64) -> Place {
        Place {
            page: appends::page_of(link),
            appends: appends::appends_of(link),
            tree,
            level,
            seq,
        }
    }
}

/// The counts of a node's header, and of what was appended. `heap` is where the cells start that
/// it was written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub tree: u8,
    pub level: u8,
    pub count: usize,
    pub prefix: usize,
    pub heap: usize,
    pub appends: usize,
}

impl Header {
    #[inline]
    pub(crate) fn unpack(word: u64) -> Header {
        Header {
            tree: word as u8,
            level: (word >> 8) as u8,
            count: usize::from((word >> 16) as u16),
            prefix: usize::from((word >> 32) as u16),
            heap: usize::from((word >> 48) as u16),
            appends: 0,
        }
    }

    pub(crate) fn pack(&self) -> u64 {
        u64::from(self.tree)
            | u64::from(self.level) << 8
            | (self.count as u64) << 16
            | (self.prefix as u64) << 32
            | (self.heap as u64) << 48
    }

    /// Array bytes that one entry takes: head and slot, and in inner nodes a child.
    #[inline]
    pub(crate) fn per_entry(&self) -> usize {
        if self.level == 0 {
            HEAD + 2
        } else {
            HEAD + 8 + 2
        }
    }

    #[inline]
    pub(crate) fn slots(&self) -> usize {
        AT_HEADS + self.count * (self.per_entry() - 2)
    }

    #[inline]
    pub(crate) fn arrays_end(&self) -> usize {
        AT_HEADS + self.count * self.per_entry()
    }

    /// Where the cells end: the part of the prefix that the header does not hold is behind.
    #[inline]
    pub(crate) fn heap_end(&self) -> usize {
        PAGE - self.prefix.saturating_sub(PREFIX_INLINE).min(PAGE)
    }

    #[inline]
    fn check(&self) -> Result<(), Flaw> {
        let good = self.count > 0
            && self.prefix <= KEY_MAX
            && self.heap.is_multiple_of(CELL_ALIGN)
            && self.arrays_end() <= self.heap
            && self.heap <= self.heap_end()
            && (self.appends == 0 || self.fits_appends());
        if good { Ok(()) } else { Err("node counts") }
    }

    #[inline]
    fn fits_appends(&self) -> bool {
        match self.level {
            0 => appends::place(self, self.appends) <= self.heap,
            _ => links::fit(self, self.appends),
        }
    }
}

/// Checks that the node belongs where it was found, and its counts.
#[inline]
pub fn open<S: Source + ?Sized>(s: &S, place: &Place) -> Result<Header, Flaw> {
    if s.word(0) as u32 != MAGIC || s.word(AT_PAGE) != place.page {
        return Err("node identity");
    }
    let mut header = Header::unpack(s.word(AT_COUNTS));
    header.appends = place.appends;
    if header.tree != place.tree || header.level != place.level {
        return Err("node tree or level");
    }
    if s.word(AT_BIRTH) > place.seq {
        return Err("node birth");
    }
    header.check()?;
    Ok(header)
}

/// The lengths of entry `i` beyond the prefix, and where its rest and its value are.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// Key bytes beyond the prefix, the head's included.
    pub suffix: usize,
    pub rest: usize,
    pub value: usize,
    pub value_len: usize,
}

impl Cell {
    #[inline]
    pub(crate) fn rest_len(&self) -> usize {
        self.suffix.saturating_sub(HEAD)
    }
}

/// The slot of entry `i`: a suffix length up to 8 when there is no cell, else the cell's place.
#[inline]
pub(crate) fn slot<S: Source + ?Sized>(s: &S, h: &Header, i: usize) -> usize {
    let at = h.slots() + 2 * i;
    usize::from((s.word(at & !7) >> ((at & 7) * 8)) as u16)
}

/// Entry `i`, which must be below `count`.
#[inline]
pub fn cell<S: Source + ?Sized>(s: &S, h: &Header, i: usize) -> Result<Cell, Flaw> {
    let slot = slot(s, h, i);
    if slot <= HEAD && h.level > 0 {
        return Ok(Cell {
            suffix: slot,
            rest: 0,
            value: 0,
            value_len: 0,
        });
    }
    cell_between(s, h, slot, h.heap..h.heap_end()).ok_or("node cell")
}

/// The cell at `at`, if it and its lengths lie in `range`.
#[inline]
pub(crate) fn cell_between<S: Source + ?Sized>(
    s: &S,
    h: &Header,
    at: usize,
    range: core::ops::Range<usize>,
) -> Option<Cell> {
    let aligned = at.is_multiple_of(CELL_ALIGN);
    if at < range.start || at + CELL_HEADER > range.end || !aligned {
        return None;
    }
    let lengths = s.word(at & !7) >> ((at & 4) * 8);
    let suffix = usize::from(lengths as u16);
    let value_len = usize::from((lengths >> 16) as u16);
    let rest = at + CELL_HEADER;
    let value = rest + suffix.saturating_sub(HEAD);
    let fits = value + value_len <= range.end;
    (fits && h.prefix + suffix <= KEY_MAX && value_len <= VALUE_MAX).then_some(Cell {
        suffix,
        rest,
        value,
        value_len,
    })
}

#[inline]
pub(crate) fn head<S: Source + ?Sized>(s: &S, i: usize) -> u64 {
    s.word(AT_HEADS + HEAD * i)
}

/// The link to child `i` of an inner node: the newest, if one was appended.
#[inline]
pub fn child<S: Source + ?Sized>(s: &S, h: &Header, i: usize) -> u64 {
    if h.appends > 0
        && let Some(link) = links::find(s, h, i)
    {
        return link;
    }
    written_child(s, h, i)
}

/// The link to child `i` that the node was written with.
#[inline]
fn written_child<S: Source + ?Sized>(s: &S, h: &Header, i: usize) -> u64 {
    s.word(children(h) + 8 * i)
}

/// Where the links are that an inner node was written with.
#[inline]
pub(crate) fn children(h: &Header) -> usize {
    AT_HEADS + HEAD * h.count
}

/// How `key` compares with the keys that start with the node's prefix: `Equal` when it does.
#[inline]
pub(crate) fn compare_prefix<S: Source + ?Sized>(s: &S, h: &Header, key: &[u8]) -> Ordering {
    let inline = h.prefix.min(PREFIX_INLINE);
    let lead = &key[..inline.min(key.len())];
    let mut order = s.compare(AT_PREFIX, inline, lead);
    if order == Ordering::Equal && h.prefix > inline {
        let more = &key[inline..h.prefix.min(key.len())];
        order = s.compare(h.heap_end(), h.prefix - inline, more);
    }
    order.reverse()
}

/// What is behind the prefix of a key.
#[derive(Clone, Copy)]
pub(crate) struct Suffix<'a> {
    pub head: u64,
    /// Behind the bytes of the head.
    pub rest: &'a [u8],
    pub len: usize,
}

impl<'a> Suffix<'a> {
    #[inline]
    pub(crate) fn of(suffix: &'a [u8]) -> Suffix<'a> {
        let (head, rest) = head_and_rest(suffix);
        let len = suffix.len();
        Suffix { head, rest, len }
    }
}

/// How entry `i`, whose head is that of `suffix`, compares with `suffix`.
#[inline]
fn compare_tail<S: Source + ?Sized>(
    s: &S,
    h: &Header,
    i: usize,
    suffix: Suffix<'_>,
) -> Result<Ordering, Flaw> {
    let cell = cell(s, h, i)?;
    Ok(s.compare(cell.rest, cell.rest_len(), suffix.rest)
        .then(cell.suffix.cmp(&suffix.len)))
}

/// How entry `i` compares with `key`.
pub(crate) fn compare_entry<S: Source + ?Sized>(
    s: &S,
    h: &Header,
    i: usize,
    key: &[u8],
) -> Result<Ordering, Flaw> {
    let order = compare_prefix(s, h, key);
    if order != Ordering::Equal {
        return Ok(order.reverse());
    }
    let suffix = Suffix::of(&key[h.prefix..]);
    match head(s, i).cmp(&suffix.head) {
        Ordering::Equal => compare_tail(s, h, i, suffix),
        order => Ok(order),
    }
}

/// The first entry from `first` on whose key is not below `key`, and whether it is `key`.
#[inline]
pub fn find<S: Source + ?Sized>(
    s: &S,
    h: &Header,
    first: usize,
    key: &[u8],
) -> Result<(usize, bool), Flaw> {
    match compare_prefix(s, h, key) {
        Ordering::Less => return Ok((first.min(h.count), false)),
        Ordering::Greater => return Ok((h.count, false)),
        Ordering::Equal => {}
    }
    find_suffix(s, h, first, Suffix::of(&key[h.prefix..]))
}

/// As [`find`], for a key that starts with the node's prefix.
#[inline]
pub(crate) fn find_suffix<S: Source + ?Sized>(
    s: &S,
    h: &Header,
    first: usize,
    suffix: Suffix<'_>,
) -> Result<(usize, bool), Flaw> {
    let at = bound(first, h.count, |i| head(s, i) < suffix.head);
    if at >= h.count || head(s, at) != suffix.head {
        return Ok((at, false));
    }
    let order = compare_tail(s, h, at, suffix)?;
    if order != Ordering::Less {
        return Ok((at, order == Ordering::Equal));
    }
    find_in_run(s, h, at + 1, suffix)
}

/// As [`find`], among entries with equal heads from `first` on.
fn find_in_run<S: Source + ?Sized>(
    s: &S,
    h: &Header,
    first: usize,
    suffix: Suffix<'_>,
) -> Result<(usize, bool), Flaw> {
    let end = bound(first, h.count, |i| head(s, i) == suffix.head);
    let (mut low, mut high) = (first, end);
    while low < high {
        let mid = low + (high - low) / 2;
        match compare_tail(s, h, mid, suffix)? {
            Ordering::Less => low = mid + 1,
            Ordering::Equal => return Ok((mid, true)),
            Ordering::Greater => high = mid,
        }
    }
    Ok((low, false))
}

/// The first index in `from .. to` where `below` is false.
#[inline]
fn bound(from: usize, to: usize, below: impl Fn(usize) -> bool) -> usize {
    let (mut base, mut len) = (from, to.saturating_sub(from));
    while len > 0 {
        let half = len / 2;
        let go = below(base + half);
        base = if go { base + half + 1 } else { base };
        len = if go { len - half - 1 } else { half };
    }
    base
}

/// The slot of the first entry that has this head; a hint.
#[inline]
pub(crate) fn likely_slot<S: Source + ?Sized>(s: &S, h: &Header, wanted: u64) -> Option<usize> {
    let at = bound(0, h.count, |i| head(s, i) < wanted);
    (at < h.count && head(s, at) == wanted).then(|| slot(s, h, at))
}

/// The child of an inner node under which `key` belongs.
#[inline]
pub fn find_child<S: Source + ?Sized>(s: &S, h: &Header, key: &[u8]) -> Result<usize, Flaw> {
    let (at, equal) = find(s, h, 1, key)?;
    Ok(if equal { at } else { at - 1 })
}

/// A key of any length up to [`KEY_MAX`], without allocation.
#[derive(Clone)]
pub struct KeyBuf {
    len: usize,
    bytes: [u8; KEY_MAX],
}

impl Default for KeyBuf {
    fn default() -> Self {
        KeyBuf {
            len: 0,
            bytes: [0; KEY_MAX],
        }
    }
}

impl KeyBuf {
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Replaces the contents by `key`, cut to [`KEY_MAX`].
    pub fn set(&mut self, key: &[u8]) {
        self.len = key.len().min(KEY_MAX);
        self.bytes[..self.len].copy_from_slice(&key[..self.len]);
    }

    /// Starts with the prefix of a node's keys, for [`KeyBuf::load_suffix`].
    pub(crate) fn load_prefix<S: Source + ?Sized>(&mut self, s: &S, h: &Header) {
        copy_prefix(s, h, &mut self.bytes[..h.prefix]);
        self.len = h.prefix;
    }

    /// Replaces what is behind the prefix by the rest of the key of entry `i`, whose cell is
    /// `cell`.
    #[inline]
    pub(crate) fn load_suffix<S: Source + ?Sized>(
        &mut self,
        s: &S,
        h: &Header,
        i: usize,
        cell: &Cell,
    ) {
        self.load_behind_prefix(s, h, head(s, i), cell);
    }

    /// As [`KeyBuf::load_suffix`], of any entry with this head.
    #[inline]
    pub(crate) fn load_behind_prefix<S: Source + ?Sized>(
        &mut self,
        s: &S,
        h: &Header,
        head: u64,
        cell: &Cell,
    ) {
        self.len = h.prefix + cell.suffix;
        copy_suffix(s, head, cell, &mut self.bytes[h.prefix..self.len]);
    }

    /// Replaces the contents by the key of entry `i`.
    pub fn load<S: Source + ?Sized>(&mut self, s: &S, h: &Header, i: usize) -> Result<(), Flaw> {
        self.len = 0;
        self.len = copy_key(s, h, i, &mut self.bytes)?;
        Ok(())
    }
}

/// Copies the key of entry `i` to the start of `out`; returns its length. The key of entry 0 of
/// an inner node is empty.
pub fn copy_key<S: Source + ?Sized>(
    s: &S,
    h: &Header,
    i: usize,
    out: &mut [u8],
) -> Result<usize, Flaw> {
    if h.level > 0 && i == 0 {
        return Ok(0);
    }
    let cell = cell(s, h, i)?;
    let len = h.prefix + cell.suffix;
    let Some(out) = out.get_mut(..len) else {
        return Err("key length");
    };
    copy_prefix(s, h, &mut out[..h.prefix]);
    copy_suffix(s, head(s, i), &cell, &mut out[h.prefix..]);
    Ok(len)
}

fn copy_prefix<S: Source + ?Sized>(s: &S, h: &Header, out: &mut [u8]) {
    let (inline, behind) = out.split_at_mut(out.len().min(PREFIX_INLINE));
    s.copy(AT_PREFIX, inline);
    if !behind.is_empty() {
        s.copy(h.heap_end(), behind);
    }
}

#[inline]
fn copy_suffix<S: Source + ?Sized>(s: &S, head: u64, cell: &Cell, out: &mut [u8]) {
    let first = head.to_be_bytes();
    match out.split_first_chunk_mut::<HEAD>() {
        Some((lead, rest)) => {
            *lead = first;
            s.copy(cell.rest, rest);
        }
        None => out.copy_from_slice(&first[..out.len()]),
    }
}

/// Bytes that a cell takes in the heap.
#[inline]
pub(crate) const fn cell_size(suffix: usize, value_len: usize) -> usize {
    (CELL_HEADER + suffix.saturating_sub(HEAD) + value_len).next_multiple_of(CELL_ALIGN)
}

/// The first eight bytes of a suffix as a number, and the others.
#[inline]
pub(crate) fn head_and_rest(suffix: &[u8]) -> (u64, &[u8]) {
    (be8(suffix), suffix.get(HEAD..).unwrap_or(&[]))
}

/// Checks everything that accessors rely on: every cell, the order of heads, the children's
/// range. `children` bounds the pages that may be named.
pub fn check(
    page: &[u8; PAGE],
    place: &Place,
    children: core::ops::Range<u64>,
) -> Result<Header, Flaw> {
    let h = open(page, place)?;
    let mut live = 0;
    for i in 0..h.count {
        let keyless = h.level > 0 && i == 0;
        if i > 0 && head(page, i) < head(page, i - 1) {
            return Err("node order");
        }
        if keyless && (slot(page, &h, 0) != 0 || head(page, 0) != 0) {
            return Err("node's first entry");
        }
        let cell = cell(page, &h, i)?;
        if cell.rest > 0 {
            live += cell_size(cell.suffix, cell.value_len);
        }
        let link = written_child(page, &h, i);
        if h.level > 0 && !children.contains(&appends::page_of(link)) {
            return Err("node child");
        }
    }
    // Cells that overlap would make room from nothing when the node is rebuilt.
    if live > h.heap_end() - h.heap {
        Err("node cells overlap")
    } else {
        Ok(h)
    }
}
