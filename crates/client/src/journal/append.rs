//! Appending to the journal.
//!
//! One append, store by store, and what a death after it leaves:
//!  1. `lane.lock` is ours. Nothing else is left: the next process takes the lock over.
//!  2. `busy_at`: the position of the record; `busy_seq`: a lower bound of its number. Recovery
//!     finds no record of that number there and clears it.
//!  3. `next_seq` is counted up. This leaves a number without a record: the service sees that no
//!     live lane can bring it any more, and continues.
//!  4. `busy_seq`: the number; then that the index may have changes up to it. As 3.
//!  5. The record, around the cache, then one fence. If it is torn, the checksum fails: as 3. If it
//!     is whole, it is committed, and recovery continues at 6.
//!  6. `head` behind it: the service may read it. Recovery publishes.
//!  7. Published. Recovery publishes again, which changes nothing. If the tables have no room, they
//!     have nothing of what the record changes, and the trees get it (`left_to_trees`) before
//!     anything else happens.
//!  8. `busy_seq` 0, lock free.
//!
//! A record never crosses the end of its lane's ring: if it does not fit, it starts at the
//! beginning of the ring. A reader recognises it by the numbers, which only grow along a lane.

use crate::base::error::{Error, Result};
use crate::journal::publish::{self, Prepared};
use crate::session::drain;
use crate::session::lock::{self, Guard};
use crate::session::place::Place;
use crate::session::{BLOCK, Session};
use crate::tables::dentry_table;
use crate::tables::value_index;
use alloc::vec::Vec;
use pmem::atomic::Ordering::*;
use pool::apply::adds_values;
use pool::journal::{BATCH_RECORD_MAX, DROP_VALUES, Encoded, Ops, RECORD_MAX, Record};
use pool::session::{
    LANES, Lane, MEDIUM_FILE, TREES_FULL, TREES_RESERVED, TREES_ROOMY, TREES_SHORT,
};

/// Records are written through a buffer of this many bytes; most fit.
const PIECE: usize = 256;
/// Records after a flush that are written by the kernel.
const FEW: u64 = 64;
/// With little room left, records that may wait for the service: a part of the pages of the
/// trees, and never more than so many.
const AHEAD_PART: u64 = 64;
const AHEAD_MAX: u64 = 1536;
/// A lane that is this part full rings for the service.
const RING_PART: u64 = 4;

/// Makes one record durable and publishes it in the tables; its sequence number. The caller holds
/// the locks of all inodes that the record changes (a new inode needs none). Fails only before
/// the record exists, or when the service is gone.
pub fn commit(s: &Session, record: &Record<'_>) -> Result<u64> {
    s.check()?;
    s.check_writable()?;
    match s.header().trees_full.load(Relaxed) {
        TREES_ROOMY => {}
        _ if record.is_about_durability() => {}
        _ => check_room(s, record)?,
    }
    let prepared = Prepared::new(s, record)?;
    let (index, lane, guard) = take_lane(s, record)?;
    let (seq, end, published) = append(s, index, lane, record, prepared)?;
    drop(guard);
    // With a number that was declared void the trees seem to have the record already: the index
    // would not be asked about it, and entries might go.
    let late = seq < s.header().void_below.load(SeqCst);
    if late || is_no_room(&published) {
        drain::wait_in_trees(s, lane, end)?;
    } else {
        published?;
    }
    Ok(seq)
}

/// Whether a record is published as far as it can be, and in effect once the trees have it.
pub(crate) fn is_no_room(published: &Result<()>) -> bool {
    matches!(published, Err(Error::NoMemory | Error::TableFull))
}

/// Whether a record changes names or inodes. Other changes are not in these tables, which cannot
/// contradict them.
fn is_about_files(record: &Record<'_>) -> bool {
    match record {
        Record::Batch { ops, .. } => {
            let first = Ops::new(ops).next();
            first.is_some_and(|op| op.is_ok_and(|op| op.change.is_about_files()))
        }
        Record::Spilled { .. } => false,
        _ => true,
    }
}

/// Whether a view that has the record shows other values than one without it.
#[inline]
fn changes_values(record: &Record<'_>) -> bool {
    match *record {
        Record::Batch { .. } => true,
        Record::Unlink { flags, .. } | Record::Rename { flags, .. } => flags & DROP_VALUES != 0,
        _ => false,
    }
}

/// Where the trees have not much room left.
#[cold]
fn check_room(s: &Session, record: &Record<'_>) -> Result<()> {
    if finds_no_room(s, record) {
        return check_full(s, record);
    }
    // What others have journaled must not use up what is left to the owner when that begins.
    match s.is_for_another() && adds(record) {
        true => keep_near(s),
        false => Ok(()),
    }
}

