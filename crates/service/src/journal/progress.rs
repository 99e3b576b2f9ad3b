//! What applying records did, and what happens to a refused one.
//!
//! Invariant: a record is done once it is in `done` of its lane, which becomes durable with what it
//! changed.

use super::lane::Entry;
use holdfast_pool::apply::{Failure, Outcome, Reject, Why};
use holdfast_pool::format::LANES;
use holdfast_pool::format::superblock::{self, Superblock};

/// What one call of `Engine::apply` did.
#[derive(Debug, Default)]
pub struct Progress {
    /// Records that were applied and committed.
    pub applied: usize,
    /// Numbers that hold everything up: `first..bound` are missing.
    pub missing: Option<(u64, u64)>,
    /// A record that is not finished by its writer.
    pub unfinished: Option<u64>,
    /// The host has no room for what would be written: nothing was done.
    pub short: bool,
    /// The record that was refused, and why: nothing after it was applied.
    pub rejected: Option<(u64, Reject)>,
    /// The last record that was refused and passed over.
    pub refused: Option<(u64, Reject)>,
    /// More of the next record, or of what makes room for it, can be done at once.
    pub goes_on: bool,
    /// There is no room for a record before more of what was cut out of trees is freed.
    pub wants_room: bool,
    /// There is no room before the next checkpoint, or a record speaks of blocks that are used
    /// again as soon as it is applied.
    pub checkpoint: bool,
}

/// Whether a record stays the next one after it was applied, or tried to be.
pub fn waits_after(
    progress: &mut Progress,
    done: std::result::Result<Outcome, Failure<holdfast_pool::Error>>,
    seq: u64,
    states: (bool, bool),
    may: impl FnOnce(&Reject) -> bool,
) -> holdfast_pool::Result<bool> {
    match done {
        Ok(_) => Ok(false),
        Err(Failure::Rejected(reject)) => {
            Ok(!goes_on_without(progress, (seq, reject), states, may))
        }
        Err(Failure::Later) => {
            progress.goes_on = true;
            Ok(true)
        }
        Err(Failure::Store(error)) => Err(error),
    }
}

/// Notes that a record was rejected; whether the batch goes on without it. Where there was no room
/// for it, what was applied makes some when it is committed, or at the checkpoint.
pub fn goes_on_without(
    progress: &mut Progress,
    (seq, reject): (u64, Reject),
    (loose, makes_room): (bool, bool),
    may: impl FnOnce(&Reject) -> bool,
) -> bool {
    let no_room = reject.why == Why::NoRoom;
    progress.checkpoint |= no_room && loose;
    progress.wants_room = no_room && makes_room;
    let later = no_room && (progress.applied > 0 || loose || makes_room);
    let goes_on = !later && may(&reject);
    match goes_on {
        true => progress.refused = Some((seq, reject)),
        false => progress.rejected = (!later).then_some((seq, reject)),
    }
    goes_on
}

pub fn note_applied(
    progress: &mut Progress,
    (done, newest): (&mut [superblock::Lane; LANES], &mut u64),
    entry: &Entry,
) {
    progress.applied += 1;
    *newest = entry.seq.max(*newest);
    done[entry.lane] = superblock::Lane {
        start: entry.end,
        applied: entry.seq,
    };
}

/// Where the lanes continue in a pool that is in use.
pub fn set_positions(superblock: &mut Superblock, lanes: [superblock::Lane; LANES], applied: u64) {
    superblock.lanes = lanes;
    superblock.applied_seq = applied;
    superblock.clean = false;
}

/// What a writer in good faith may have written that waits to hear of it.
pub const HONEST: [Why; 4] = [
    Why::NoRoom,
    Why::NoObject,
    Why::NotADirectory,
    Why::NotAKeyspace,
];
