//! Which memory is protected, and what is said of a stray store into it, and where it is counted.
//!
//! What always holds here:
//! - Looking, counting and saying take no lock and allocate nothing, so a handler of signals may do
//!   all of it.
//! - A word in which strays are counted stays mapped for as long as a region names it.

use crate::atomic::AtomicU64;
use crate::{PAGE, SharedMem};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};

/// As many protected regions are known at a time; others are protected, and not spoken of.
const REGIONS: usize = 16;

static KNOWN: [Known; REGIONS] = [const { Known::new() }; REGIONS];

/// A protected region.
struct Known {
    /// 0: none.
    start: AtomicUsize,
    len: AtomicUsize,
    /// Null: they are counted nowhere.
    count: AtomicPtr<AtomicU64>,
}

impl Known {
    const fn new() -> Known {
        Known {
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            count: AtomicPtr::new(core::ptr::null_mut()),
        }
    }
}

/// That a region is known to be protected.
pub(crate) struct Protected {
    known: Option<&'static Known>,
    /// What has the word in which strays are counted.
    memory: Option<SharedMem>,
}

impl Protected {
    pub fn new(start: usize, len: usize) -> Protected {
        let free = KNOWN.iter().find(|known| {
            let taken = known.start.compare_exchange(0, start, AcqRel, Relaxed);
            taken.is_ok()
        });
        if let Some(known) = free {
            known.len.store(len, Release);
        }
        Protected {
            known: free,
            memory: None,
        }
    }

    /// From now on strays are counted in the word at `off`, which whoever has that memory can read.
    pub fn count_in(&mut self, memory: &SharedMem, off: u64) {
        if let (Some(known), Some(word)) = (self.known, memory.at::<AtomicU64>(off)) {
            let word = core::ptr::from_ref(word).cast_mut();
            known.count.store(word, Release);
            self.memory = Some(memory.clone());
        }
    }
}

impl Drop for Protected {
    fn drop(&mut self) {
        if let Some(known) = self.known {
            known.len.store(0, Release);
            known.count.store(core::ptr::null_mut(), Release);
            known.start.store(0, Release);
        }
    }
}

/// A store into a protected region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stray {
    /// Where in the region.
    pub off: usize,
    count: *mut AtomicU64,
}

/// What a store to an address would be.
pub(super) fn find(address: usize) -> Option<Stray> {
    KNOWN.iter().find_map(|known| {
        let off = address.checked_sub(known.start.load(Acquire))?;
        (off < known.len.load(Acquire)).then(|| Stray {
            off,
            count: known.count.load(Acquire),
        })
    })
}

impl Stray {
    pub fn count(&self) {
        // SAFETY: null, or a word of the memory that the region's `Protected` has, which it gives
        // up only after the pointer. Should another thread close the region at this moment, this
        // process ends by the fault that it is about to end by.
        if let Some(count) = unsafe { self.count.as_ref() } {
            count.fetch_add(1, Relaxed);
        }
    }
}

/// One line.
pub(super) struct Report {
    text: [u8; 240],
    len: usize,
}

impl Report {
    pub fn new(off: usize, address: usize, instruction: usize) -> Report {
        let mut report = Report {
            text: [0; 240],
            len: 0,
        };
        report.say(b"holdfast: a stray store to block ");
        report.number(off / PAGE, 10);
        report.say(b" of the pool's data was stopped (address 0x");
        report.number(address, 16);
        report.say(b", by the instruction at 0x");
        report.number(instruction, 16);
        report.say(b"); holdfast pool block POOL ");
        report.number(off / PAGE, 10);
        report.say(b" tells whose it is\n");
        report
    }

    pub fn text(&self) -> &[u8] {
        self.text.get(..self.len).unwrap_or_default()
    }

    fn say(&mut self, words: &[u8]) {
        for byte in words {
            if let Some(place) = self.text.get_mut(self.len) {
                *place = *byte;
                self.len += 1;
            }
        }
    }

    fn number(&mut self, number: usize, base: usize) {
        let mut digits = [0; 20];
        let mut rest = number;
        let mut at = digits.len();
        loop {
            at -= 1;
            let digit = b"0123456789abcdef".get(rest % base).copied();
            if let (Some(place), Some(digit)) = (digits.get_mut(at), digit) {
                *place = digit;
            }
            rest /= base;
            if rest == 0 || at == 0 {
                break;
            }
        }
        self.say(digits.get(at..).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_which_block() {
        let report = Report::new(12_345 * PAGE + 7, 0x7f00_1234_5007, usize::MAX);
        assert_eq!(
            core::str::from_utf8(report.text()).unwrap(),
            "holdfast: a stray store to block 12345 of the pool's data was stopped (address \
             0x7f0012345007, by the instruction at 0xffffffffffffffff); holdfast pool block POOL \
             12345 tells whose it is\n"
        );
    }

    #[test]
    fn only_what_is_protected_is_found() {
        let start = 0x5000_0000_0000;
        let one = Protected::new(start, 100);
        let off = |address| find(address).map(|stray| stray.off);
        assert_eq!((off(start), off(start + 99)), (Some(0), Some(99)));
        assert_eq!(
            (off(start + 100), off(start - 1), off(0)),
            (None, None, None)
        );
        drop(one);
        assert_eq!(off(start), None);
    }

    #[test]
    fn strays_are_counted_where_that_is_wished() {
        let start = 0x5100_0000_0000;
        let memory = SharedMem::in_memory(PAGE).unwrap();
        let counted = || memory.at::<AtomicU64>(64).unwrap().load(Relaxed);
        let mut one = Protected::new(start, 100);
        find(start).unwrap().count();
        // Where no word can be, nothing is counted.
        one.count_in(&memory, PAGE as u64);
        find(start).unwrap().count();
        one.count_in(&memory, 64);
        find(start).unwrap().count();
        find(start + 99).unwrap().count();
        assert_eq!(counted(), 2);
        drop(one);
        // The place is used again, and the word is not.
        let next = Protected::new(start, 100);
        find(start).unwrap().count();
        assert_eq!(counted(), 2);
        drop(next);
    }
}
