//! A node being built or changed in private memory.
//!
//! What always holds here: the bytes are a well-formed node of `format::node` (made by [`init`]
//! or copied and checked); a change that does not fit reports so and changes nothing; an inner
//! node has an origin only while it differs from that in nothing but links.

use crate::checksum::{Crc, crc32c};
use crate::format::appends::{self, APPENDS_MAX};
use crate::format::node::{
    self, AT_BIRTH, AT_COUNTS, AT_CRC, AT_HEADS, AT_PAGE, AT_PREFIX, CELL_HEADER, Flaw, HEAD,
    Header, KeyBuf, MAGIC, PREFIX_INLINE, Suffix, be8, cell_size,
};
use crate::format::{PAGE, links, put_at, u32_at, u64_at};

/// Bytes of a node.
pub(crate) type Page = [u8; PAGE];

/// What an entry holds beside its key.
#[derive(Clone, Copy)]
pub(crate) enum Payload<'a> {
    Value(&'a [u8]),
    Child(u64),
}

impl Payload<'_> {
    pub(crate) fn value(&self) -> &[u8] {
        match self {
            Payload::Value(value) => value,
            Payload::Child(_) => &[],
        }
    }
}

#[inline]
pub(crate) fn header(page: &Page) -> Header {
    Header::unpack(u64::from_le_bytes(crate::format::array_at(page, AT_COUNTS)))
}

/// Every change but that of a link, or of a value in its place, ends here: then the node is no
/// copy any more.
#[inline]
fn set_header(page: &mut Page, h: &Header) {
    put_at(page, AT_COUNTS, &h.pack().to_le_bytes());
    set_origin(page, 0);
}

/// Says that the node is a copy of that at `link`. This is where its own page number will be.
#[inline]
pub(crate) fn set_origin(page: &mut Page, link: u64) {
    put_at(page, AT_PAGE, &link.to_le_bytes());
}

/// What leads to the committed node from which an inner node differs at most in links; 0: there is
/// none.
#[inline]
pub(crate) fn origin(page: &Page) -> u64 {
    u64_at(page, AT_PAGE)
}

/// Makes the page an empty node.
pub(crate) fn init(page: &mut Page, tree: u8, level: u8, prefix: &[u8]) {
    page[..AT_HEADS].fill(0);
    put_at(page, 0, &MAGIC.to_le_bytes());
    let mut h = Header {
        tree,
        level,
        count: 0,
        prefix: prefix.len(),
        heap: 0,
        appends: 0,
    };
    let end = h.heap_end();
    h.heap = end / node::CELL_ALIGN * node::CELL_ALIGN;
    let inline = prefix.len().min(PREFIX_INLINE);
    put_at(page, AT_PREFIX, &prefix[..inline]);
    put_at(page, end, &prefix[inline..]);
    set_header(page, &h);
}

/// Gives the page its address, birth and checksum: it is ready to be written.
pub(crate) fn seal(page: &mut Page, addr: u64, birth: u64) {
    put_at(page, AT_PAGE, &addr.to_le_bytes());
    put_at(page, AT_BIRTH, &birth.to_le_bytes());
    let h = header(page);
    // What is between the arrays and the cells is of no use: do not let it reach the medium.
    page[h.arrays_end()..h.heap].fill(0);
    let crc = sum(page);
    put_at(page, AT_CRC, &crc.to_le_bytes());
}

/// The checksum of a node: of all but what is between the arrays and the cells, where entries may
/// be appended.
fn sum(page: &Page) -> u32 {
    let h = header(page);
    match (page.get(AT_PAGE..h.arrays_end()), page.get(h.heap..)) {
        (Some(front), Some(back)) => {
            let mut crc = Crc::new();
            crc.update(front);
            crc.update(back);
            crc.finish()
        }
        _ => crc32c(&page[AT_PAGE..]),
    }
}

