//! The table of free extents: a ring for each size class, and one for what clients give back.
//!
//! What always holds here:
//! - A ring of a class has the extents number `taken..put`; number *n* is word *n* modulo
//!   `RING_EXTENTS`. Only the service puts, and it keeps its own counts ([`Feed`]). Whoever raises
//!   `taken` from *n* to *n* + 1 has extent *n*. The service fills a word again only after that,
//!   so a word stays the same for as long as its number can be taken.
//! - In the ring of what is given back a word that is not 0 is an extent: clients make a 0 an
//!   extent, the service makes it a 0 again. Both are one atomic step, so a process that dies in
//!   between leaves the extent in one place or in none.
//! - Any bytes may be here. A ring with impossible counts is empty, and the blocks that a word
//!   names are judged by who takes it.

use super::{CLASSES, FreeTable, RING_EXTENTS, Ring};
use crate::space::Run;
use alloc::vec::Vec;
use holdfast_pmem::atomic::AtomicU64;
use holdfast_pmem::atomic::Ordering::*;

/// Low bits of an extent's word that hold its length; its first block is above.
const LEN_BITS: u32 = 16;
/// Blocks of the longest extent that fits a word.
pub const EXTENT_MAX: u64 = (1 << LEN_BITS) - 1;
/// Looks at a ring that others change all the time.
const TRIES: usize = 100;

/// The word of an extent; 0 if it has no blocks.
#[inline]
pub fn pack(extent: Run) -> u64 {
    match extent.len {
        0 => 0,
        len => extent.start << LEN_BITS | len,
    }
}

/// The extent of a word.
#[inline]
pub fn unpack(word: u64) -> Run {
    Run::new(word >> LEN_BITS, word & EXTENT_MAX)
}

/// The class of extents of `len` blocks: class *n* has 2^n blocks and less than twice as many, the
/// last one everything longer.
#[inline]
pub fn class_of(len: u64) -> usize {
    (len.max(1).ilog2() as usize).min(CLASSES - 1)
}

impl Ring {
    #[inline]
    fn word(&self, number: u64) -> &AtomicU64 {
        &self.words[number as usize % RING_EXTENTS]
    }

    /// How many extents are there.
    #[inline]
    pub fn count(&self) -> u64 {
        let taken = self.taken.load(Acquire);
        let there = self.put.load(Acquire).wrapping_sub(taken);
        if there <= RING_EXTENTS as u64 {
            there
        } else {
            0
        }
    }

    /// Takes the next extent if it has at least `least` blocks; also says how many are left.
    #[inline]
    pub fn take(&self, least: u64) -> Option<(Run, u64)> {
        loop {
            let (next, left) = (self.taken.load(Acquire), self.count());
            if left == 0 {
                return None;
            }
            let extent = unpack(self.word(next).load(Relaxed));
            if extent.len < least {
                return None;
            }
            let after = next.wrapping_add(1);
            let taken = self.taken.compare_exchange(next, after, AcqRel, Relaxed);
            if taken.is_ok() {
                return Some((extent, left - 1));
            }
        }
    }

    /// Blocks of all extents that are there, about.
    pub fn blocks(&self) -> u64 {
        let first = self.taken.load(Acquire);
        let numbers = (0..self.count()).map(|n| first.wrapping_add(n));
        numbers
            .map(|n| unpack(self.word(n).load(Relaxed)).len)
            .sum()
    }

    /// Puts an extent into the ring of what is given back; false: there is no room.
    pub fn give_back(&self, extent: Run) -> bool {
        let word = pack(extent);
        for _ in 0..TRIES {
            // The service may go past what was put a moment ago.
            let taken = self.taken.load(Acquire);
            let put = self.put.load(Acquire);
            if put.wrapping_sub(taken) >= RING_EXTENTS as u64 {
                return false;
            }
            let cell = self.word(put);
            let filled = cell.compare_exchange(0, word, AcqRel, Relaxed).is_ok();
            let after = put.wrapping_add(1);
            // If somebody else filled it and did not come to count it, we do that.
            let counted = self.put.compare_exchange(put, after, AcqRel, Relaxed);
            // Where others were faster the service may have looked here before: then we take it
            // out again, unless it found it.
            if filled
                && (counted.is_ok() || cell.compare_exchange(word, 0, AcqRel, Relaxed).is_err())
            {
                return true;
            }
        }
        false
    }
}