/// With little room left, what is journaled and not applied must stay so little that it fits.
pub(crate) fn keep_near(s: &Session) -> Result<()> {
    let ahead = (s.tree().segment_len() / BLOCK / AHEAD_PART).min(AHEAD_MAX);
    let next = s.header().next_seq.load(SeqCst);
    drain::wait_applied(s, next.saturating_sub(ahead))
}

/// Whether the trees have too little room for a record.
fn finds_no_room(s: &Session, record: &Record<'_>) -> bool {
    match s.header().trees_full.load(Relaxed) {
        TREES_ROOMY | TREES_SHORT => false,
        TREES_RESERVED => s.is_for_another() && adds(record),
        TREES_FULL => adds(record),
        _ => true,
    }
}

/// What was removed makes room once it is in the trees: only then a pool is full. Where a snapshot
/// keeps what is removed, even that adds to the trees.
#[cold]
fn check_full(s: &Session, record: &Record<'_>) -> Result<()> {
    drain::wait_applied(s, s.header().next_seq.load(SeqCst).saturating_sub(1))?;
    match finds_no_room(s, record) {
        false => Ok(()),
        true => Err(Error::NoSpace),
    }
}

/// Whether the trees grow by a record. Extents do not count: their blocks are limited already.
fn adds(record: &Record<'_>) -> bool {
    matches!(
        record,
        Record::Create { .. } | Record::Link { .. } | Record::SetXattr { .. }
    ) || matches!(record, Record::Batch { ops, .. } if adds_values(ops))
        || matches!(record, Record::Spilled { .. })
}

/// Blocks of a pool whose trees keep enough room back for all lanes full of additions, at any time.
const LARGE_POOL: u64 = 1 << 18;
/// The same as long as the trees are roomy: three quarters of them are free then, at least 48 MiB
/// for lanes of 16.
const ROOMY_POOL: u64 = 1 << 16;

/// Whether the record may go to another lane because the process's own is full.
fn may_spread(s: &Session, record: &Record<'_>) -> bool {
    let (h, blocks) = (s.header(), s.header().total_blocks.load(Relaxed));
    let roomy = || h.trees_full.load(Relaxed) == TREES_ROOMY;
    // What only waits for a checkpoint is in the trees and needs no room there.
    let few_wait = || unapplied(s) <= s.lane_ahead();
    blocks >= LARGE_POOL || !adds(record) || blocks >= ROOMY_POOL && roomy() || few_wait()
}

/// Bytes of all lanes that the trees do not have yet.
fn unapplied(s: &Session) -> u64 {
    let lanes = (0..LANES as u32).filter_map(|index| s.lane(index).ok());
    let waiting = lanes.map(|lane| {
        let applied = lane.applied.load(Relaxed).max(lane.tail.load(Relaxed));
        lane.head.load(Relaxed).saturating_sub(applied)
    });
    waiting.sum()
}

/// A lane: the process's own if it is free, else another one; also if it is full, so that a burst
/// of records waits for the service only when all lanes are, where the pool has room for that.
fn take_lane<'a>(s: &'a Session, record: &Record<'_>) -> Result<(u32, &'a Lane, Guard<'a>)> {
    let own = first_lane(s);
    let len = len_at_most(record);
    let lane = s.lane(own)?;
    if has_room(s, lane, len)
        && let Some(guard) = lock::try_acquire(s, &lane.lock)
    {
        return Ok((own, lane, guard));
    }
    let spread = may_spread(s, record);
    for i in 0..LANES as u32 {
        let index = (own + i) % LANES as u32;
        let lane = s.lane(index)?;
        if (!spread || has_room(s, lane, len))
            && let Some(guard) = lock::try_acquire(s, &lane.lock)
        {
            return Ok((index, lane, guard));
        }
    }
    Ok((own, lane, lock::acquire(s, &lane.lock)?))
}

/// Where there are flushes, what several processes have journaled is best written in one piece: all
/// begin with the same lane, and go on to the next while that is locked or full.
fn first_lane(s: &Session) -> u32 {
    match s.medium() {
        MEDIUM_FILE => 0,
        _ => s.slot().lane.load(Relaxed) % LANES as u32,
    }
}

fn len_at_most(record: &Record<'_>) -> u64 {
    match record {
        Record::Batch { ops, .. } => (ops.len() + RECORD_MAX) as u64,
        _ => RECORD_MAX as u64,
    }
}

/// Whether a record fits, wherever the ring ends. Only a hint while the lane is not locked.
#[inline]
fn has_room(s: &Session, lane: &Lane, len: u64) -> bool {
    fits(s, lane, lane.head.load(Relaxed).wrapping_add(2 * len))
}

