//! The memory under the segments: huge pages under what is in use, nothing under what is free.
//!
//! Invariants: only for speed and space, and only if the pool is kept in memory; memory is never
//! reclaimed under a page or block that is in use, granted, or that a reader may still look at; the
//! work is done while there is nothing else to do, a little at a time.

use crate::base::files::{self, Files};
use crate::store::room::BACKED;
use holdfast_pmem::env::Instant;
use holdfast_pmem::{Medium, Region};
use holdfast_pool::Pool;
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::space::{Run, Space};
use rustix::fd::OwnedFd;
use std::time::Duration;

/// Pages of a range: a huge page.
const RANGE: u64 = 512;
const RANGE_LEN: u64 = RANGE * PAGE_LEN;
/// How many of them must be in use for a huge page: of a tree, where the rest comes into use soon,
/// and of data, where it may not.
const WORTH_TREES: u64 = 448;
const WORTH_DATA: u64 = 480;
/// A huge page of which less is in use gives the rest back.
const WORTH_KEEPING: u64 = 384;
/// Trees with fewer pages are treated as data are: they are mostly in caches.
const SMALL: u64 = 8 * RANGE;
/// What one go may take, for data and for trees each: pauses are for those who make changes.
const TIME: Duration = Duration::from_millis(2);
/// What a huge page may take while somebody waits.
const CHEAP: Duration = Duration::from_micros(1500);
/// Free blocks between others that keep their memory, beside half of those in use: whoever writes
/// next finds it there.
const KEPT_DATA: u64 = 8 * 1024;
/// For so many times as long as the last page took no data is made huge: who reads it meanwhile
/// has to wait, and it gains less than trees do.
const PAUSE: u32 = 20;

/// What was done about the ranges of one segment.
#[derive(Debug, Default)]
struct Ranges {
    huge: Vec<bool>,
    empty: Vec<bool>,
    /// How many pages were in use when memory was taken from under the others.
    thin: Vec<u64>,
    /// What an earlier session left behind was found.
    known: bool,
    /// Bytes of the segment that have no memory, as the host said last.
    hole: std::ops::Range<u64>,
    next: usize,
    /// How many ranges this round has still to look at.
    left: usize,
    /// What the last round began with, if all that was to be done then was done.
    looked: Option<Look>,
}

/// What a round over all ranges goes by: where nothing of it changed since the last one began,
/// there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    len: u64,
    used: u64,
    /// What is taken and given back again leaves the numbers above as they were.
    released: u64,
    worth: u64,
    thin: bool,
}

/// What making the last page huge took, and when it was done.
type Last = Option<(Duration, Instant)>;

/// Looks after the memory under the segments.
#[derive(Debug, Default)]
pub struct Backing {
    trees: Ranges,
    data: Ranges,
    last: Last,
}

/// What one go has done.
#[derive(Default)]
struct Done {
    /// What has no memory behind it any more, and how much of it is still counted as resident.
    emptied: Vec<Run>,
    punched: u64,
    /// How many ranges were made huge.
    huge: usize,
}

/// One segment.
struct Segment<'a> {
    space: &'a Space,
    file: &'a OwnedFd,
    map: &'a Region,
    /// How many pages of a range must be in use for a huge page.
    worth: u64,
    /// How many pages may be made huge.
    most: usize,
    /// Memory is taken away also where only a part of a range is free.
    thin: bool,
    /// So many free pages keep their memory when it is taken from between pages in use, and when
    /// it is taken from a range that is free as a whole.
    kept: u64,
    kept_whole: u64,
}

impl Segment<'_> {
    fn look(&self) -> Look {
        Look {
            len: self.space.len(),
            used: self.space.count_used(),
            released: self.space.released(),
            worth: self.worth,
            thin: self.thin,
        }
    }

    /// Whether `kept` free pages keep their memory when it is taken from `resident` more of them.
    fn may_punch(&self, resident: u64, kept: u64, done: &Done) -> bool {
        let needed = kept + resident + done.punched;
        kept == 0 || resident == 0 || self.space.count_resident() >= needed
    }

    fn punch(&self, run: Run) {
        let (at, len) = (run.start * PAGE_LEN, run.len * PAGE_LEN);
        files::punch(self.file, self.map, at, len);
    }
}

impl Ranges {
    fn resize(&mut self, space: &Space) -> usize {
        let all = (space.len() / RANGE) as usize;
        self.huge.resize(all, false);
        self.empty.resize(all, false);
        self.thin.resize(all, RANGE);
        all
    }

    /// Whether there is anything to take from under a free run. What this session had set aside is
    /// counted. Of what an earlier one left the host tells, which is much cheaper than to take
    /// memory from where there is none; not of what was set aside and never stored to.
    fn is_backed(&mut self, run: Run, resident: u64, segment: &Segment<'_>) -> bool {
        if self.known || resident > 0 {
            return true;
        }
        let (start, end) = (run.start * PAGE_LEN, run.end() * PAGE_LEN);
        if !self.hole.contains(&start) {
            let data = files::next_data(segment.file, start);
            self.hole = start..data.unwrap_or(u64::MAX);
        }
        end > self.hole.end
    }

