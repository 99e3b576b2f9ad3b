//! A set of blocks as runs.
//!
//! Invariants: runs are not empty, do not touch each other and do not overlap; `len` is the
//! number of blocks in the set.

use std::collections::BTreeMap;

/// A set of blocks.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    by_start: BTreeMap<u64, u64>,
    len: u64,
}

impl Runs {
    /// Blocks in the set.
    #[cfg(test)]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Adds blocks that are not in the set; those that are stay in.
    pub fn insert(&mut self, start: u64, len: u64) {
        let Some(end) = start.checked_add(len).filter(|_| len > 0) else {
            return;
        };
        self.remove(start, len);
        let (mut first, mut last) = (start, end);
        if let Some((&s, &l)) = self.by_start.range(..start).next_back()
            && s + l == start
        {
            self.by_start.remove(&s);
            first = s;
        }
        if let Some(l) = self.by_start.remove(&end) {
            last = end + l;
        }
        self.by_start.insert(first, last - first);
        self.len += len;
    }

    /// True if all of the blocks are in the set.
    pub fn contains(&self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len) else {
            return false;
        };
        len == 0
            || self
                .by_start
                .range(..=start)
                .next_back()
                .is_some_and(|(&s, &l)| end <= s + l)
    }

    /// Takes blocks out of the set, as far as they are in it; says how many were.
    pub fn remove(&mut self, start: u64, len: u64) -> u64 {
        let Some(end) = start.checked_add(len).filter(|_| len > 0) else {
            return 0;
        };
        let from = match self.by_start.range(..=start).next_back() {
            Some((&s, &l)) if s + l > start => s,
            _ => start,
        };
        let hit: Vec<(u64, u64)> = self
            .by_start
            .range(from..end)
            .map(|(&s, &l)| (s, l))
            .collect();
        let mut removed = 0;
        for (s, l) in hit {
            self.by_start.remove(&s);
            if s < start {
                self.by_start.insert(s, start - s);
            }
            if s + l > end {
                self.by_start.insert(end, s + l - end);
            }
            removed += (s + l).min(end) - s.max(start);
        }
        self.len -= removed;
        removed
    }

    /// The runs in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_start.iter().map(|(&s, &l)| (s, l))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn behaves_as_a_set_of_blocks() {
        let mut model = BTreeSet::new();
        let mut runs = Runs::default();
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
        let mut runs = Runs::default();
        runs.insert(u64::MAX, 5);
        assert_eq!(runs.len(), 0);
        assert!(!runs.contains(u64::MAX, 2));
        assert_eq!(runs.remove(u64::MAX - 1, 9), 0);
    }
}