/// The service's end of a ring: what it counted itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Feed {
    put: u64,
    taken: u64,
}

impl Feed {
    /// The end of a ring that an earlier service filled. With counts that are impossible it begins
    /// anew, with the ring empty.
    pub fn resume(ring: &Ring) -> Feed {
        let (put, taken) = (ring.put.load(Acquire), ring.taken.load(Acquire));
        let held = put.checked_sub(taken);
        if held.is_some_and(|held| held <= RING_EXTENTS as u64) && put <= u64::MAX / 2 {
            return Feed { put, taken };
        }
        ring.taken.store(0, Release);
        ring.put.store(0, Release);
        Feed::default()
    }

    /// Extents that nobody had taken at the last look.
    pub fn count(&self) -> u64 {
        self.put - self.taken
    }

    /// How many more there is room for.
    pub fn room(&self) -> u64 {
        RING_EXTENTS as u64 - self.count()
    }

    fn extents<'a>(&self, ring: &'a Ring, to: u64) -> impl Iterator<Item = Run> + 'a {
        (self.taken..to).map(|n| unpack(ring.word(n).load(Relaxed)))
    }

    /// Sees what was taken since the last look: how many extents, of how many blocks.
    pub fn look(&mut self, ring: &Ring) -> (u64, u64) {
        let taken = ring.taken.load(Acquire).clamp(self.taken, self.put);
        let blocks = self.extents(ring, taken).map(|extent| extent.len).sum();
        let extents = taken - self.taken;
        self.taken = taken;
        (extents, blocks)
    }

    /// Adds an extent, for which there is room; clients see it after [`Feed::publish`].
    pub fn push(&mut self, ring: &Ring, extent: Run) {
        assert!(self.room() > 0 && extent.len <= EXTENT_MAX, "{extent:?}");
        ring.word(self.put).store(pack(extent), Relaxed);
        self.put += 1;
    }

    /// Lets clients have what was added.
    pub fn publish(&self, ring: &Ring) {
        ring.put.store(self.put, Release);
    }

    /// Takes all but the last `keep` extents out again. Nothing, if others take all the time.
    pub fn take_back(&mut self, ring: &Ring, keep: u64) -> Vec<Run> {
        for _ in 0..TRIES {
            self.look(ring);
            let to = self.put.saturating_sub(keep);
            if to <= self.taken {
                break;
            }
            let taken = ring.taken.compare_exchange(self.taken, to, AcqRel, Relaxed);
            if taken.is_ok() {
                let all = self.extents(ring, to).collect();
                self.taken = to;
                return all;
            }
        }
        Vec::new()
    }

    /// Takes what clients gave back.
    pub fn collect(&mut self, ring: &Ring) -> Vec<Run> {
        let there = ring.put.load(Acquire).wrapping_sub(self.taken);
        let to = match there <= RING_EXTENTS as u64 {
            true => self.taken.wrapping_add(there),
            false => self.taken,
        };
        let mut all = Vec::new();
        // Behind the last one there may be one that its process did not come to count.
        for n in 0..=to.wrapping_sub(self.taken) {
            let word = ring.word(self.taken.wrapping_add(n));
            if word.load(Relaxed) != 0 {
                all.push(unpack(word.swap(0, AcqRel)));
            }
        }
        (self.put, self.taken) = (to, to);
        ring.taken.store(to, Release);
        all.retain(|extent| extent.len > 0);
        all
    }
}