/// Gives wrong contents a right checksum.
#[cfg(test)]
pub(crate) fn forge(page: &mut Page) {
    let crc = sum(page);
    put_at(page, AT_CRC, &crc.to_le_bytes());
}

/// True when the checksum is that of the contents.
pub(crate) fn is_sound(page: &Page) -> bool {
    u32_at(page, AT_CRC) == sum(page)
}

/// True when `key` starts with the page's prefix.
#[inline]
fn has_prefix(page: &Page, h: &Header, key: &[u8]) -> bool {
    key.len() >= h.prefix && node::compare_prefix(page, h, key).is_eq()
}

/// Inserts an entry at `i`; false when it does not fit or has another prefix.
#[inline]
pub(crate) fn insert(page: &mut Page, i: usize, key: &[u8], payload: Payload<'_>) -> bool {
    let h = header(page);
    let keyless = h.level > 0 && i == 0;
    let suffix = if keyless {
        &[]
    } else if has_prefix(page, &h, key) {
        &key[h.prefix..]
    } else {
        return false;
    };
    let value = payload.value();
    let celled = h.level == 0 || suffix.len() > HEAD;
    let size = if celled {
        cell_size(suffix.len(), value.len())
    } else {
        0
    };
    if h.arrays_end() + h.per_entry() + size > h.heap {
        return false;
    }
    let grown = Header {
        count: h.count + 1,
        heap: h.heap - size,
        ..h
    };
    let slot = if celled { grown.heap } else { suffix.len() };
    if celled {
        write_cell(page, slot, suffix, value);
    }
    open_gap(page, &h, &grown, i);
    put_at(page, AT_HEADS + HEAD * i, &be8(suffix).to_le_bytes());
    if let Payload::Child(child) = payload {
        put_at(
            page,
            AT_HEADS + HEAD * (grown.count + i),
            &child.to_le_bytes(),
        );
    }
    put_at(page, grown.slots() + 2 * i, &(slot as u16).to_le_bytes());
    set_header(page, &grown);
    true
}

fn write_cell(page: &mut Page, at: usize, suffix: &[u8], value: &[u8]) {
    put_at(page, at, &(suffix.len() as u16).to_le_bytes());
    put_at(page, at + 2, &(value.len() as u16).to_le_bytes());
    let rest = suffix.get(HEAD..).unwrap_or(&[]);
    put_at(page, at + CELL_HEADER, rest);
    put_at(page, at + CELL_HEADER + rest.len(), value);
}

/// Moves the arrays of `h` to where `grown` has them, with a gap at `i`. From the back, since
/// everything moves towards the end.
#[inline]
fn open_gap(page: &mut Page, h: &Header, grown: &Header, i: usize) {
    let (from, to) = (h.slots(), grown.slots());
    page.copy_within(from + 2 * i..h.arrays_end(), to + 2 * (i + 1));
    page.copy_within(from..from + 2 * i, to);
    if h.level > 0 {
        let (from, to) = (AT_HEADS + HEAD * h.count, AT_HEADS + HEAD * grown.count);
        page.copy_within(from + 8 * i..from + 8 * h.count, to + 8 * (i + 1));
        page.copy_within(from..from + 8 * i, to);
    }
    page.copy_within(
        AT_HEADS + HEAD * i..AT_HEADS + HEAD * h.count,
        AT_HEADS + HEAD * (i + 1),
    );
}

