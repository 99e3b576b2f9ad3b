//! The memory under journal lanes of which the trees have everything.
//!
//! Invariants: only for space, and only where the pool is kept in memory; a lane is locked while
//! its memory is taken, and has no record that was not applied and committed.

use crate::engine::Engine;
use crate::memory::Memory;
use holdfast_pmem::Medium;
use holdfast_pool::directory::LANE_LEN;
use holdfast_pool::format::LANES;
use std::sync::atomic::Ordering::Acquire;

/// Bytes that were written to a lane since its memory was taken the last time: with fewer of them
/// who writes next would pay more for new memory than what is gained.
const WORTH: u64 = 64 * 1024;

/// How far each lane was when its memory was taken.
#[derive(Debug, Default)]
pub struct Drained {
    at: [Option<u64>; LANES],
}

impl Drained {
    /// Takes the memory from under the lanes that were used and that nobody writes to now.
    pub fn give_back(&mut self, engine: &Engine, memory: &Memory) {
        if engine.files.medium != Medium::Memory {
            return;
        }
        for (index, at) in self.at.iter_mut().enumerate() {
            let (Some(lane), Some(position)) = (memory.lane(index), engine.drained_lane(index))
            else {
                continue;
            };
            if at.is_some_and(|at| position.wrapping_sub(at) < WORTH) {
                continue;
            }
            let taken = memory.with_lock(&lane.lock, || {
                // A record behind this was appended since we read the lane.
                let nothing = lane.head.load(Acquire) == position;
                if nothing {
                    engine.punch_journal(index as u64 * LANE_LEN, LANE_LEN);
                }
                nothing
            });
            if taken == Some(true) {
                *at = Some(position);
            }
        }
    }
}
