//! A bit set with runs.
//!
//! What always holds here: `count` is the number of set bits; ranges outside the set are
//! treated as set when asked, and ignored when changed.

use alloc::vec;
use alloc::vec::Vec;

/// Bits in 64-bit words.
#[derive(Clone)]
pub struct Bits {
    words: Vec<u64>,
    count: u64,
}

/// The bits of word `w` that lie in `start .. end`.
fn mask(w: u64, start: u64, end: u64) -> u64 {
    let low = start.saturating_sub(w * 64);
    let high = end.saturating_sub(w * 64).min(64);
    if low >= high {
        return 0;
    }
    (u64::MAX >> (64 - (high - low))) << low
}

impl Bits {
    /// `words` words of clear bits.
    pub fn new(words: usize) -> Bits {
        Bits {
            words: vec![0; words],
            count: 0,
        }
    }

    /// Has so many words, no fewer than before.
    pub fn grow(&mut self, words: usize) {
        debug_assert!(words >= self.words.len());
        self.words.resize(words, 0);
    }

    /// Bits set.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Bits set in a range that starts and ends on multiples of 64.
    pub fn count_in(&self, start: u64, len: u64) -> u64 {
        let words = self.words((start / 64) as usize, (len / 64) as usize);
        words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    fn len(&self) -> u64 {
        self.words.len() as u64 * 64
    }

    /// Part of the words, as they are.
    pub fn words(&self, first: usize, len: usize) -> &[u64] {
        self.words.get(first..first + len).unwrap_or(&[])
    }

    /// Replaces words from `first` on.
    pub fn load(&mut self, first: usize, words: &[u64]) {
        for (slot, &word) in self.words.iter_mut().skip(first).zip(words) {
            self.count -= u64::from(slot.count_ones());
            self.count += u64::from(word.count_ones());
            *slot = word;
        }
    }

    fn change(&mut self, start: u64, len: u64, set: bool) {
        let end = start.saturating_add(len).min(self.len());
        for w in start / 64..end.div_ceil(64) {
            let mask = mask(w, start, end);
            let Some(word) = self.words.get_mut(w as usize) else {
                return;
            };
            self.count -= u64::from((*word & mask).count_ones());
            *word = if set { *word | mask } else { *word & !mask };
            self.count += u64::from((*word & mask).count_ones());
        }
    }

    pub fn set(&mut self, start: u64, len: u64) {
        self.change(start, len, true);
    }

    pub fn clear(&mut self, start: u64, len: u64) {
        self.change(start, len, false);
    }

    pub fn all_set(&self, start: u64, len: u64) -> bool {
        self.all(start, len, true)
    }

    pub fn all_clear(&self, start: u64, len: u64) -> bool {
        self.all(start, len, false)
    }

    fn all(&self, start: u64, len: u64, set: bool) -> bool {
        let end = start.saturating_add(len);
        end <= self.len()
            && (start / 64..end.div_ceil(64)).all(|w| {
                let mask = mask(w, start, end);
                let word = self.words.get(w as usize).map_or(0, |word| word & mask);
                word == if set { mask } else { 0 }
            })
    }

    /// The first bit in `from .. limit` that is `set`, else `limit`.
    pub fn next(&self, from: u64, limit: u64, set: bool) -> u64 {
        let limit = limit.min(self.len());
        let mut w = from / 64;
        let mut keep = u64::MAX << (from % 64);
        while w * 64 < limit {
            let word = self.words.get(w as usize).copied().unwrap_or(0);
            let hits = (if set { word } else { !word }) & keep;
            if hits != 0 {
                return (w * 64 + u64::from(hits.trailing_zeros())).min(limit);
            }
            keep = u64::MAX;
            w += 1;
        }
        limit
    }

    /// The first run of `len` clear bits in `from .. limit` that starts at a multiple of `align`.
    pub fn find_clear(&self, from: u64, limit: u64, len: u64, align: u64) -> Option<u64> {
        let limit = limit.min(self.len());
        let mut at = from;
        loop {
            at = self
                .next(at, limit, false)
                .checked_next_multiple_of(align)?;
            let end = at.checked_add(len)?;
            if len == 0 || end > limit {
                return None;
            }
            let stop = self.next(at, end, true);
            if stop == end {
                return Some(at);
            }
            at = stop + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_behave_as_a_plain_set() {
        let mut bits = Bits::new(40);
        let mut plain = [false; 2560];
        let mut x = 88172645463325252u64;
        for _ in 0..4000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let (start, len, set) = (x % 2560, (x >> 20) % 200, x >> 40 & 1 == 0);
            if set {
                bits.set(start, len)
            } else {
                bits.clear(start, len)
            }
            plain
                .iter_mut()
                .skip(start as usize)
                .take(len as usize)
                .for_each(|b| *b = set);
            assert_eq!(bits.count(), plain.iter().filter(|b| **b).count() as u64);
            let (len, align) = (1 + (x >> 30) % 90, 1 << ((x >> 50) % 5));
            let free = |at: &u64| {
                at.is_multiple_of(align)
                    && (at + len) as usize <= plain.len()
                    && plain[*at as usize..(at + len) as usize].iter().all(|b| !b)
            };
            let expected = (start..2560).find(free);
            assert_eq!(bits.find_clear(start, 2560, len, align), expected);
        }
    }

    #[test]
    fn ranges_outside_are_neither_set_nor_clear() {
        let bits = Bits::new(1);
        assert!(bits.all_clear(0, 64) && !bits.all_clear(0, 65) && !bits.all_set(1 << 60, 2));
        assert!(!bits.all_clear(u64::MAX, 5));
    }
}