/// Removes entries `from .. to`.
pub(crate) fn remove(page: &mut Page, from: usize, to: usize) {
    let h = header(page);
    let gone = to - from;
    let shrunk = Header {
        count: h.count - gone,
        ..h
    };
    page.copy_within(
        AT_HEADS + HEAD * to..AT_HEADS + HEAD * h.count,
        AT_HEADS + HEAD * from,
    );
    if h.level > 0 {
        let (old, new) = (AT_HEADS + HEAD * h.count, AT_HEADS + HEAD * shrunk.count);
        page.copy_within(old..old + 8 * from, new);
        page.copy_within(old + 8 * to..old + 8 * h.count, new + 8 * from);
    }
    let (old, new) = (h.slots(), shrunk.slots());
    page.copy_within(old..old + 2 * from, new);
    page.copy_within(old + 2 * to..old + 2 * h.count, new + 2 * from);
    set_header(page, &shrunk);
    if h.level > 0 && from == 0 && shrunk.count > 0 {
        put_at(page, AT_HEADS, &[0; HEAD]);
        put_at(page, shrunk.slots(), &[0; 2]);
    }
}

/// Replaces child `i`.
#[inline]
pub(crate) fn set_child(page: &mut Page, i: usize, child: u64) {
    let at = AT_HEADS + HEAD * (header(page).count + i);
    put_at(page, at, &child.to_le_bytes());
}

/// Replaces the value of entry `i`; false when there is no room for it.
#[inline]
pub(crate) fn set_value(page: &mut Page, i: usize, value: &[u8]) -> bool {
    let h = header(page);
    let Ok(cell) = node::cell(page, &h, i) else {
        return false;
    };
    if value.len() <= cell.value_len {
        put_at(page, cell.rest - 2, &(value.len() as u16).to_le_bytes());
        put_at(page, cell.value, value);
        return true;
    }
    let size = cell_size(cell.suffix, value.len());
    if h.arrays_end() + size > h.heap {
        return false;
    }
    let grown = Header {
        heap: h.heap - size,
        ..h
    };
    let at = grown.heap;
    page.copy_within(cell.rest - CELL_HEADER..cell.value, at);
    put_at(page, at + 2, &(value.len() as u16).to_le_bytes());
    put_at(page, at + CELL_HEADER + cell.rest_len(), value);
    put_at(page, h.slots() + 2 * i, &(at as u16).to_le_bytes());
    set_header(page, &grown);
    true
}

/// Brings what was appended to its place: among the other entries of a leaf, or over the links of
/// an inner node. The counts then.
pub(crate) fn fold(page: &mut Page, h: &Header) -> Result<Header, Flaw> {
    if h.level > 0 {
        for k in 0..h.appends {
            let (child, link) = links::nth(page, h, k)?;
            set_child(page, child, link);
        }
        return Ok(header(page));
    }
    let old = *page;
    let mut key = KeyBuf::default();
    key.load_prefix(&old, h);
    for i in 0..h.appends {
        let cell = appends::cell(&old, h, i)?;
        key.load_behind_prefix(&old, h, appends::head(&old, h, i), &cell);
        let value = old.get(cell.value..cell.value + cell.value_len);
        let value = value.ok_or("node cell")?;
        let (at, found) = node::find(&*page, &header(page), 0, key.as_slice())?;
        let done = match found {
            true => set_value(page, at, value),
            false => insert(page, at, key.as_slice(), Payload::Value(value)),
        };
        if !done {
            return Err("appended entries do not fit");
        }
    }
    Ok(header(page))
}

/// An appended entry whose key the leaf was written without.
#[derive(Clone, Copy, Default)]
struct New {
    head: u64,
    /// Where it belongs among the sorted ones.
    place: u16,
    cell: u16,
}

