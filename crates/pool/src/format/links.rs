//! Links that were appended to an inner node after it was written.
//!
//! What always holds here:
//! - How many there are is said by the link that leads to the node, as for a leaf: each root sees
//!   those that were there when it was made. Bytes behind them mean nothing.
//! - What a root may see is never changed. Of links to one child the last appended one counts, and
//!   before all of those the one that the node was written with. Keys are never appended.
//! - The numbers of their children, a byte each, stand together: a search compares eight at once,
//!   and mostly touches nothing else.

use super::appends::page_of;
use super::node::{AT_HEADS, AT_PAGE, Flaw, HEAD, Header, Source};
use super::{PAGE, put_at, u32_at, u64_at};
use crate::checksum::Crc;
use core::ops::Range;

/// Most of one node.
pub const LINKS_MAX: usize = 32;
/// Most children of a node.
pub(crate) const CHILDREN_MAX: usize = (PAGE - AT_HEADS) / (2 * HEAD + 2);

/// Link, checksum, nothing.
const ENTRY: usize = 16;
const AT_SUM: usize = 8;
/// The lowest bit of each byte of a word, and all but the highest.
const LOW: u64 = 0x0101_0101_0101_0101;
const REST: u64 = 0x7f7f_7f7f_7f7f_7f7f;
/// Times a word that has nothing but lowest bits, these are the eight bits of its highest byte.
const GATHER: u64 = 0x0102_0408_1020_4080;

/// Where the numbers of the children are: behind the arrays.
#[inline]
pub(crate) fn numbers(h: &Header) -> usize {
    h.arrays_end().next_multiple_of(8)
}

#[inline]
fn entry(h: &Header, k: usize) -> usize {
    numbers(h) + LINKS_MAX + ENTRY * k
}

/// Whether `count` of them fit a node.
#[inline]
pub(crate) fn fit(h: &Header, count: usize) -> bool {
    count <= LINKS_MAX && entry(h, count) <= h.heap
}

/// The last link to child `i` that was appended, if there is one.
#[inline]
pub(crate) fn find<S: Source + ?Sized>(s: &S, h: &Header, i: usize) -> Option<u64> {
    let (at, wanted) = (numbers(h), LOW * (i as u64 & 0xff));
    // A bit for each number that is `i`, without a branch on how many there are.
    let mut found = 0;
    for word in 0..LINKS_MAX / 8 {
        let other = s.word(at + 8 * word) ^ wanted;
        let same = !((other & REST) + REST | other | REST) >> 7;
        found |= (same.wrapping_mul(GATHER) >> 56) << (8 * word);
    }
    found &= (1 << h.appends) - 1;
    let newest = found.checked_ilog2()?;
    Some(s.word(entry(h, newest as usize)))
}

#[inline]
fn number<S: Source + ?Sized>(s: &S, h: &Header, k: usize) -> usize {
    let at = numbers(h) + k;
    usize::from((s.word(at & !7) >> ((at & 7) * 8)) as u8)
}

/// The child that link `k`, which must be below `h.appends`, leads to, and the link.
#[inline]
pub(crate) fn nth<S: Source + ?Sized>(s: &S, h: &Header, k: usize) -> Result<(usize, u64), Flaw> {
    match number(s, h, k) {
        child if child < h.count => Ok((child, s.word(entry(h, k)))),
        _ => Err("child of an appended link"),
    }
}

fn sum(page: u64, child: usize, link: u64) -> u32 {
    let mut crc = Crc::new();
    for word in [page, child as u64, link] {
        crc.update(&word.to_le_bytes());
    }
    crc.finish()
}

/// Links that are to be appended to a node: what to write where.
pub(crate) struct Links {
    /// How many the node has then.
    pub count: usize,
    numbers: [u8; LINKS_MAX],
    entries: [u8; ENTRY * LINKS_MAX],
    before: usize,
}

impl Links {
    /// None yet, for the node that `s` is.
    pub fn new<S: Source + ?Sized>(s: &S, h: &Header) -> Links {
        let mut numbers = [0; LINKS_MAX];
        for (k, byte) in numbers.iter_mut().enumerate().take(h.appends) {
            *byte = number(s, h, k) as u8;
        }
        Links {
            count: h.appends,
            numbers,
            entries: [0; ENTRY * LINKS_MAX],
            before: h.appends,
        }
    }

    /// Adds the link to child `i` of the node, whose page number is `page`; false: there is no
    /// room.
    pub fn push(&mut self, h: &Header, page: u64, i: usize, link: u64) -> bool {
        if !fit(h, self.count + 1) {
            return false;
        }
        let (at, sum) = (ENTRY * self.count, sum(page, i, link));
        put_at(&mut self.entries, at, &link.to_le_bytes());
        put_at(&mut self.entries, at + AT_SUM, &sum.to_le_bytes());
        self.numbers[self.count] = i as u8;
        self.count += 1;
        true
    }

    /// Which bytes go where in the node. Numbers that are there already are written again, as they
    /// are.
    pub fn parts(&self, h: &Header) -> [(usize, &[u8]); 2] {
        let words = self.before / 8 * 8..self.count.next_multiple_of(8);
        let entries = ENTRY * self.before..ENTRY * self.count;
        [
            (numbers(h) + words.start, &self.numbers[words]),
            (entry(h, self.before), &self.entries[entries]),
        ]
    }
}

/// Checks every link that was appended to an inner node: checksum, child and page.
pub(crate) fn check(page: &[u8; PAGE], h: &Header, pages: &Range<u64>) -> Result<(), Flaw> {
    let own = u64_at(page, AT_PAGE);
    for k in 0..h.appends {
        let stored = u32_at(page, entry(h, k) + AT_SUM);
        let (child, link) = nth(page, h, k)?;
        if stored != sum(own, child, link) {
            return Err("checksum of an appended link");
        }
        if !pages.contains(&page_of(link)) {
            return Err("an appended link");
        }
    }
    Ok(())
}

// A number is a byte, and there are bits for all.
const _: () = assert!(CHILDREN_MAX <= 256 && LINKS_MAX < 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_link_to_each_child_is_found() {
        let mut page = [0; PAGE];
        let h = Header {
            tree: 5,
            level: 1,
            count: 130,
            prefix: 0,
            heap: PAGE,
            appends: 0,
        };
        let children = [0, 129, 7, 0, 128, 1, 7, 7, 127, 0, 0, 64, 129];
        for count in 1..=LINKS_MAX {
            let mut links = Links::new(&page, &h);
            for k in 0..count {
                assert!(links.push(&h, 9, children[k % 13], 1000 + k as u64));
            }
            for (at, bytes) in links.parts(&h) {
                put_at(&mut page, at, bytes);
            }
            for seen in 0..=count {
                let h = Header { appends: seen, ..h };
                for child in 0..h.count {
                    let last = (0..seen).rev().find(|k| children[k % 13] == child);
                    let last = last.map(|k| 1000 + k as u64);
                    assert_eq!(find(&page, &h, child), last, "{child} of {seen} of {count}");
                }
            }
        }
        let mut links = Links::new(&page, &h);
        assert!((0..LINKS_MAX).all(|_| links.push(&h, 9, 3, 4)));
        assert!(!links.push(&h, 9, 3, 4), "no room for more");
    }
}