impl FreeTable {
    /// Blocks in the whole table, about.
    pub fn blocks(&self) -> u64 {
        let classes = self.classes.iter().map(Ring::blocks).sum::<u64>();
        classes + self.given_back.blocks()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use holdfast_pmem::Shared;
    use std::collections::VecDeque;

    fn ring() -> Box<Ring> {
        Ring::boxed_zeroed()
    }

    #[test]
    fn classes_are_powers_of_two() {
        let lens = [0, 1, 2, 3, 4, 255, 256, 511, 512, 513, EXTENT_MAX];
        assert_eq!(lens.map(class_of), [0, 0, 1, 1, 2, 7, 8, 8, 9, 9, 9]);
        assert_eq!(
            unpack(pack(Run::new(77, EXTENT_MAX))),
            Run::new(77, EXTENT_MAX)
        );
        assert_eq!(pack(Run::new(77, 0)), 0);
    }

    #[test]
    fn a_ring_is_a_queue_that_both_ends_can_take_from() {
        let (ring, mut feed, mut model) = (ring(), Feed::default(), VecDeque::new());
        let mut x = 88_172_645_463_325_252u64;
        for n in 1..60_000u64 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            match x % 100 {
                0..50 if feed.room() > 0 => {
                    let extent = Run::new(n, 1 + x / 100 % 9);
                    feed.push(&ring, extent);
                    model.push_back(extent);
                }
                98 => {
                    feed.publish(&ring);
                    let keep = x / 100 % 20;
                    let back = feed.take_back(&ring, keep);
                    let n = model.len().saturating_sub(keep as usize);
                    assert_eq!(back, model.drain(..n).collect::<Vec<_>>());
                }
                _ => {
                    feed.publish(&ring);
                    let least = 1 + x / 100 % 9;
                    let next = model.front().filter(|next| next.len >= least);
                    let wanted = next.map(|next| (*next, model.len() as u64 - 1));
                    assert_eq!(ring.take(least), wanted);
                    let blocks = wanted.map_or((0, 0), |(next, _)| (1, next.len));
                    assert_eq!(feed.look(&ring), blocks);
                    model.drain(..blocks.0 as usize);
                }
            }
        }
        feed.publish(&ring);
        assert_eq!(ring.blocks(), model.iter().map(|extent| extent.len).sum());
    }

    #[test]
    fn what_is_given_back_is_collected_once() {
        let (ring, mut feed) = (ring(), Feed::default());
        for round in 0..5 {
            let all: Vec<_> = (0..RING_EXTENTS as u64)
                .map(|n| Run::new(n + round, 1 + n % 7))
                .collect();
            assert!(all.iter().all(|extent| ring.give_back(*extent)));
            assert!(!ring.give_back(Run::new(1, 1)), "there is no room");
            assert_eq!(feed.collect(&ring), all);
            assert_eq!(feed.collect(&ring), []);
        }
    }

    #[test]
    fn what_a_dead_process_did_not_count_is_collected() {
        let (ring, mut feed) = (ring(), Feed::default());
        ring.word(0).store(pack(Run::new(5, 2)), Relaxed);
        assert_eq!(feed.collect(&ring), [Run::new(5, 2)]);
        ring.word(0).store(pack(Run::new(6, 2)), Relaxed);
        assert!(ring.give_back(Run::new(9, 1)));
        assert_eq!(feed.collect(&ring), [Run::new(6, 2), Run::new(9, 1)]);
    }

    #[test]
    fn impossible_counts_are_an_empty_ring() {
        for (put, taken) in [
            (5, 11u64.wrapping_neg()),
            (0, 1),
            (u64::MAX, 0),
            (1 << 40, 0),
        ] {
            let ring = ring();
            ring.put.store(put, Relaxed);
            ring.taken.store(taken, Relaxed);
            assert!(ring.take(1).is_none() || ring.count() > 0);
            let _ = (ring.give_back(Run::new(1, 1)), ring.blocks());
            let mut feed = Feed::resume(&ring);
            assert_eq!((feed.count(), ring.count()), (0, 0));
            feed.push(&ring, Run::new(3, 4));
            feed.publish(&ring);
            assert_eq!(ring.take(1), Some((Run::new(3, 4), 0)));
            ring.taken.store(u64::MAX, Relaxed);
            assert_eq!((feed.look(&ring), feed.look(&ring)), ((1, 4), (0, 0)));
            ring.put.store(u64::MAX - 3, Relaxed);
            assert!(feed.collect(&ring).len() <= RING_EXTENTS);
        }
    }
}
