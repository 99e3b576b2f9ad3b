//! Page-table entries of shared memory, made for several pages at once before they are needed:
//! making one this way takes half as long as a fault.
//!
//! Invariant: this is only for speed. That a window was filled is a guess: another window may share
//! its bit, and a child of this process begins with fewer entries than it assumes.

use alloc::sync::Arc;
use pmem::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Bytes of a window.
pub const WINDOW: u64 = 64 * 1024;
/// Windows that have bits of their own: of 4 GiB.
const WINDOWS: u64 = 64 * 1024;
/// A process that comes to fewer places will not use the other pages of their windows.
const FEW: u32 = 64;

/// Which windows of one mapping this process has filled.
pub struct Windows {
    bits: Arc<[AtomicU64]>,
    places: AtomicU32,
}

impl Windows {
    /// None of `len` bytes.
    pub fn new(len: u64) -> Windows {
        let windows = len.div_ceil(WINDOW).min(WINDOWS);
        let words = windows.div_ceil(64).max(1);
        Windows {
            bits: (0..words).map(|_| AtomicU64::new(0)).collect(),
            places: AtomicU32::new(0),
        }
    }

    /// Of the same mapping, for another process whose calls this one makes.
    pub fn another(&self) -> Windows {
        Windows {
            bits: self.bits.clone(),
            places: AtomicU32::new(0),
        }
    }

    /// The bytes from `at` to `end` are used next: has `fill` called with the offset of each of
    /// their windows that was not filled.
    #[inline]
    pub fn enter(&self, at: u64, end: u64, fill: impl Fn(u64)) {
        for window in at / WINDOW..end.div_ceil(WINDOW) {
            let word = &self.bits[(window / 64) as usize % self.bits.len()];
            let bit = 1 << (window % 64);
            if word.load(Relaxed) & bit == 0 && self.is_worth_it() {
                word.fetch_or(bit, Relaxed);
                fill(window * WINDOW);
            }
        }
    }

    #[cold]
    fn is_worth_it(&self) -> bool {
        self.places.load(Relaxed) >= FEW || self.places.fetch_add(1, Relaxed) >= FEW
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::RefCell;
    use std::vec::Vec;

    fn entered(windows: &Windows, at: u64, end: u64) -> Vec<u64> {
        let filled = RefCell::new(Vec::new());
        windows.enter(at, end, |at| filled.borrow_mut().push(at / WINDOW));
        filled.into_inner()
    }

    #[test]
    fn each_window_is_filled_once_and_none_for_a_process_that_does_little() {
        let windows = Windows::new(100 * WINDOW);
        for place in 0..u64::from(FEW) {
            assert!(entered(&windows, place, place + 8).is_empty());
        }
        assert_eq!(entered(&windows, 5 * WINDOW - 8, 6 * WINDOW + 1), [4, 5, 6]);
        assert_eq!(entered(&windows, 5 * WINDOW, 7 * WINDOW + 1), [7]);
        assert!(entered(&windows, 4 * WINDOW, 8 * WINDOW).is_empty());
        assert!(entered(&windows, 9 * WINDOW, 9 * WINDOW).is_empty());
        // Beyond the end others have the bits.
        assert!(!entered(&windows, 1000 * WINDOW, 1001 * WINDOW).is_empty());
    }
}
