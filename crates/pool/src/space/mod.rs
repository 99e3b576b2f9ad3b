//! Which meta pages and which data blocks are free.
//!
//! What always holds here:
//! - `used` is what the next commit makes durable; `busy` covers `used` and everything that must
//!   not be handed out yet: grants, and what a commit freed that a reader may still look at.
//! - Of the two copies of a bitmap page the one in force is never written; a commit writes the
//!   other. After `open` no copy on the medium has a seq above that of the superblock, so a
//!   copy left by a commit that never happened cannot come into force later.
//! - A number is `resident` while it is free and memory is behind it: it was released since `open`,
//!   or the host was asked for it, or said so. With `resident_only` no other is handed out one by
//!   one.

mod backing;
mod bits;

use crate::error::{Error, Result};
use crate::format::bitmap::{self, BITS_PER_PAGE, WORDS_PER_PAGE};
use crate::format::geometry::Geometry;
use crate::format::{PAGE, PAGE_LEN};
use crate::layout::BlockAddr;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
pub use bits::Bits;
use holdfast_pmem::Region;

/// Blocks or pages `start .. start + len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    pub start: u64,
    pub len: u64,
}

impl Run {
    pub fn new(start: u64, len: u64) -> Run {
        Run { start, len }
    }

    /// Blocks of data segment 0, of which the bitmap of data blocks is. Those of another one are
    /// outside of it.
    pub fn of_data(block: BlockAddr, len: u64) -> Run {
        Run::new(block.word(), len)
    }

    /// The first number past the run; saturates on hostile values.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// Which of the two bitmaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Meta = 0,
    Data = 1,
}

#[derive(Clone, Copy, Default)]
struct PageState {
    /// The copy in force: 0 or 1.
    copy: u8,
    /// The copies that have memory behind them, as bits.
    backed: u8,
    /// `used` differs from the copy in force.
    changed: bool,
}

/// One bitmap in memory and its place on the medium.
pub struct Space {
    kind: Kind,
    /// First of the page pairs in `meta.seg`.
    base: u64,
    /// Numbers at and above are outside; those below `floor` are not for use either.
    limit: u64,
    floor: u64,
    used: Bits,
    busy: Bits,
    resident: Bits,
    resident_only: bool,
    /// How many were released since `open`, and how many came out of use.
    released: u64,
    freed: u64,
    pages: Vec<PageState>,
    next: u64,
}

/// Blocks of a whole extent, which is aligned to as many: a huge page.
pub const WHOLE_BLOCKS: u64 = 512;

impl Space {
    /// The bitmap of a new pool. The first commit writes the pages below the limit; those beyond
    /// mean nothing until the pool grows.
    pub(crate) fn new(kind: Kind, geometry: &Geometry) -> Space {
        let (base, limit, max, floor) = match kind {
            Kind::Meta => {
                let g = geometry;
                (
                    g.meta_bitmap(),
                    g.meta_pages,
                    g.meta_pages_max,
                    g.first_node(),
                )
            }
            Kind::Data => (
                geometry.data_bitmap(),
                geometry.data_blocks,
                geometry.data_blocks_max,
                0,
            ),
        };
        let pages = Geometry::bitmap_pages(max) as usize;
        let words = pages * WORDS_PER_PAGE;
        let mut space = Space {
            kind,
            base,
            limit,
            floor,
            used: Bits::new(words),
            busy: Bits::new(words),
            resident: Bits::new(words),
            resident_only: false,
            released: 0,
            freed: 0,
            pages: vec![PageState::default(); pages],
            next: floor,
        };
        let inside = space.pages_below(limit);
        space.pages[..inside].fill(PageState {
            copy: 1,
            backed: 0,
            changed: true,
        });
        space.used.set(0, floor);
        space.busy.set(0, floor);
        space
    }

