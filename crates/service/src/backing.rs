//! The memory under the segments: huge pages under the trees, nothing under what is free.
//!
//! Invariants: only for speed and space, and only where the pool is kept in memory; done while
//! there is nothing else to do, a little at a time; nothing is taken from under a page or block
//! that is in use, granted, or that a reader may still look at.

use crate::files::Files;
use holdfast_pmem::{Medium, Region};
use holdfast_pool::Pool;
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::space::{Run, Space};
use rustix::fd::OwnedFd;
use rustix::fs::FallocateFlags;
use std::time::{Duration, Instant};

/// Pages of a stretch: a huge page.
const STRETCH: u64 = 512;
const STRETCH_LEN: u64 = STRETCH * PAGE_LEN;
/// How many of them must be in use for a huge page.
const WORTH: u64 = 384;
/// Stretches that are looked at in one go.
const LOOKS: usize = 4096;
/// What one go may take, for data and for trees, and how long nothing is done after it: short
/// pauses between changes are for those who make them.
const TIME_DATA: Duration = Duration::from_millis(4);
const TIME: Duration = Duration::from_millis(1);
const PAUSE: Duration = Duration::from_millis(100);

/// What was done about the stretches of one segment.
#[derive(Debug, Default)]
struct Stretches {
    huge: Vec<bool>,
    empty: Vec<bool>,
    next: usize,
}

/// Looks after the memory under the segments.
#[derive(Debug, Default)]
pub struct Backing {
    trees: Stretches,
    data: Stretches,
    last: Option<Instant>,
}

impl Stretches {
    /// The next one to look at.
    fn step(&mut self, space: &Space) -> Option<(usize, Run)> {
        let all = (space.len() / STRETCH) as usize;
        self.huge.resize(all, false);
        self.empty.resize(all, false);
        let index = self.next.checked_rem(all)?;
        self.next = index + 1;
        Some((index, Run::new(index as u64 * STRETCH, STRETCH)))
    }

    /// Takes the memory from under a stretch of which nothing is in use; says whether it did.
    fn empty(
        &mut self,
        index: usize,
        run: Run,
        space: &Space,
        file: &OwnedFd,
        map: &Region,
    ) -> bool {
        if !space.is_free(run) {
            self.empty[index] = false;
            return false;
        }
        if std::mem::replace(&mut self.empty[index], true) && !space.has_warm(run) {
            return false;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let at = run.start * PAGE_LEN;
        map.note_zeroed(at, STRETCH_LEN as usize);
        let _ = rustix::fs::fallocate(file, flags, at, STRETCH_LEN);
        self.huge[index] = false;
        true
    }
}

impl Backing {
    /// Does a little.
    pub fn go_on(&mut self, pool: &mut Pool, data: &Region, files: &Files) {
        if files.medium != Medium::Memory {
            return;
        }
        let begun = Instant::now();
        if self.last.is_some_and(|last| begun - last < PAUSE) {
            return;
        }
        self.last = Some(begun);
        // Taking memory away takes much less time than making pages huge, so it comes first.
        for _ in 0..LOOKS {
            if begun.elapsed() > TIME_DATA {
                break;
            }
            let Some((index, run)) = self.data.step(pool.data_space()) else {
                break;
            };
            let space = pool.data_space();
            if self.data.empty(index, run, space, &files.data, data) {
                pool.cool(run);
            }
        }
        let begun = Instant::now();
        for _ in 0..LOOKS {
            if begun.elapsed() > TIME {
                return;
            }
            let Some((index, run)) = self.trees.step(pool.meta_space()) else {
                return;
            };
            self.look_at_trees(pool, files, index, run);
        }
    }

    fn look_at_trees(&mut self, pool: &Pool, files: &Files, index: usize, run: Run) {
        let space = pool.meta_space();
        let trees = &mut self.trees;
        trees.empty(index, run, space, &files.meta, pool.meta());
        if !trees.huge[index] && space.count_used_in(run) >= WORTH {
            let at = run.start * PAGE_LEN;
            let _ = pool.meta().make_huge(at, STRETCH_LEN as usize);
            trees.huge[index] = true;
        }
    }
}
