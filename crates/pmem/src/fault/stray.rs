//! Which memory is protected, and what is said of a stray store into it.
//!
//! What always holds here: looking and saying take no lock and allocate nothing, so a handler of
//! signals may do both.

use crate::PAGE;
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// As many protected regions are known at a time; others are protected, and not spoken of.
const REGIONS: usize = 16;

static KNOWN: [Known; REGIONS] = [const { Known::new() }; REGIONS];

/// A protected region.
struct Known {
    /// 0: none.
    start: AtomicUsize,
    len: AtomicUsize,
}

impl Known {
    const fn new() -> Known {
        Known {
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
        }
    }
}

/// That a region is known to be protected.
pub(crate) struct Protected(Option<&'static Known>);

impl Protected {
    pub fn new(start: usize, len: usize) -> Protected {
        let free = KNOWN.iter().find(|known| {
            let taken = known.start.compare_exchange(0, start, AcqRel, Relaxed);
            taken.is_ok()
        });
        if let Some(known) = free {
            known.len.store(len, Release);
        }
        Protected(free)
    }
}

impl Drop for Protected {
    fn drop(&mut self) {
        if let Some(known) = self.0 {
            known.len.store(0, Release);
            known.start.store(0, Release);
        }
    }
}

/// Where in a protected region an address is.
pub(super) fn find(address: usize) -> Option<usize> {
    KNOWN.iter().find_map(|known| {
        let off = address.checked_sub(known.start.load(Acquire))?;
        (off < known.len.load(Acquire)).then_some(off)
    })
}

/// One line.
pub(super) struct Report {
    text: [u8; 160],
    len: usize,
}

impl Report {
    pub fn new(off: usize, address: usize, instruction: usize) -> Report {
        let mut report = Report {
            text: [0; 160],
            len: 0,
        };
        report.say(b"holdfast: a stray store to block ");
        report.number(off / PAGE, 10);
        report.say(b" of the pool's data was stopped (address 0x");
        report.number(address, 16);
        report.say(b", by the instruction at 0x");
        report.number(instruction, 16);
        report.say(b")\n");
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
             0x7f0012345007, by the instruction at 0xffffffffffffffff)\n"
        );
    }

    #[test]
    fn only_what_is_protected_is_found() {
        let start = 0x5000_0000_0000;
        let one = Protected::new(start, 100);
        assert_eq!(find(start), Some(0));
        assert_eq!(find(start + 99), Some(99));
        assert_eq!(
            (find(start + 100), find(start - 1), find(0)),
            (None, None, None)
        );
        drop(one);
        assert_eq!(find(start), None);
    }
}
