//! Reclaiming the memory under journal lanes that are wholly applied.
//!
//! Invariants: this only saves space, and only if the pool is kept in memory. A lane is locked
//! while its memory is reclaimed, and has no record that was not applied and committed. A part of
//! the memory stays, for as many records as clients write before they ring for the service. Once
//! there are new records the host sets memory aside for the whole lane again: no store to a lane
//! may fail.

use crate::base::files;
use crate::journal::engine::Engine;
use crate::session::memory::Memory;
use holdfast_pmem::Medium;
use holdfast_pool::directory::LANE_LEN;
use holdfast_pool::format::{LANES, PAGE_LEN};
use std::sync::atomic::Ordering::Acquire;

/// Bytes that were written to a lane since its memory was taken the last time: with fewer of them
/// who writes next would pay more for new memory than what is gained.
const WORTH: u64 = 64 * 1024;

/// Bytes behind the last record that keep their memory.
const KEPT: u64 = LANE_LEN / 4;

/// What was done to each lane.
#[derive(Debug, Default)]
pub struct JournalTrim {
    lanes: [Lane; LANES],
}

#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    /// How far it was when its memory was taken the last time.
    at: Option<u64>,
    /// It does not have its memory again.
    taken: bool,
}

impl Lane {
    /// Whether much was written since then.
    fn is_used(&self, position: u64) -> bool {
        self.at.is_none_or(|at| position.wrapping_sub(at) >= WORTH)
    }
}

impl JournalTrim {
    /// Takes the memory from under the lanes that were used and that nobody writes to now.
    pub fn give_back(&mut self, engine: &Engine, memory: &Memory) {
        if engine.store.files.medium != Medium::Memory {
            return;
        }
        let lane_len = engine.journal.lane_len;
        for (index, done) in self.lanes.iter_mut().enumerate() {
            let (Some(lane), Some(position)) = (memory.lane(index), engine.drained_lane(index))
            else {
                continue;
            };
            if !done.is_used(position) {
                continue;
            }
            let taken = memory.with_lock(&lane.lock, || {
                // A record behind this was appended since we read the lane.
                let nothing = lane.head.load(Acquire) == position;
                if nothing {
                    let parts = all_but_kept(position, lane_len).into_iter();
                    for (at, len) in parts.filter(|(_, len)| *len > 0) {
                        engine.punch_journal(index as u64 * lane_len + at, len);
                    }
                }
                nothing
            });
            if taken == Some(true) {
                *done = Lane {
                    at: Some(position),
                    taken: true,
                };
            }
        }
    }

    /// Has the host set memory aside for lanes that were written to since theirs was taken.
    pub fn take_again(&mut self, engine: &Engine, memory: &Memory) {
        let lanes = self.lanes.iter_mut().enumerate();
        for (index, done) in lanes.filter(|(_, done)| done.taken) {
            let head = memory.lane(index).map(|lane| lane.head.load(Acquire));
            if head.is_some_and(|head| done.is_used(head)) {
                let len = engine.journal.lane_len;
                // Where there is none, what was kept has to do.
                let again = files::set_aside(&engine.store.files.journal, index as u64 * len, len);
                done.taken = again.is_err();
            }
        }
    }
}

/// The parts of a lane, as offset and length, that are not among the `KEPT` bytes from `position`
/// on.
fn all_but_kept(position: u64, lane_len: u64) -> [(u64, u64); 2] {
    let offset = position % lane_len;
    // Whole pages on either side.
    let start = offset - offset % PAGE_LEN;
    let end = start + KEPT;
    match end.checked_sub(lane_len) {
        Some(over) => [(over, start - over), (0, 0)],
        None => [(0, start), (end, lane_len - end)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_all_but_the_rest() {
        for offset in (0..LANE_LEN).step_by(64) {
            let parts = all_but_kept(3 * LANE_LEN + offset, LANE_LEN);
            assert_eq!(
                parts.iter().map(|(_, len)| len).sum::<u64>(),
                LANE_LEN - KEPT
            );
            for at in [offset, (offset + KEPT - PAGE_LEN) % LANE_LEN] {
                let inside = |(start, len): &(u64, u64)| (*start..start + len).contains(&at);
                assert!(!parts.iter().any(inside), "{offset} {at}");
            }
        }
    }
}