    /// The bitmap that commit `seq` left; pages of later commits are wiped.
    pub(crate) fn open(kind: Kind, geometry: &Geometry, meta: &Region, seq: u64) -> Result<Space> {
        let mut space = Space::new(kind, geometry);
        let inside = space.pages_below(space.limit);
        space.pages.fill(PageState::default());
        for i in 0..inside {
            space.load_page(meta, i, seq)?;
        }
        space.used.set(0, space.floor);
        let past = inside as u64 * BITS_PER_PAGE;
        space
            .used
            .clear(space.limit, past.saturating_sub(space.limit));
        let words = space.used.words(0, inside * WORDS_PER_PAGE);
        space.busy.load(0, words);
        Ok(space)
    }

    fn pages_below(&self, limit: u64) -> usize {
        (limit.div_ceil(BITS_PER_PAGE) as usize).min(self.pages.len())
    }

    fn load_page(&mut self, meta: &Region, i: usize, seq: u64) -> Result<()> {
        let mut best: Option<(u64, u8)> = None;
        let mut page = Box::new([0; PAGE]);
        for copy in 0..2 {
            meta.read(self.at(i, copy), &mut page[..])?;
            let later = bitmap::claimed_seq(&page) > seq;
            if later {
                meta.zero_nt(self.at(i, copy), PAGE)?;
                continue;
            }
            let Some(found) = bitmap::decode(self.index(i), &page) else {
                continue;
            };
            if best.is_none_or(|(old, _)| found.seq > old) {
                best = Some((found.seq, copy));
                self.used.load(i * WORDS_PER_PAGE, &found.words[..]);
            }
        }
        let page = self.at(i, 0) / PAGE_LEN;
        let (_, copy) = best.ok_or(Error::Damaged {
            what: "both copies of a bitmap",
            page,
        })?;
        self.pages[i] = PageState {
            copy,
            backed: 0,
            changed: false,
        };
        Ok(())
    }

    /// The first page of the bitmap.
    pub(crate) fn place(&self) -> u64 {
        self.base
    }

    fn index(&self, i: usize) -> u64 {
        (self.kind as u64) << 56 | i as u64
    }

    fn at(&self, i: usize, copy: u8) -> u64 {
        (self.base + 2 * i as u64 + u64::from(copy)) * PAGE_LEN
    }

    /// Writes the other copy of every changed page. In force once superblock `seq` is.
    pub(crate) fn write(&mut self, meta: &Region, seq: u64) -> Result<()> {
        let mut page = Box::new([0; PAGE]);
        for i in 0..self.pages.len() {
            let state = self.pages[i];
            if !state.changed {
                continue;
            }
            let words = self.used.words(i * WORDS_PER_PAGE, WORDS_PER_PAGE);
            bitmap::encode(self.index(i), seq, words, &mut page);
            meta.write_nt(self.at(i, 1 - state.copy), &page[..])?;
            self.pages[i] = PageState {
                copy: 1 - state.copy,
                changed: false,
                ..state
            };
        }
        Ok(())
    }

    /// The first number that can come into use.
    pub fn first(&self) -> u64 {
        self.floor
    }

    /// Numbers in the space.
    pub fn len(&self) -> u64 {
        self.limit
    }

    pub fn is_empty(&self) -> bool {
        self.limit == 0
    }

    /// In use in the state that the next commit makes durable.
    pub fn count_used(&self) -> u64 {
        self.used.count()
    }

    /// In use of a run that starts and ends on multiples of 64.
    pub fn count_used_in(&self, run: Run) -> u64 {
        self.used.count_in(run.start, run.len)
    }

    /// Free and with memory behind them, of a run that starts and ends on multiples of 64.
    pub fn count_resident_in(&self, run: Run) -> u64 {
        self.resident.count_in(run.start, run.len)
    }

    /// Neither in use, nor granted, nor waiting for readers.
    pub fn count_free(&self) -> u64 {
        self.limit.saturating_sub(self.busy.count())
    }