/// As [`fold`], for a copy of a leaf that is only read: the sorted entries lead to the appended
/// cells, which stay where they are. So no cell is copied, and no room is left.
pub(crate) fn weave(page: &mut Page, h: &Header) -> Result<Header, Flaw> {
    if h.appends > APPENDS_MAX {
        return Err("appended entries");
    }
    let mut low = h.heap;
    let (mut new, mut added) = ([New::default(); APPENDS_MAX], 0);
    let (mut newer, mut replaced) = ([(0, 0); APPENDS_MAX], 0);
    for i in (0..h.appends).rev() {
        let cell = appends::cell(&*page, h, i)?;
        let at = cell.rest - CELL_HEADER;
        low = low.min(at);
        let suffix = Suffix {
            head: appends::head(&*page, h, i),
            rest: page.get(cell.rest..cell.value).unwrap_or_default(),
            len: cell.suffix,
        };
        let (place, found) = node::find_suffix(&*page, h, 0, suffix)?;
        if !found {
            added += usize::from(insert_new(page, &mut new[..=added], place, suffix, at));
        } else if newer[..replaced].iter().all(|(other, _)| *other != place) {
            newer[replaced] = (place, at);
            replaced += 1;
        }
    }
    for (place, at) in &newer[..replaced] {
        put_at(page, h.slots() + 2 * place, &(*at as u16).to_le_bytes());
    }
    let woven = Header {
        count: h.count + added,
        heap: low,
        appends: 0,
        ..*h
    };
    make_gaps(page, h, &woven, &new[..added]);
    set_header(page, &woven);
    Ok(woven)
}

/// Adds an entry to the sorted ones in `new`, the last of which is room for it. Not if there is one
/// of its key: that came first, and is newer. Whether it did.
fn insert_new(page: &Page, new: &mut [New], place: usize, suffix: Suffix<'_>, at: usize) -> bool {
    let one = New {
        head: suffix.head,
        place: place as u16,
        cell: at as u16,
    };
    let order = |other: &New| {
        let (len, rest) = rest_of(page, other.cell.into());
        let first = (other.place, other.head).cmp(&(one.place, one.head));
        first.then_with(|| (rest, len).cmp(&(suffix.rest, suffix.len)))
    };
    let last = new.len() - 1;
    let Err(at) = new[..last].binary_search_by(order) else {
        return false;
    };
    new[at..].rotate_right(1);
    new[at] = one;
    true
}

/// The length of the suffix of a cell that was looked at before, and its bytes behind the head.
fn rest_of(page: &Page, cell: usize) -> (usize, &[u8]) {
    let (len, at) = (u16_at(page, cell), cell + CELL_HEADER);
    let rest = page.get(at..at + len.saturating_sub(HEAD));
    (len, rest.unwrap_or_default())
}

/// Lays the arrays of a leaf out with `new` entries in between. From the back, and the slots, which
/// are behind the heads, first, since everything moves towards the end.
fn make_gaps(page: &mut Page, h: &Header, to: &Header, new: &[New]) {
    let mut end = h.count;
    for (before, one) in new.iter().enumerate().rev() {
        let place = usize::from(one.place);
        let moved = h.slots() + 2 * place..h.slots() + 2 * end;
        let gap = to.slots() + 2 * (place + before);
        page.copy_within(moved, gap + 2);
        put_at(page, gap, &one.cell.to_le_bytes());
        end = place;
    }
    page.copy_within(h.slots()..h.slots() + 2 * end, to.slots());
    end = h.count;
    for (before, one) in new.iter().enumerate().rev() {
        let place = usize::from(one.place);
        let gap = AT_HEADS + HEAD * (place + before);
        page.copy_within(AT_HEADS + HEAD * place..AT_HEADS + HEAD * end, gap + HEAD);
        put_at(page, gap, &one.head.to_le_bytes());
        end = place;
    }
}

fn u16_at(page: &Page, at: usize) -> usize {
    usize::from(u16::from_le_bytes(crate::format::array_at(page, at)))
}

/// Whether the node's entries need at least `min` bytes, garbage not counted.
pub(crate) fn fills(page: &Page, min: usize) -> bool {
    let h = header(page);
    let mut size = h.arrays_end() + PAGE - h.heap_end();
    for i in 0..h.count {
        if size >= min {
            break;
        }
        if let Ok(cell) = node::cell(page, &h, i)
            && cell.rest > 0
        {
            size += cell_size(cell.suffix, cell.value_len);
        }
    }
    size >= min
}
