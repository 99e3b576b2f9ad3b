//! Host memory for the trees.
//!
//! Invariants: some free pages of the trees are resident whenever the host has memory, so that on a
//! full host changes that free space can still be applied; a commit begins only when everything
//! that it writes has memory.

use crate::base::files::{self, Files};
use holdfast_pmem::Medium;
use holdfast_pool::Pool;
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::space::Run;

/// Free pages that have memory behind them: enough for commits of what makes room, which take
/// pages before they free others.
pub const BACKED: u64 = 512;
/// Pages that the nodes of one record take in a commit, with the ways to them, at most.
const PAGES_OF_RECORD: u64 = 32;

/// What is known of it.
#[derive(Debug, Default)]
pub struct HostRoom {
    short: bool,
}

impl HostRoom {
    /// For a pool that was opened: finds what an earlier service had the host set aside, as much as
    /// is needed. Blocks of an ordinary file may be written elsewhere the next time.
    pub fn find(pool: &mut Pool, files: &Files) -> HostRoom {
        let end = match files.medium {
            Medium::File => 0,
            _ => pool.meta_space().len(),
        };
        // The host is asked only about what is free: the trees may be large, and to find out how
        // far they are backed would take it a look at each of their pages.
        let (mut at, mut data, mut hole) = (0, 0, 0);
        while let Some(free) = pool.meta_space().next_free(at, end)
            && pool.meta_space().count_resident() < BACKED
        {
            at = free.end();
            let bytes = free.start * PAGE_LEN..free.end() * PAGE_LEN;
            if hole <= bytes.start && data <= bytes.start {
                data = files::next_data(&files.meta, bytes.start).unwrap_or(u64::MAX);
            }
            if hole <= data && data < bytes.end {
                hole = files::next_hole(&files.meta, data).unwrap_or(data);
            }
            let (from, to) = (bytes.start.max(data), bytes.end.min(hole));
            if from < to {
                let (first, last) = (from.div_ceil(PAGE_LEN), to / PAGE_LEN);
                pool.found_resident(Run::new(first, last.saturating_sub(first)));
            }
        }
        HostRoom::default()
    }

    /// Whether the trees may not grow.
    pub fn is_short(&self) -> bool {
        self.short
    }

    /// Whether commits may take as much as they like. A host that had no room may have some again.
    pub fn is_enough(&mut self, pool: &mut Pool) -> bool {
        let enough = pool.meta_space().count_resident() >= BACKED && !self.short;
        let enough = enough || pool.back(BACKED).is_ok();
        self.short &= !enough;
        enough
    }

    /// Where it is not enough: how many records, or changes of keyspaces, one commit may take; 0:
    /// it has to wait.
    pub fn rest(&mut self, pool: &Pool) -> usize {
        if !std::mem::replace(&mut self.short, true) {
            tracing::warn!("the host has no room for the pool's trees: they can only shrink");
        }
        (pool.meta_space().count_resident() / PAGES_OF_RECORD) as usize
    }
}
