//! A set of blocks, one bit each: each commit adds and removes thousands of single blocks.
//!
//! Invariants: blocks from `limit` on are never in the set; all that are in it lie in `span`.

use holdfast_pool::space::Bits;
use std::ops::Range;

/// A set of blocks.
pub struct Runs {
    bits: Bits,
    limit: u64,
    span: Range<u64>,
}

impl Runs {
    /// An empty set of blocks below `limit`.
    pub fn new(limit: u64) -> Runs {
        Runs {
            bits: Bits::new(limit.div_ceil(64) as usize),
            limit,
            span: limit..0,
        }
    }

    /// Blocks below `limit` may be in it, which is no lower than before.
    pub fn grow(&mut self, limit: u64) {
        self.bits.grow(limit.div_ceil(64) as usize);
        self.limit = limit;
    }

    /// Blocks in the set.
    pub fn len(&self) -> u64 {
        self.bits.count()
    }

    /// Adds blocks; those that are in the set stay in.
    pub fn insert(&mut self, start: u64, len: u64) {
        let end = start.saturating_add(len).min(self.limit);
        if start < end {
            self.bits.set(start, end - start);
            self.span = self.span.start.min(start)..self.span.end.max(end);
        }
    }

    /// True if all of the blocks are in the set.
    pub fn contains(&self, start: u64, len: u64) -> bool {
        let end = start.checked_add(len);
        end.is_some() && (len == 0 || self.bits.all_set(start, len))
    }

    /// Takes blocks out of the set, as far as they are in it; says how many were.
    pub fn remove(&mut self, start: u64, len: u64) -> u64 {
        let before = self.bits.count();
        self.bits.clear(start, len);
        before - self.bits.count()
    }

    /// The runs in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let Range { mut start, end } = self.span;
        std::iter::from_fn(move || {
            let first = self.bits.next(start, end, true);
            start = self.bits.next(first, end, false);
            (first < end).then(|| (first, start - first))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_it_had_stays_when_it_grows() {
        let mut runs = Runs::new(100);
        runs.insert(90, 20);
        runs.grow(1000);
        assert!(!runs.contains(100, 1));
        runs.insert(800, 300);
        assert_eq!(runs.iter().collect::<Vec<_>>(), [(90, 10), (800, 200)]);
        assert_eq!(runs.len(), 210);
    }

    #[test]
    fn behaves_as_a_set_of_blocks() {
        let mut model = BTreeSet::new();
        let mut runs = Runs::new(220);
        let mut x = 7u64;
        for _ in 0..5000 {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let (start, len) = ((x >> 33) % 200, (x >> 50) % 20);
            match x >> 61 & 3 {
                0 | 1 => {
                    runs.insert(start, len);
                    model.extend(start..start + len);
                }
                2 => {
                    let gone = (start..start + len).filter(|b| model.remove(b)).count();
                    assert_eq!(runs.remove(start, len), gone as u64);
                }
                _ => {
                    let all = (start..start + len).all(|b| model.contains(&b));
                    assert_eq!(runs.contains(start, len), all);
                }
            }
            assert_eq!(runs.len(), model.len() as u64);
        }
        let flat: Vec<u64> = runs.iter().flat_map(|(s, l)| s..s + l).collect();
        assert_eq!(flat, model.into_iter().collect::<Vec<_>>());
        assert!(
            runs.iter()
                .zip(runs.iter().skip(1))
                .all(|(a, b)| a.0 + a.1 < b.0)
        );
    }

    #[test]
    fn hostile_numbers_are_refused() {
        let mut runs = Runs::new(220);
        runs.insert(u64::MAX, 5);
        assert_eq!(runs.len(), 0);
        assert!(!runs.contains(u64::MAX, 2));
        assert_eq!(runs.remove(u64::MAX - 1, 9), 0);
    }
}
