//! Which pages of a segment were stored to since they were last made durable.
//!
//! What always holds here:
//! - A page's bit is set before bytes are stored to it. A process that clears it, and has the page
//!   read or written then, makes sure that nobody stores to it between the two.
//! - A group's bit is set while any bit of its pages is, except while somebody clears it and looks
//!   once more. A reader believes that a group is clean only if nobody did that meanwhile.

use crate::map::Access;
use crate::medium::Medium;
use crate::region::Region;
use crate::{Error, PAGE};
use core::sync::atomic::{AtomicU64, Ordering::*};
use rustix::fd::BorrowedFd;

const WORD_BITS: u64 = 64;
/// Pages of a group: one word of the bits of groups covers 4096 words of the bits of pages.
const GROUP: u64 = 4096;
const GROUP_WORDS: u64 = GROUP / WORD_BITS;
/// Words that count how often somebody began to clear bits of groups, and ended it.
const BEGUN: u64 = 0;
const ENDED: u64 = 1;
/// Where the bits of groups begin.
const GROUPS_AT: u64 = PAGE as u64;

/// A bitmap in memory that the processes of a session share.
pub struct DirtyMap {
    words: Region,
    pages: u64,
    /// Offset of the bits of pages; counters and the bits of groups come first.
    pages_at: u64,
}

impl DirtyMap {
    /// Bytes that the map of a segment of `len` bytes takes.
    pub fn len_for(len: u64) -> u64 {
        let pages = len / PAGE as u64;
        GROUPS_AT + bytes_for(pages.div_ceil(GROUP)) + bytes_for(pages)
    }

    /// The map of a segment of `len` bytes that lies at `offset` of `fd`.
    pub fn map(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<DirtyMap, Error> {
        let size = rustix::fs::fstat(fd).map_err(Error::os("fstat"))?.st_size as u64;
        let bytes = DirtyMap::len_for(len);
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            let len = bytes as usize;
            return Err(Error::OutOfRange { off: offset, len });
        }
        let words = Region::map(
            fd,
            offset,
            bytes as usize,
            Access::ReadWrite,
            Medium::Memory,
        )?;
        Ok(DirtyMap::over(words, len))
    }

    /// A map of its own, for tests within one process.
    pub fn in_memory(len: u64) -> Result<DirtyMap, Error> {
        let bytes = DirtyMap::len_for(len) as usize;
        let words = Region::in_memory(bytes)?;
        Ok(DirtyMap::over(words, len))
    }

    fn over(words: Region, len: u64) -> DirtyMap {
        let pages = len / PAGE as u64;
        let pages_at = GROUPS_AT + bytes_for(pages.div_ceil(GROUP));
        DirtyMap {
            words,
            pages,
            pages_at,
        }
    }

    fn count(&self, which: u64) -> u64 {
        self.words.word(which * 8).map_or(0, |w| w.load(SeqCst))
    }

    fn group_word(&self, index: u64) -> Option<&AtomicU64> {
        self.words.word(GROUPS_AT + index * 8)
    }

    /// Whether `look` says so while nobody clears bits of groups.
    fn surely(&self, look: impl FnOnce() -> bool) -> bool {
        let begun = self.count(BEGUN);
        // One who died between the two is believed to go on: it costs time, nothing else.
        begun == self.count(ENDED) && look() && begun == self.count(BEGUN)
    }

    fn page_word(&self, index: u64) -> Option<&AtomicU64> {
        self.words.word(self.pages_at + index * 8)
    }

    /// Bytes `off..off + len` of the segment are about to be stored to.
    #[inline]
    pub fn mark(&self, off: u64, len: u64) {
        if len == 0 {
            return;
        }
        let page = off / PAGE as u64;
        let end = (off + len).div_ceil(PAGE as u64);
        self.mark_pages(page, end.min(self.pages));
    }

    fn mark_pages(&self, from: u64, to: u64) {
        each_mask(from, to, |index, mask| {
            let Some(word) = self.page_word(index) else {
                return;
            };
            if word.load(Relaxed) & mask != mask {
                word.fetch_or(mask, SeqCst);
            }
            let group = index / GROUP_WORDS;
            if let Some(groups) = self.group_word(group / WORD_BITS) {
                let bit = 1 << (group % WORD_BITS);
                if groups.load(SeqCst) & bit == 0 {
                    groups.fetch_or(bit, SeqCst);
                }
            }
        });
    }

    /// Whether a page is dirty.
    #[inline]
    pub fn has(&self, page: u64) -> bool {
        let word = self.page_word(page / WORD_BITS);
        word.is_some_and(|w| w.load(Relaxed) & 1 << (page % WORD_BITS) != 0)
    }

    /// Calls `visit` with the runs (first page, length) of dirty pages among `len` from `page` on,
    /// until it says false.
    pub fn each(&self, page: u64, len: u64, mut visit: impl FnMut(u64, u64) -> bool) {
        let end = page.saturating_add(len).min(self.pages);
        let (mut at, mut run) = (page, (0, 0));
        while at < end {
            if at.is_multiple_of(GROUP) && self.is_group_clean(at / GROUP) {
                at += GROUP;
                continue;
            }
            let word = self.page_word(at / WORD_BITS).map_or(0, |w| w.load(SeqCst));
            let rest: u64 = word >> (at % WORD_BITS);
            let (clear, left) = (u64::from(rest.trailing_zeros()), WORD_BITS - at % WORD_BITS);
            if clear >= left {
                at += left;
                continue;
            }
            at += clear;
            let set = u64::from((rest >> clear).trailing_ones()).min(end.saturating_sub(at));
            if set == 0 {
                break;
            }
            if run.0 + run.1 == at {
                run.1 += set;
            } else {
                if run.1 > 0 && !visit(run.0, run.1) {
                    return;
                }
                run = (at, set);
            }
            at += set;
        }
        if run.1 > 0 {
            visit(run.0, run.1);
        }
    }

