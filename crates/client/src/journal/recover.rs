//! Completing what dead processes committed.
//!
//! Invariants:
//!  * A process that takes a lock from a dead owner runs this first, so every record that an owner
//!    committed is published before anybody else sees an object that it had locked.
//!  * It runs in one process at a time (`recovery_lock`). Dying in it changes nothing: the lane
//!    keeps its dead owner, and publication is idempotent.
//!  * A lane becomes free only when everything that its owner committed is in the tables or, if
//!    they have no room, in the trees. Until then nobody takes over what the owner had locked.

use crate::base::error::Result;
use crate::journal::is_no_room;
use crate::journal::publish;
use crate::session::Session;
use crate::session::drain;
use crate::session::lock::{self, Guard, WAITERS};
use crate::session::place::Place;
use alloc::vec;
use alloc::vec::Vec;
use pmem::atomic::Ordering::*;
use pool::journal::{self, RECORD_HEADER};
use pool::session::{LANES, Lane};

/// Publishes the complete records in lanes of dead owners, drops the incomplete ones. Fails when
/// the session was given up, or the service is gone while it is needed.
#[cold]
pub fn lanes(s: &Session) -> Result<()> {
    let _guard = lock::acquire_plain(s, &s.header().recovery_lock)?;
    // First, so that what dies while we look asks again.
    s.header().recover_wanted.store(0, SeqCst);
    let mut left = [false; LANES];
    for (index, left) in (0..).zip(&mut left) {
        let lane = s.lane(index)?;
        let word = lane.lock.load(Acquire);
        if word & !WAITERS == 0 || lock::owner_lives(s, word) {
            continue;
        }
        match finish(s, index, lane) {
            true => release(lane),
            false => *left = true,
        }
    }
    // When all are published: the service would wait for any of them.
    for (index, _) in (0..).zip(left).filter(|(_, left)| *left) {
        let lane = s.lane(index)?;
        drain::wait_in_trees_alone(s, lane, lane.head.load(Relaxed))?;
        release(lane);
    }
    Ok(())
}

/// Only we free locks of the dead, so the lane is still the dead owner's.
fn release(lane: &Lane) {
    lane.busy_seq.store(0, Release);
    drop(Guard::adopt(&lane.lock));
}

/// Completes the append that the lane's dead owner was in. False: the tables had no room, and
/// the trees have to know what is in the lane.
fn finish(s: &Session, index: u32, lane: &Lane) -> bool {
    let (seq, at) = (lane.busy_seq.load(Acquire), lane.busy_at.load(Acquire));
    if seq != 0
        && let Some((bytes, end)) = complete_record(s, index, at, seq)
        && let Ok((_, record)) = journal::decode(&bytes)
    {
        if lane.head.load(Relaxed) < end {
            lane.head.store(end, Release);
        }
        let position = at;
        let place = Place {
            lane: index,
            position,
        };
        // Another error is damage that the operation itself would have met.
        if is_no_room(&publish::republish(s, &record, seq, place)) {
            lane.left_to_trees.store(seq, Release);
            return false;
        }
    }
    true
}

/// A copy of the record numbered `seq` at `at`, and the position behind it.
fn complete_record(s: &Session, index: u32, at: u64, seq: u64) -> Option<(Vec<u8>, u64)> {
    let offset = at % s.lane_len();
    let base = u64::from(index) * s.lane_len() + offset;
    let mut head = [0; RECORD_HEADER];
    s.journal().read(base, &mut head).ok()?;
    let header = journal::peek(&head).ok()?;
    if header.seq != seq || offset + header.padded_len() as u64 > s.lane_len() {
        return None;
    }
    let mut bytes = vec![0; header.len];
    s.journal().read(base, &mut bytes).ok()?;
    let (again, _) = journal::decode(&bytes).ok()?;
    let same = again.seq == seq && u32::from(again.lane) == index && again.len == header.len;
    same.then_some((bytes, at + again.padded_len() as u64))
}
