//! Finishing what dead processes committed.
//!
//! Invariants:
//!  * Whoever takes a lock from a dead owner runs this first, so every record that an owner
//!    committed is published before anybody else sees an object that it had locked.
//!  * It runs in one process at a time (`recovery_lock`). Dying in it changes nothing: the lane
//!    keeps its dead owner, and publication is idempotent.

use crate::drain;
use crate::error::{Error, Result};
use crate::kv::Place;
use crate::lock::{self, Guard, WAITERS};
use crate::publish;
use crate::session::Session;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;
use pool::journal::{self, RECORD_HEADER, Record};
use pool::session::{LANES, Lane};

/// Publishes the complete records in lanes of dead owners, drops the incomplete ones.
#[cold]
pub fn lanes(s: &Session) {
    let Ok(_guard) = lock::acquire_plain(s, &s.header().recovery_lock) else {
        return;
    };
    // First, so that what dies while we look asks again.
    s.header().recover_wanted.store(0, SeqCst);
    for index in 0..LANES as u32 {
        let Ok(lane) = s.lane(index) else { return };
        let word = lane.lock.load(Acquire);
        if word & !WAITERS == 0 || lock::owner_lives(s, word) {
            continue;
        }
        finish(s, index, lane);
        // Only we free locks of the dead, so the lane is still the dead owner's.
        drop(Guard::adopt(&lane.lock));
    }
}

/// Completes the append that the lane's dead owner was in.
fn finish(s: &Session, index: u32, lane: &Lane) {
    let (seq, at) = (lane.busy_seq.load(Acquire), lane.busy_at.load(Acquire));
    let mut published = Ok(());
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
        published = redo(s, &record, seq, place);
    }
    lane.busy_seq.store(0, Release);
    if published.is_err() {
        // No room: the trees are right once they know, and until then the dead owner's locks
        // keep everybody from looking. If the service is gone too, nothing helps.
        let _ = drain::wait_applied_alone(s, seq);
    }
}

fn redo(s: &Session, record: &Record<'_>, seq: u64, place: Place) -> Result<()> {
    match publish::republish(s, record, seq, place) {
        Err(Error::NoMemory | Error::TableFull) => Err(Error::NoMemory),
        // Anything else is damage that the operation itself would have met.
        _ => Ok(()),
    }
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
