//! Memory of the host behind numbers and bitmap pages, asked for before they are written.
//!
//! What always holds here: what was asked for and given is there until it is given back, so a store
//! to it does not fail because others filled the host meanwhile.

use super::{Run, Space};
use crate::format::bitmap::BITS_PER_PAGE;
use crate::format::{PAGE, PAGE_LEN};
use holdfast_pmem::Region;

/// Pages that are asked for at once, if they are free.
const WINDOW: u64 = 16;

impl Space {
    /// Has memory behind the pages that are handed out next, `need` of them, and behind what the
    /// next commit writes of the bitmap with them. False: the host refused; from then on only
    /// numbers that have memory are handed out one by one, until this is true again.
    pub(crate) fn back(&mut self, meta: &Region, need: u64) -> bool {
        let need = need.min(self.count_free());
        self.resident_only = false;
        self.resident_only = !self.back_next(meta, need);
        self.back_bitmap(meta, need) && (!self.resident_only || self.count_resident() >= need)
    }

    /// There is memory behind this run, of which what is free is resident then.
    pub(crate) fn found(&mut self, run: Run) {
        let mut at = run.start;
        while let Some(free) = self.next_free(at, run.end()) {
            self.resident.set(free.start, free.len);
            at = free.end();
        }
    }

    /// Whether the host refused memory the last time.
    pub fn is_short(&self) -> bool {
        self.resident_only
    }

    fn back_next(&mut self, meta: &Region, need: u64) -> bool {
        let (mut at, mut left) = (self.next, need);
        while left > 0 {
            let Some(free) = self.next_free(at, self.limit) else {
                if at == self.floor {
                    return true;
                }
                at = self.floor;
                continue;
            };
            let len = free.len.min(WINDOW);
            let run = Run::new(free.start, len);
            if !self.resident.all_set(run.start, len.min(left)) {
                let bytes = (run.len * PAGE_LEN) as usize;
                if meta.prefault(run.start * PAGE_LEN, bytes).is_err() {
                    return false;
                }
                self.resident.set(run.start, run.len);
            }
            at = run.end();
            left = left.saturating_sub(len);
        }
        true
    }

    /// Has memory behind the copies of bitmap pages that a commit writes which takes the next
    /// `need` numbers.
    pub(crate) fn back_bitmap(&mut self, meta: &Region, need: u64) -> bool {
        let (mut at, mut left) = (self.next, need);
        while left > 0 {
            let next = match self.resident_only {
                true => self.resident.next(at, self.limit, true),
                false => self.busy.next(at, self.limit, false),
            };
            if next >= self.limit {
                if at == self.floor {
                    break;
                }
                at = self.floor;
                continue;
            }
            if !self.back_page(meta, (next / BITS_PER_PAGE) as usize) {
                return false;
            }
            (at, left) = (next + 1, left - 1);
        }
        let changed = |i: &usize| self.pages[*i].changed;
        let changed: alloc::vec::Vec<usize> = (0..self.pages.len()).filter(changed).collect();
        changed.into_iter().all(|i| self.back_page(meta, i))
    }

    /// A page that was ever changed has both copies: where something is in use, giving it back
    /// takes no memory.
    fn back_page(&mut self, meta: &Region, i: usize) -> bool {
        let other = 1 - self.pages[i].copy;
        if self.pages[i].backed & 1 << other == 0 {
            if meta.prefault(self.at(i, other), PAGE).is_err() {
                return false;
            }
            self.pages[i].backed |= 1 << other;
        }
        true
    }

    /// Takes one number: the next one, or the next one with memory behind it where the host is
    /// short of it.
    pub(crate) fn alloc_one(&mut self) -> Option<Run> {
        if !self.resident_only {
            return self.alloc_run(1, 1);
        }
        let first = |from: u64| Some(self.resident.next(from, self.limit, true));
        let inside = |at: &u64| *at < self.limit;
        let found = first(self.next).filter(inside);
        let found = found.or_else(|| first(self.floor).filter(inside))?;
        let run = Run::new(found, 1);
        self.take(run);
        self.next = run.end();
        Some(run)
    }
}
