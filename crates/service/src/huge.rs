//! Huge pages under the trees.
//!
//! Invariants: only for speed, and only where the pool is kept in memory; a stretch becomes huge
//! when most of it is in use, so that a small pool stays small; asked for rarely, since each takes
//! the kernel a good part of a millisecond.

use holdfast_pmem::Medium;
use holdfast_pool::Pool;
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::space::Run;
use std::time::{Duration, Instant};

/// Pages of a huge page.
const HUGE: u64 = 512;
/// How many of them must be in use.
const WORTH: u64 = 384;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(20);

/// What was made huge, and where to look next.
#[derive(Debug)]
pub struct HugeTrees {
    done: Vec<bool>,
    next: usize,
    last: Instant,
}

impl HugeTrees {
    /// Nothing is huge yet.
    pub fn new() -> HugeTrees {
        HugeTrees {
            done: Vec::new(),
            next: 0,
            last: Instant::now(),
        }
    }

    /// Makes one more stretch huge, if it is time and one is worth it.
    pub fn go_on(&mut self, pool: &Pool, medium: Medium) {
        if medium != Medium::Memory || self.last.elapsed() < PAUSE {
            return;
        }
        self.last = Instant::now();
        let stretches = (pool.meta_space().len() / HUGE) as usize;
        self.done.resize(stretches, false);
        for _ in 0..stretches {
            self.next = (self.next + 1) % stretches.max(1);
            let first = self.next as u64 * HUGE;
            let worth = || pool.meta_space().count_used_in(Run::new(first, HUGE)) >= WORTH;
            if !self.done[self.next] && worth() {
                let _ = pool
                    .meta()
                    .make_huge(first * PAGE_LEN, (HUGE * PAGE_LEN) as usize);
                self.done[self.next] = true;
                return;
            }
        }
    }
}