/// Whether a lane has room up to a position: its ring, and the trees for what waits for them. In
/// the ring records also wait for the next checkpoint.
#[inline]
fn fits(s: &Session, lane: &Lane, end: u64) -> bool {
    let (tail, applied) = (lane.tail.load(Acquire), lane.applied.load(Relaxed));
    is_room(end, (tail, s.lane_len()), (applied, s.lane_ahead()))
}

/// Whether a record may end there: so many bytes at most from the tail on, and from where the trees
/// are.
fn is_room(end: u64, (tail, len): (u64, u64), (applied, ahead): (u64, u64)) -> bool {
    end.wrapping_sub(tail) <= len && end.wrapping_sub(applied.max(tail)) <= ahead
}

/// Bytes up to a position that the trees do not have.
#[inline]
fn waiting(lane: &Lane, tail: u64, end: u64) -> u64 {
    end.wrapping_sub(lane.applied.load(Relaxed).max(tail))
}

fn append(
    s: &Session,
    index: u32,
    lane: &Lane,
    record: &Record<'_>,
    prepared: Prepared<'_>,
) -> Result<(u64, u64, Result<()>)> {
    // The length does not depend on the number.
    let mut encoded = record.draft(index as u16);
    let len = encoded.padded_len() as u64;
    let start = make_room(s, lane, len)?;
    let idle = lane.busy_seq.load(Relaxed) == 0;
    s.ensure(
        idle,
        "a lane that is locked to append has no record under way",
    )?;
    let h = s.header();
    lane.busy_at.store(start, Relaxed);
    lane.busy_seq
        .store(h.next_seq.load(Relaxed).max(1), Relaxed);
    let seq = next_seq(s);
    lane.busy_seq.store(seq, Release);
    if changes_values(record) {
        value_index::raise_values_seq(s, seq);
    }
    encoded.seal(seq);
    let written = match goes_through(s, record, seq) {
        true => write_through(s, index, lane, start, &encoded),
        false => write(s, index, start, &encoded),
    };
    if let Err(e) = written {
        lane.busy_seq.store(0, Release);
        return Err(e);
    }
    lane.head.store(start + len, Release);
    let position = start;
    let place = Place {
        lane: index,
        position,
    };
    let published = publish::publish(s, record, seq, place, prepared);
    if is_no_room(&published) && is_about_files(record) {
        // Should we die meanwhile, recovery waits before anybody gets our locks.
        lane.left_to_trees.store(seq, Release);
        let _ = drain::wait_in_trees(s, lane, start + len);
    }
    lane.busy_seq.store(0, Release);
    Ok((seq, start + len, published))
}

/// Takes a number. 0 is none, so a session that starts at 0 skips it.
fn next_seq(s: &Session) -> u64 {
    loop {
        let seq = s.header().next_seq.fetch_add(1, SeqCst);
        if seq != 0 {
            return seq;
        }
    }
}

/// Position for a record of `len` bytes, once the lane has room for it.
#[inline]
fn make_room(s: &Session, lane: &Lane, len: u64) -> Result<u64> {
    if len > BATCH_RECORD_MAX as u64 || len > s.lane_len() {
        return Err(Error::TooBig);
    }
    let start = start_of(s, lane.head.load(Relaxed), len);
    let end = start + len;
    let tail = lane.tail.load(Acquire);
    if waiting(lane, tail, end) > s.lane_ahead() / RING_PART || !fits(s, lane, end) {
        make_room_slow(s, lane, end)?;
    }
    Ok(start)
}

#[cold]
fn make_room_slow(s: &Session, lane: &Lane, end: u64) -> Result<()> {
    drain::ring(s);
    if fits(s, lane, end) {
        return Ok(());
    }
    let wanted = &s.header().room_wanted;
    drain::wait_until(s, true, || {
        let is_long = end.wrapping_sub(lane.tail.load(Acquire)) > s.lane_len();
        if is_long && wanted.load(Relaxed) == 0 {
            wanted.store(1, SeqCst);
            drain::ring(s);
        }
        fits(s, lane, end)
    })
}

fn start_of(s: &Session, head: u64, len: u64) -> u64 {
    let offset = head % s.lane_len();
    match offset + len > s.lane_len() {
        true => head - offset + s.lane_len(),
        false => head,
    }
}

