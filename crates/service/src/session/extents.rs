//! The service's end of the table of free extents.
//!
//! Invariants: what was put into each ring, and how far it was seen taken, is counted here; of
//! session memory only `taken` is believed, between what it was and what was put. What the words of
//! the table say may be wrong: only what was granted is taken back, so that costs the session its
//! own space.

use crate::session::memory::Memory;
use holdfast_pmem::atomic::{AtomicU64, Ordering::*};
use holdfast_pool::session::free_table::{Feed, class_of, unpack};
use holdfast_pool::session::{CACHED_SHORT, CACHED_WHOLE, CLASSES, WHOLE, WHOLE_BLOCKS};
use holdfast_pool::space::Run;

/// The table of one session.
#[derive(Debug)]
pub struct Extents {
    classes: [Feed; CLASSES],
    given_back: Feed,
    /// Blocks in the shorter extents, those that were not seen taken.
    short: u64,
}

impl Extents {
    /// The table as an earlier service left it, or empty in a new session.
    pub fn resume(memory: &Memory) -> Extents {
        let table = memory.free_table();
        Extents {
            classes: table.classes.each_ref().map(Feed::resume),
            given_back: Feed::resume(&table.given_back),
            short: table.classes[..WHOLE]
                .iter()
                .map(|ring| ring.blocks())
                .sum(),
        }
    }

    /// Whole extents that are left.
    pub fn whole(&self) -> u64 {
        self.classes[WHOLE].count()
    }

    /// Blocks that are left in shorter ones.
    pub fn short(&self) -> u64 {
        self.short
    }

    /// How many more extents of `len` blocks there is room for.
    pub fn room(&self, len: u64) -> u64 {
        self.classes[class_of(len)].room()
    }

    /// Sees what clients took since the last look; how many whole extents.
    pub fn look(&mut self, memory: &Memory) -> u64 {
        let mut whole = 0;
        for (class, ring) in memory.free_table().classes.iter().enumerate() {
            let (extents, blocks) = self.classes[class].look(ring);
            match class {
                WHOLE => whole = extents,
                _ => self.short = self.short.saturating_sub(blocks),
            }
        }
        if self.classes[..WHOLE].iter().all(|feed| feed.count() == 0) {
            self.short = 0;
        }
        whole
    }

    /// Lets clients have these extents, for which there is room.
    pub fn publish(&mut self, memory: &Memory, extents: &[Run]) {
        let table = memory.free_table();
        for extent in extents {
            let class = class_of(extent.len);
            self.classes[class].push(&table.classes[class], *extent);
            if class != WHOLE {
                self.short += extent.len;
            }
        }
        for (feed, ring) in self.classes.iter().zip(&table.classes) {
            feed.publish(ring);
        }
    }

    /// The whole extent that was put last comes first.
    pub fn put_last_first(&mut self, memory: &Memory) {
        let mut others = self.take_whole(memory, 1);
        others.retain(is_whole);
        self.publish(memory, &others);
    }

    /// Takes back all but the first `keep` whole extents.
    pub fn take_whole_back(&mut self, memory: &Memory, keep: usize) -> Vec<Run> {
        if self.whole() <= keep as u64 {
            return Vec::new();
        }
        let mut all = self.take_whole(memory, 0);
        let rest = all.split_off(keep.min(all.len()));
        all.retain(is_whole);
        self.publish(memory, &all);
        rest
    }

    /// Takes all but the last `keep` whole extents out of their ring.
    fn take_whole(&mut self, memory: &Memory, keep: u64) -> Vec<Run> {
        self.classes[WHOLE].take_back(&memory.free_table().classes[WHOLE], keep)
    }

    /// Takes all shorter extents back, and what processes have cached, but for what `keep` of them
    /// have of whole ones.
    pub fn take_short_back(&mut self, memory: &Memory, keep: usize) -> Vec<Run> {
        let cached = |nth: usize| memory.used_slots().map(move |slot| &slot.cached[nth]);
        let full = |word: &&AtomicU64| word.load(Relaxed) != 0;
        let whole = cached(CACHED_WHOLE).filter(full).skip(keep);
        let words = cached(CACHED_SHORT).filter(full).chain(whole);
        let mut all: Vec<Run> = words.map(|word| unpack(word.swap(0, AcqRel))).collect();
        let rings = memory.free_table().classes[..WHOLE].iter();
        for (feed, ring) in self.classes.iter_mut().zip(rings) {
            all.extend(feed.take_back(ring, 0));
        }
        self.look(memory);
        all
    }

    /// Takes what clients gave back.
    pub fn collect(&mut self, memory: &Memory) -> Vec<Run> {
        self.given_back.collect(&memory.free_table().given_back)
    }
}

/// Whether the extent belongs into the ring of whole ones, whatever session memory says.
fn is_whole(extent: &Run) -> bool {
    extent.len == WHOLE_BLOCKS
}