    /// Whether no page is dirty.
    pub fn is_clean(&self) -> bool {
        let groups = self.pages.div_ceil(GROUP);
        let clean = |index| self.group_word(index).is_none_or(|w| w.load(SeqCst) == 0);
        self.surely(|| (0..groups.div_ceil(WORD_BITS)).all(clean))
    }

    fn is_group_clean(&self, group: u64) -> bool {
        let word = self.group_word(group / WORD_BITS);
        let bit = 1 << (group % WORD_BITS);
        self.surely(|| word.is_some_and(|w| w.load(SeqCst) & bit == 0))
    }

    /// Clears the bits of `len` pages from `page` on; their bytes are read, or written to the
    /// device, after this.
    pub fn clear(&self, page: u64, len: u64) {
        let end = page.saturating_add(len).min(self.pages);
        each_mask(page, end, |index, mask| {
            if let Some(word) = self.page_word(index) {
                word.fetch_and(!mask, SeqCst);
            }
        });
        for group in page / GROUP..end.div_ceil(GROUP) {
            self.settle_group(group);
        }
    }

    fn settle_group(&self, group: u64) {
        let words = group * GROUP_WORDS..(group + 1) * GROUP_WORDS;
        let last = self.pages.div_ceil(WORD_BITS);
        let clean = || {
            let mut words = words.clone().take_while(|index| *index < last);
            words.all(|index| self.page_word(index).is_none_or(|w| w.load(SeqCst) == 0))
        };
        let (Some(groups), bit) = (self.group_word(group / WORD_BITS), 1 << (group % WORD_BITS))
        else {
            return;
        };
        if groups.load(SeqCst) & bit == 0 || !clean() {
            return;
        }
        let step = |which: u64| self.words.word(which * 8).map(|w| w.fetch_add(1, SeqCst));
        step(BEGUN);
        groups.fetch_and(!bit, SeqCst);
        if !clean() {
            groups.fetch_or(bit, SeqCst);
        }
        step(ENDED);
    }
}

fn bytes_for(bits: u64) -> u64 {
    (bits.div_ceil(WORD_BITS) * 8).next_multiple_of(PAGE as u64)
}

/// The words, and the bits in each, of bits `from..to`.
#[inline]
fn each_mask(from: u64, to: u64, mut visit: impl FnMut(u64, u64)) {
    let mut at = from;
    while at < to {
        let first = at % WORD_BITS;
        let n = (WORD_BITS - first).min(to - at);
        visit(at / WORD_BITS, (u64::MAX >> (WORD_BITS - n)) << first);
        at += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    const PAGES: u64 = 3 * GROUP + 100;

    fn runs(map: &DirtyMap, page: u64, len: u64) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        map.each(page, len, |page, len| {
            all.push((page, len));
            true
        });
        all
    }

    #[test]
    fn pages_of_a_range_are_marked_as_a_whole() {
        let map = DirtyMap::in_memory(PAGES * PAGE as u64).unwrap();
        map.mark(4095, 2);
        map.mark(63 * 4096, 3 * 4096);
        map.mark(100 * 4096, 0);
        assert_eq!(runs(&map, 0, PAGES), [(0, 2), (63, 3)]);
        assert_eq!(runs(&map, 64, 1), [(64, 1)]);
        assert!(map.has(65) && !map.has(66) && !map.has(PAGES + 64));
        map.clear(64, 1);
        assert_eq!(runs(&map, 0, PAGES), [(0, 2), (63, 1), (65, 1)]);
        // Beyond the end there is nothing.
        map.mark((PAGES - 1) * 4096, 1 << 30);
        assert_eq!(runs(&map, PAGES - 5, u64::MAX), [(PAGES - 1, 1)]);
    }

    #[test]
    fn it_is_a_set_of_pages() {
        let map = DirtyMap::in_memory(PAGES * PAGE as u64).unwrap();
        let (mut model, mut x) = (BTreeSet::new(), 1u64);
        for round in 0..4000 {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let (page, len) = ((x >> 20) % PAGES, (x >> 50) % 300);
            if round % 3 == 0 {
                map.clear(page, len);
                model.retain(|p| !(page..page + len).contains(p));
            } else {
                map.mark(page * 4096, len / 4 * 4096);
                model.extend((page..page + len / 4).filter(|p| *p < PAGES));
            }
            let (from, n) = ((x >> 8) % PAGES, (x >> 30) % PAGES);
            let found = runs(&map, from, n);
            let pages: Vec<u64> = found.iter().flat_map(|&(p, n)| p..p + n).collect();
            let want: Vec<u64> = model.range(from..from + n).copied().collect();
            assert_eq!(pages, want, "round {round}");
        }
    }

    #[test]
    fn a_mark_beside_a_clear_is_never_lost() {
        let map = DirtyMap::in_memory(PAGES * PAGE as u64).unwrap();
        std::thread::scope(|threads| {
            threads.spawn(|| (0..200_000).for_each(|_| map.clear(0, 64)));
            for i in 0..200_000u64 {
                // Nobody clears these pages, so their bit must be found at once.
                let page = 64 + i % 32;
                map.mark(page * 4096, 1);
                let mut found = false;
                map.each(0, GROUP, |first, len| {
                    found |= (first..first + len).contains(&page);
                    true
                });
                assert!(found, "page {page}");
                map.clear(page, 1);
            }
        });
    }
}