/// Whether a record is best written by a system call. What was flushed is clean, and the first
/// store through the mapping to a clean page of a file costs much more, at once and at the next
/// flush; but only the first. So it is for records that come with a flush, and for the few that
/// come after one: many are best stored.
fn goes_through(s: &Session, record: &Record<'_>, seq: u64) -> bool {
    let after = || seq.saturating_sub(s.header().synced_seq.load(Relaxed));
    s.medium() == MEDIUM_FILE
        && s.file_limit() == u64::MAX
        && (record.is_about_durability() || after() < FEW)
}

/// Writes the padded record by a system call.
fn write_through(
    s: &Session,
    index: u32,
    lane: &Lane,
    start: u64,
    record: &Encoded<'_>,
) -> Result<()> {
    let at = place(s, index, start);
    let end = start + record.padded_len() as u64;
    let free = (lane.tail.load(Acquire) + s.lane_len()).saturating_sub(end);
    let len = record.padded_len() + rest_of_page(start, end, free) as usize;
    let mut piece = Vec::new();
    if piece.try_reserve_exact(len).is_err() {
        return write(s, index, start, record);
    }
    let parts = record.parts();
    parts
        .into_iter()
        .for_each(|part| piece.extend_from_slice(part));
    piece.resize(len, 0);
    match s.journal().write_through(at, piece.as_slice().into()) {
        Ok(_) => s.journal().fence(),
        // It says what is the matter with the file.
        Err(_) => write(s, index, start, record)?,
    }
    Ok(())
}

/// Bytes behind a record that are made zeroes with it, where `free` are free: all of a page that it
/// is the first in, for the kernel reads one that it does not have before a part of it is written.
fn rest_of_page(start: u64, end: u64, free: u64) -> u64 {
    let rest = end.next_multiple_of(BLOCK) - end;
    let is_begun = !start.is_multiple_of(BLOCK) && start / BLOCK == (end - 1) / BLOCK;
    match is_begun || rest > free {
        true => 0,
        false => rest,
    }
}

/// Where a position of a lane is in the journal.
fn place(s: &Session, index: u32, position: u64) -> u64 {
    u64::from(index) * s.lane_len() + position % s.lane_len()
}

/// Writes the padded record around the cache and fences.
fn write(s: &Session, index: u32, start: u64, record: &Encoded<'_>) -> Result<()> {
    let mut at = place(s, index, start);
    s.enter_journal(at, record.padded_len() as u64);
    let (mut piece, mut filled) = ([0; PIECE], 0);
    for mut part in record.parts() {
        while !part.is_empty() {
            let n = part.len().min(PIECE - filled);
            piece[filled..filled + n].copy_from_slice(&part[..n]);
            part = &part[n..];
            filled += n;
            if filled == PIECE {
                s.journal().write_nt(at, &piece)?;
                at += PIECE as u64;
                filled = 0;
            }
        }
    }
    let end = filled.next_multiple_of(pool::journal::RECORD_ALIGN);
    piece[filled..end].fill(0);
    s.journal().write_nt(at, &piece[..end])?;
    s.journal().fence();
    Ok(())
}

/// Makes sure that publishing `name` will find room.
pub(crate) fn reserve_name(s: &Session, name: &[u8]) -> Result<()> {
    dentry_table::ensure_room(s, name)
}

#[cfg(test)]
mod tests {
    use super::{is_room, rest_of_page};

    #[test]
    fn a_page_is_written_as_a_whole_by_the_first_record_in_it() {
        let free = 1 << 20;
        assert_eq!(rest_of_page(0, 64, free), 4032);
        assert_eq!(rest_of_page(8192, 12_288, free), 0);
        assert_eq!(rest_of_page(4032, 4160, free), 4032);
        // Another one is there already.
        assert_eq!(rest_of_page(64, 128, free), 0);
        assert_eq!(rest_of_page(4032, 4096, free), 0);
        // Behind it lies what recovery needs.
        assert_eq!(rest_of_page(0, 64, 4031), 0);
        assert_eq!(rest_of_page(0, 64, 4032), 4032);
    }

    #[test]
    fn records_wait_for_the_trees_in_a_part_of_a_long_lane_only() {
        let (len, ahead) = (4000, 1000);
        // Nothing is applied: as if the lane were short.
        assert!(is_room(11_000, (10_000, len), (10_000, ahead)));
        assert!(!is_room(11_001, (10_000, len), (10_000, ahead)));
        // What is applied waits for a checkpoint alone.
        assert!(is_room(14_000, (10_000, len), (13_000, ahead)));
        assert!(!is_room(14_000, (10_000, len), (12_999, ahead)));
        assert!(!is_room(14_001, (10_000, len), (13_500, ahead)));
        // Of another medium the tail may be seen further.
        assert!(is_room(11_000, (10_000, len), (9_000, ahead)));
    }
}
