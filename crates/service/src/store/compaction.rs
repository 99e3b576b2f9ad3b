//! Laying out the leaves of keyspaces again while there is nothing else to do.
//!
//! Invariants: one pass after many changes or much growth, so that its work is proportional to
//! them; a little at a time, each part a commit of its own; leaves that a snapshot shares are left
//! alone, since they would take room twice; damaged nodes are left as they are, to be found by
//! whoever needs them.

use holdfast_pmem::env::Instant;
use holdfast_pool::layout::VALUES;
use holdfast_pool::tree::Compacted;
use holdfast_pool::{Pool, Result, WriteToken};
use std::time::Duration;

/// What one go may take: pauses are for those who make changes.
const TIME: Duration = Duration::from_millis(2);

/// With more than this part of the trees kept for views a pass waits: what it frees would be, too.
const HELD_PART: u64 = 8;

/// A pass looks at each leaf: it begins after so many changes for each page in use. With fewer
/// there is hardly a leaf of small values that it would lay out anew.
const CHANGES: u64 = 2;

/// Or once the trees have grown by this part of what they were: a leaf of few large values splits
/// after few changes, and is half empty then.
const GROWTH_PART: u64 = 4;

/// Where the pass has come to.
#[derive(Debug)]
pub struct Compaction {
    /// Changes since the pass began.
    changes: u64,
    /// Pages in use when the last pass ended, or began if it found no end.
    pages: u64,
    /// The key where it goes on; `None`: there is none.
    from: Option<Vec<u8>>,
}

impl Compaction {
    /// For trees of so many pages.
    pub fn new(pages: u64) -> Compaction {
        Compaction {
            changes: 0,
            pages,
            from: None,
        }
    }

    /// So many changes of keyspaces are applied.
    pub fn note_changes(&mut self, changes: u64) {
        self.changes += changes;
    }

    /// Does a little; says whether there is more to do. An error is that of a commit.
    pub fn go_on(&mut self, pool: &mut Pool, token: &WriteToken) -> Result<bool> {
        if pool.has_snapshots() || self.from.is_none() && !self.is_worth(pool) {
            return Ok(false);
        }
        if self.from.is_none() {
            (self.from, self.changes) = (Some(Vec::new()), 0);
            self.pages = pool.meta_space().count_used();
        }
        // What the last commits freed; the rest is what views read.
        pool.rest()?;
        let (space, free) = (pool.meta_space(), pool.meta_space().count_free());
        if pool.pages_left() - free > space.count_used() / HELD_PART {
            return Ok(false);
        }
        let Some(mut from) = self.from.take() else {
            return Ok(false);
        };
        let (begun, mut next, mut anew) = (Instant::now(), Vec::new(), false);
        let mut batch = pool.begin(token);
        while begun.elapsed() < TIME {
            match batch.compact(VALUES, &from, &mut next) {
                // The pass ends here, and nothing of this go is kept.
                Err(_) | Ok(Compacted::NoRoom) => return Ok(false),
                Ok(done) => anew |= done == Compacted::Anew,
            }
            std::mem::swap(&mut from, &mut next);
            if from.is_empty() {
                break;
            }
        }
        match anew {
            true => drop(batch.commit(|superblock| superblock.clean = false)?),
            false => drop(batch),
        }
        self.from = Some(from).filter(|from| !from.is_empty());
        if self.from.is_none() {
            pool.rest()?;
            self.pages = pool.meta_space().count_used();
        }
        Ok(self.from.is_some())
    }

    /// Whether so much has changed since the last pass that another one is worth it.
    fn is_worth(&self, pool: &Pool) -> bool {
        let used = pool.meta_space().count_used();
        let grown = used > self.pages + self.pages / GROWTH_PART;
        self.changes > used * CHANGES || (self.changes > 0 && grown)
    }
}