    /// Whether the host holds more than we know of.
    fn hold_more_than_known(&self, segment: &Segment<'_>) -> bool {
        let huge = self.huge.iter().filter(|huge| **huge).count() as u64;
        let space = segment.space;
        let busy = space.len() - space.count_free();
        let known = busy + space.count_resident() + huge * (RANGE - WORTH_KEEPING);
        let held = rustix::fs::fstat(segment.file).map(|stat| stat.st_blocks as u64 * 512);
        held.is_ok_and(|held| held > known * PAGE_LEN)
    }

    /// Looks at some ranges, from where the last go ended; what has no memory behind it any
    /// more, and whether the round goes on.
    fn go_on(&mut self, segment: &Segment<'_>, last: &mut Last) -> (Vec<Run>, bool) {
        let (begun, mut done) = (Instant::now(), Done::default());
        let all = self.resize(segment.space);
        if self.left == 0 && self.looked != Some(segment.look()) {
            self.looked = Some(segment.look());
            self.left = all;
        }
        while self.left > 0 {
            self.left -= 1;
            let index = self.next % all;
            self.next = index + 1;
            self.look_at(index, segment, last, &mut done);
            if begun.elapsed() > TIME {
                break;
            }
        }
        if self.left == 0
            && !std::mem::replace(&mut self.known, true)
            && self.hold_more_than_known(segment)
        {
            self.empty.fill(false);
            self.thin.fill(RANGE);
            self.left = all;
        }
        // What was freed behind the place of a round that was under way is for the next one.
        let stale = self.looked.is_some_and(|then| then != segment.look());
        (done.emptied, self.left > 0 || stale)
    }

    /// Does what is to be done about one range.
    fn look_at(&mut self, index: usize, segment: &Segment<'_>, last: &mut Last, done: &mut Done) {
        let run = Run::new(index as u64 * RANGE, RANGE);
        self.empty(index, run, segment, done);
        let used = segment.space.count_used_in(run);
        self.huge[index] &= used >= WORTH_KEEPING || !segment.thin;
        if self.huge[index] || self.empty[index] {
            return;
        }
        // What is below the first is mostly room for a larger pool.
        let whole = run.start >= segment.space.first();
        if used < segment.worth {
            if segment.thin {
                self.thin(index, run, segment, used, done);
            }
        } else if whole && done.huge < segment.most {
            *last = Some((self.make_huge(index, segment.map), Instant::now()));
            done.huge += 1;
        } else if whole {
            self.looked = None;
        }
    }

    /// Takes the memory from under a range of which nothing is in use.
    fn empty(&mut self, index: usize, run: Run, segment: &Segment<'_>, done: &mut Done) {
        if !segment.space.is_free(run) {
            self.empty[index] = false;
            return;
        }
        let resident = segment.space.count_resident_in(run);
        let before = std::mem::replace(&mut self.empty[index], true);
        if before && resident == 0 || !segment.may_punch(resident, segment.kept_whole, done) {
            return;
        }
        self.huge[index] = false;
        if self.is_backed(run, resident, segment) {
            segment.punch(run);
            done.emptied.push(run);
            done.punched += resident;
        }
    }

    /// Takes the memory from under the free parts of a range of which `used` pages are in use.
    fn thin(&mut self, index: usize, run: Run, segment: &Segment<'_>, used: u64, done: &mut Done) {
        let resident = segment.space.count_resident_in(run);
        let before = std::mem::replace(&mut self.thin[index], used);
        if before == used && resident == 0 || !segment.may_punch(resident, segment.kept, done) {
            return;
        }
        let mut at = run.start;
        while let Some(free) = segment.space.next_free(at, run.end()) {
            at = free.end();
            if self.is_backed(free, resident, segment) {
                segment.punch(free);
                done.emptied.push(free);
            }
        }
        done.punched += resident;
    }

    /// For speed only; how long it took.
    fn make_huge(&mut self, index: usize, map: &Region) -> Duration {
        let begun = Instant::now();
        let _ = map.make_huge(index as u64 * RANGE_LEN, RANGE_LEN as usize);
        self.huge[index] = true;
        self.empty[index] = false;
        // All of it has memory again.
        self.thin[index] = RANGE;
        begun.elapsed()
    }
}

impl Backing {
    /// Does a little for the trees and, where it is given, for data; whether there is more to do.
    pub fn go_on(&mut self, pool: &mut Pool, data: Option<&Region>, files: &Files) -> bool {
        if files.medium != Medium::Memory {
            return false;
        }
        // Taking memory away takes much less time than making pages huge, so data comes first.
        let more_data = data.is_some_and(|data| self.go_on_with_data(pool, data, files));
        let trees = Segment {
            space: pool.meta_space(),
            file: &files.meta,
            map: pool.meta(),
            worth: match pool.meta_space().count_used() < SMALL {
                true => WORTH_DATA,
                false => WORTH_TREES,
            },
            most: usize::MAX,
            thin: data.is_some(),
            kept: BACKED,
            kept_whole: BACKED,
        };
        let (emptied, more) = self.trees.go_on(&trees, &mut self.last);
        emptied.into_iter().for_each(|run| pool.punched_trees(run));
        more || more_data
    }