    /// In use or granted, and inside the space.
    pub fn is_busy(&self, run: Run) -> bool {
        self.holds(run) && self.busy.all_set(run.start, run.len)
    }

    /// All in use.
    pub fn is_used(&self, run: Run) -> bool {
        self.holds(run) && self.used.all_set(run.start, run.len)
    }

    /// None in use (but maybe granted or waiting).
    pub fn is_unused(&self, run: Run) -> bool {
        self.holds(run) && self.used.all_clear(run.start, run.len)
    }

    /// All free.
    pub fn is_free(&self, run: Run) -> bool {
        self.holds(run) && self.busy.all_clear(run.start, run.len)
    }

    /// From there on all is free, in whole runs.
    pub fn end_in_use(&self) -> u64 {
        let mut end = self.limit;
        while let Some(start) = end.checked_sub(WHOLE_BLOCKS) {
            let len = WHOLE_BLOCKS;
            if !self.is_free(Run { start, len }) {
                break;
            }
            end = start;
        }
        end
    }

    fn holds(&self, run: Run) -> bool {
        run.len > 0 && run.start >= self.floor && run.end() <= self.limit
    }

    fn check(&self, good: bool, run: Run) -> Result<()> {
        if good {
            Ok(())
        } else {
            Err(Error::NotHeld {
                start: run.start,
                len: run.len,
            })
        }
    }

    /// Takes exactly `len` numbers from a multiple of `align` on. They are busy, not yet used.
    pub fn alloc_run(&mut self, len: u64, align: u64) -> Option<Run> {
        let align = align.max(1);
        let found = self
            .busy
            .find_clear(self.next, self.limit, len, align)
            .or_else(|| self.busy.find_clear(self.floor, self.limit, len, align))?;
        let run = Run::new(found, len);
        self.take(run);
        self.next = if run.end() < self.limit {
            run.end()
        } else {
            self.floor
        };
        Some(run)
    }

    /// Takes `want` numbers aligned, else `want` anywhere, else the longest power-of-two part.
    pub fn alloc_best(&mut self, want: u64, align: u64) -> Option<Run> {
        if let Some(run) = self.alloc_run(want, align) {
            return Some(run);
        }
        let mut len = want;
        while len > 0 {
            if let Some(run) = self.alloc_run(len, 1) {
                return Some(run);
            }
            len /= 2;
        }
        None
    }

    /// Gives back numbers that were allocated and never used.
    pub fn release(&mut self, run: Run) -> Result<()> {
        self.check(self.is_busy(run) && self.is_unused(run), run)?;
        self.busy.clear(run.start, run.len);
        self.resident.set(run.start, run.len);
        self.released += run.len;
        // What was used before is resident: memory behind it is there, often as huge pages.
        self.next = self.next.min(run.start);
        Ok(())
    }

    fn take(&mut self, run: Run) {
        self.busy.set(run.start, run.len);
        self.resident.clear(run.start, run.len);
    }

    /// The memory behind free numbers was given back.
    pub fn punched(&mut self, run: Run) {
        self.resident.clear(run.start, run.len);
    }

    /// All free, with memory behind them.
    pub fn is_resident(&self, run: Run) -> bool {
        run.len > 0 && self.resident.all_set(run.start, run.len)
    }

    /// The first whole extent that is free and has memory behind it.
    pub fn resident_whole(&self) -> Option<Run> {
        let mut at = 0;
        while self.resident.count() >= WHOLE_BLOCKS {
            at = self.resident.next(at, self.limit, true);
            if at >= self.limit {
                break;
            }
            let run = Run::new(at - at % WHOLE_BLOCKS, WHOLE_BLOCKS);
            if self.resident.all_set(run.start, run.len) {
                return Some(run);
            }
            at = run.end();
        }
        None
    }

    /// Takes it.
    pub fn alloc_resident(&mut self) -> Option<Run> {
        let run = self.resident_whole()?;
        self.take(run);
        Some(run)
    }

