//! A set of numbers below a limit, one bit each.
//!
//! Invariant: numbers at or above the limit are never in the set.

use alloc::vec;
use alloc::vec::Vec;

pub(super) struct Set {
    words: Vec<u64>,
    limit: u64,
}

impl Set {
    pub fn new(limit: u64) -> Self {
        Set {
            words: vec![0; limit.div_ceil(64) as usize],
            limit,
        }
    }

    pub fn has(&self, n: u64) -> bool {
        self.words
            .get((n / 64) as usize)
            .is_some_and(|w| w >> (n % 64) & 1 == 1)
    }

    /// Adds `start .. start + len`; the first that was there before or is above the limit.
    pub fn add(&mut self, start: u64, len: u64) -> Option<u64> {
        let mut bad = None;
        for n in start..start.saturating_add(len) {
            if n >= self.limit {
                return bad.or(Some(n));
            }
            if self.has(n) {
                bad = bad.or(Some(n));
            }
            self.words[(n / 64) as usize] |= 1 << (n % 64);
        }
        bad
    }

    pub fn count(&self) -> u64 {
        self.words.iter().map(|w| u64::from(w.count_ones())).sum()
    }

    pub fn word(&self, i: u64) -> u64 {
        usize::try_from(i)
            .ok()
            .and_then(|i| self.words.get(i))
            .copied()
            .unwrap_or(0)
    }
}