    fn go_on_with_data(&mut self, pool: &mut Pool, data: &Region, files: &Files) -> bool {
        let rested = |(took, then): (Duration, Instant)| then.elapsed() > took * PAUSE;
        let data = Segment {
            space: pool.data_space(),
            file: &files.data,
            map: data,
            worth: WORTH_DATA,
            most: self.last.is_none_or(rested).into(),
            thin: true,
            kept: pool.data_space().count_used() / 2 + KEPT_DATA,
            kept_whole: 0,
        };
        let (emptied, more) = self.data.go_on(&data, &mut self.last);
        emptied.into_iter().for_each(|run| pool.punched(run));
        more
    }

    /// Has a huge page under an extent of data that is about to be handed out, where that takes no
    /// longer than to fault its small pages in one by one. Where the host of a virtual machine has
    /// to find memory for it, it takes many times as long.
    pub fn prepare(&mut self, extent: Run, space: &Space, data: &Region) {
        let aligned = extent.len == RANGE && extent.start.is_multiple_of(RANGE);
        if !aligned || self.last.is_some_and(|(took, _)| took > CHEAP) {
            return;
        }
        self.data.resize(space);
        // The kernel makes a page huge once a small one is there; to do that before the others are
        // there is half the work.
        let _ = data.prefault(extent.start * PAGE_LEN, PAGE_LEN as usize);
        let index = (extent.start / RANGE) as usize;
        self.last = Some((self.data.make_huge(index, data), Instant::now()));
    }

    /// A part of some ranges was given back: they are not huge any more.
    pub fn split(&mut self, run: Run) {
        let ranges = (run.start / RANGE)..run.end().div_ceil(RANGE);
        self.data.looked = None;
        for index in ranges {
            if let Some(huge) = self.data.huge.get_mut(index as usize) {
                *huge = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;
    use crate::tests::{opened, pool_of};
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    /// Bytes of memory behind the data of a pool.
    fn behind(path: &Path) -> u64 {
        let data = path.join(holdfast_pool::segment::data(0));
        data.metadata().unwrap().blocks() * 512
    }

    /// A round had passed a range when that became free.
    #[test]
    fn what_is_freed_during_a_round_is_given_back_by_the_next_one() {
        let dir = TempDir::new("rounds");
        let path = pool_of(&dir, 256 << 20);
        let mut engine = opened(&path);
        let store = &mut engine.store;
        let extents: Vec<Run> = (0..4)
            .map(|_| store.pool.grant_whole(RANGE).unwrap())
            .collect();
        for extent in &extents {
            let (at, len) = (extent.start * PAGE_LEN, RANGE_LEN);
            files::set_aside(&store.files.data, at, len).unwrap();
        }
        while store.trim() {}
        let behind = || behind(&path);
        assert_eq!(behind(), 4 * RANGE_LEN);
        // One more range is to be looked at, the last one.
        let ranges = &mut store.backing.data;
        assert!(ranges.looked.is_some() && ranges.left == 0);
        (ranges.next, ranges.left) = (ranges.huge.len() - 1, 1);
        for extent in extents {
            store.pool.ungrant(extent).unwrap();
        }
        while store.trim() {}
        assert_eq!(behind(), 0);
    }

    /// The first round takes memory from where the host says that there is some, and from where it
    /// does not say so if it holds too much for what it says.
    #[test]
    fn memory_of_an_earlier_session_is_found() {
        let dir = TempDir::new("found");
        let path = pool_of(&dir, 256 << 20);
        let mut engine = opened(&path);
        let store = &mut engine.store;
        let len = store.files.superblock.data_len;
        let behind = || behind(&path);
        // In the first range, over the border of two others, and at the end.
        for at in [0, 5 * RANGE_LEN - 1, 5 * RANGE_LEN, len - 1] {
            rustix::io::pwrite(&store.files.data, b"x", at).unwrap();
        }
        assert!(behind() > 0);
        while store.trim() {}
        assert_eq!(behind(), 0);
        files::set_aside(&store.files.data, 9 * RANGE_LEN, RANGE_LEN).unwrap();
        assert_eq!(files::next_data(&store.files.data, 0), None);
        store.backing = Backing::default();
        while store.trim() {}
        assert_eq!(behind(), 0);
    }

    /// Where a range is in use in part, it is asked for the rest.
    #[test]
    fn memory_between_pages_in_use_is_found() {
        let dir = TempDir::new("between");
        let path = pool_of(&dir, 64 << 20);
        let mut engine = opened(&path);
        let store = &mut engine.store;
        let used = store.pool.grant_whole(RANGE).unwrap();
        store
            .pool
            .ungrant(Run::new(used.start + 10, RANGE - 10))
            .unwrap();
        store.pool.punched(Run::new(used.start + 10, RANGE - 10));
        for page in [3, 20] {
            let at = (used.start + page) * PAGE_LEN;
            rustix::io::pwrite(&store.files.data, b"x", at).unwrap();
        }
        while store.trim() {}
        assert_eq!(behind(&path), PAGE_LEN);
    }
}