    /// Free numbers that have memory behind them.
    pub fn count_resident(&self) -> u64 {
        self.resident.count()
    }

    /// How many numbers became free since `open`.
    pub fn released(&self) -> u64 {
        self.released
    }

    /// How many came out of use since `open`.
    pub fn freed(&self) -> u64 {
        self.freed
    }

    /// The first short free run in `from .. to`, which is part of a whole extent of which something
    /// is in use or granted, and ends with that. With `any` also where no memory is.
    pub fn next_short(&self, from: u64, to: u64, any: bool) -> Option<Run> {
        let to = to.min(self.limit);
        let next = |from: u64, to: u64, free: bool| match any {
            true => self.busy.next(from, to, !free),
            false => self.resident.next(from, to, free),
        };
        let mut at = from.max(self.floor);
        loop {
            at = next(at, to, true);
            if at >= to {
                return None;
            }
            let whole = at - at % WHOLE_BLOCKS;
            if !self.busy.all_clear(whole, WHOLE_BLOCKS) {
                let end = next(at, to.min(whole + WHOLE_BLOCKS), false);
                return Some(Run::new(at, end - at));
            }
            at = whole + WHOLE_BLOCKS;
        }
    }

    /// The first free run in `from .. to`.
    pub fn next_free(&self, from: u64, to: u64) -> Option<Run> {
        let to = to.min(self.limit);
        let at = self.busy.next(from.max(self.floor), to, false);
        let end = self.busy.next(at, to, true);
        (at < to).then(|| Run::new(at, end - at))
    }

    /// Marks allocated numbers used.
    pub(crate) fn mark_used(&mut self, run: Run) -> Result<()> {
        self.check(self.is_busy(run) && self.is_unused(run), run)?;
        self.used.set(run.start, run.len);
        self.touch(run);
        Ok(())
    }

    /// Marks used numbers unused; they stay busy until [`Space::release`].
    pub(crate) fn mark_unused(&mut self, run: Run) -> Result<()> {
        self.check(self.is_used(run), run)?;
        self.used.clear(run.start, run.len);
        self.freed += run.len;
        self.touch(run);
        Ok(())
    }

    /// Marks numbers busy that no one holds: a grant remembered from before a restart.
    pub(crate) fn reserve(&mut self, run: Run) -> Result<()> {
        self.check(self.is_free(run), run)?;
        self.take(run);
        Ok(())
    }

    /// Raises the limit to `limit`, at most what the bitmap has room for. Pages that come to lie
    /// below it are empty: the next commit writes them, and what an earlier one that never happened
    /// left in them goes.
    pub(crate) fn grow(&mut self, limit: u64, meta: &Region) -> Result<()> {
        if limit < self.limit || limit > self.pages.len() as u64 * BITS_PER_PAGE {
            return Err(Error::Geometry {
                what: "the pool cannot grow to this size",
            });
        }
        for i in self.pages_below(self.limit)..self.pages_below(limit) {
            meta.zero_nt(self.at(i, 1), PAGE)?;
            self.pages[i] = PageState {
                copy: 1,
                backed: 0,
                changed: true,
            };
        }
        self.limit = limit;
        Ok(())
    }

    /// Lowers the limit to `limit`; false when something beyond it is busy.
    pub(crate) fn shrink(&mut self, limit: u64) -> bool {
        let gone = self.limit.saturating_sub(limit);
        if limit < self.floor || !self.busy.all_clear(limit, gone) {
            return false;
        }
        self.limit = limit;
        self.next = self.next.min(limit);
        true
    }

    fn touch(&mut self, run: Run) {
        let last = (run.end() - 1) / BITS_PER_PAGE;
        for i in run.start / BITS_PER_PAGE..=last {
            self.pages[i as usize].changed = true;
        }
    }
}

#[cfg(test)]
mod tests;
