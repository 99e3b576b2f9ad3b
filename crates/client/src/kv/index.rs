//! The index of changes that the trees do not know yet: the volatile half of the root buffer.
//!
//! Invariants:
//!  * A cell leads to a change in the journal. It means something while its place is not before
//!    the tail of its lane; then the change's record is whole and its bytes stay.
//!  * A key has at most one cell that means something, that of its newest change: who publishes
//!    holds the buckets of all its keys, and replaces.
//!  * The changes of one record become visible together: every bucket's `version` is odd from
//!    before the first cell is stored until after the last.
//!  * `values_seq` is raised before a cell is stored.

use super::get::Out;
use crate::cold;
use crate::error::{Error, Result};
use crate::lock::{self, Guard};
use crate::publish::Prepared;
use crate::publish_values;
use crate::session::{BLOCK, Session};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::*, fence};
use pool::journal::{OP_ALIGN, OP_HEADER, Op, OpHeader, Ops, RECORD_HEADER};
use pool::layout::dirent::name_hash;
use pool::layout::value::{ENTRY_MAX, InBlocks, USER_KEY_MAX, ValueRun};
use pool::session::{VALUE_CELLS, ValueBucket};

const LANE_BITS: u32 = 4;
const PLACE_BITS: u32 = 48;
const PLACE: u64 = (1 << PLACE_BITS) - 1;
/// Positions from here on have no cell: 2^47 bytes of one lane in one session.
const POSITION_END: u64 = 1 << (PLACE_BITS - LANE_BITS + OP_ALIGN.trailing_zeros());
/// Bytes of a change, as far as room is made ahead.
const OP_LIKELY: usize = 128;
/// Bits of a hash that choose the bucket are below those of the tag.
const TAG_AT: u32 = 24;

/// Where a record is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub lane: u32,
    pub position: u64,
}

/// The hash of a key.
#[inline]
pub(super) fn hash(s: &Session, keyspace: u64, key: &[u8]) -> u64 {
    name_hash(
        s.hash_seed() ^ keyspace.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        key,
    )
}

#[inline]
fn tag_of(hash: u64) -> u64 {
    (hash >> TAG_AT) << PLACE_BITS
}

fn pack(hash: u64, place: Place) -> Option<u64> {
    let units = place.position / OP_ALIGN as u64;
    let fits = place.position < POSITION_END && place.lane < 1 << LANE_BITS;
    fits.then_some(tag_of(hash) | units << LANE_BITS | u64::from(place.lane))
}

#[inline]
fn unpack(cell: u64) -> Place {
    Place {
        lane: (cell & ((1 << LANE_BITS) - 1)) as u32,
        position: (cell & PLACE) >> LANE_BITS << OP_ALIGN.trailing_zeros(),
    }
}

/// Whether the trees may not know what is there.
#[inline]
fn is_waiting(s: &Session, place: Place) -> bool {
    let lane = s.lane(place.lane);
    lane.is_ok_and(|lane| place.position >= lane.applied.load(Acquire))
}

/// Where the bytes of a place are in the journal segment.
#[inline]
fn offset(s: &Session, place: Place) -> u64 {
    u64::from(place.lane) * s.lane_len() + place.position % s.lane_len()
}

/// What the index says about a key.
pub(super) enum Look {
    /// It has a value of this length, which was copied.
    Value(u64),
    /// It is gone.
    Erased,
    /// Nothing that the root does not know.
    Unknown,
    /// What it said was passed over meanwhile: look again with a newer root.
    Again,
    /// A change that is newer than what was asked for.
    Newer,
}

/// The numbers of the changes that are looked for: above what a root has, and not above what a
/// view shows.
#[derive(Clone, Copy)]
pub(super) struct Between {
    pub applied: u64,
    pub upto: u64,
}

/// Looks for the newest change of `key`.
pub(super) fn look(
    s: &Session,
    keyspace: u64,
    key: &[u8],
    between: Between,
    out: &mut Out<'_>,
) -> Result<Look> {
    let hash = hash(s, keyspace, key);
    let bucket = s.value_bucket(hash)?;
    let load = |cell: &AtomicU64| cell.load(Relaxed);
    let cells = lock::read_stable(&bucket.version, || bucket.cells.each_ref().map(load));
    let cells = match cells {
        Some(cells) => cells,
        None => {
            let _guard = take(s, bucket)?;
            bucket.cells.each_ref().map(load)
        }
    };
    for cell in cells {
        if cell == 0 || cell & !PLACE != tag_of(hash) {
            continue;
        }
        let place = unpack(cell);
        if !is_waiting(s, place) {
            continue;
        }
        match read(s, place, keyspace, key, between, out)? {
            Some(look) => return Ok(look),
            None => continue,
        }
    }
    Ok(Look::Unknown)
}

/// The change at `place`, if it is one of `key`. What was read counts only if the place still
/// waits afterwards.
fn read(
    s: &Session,
    place: Place,
    keyspace: u64,
    key: &[u8],
    between: Between,
    out: &mut Out<'_>,
) -> Result<Option<Look>> {
    let at = offset(s, place);
    let mut head = [0; OP_HEADER];
    s.journal().read(at, &mut head)?;
    let found = OpHeader::decode(&head)
        .filter(|h| h.keyspace == keyspace && h.key_len == key.len() && h.back <= at);
    let Some(h) = found.filter(|_| is_key(s, at, key)) else {
        return Ok((!is_waiting(s, place)).then_some(Look::Again));
    };
    let seq = s.journal().load_u64((at - h.back + 8) & !7)?;
    let value_at = at + (OP_HEADER + h.key_len) as u64;
    let look = if seq <= between.applied {
        Ok(Look::Unknown)
    } else if seq > between.upto && h.alone {
        // What was before it is in the trees.
        Ok(Look::Unknown)
    } else if seq > between.upto {
        Ok(Look::Newer)
    } else if h.is_put() && h.value_len > ENTRY_MAX {
        Ok(Look::Again)
    } else if h.is_put() {
        let n = h.value_len.min(out.bytes.len());
        s.journal().read(value_at, &mut out.bytes[..n])?;
        (out.mtime, out.blocks) = (time_of(s, at, h.back)?, None);
        Ok(Look::Value(h.value_len as u64))
    } else if h.is_put_blocks() {
        let mut runs = [0; pool::layout::value::IN_BLOCKS_MAX];
        let runs = &mut runs[..h.value_len.min(pool::layout::value::IN_BLOCKS_MAX)];
        s.journal().read(value_at, runs)?;
        match InBlocks::decode(runs) {
            Ok(blocks) => {
                out.mtime = time_of(s, at, h.back)?;
                out.take(s, blocks).map(Look::Value)
            }
            Err(_) => Ok(Look::Again),
        }
    } else {
        Ok(Look::Erased)
    };
    fence(Acquire);
    match is_waiting(s, place) {
        true => look.map(Some),
        false => Ok(Some(Look::Again)),
    }
}

/// The time of the record that is `back` bytes before a change.
#[inline]
fn time_of(s: &Session, at: u64, back: u64) -> Result<i64> {
    Ok(s.journal()
        .load_u64((at - back + RECORD_HEADER as u64) & !7)? as i64)
}

#[inline]
fn is_key(s: &Session, at: u64, key: &[u8]) -> bool {
    let mut piece = [0; 64];
    let mut from = at + OP_HEADER as u64;
    key.chunks(piece.len()).all(|want| {
        let have = &mut piece[..want.len()];
        let same = s.journal().read(from, have).is_ok() && have == want;
        from += want.len() as u64;
        same
    })
}

/// Session memory and a damaged pool may say anything: no value is longer than the pool, so
/// nobody makes room for more.
pub(super) fn check_blocks(s: &Session, blocks: &InBlocks) -> Result<()> {
    let end = |run: &ValueRun| run.block.saturating_add(run.len.into());
    let inside = blocks.runs().iter().all(|run| end(run) <= s.data_blocks());
    match inside && blocks.len <= s.data_blocks().saturating_mul(BLOCK) {
        true => Ok(()),
        false => Err(Error::Damaged {
            what: "length of a value",
            index: blocks.len,
        }),
    }
}

/// Copies as much as there is room for; the value's length.
pub(super) fn copy_blocks(s: &Session, blocks: &InBlocks, out: &mut [u8]) -> Result<u64> {
    check_blocks(s, blocks)?;
    let mut left = usize::try_from(blocks.len).map_or(out.len(), |len| len.min(out.len()));
    let mut done = 0;
    for run in blocks.runs() {
        let n = left.min((u64::from(run.len) * BLOCK) as usize);
        if n == 0 {
            break;
        }
        let piece = &mut out[done..done + n];
        cold::copy_out(s, cold::VALUES, run.block * BLOCK, piece.into())?;
        (done, left) = (done + n, left - n);
    }
    Ok(blocks.len)
}

pub(super) fn take<'s>(s: &'s Session, bucket: &'s ValueBucket) -> Result<Guard<'s>> {
    let guard = lock::acquire(s, &bucket.lock)?;
    // Recovery has published what the last holder died with.
    lock::settle(&bucket.version);
    Ok(guard)
}

/// The locked buckets of the keys of a record.
pub(crate) enum Locked<'s> {
    None,
    One(#[expect(dead_code, reason = "held")] Guard<'s>),
    Many(#[expect(dead_code, reason = "held")] Vec<Guard<'s>>),
}

/// Locks the buckets of these hashes once they have room for one change each; `None`: they never
/// will. Nobody waits here for a bucket while holding another.
pub(super) fn lock_all<'s>(s: &'s Session, hashes: &[u64]) -> Result<Option<Locked<'s>>> {
    if let [hash] = hashes {
        let bucket = s.value_bucket(*hash)?;
        let guard = take(s, bucket)?;
        if room(s, bucket) > 0 {
            return Ok(Some(Locked::One(guard)));
        }
        drop(guard);
    }
    let mut sorted = hashes.to_vec();
    sorted.sort_unstable_by_key(|hash| Session::value_bucket_index(*hash));
    loop {
        match try_lock_all(s, &sorted)? {
            Tried::Locked(all) => return Ok(Some(all)),
            Tried::Never => return Ok(None),
            Tried::Full => {
                let upto = s.header().next_seq.load(SeqCst).saturating_sub(1);
                crate::drain::wait_applied(s, upto)?;
            }
            Tried::Taken(bucket) => drop(take(s, bucket)?),
        }
    }
}

enum Tried<'s> {
    Locked(Locked<'s>),
    Taken(&'s ValueBucket),
    Full,
    Never,
}

fn try_lock_all<'s>(s: &'s Session, sorted: &[u64]) -> Result<Tried<'s>> {
    let mut all = Vec::with_capacity(sorted.len());
    let same =
        |a: &u64, b: &u64| Session::value_bucket_index(*a) == Session::value_bucket_index(*b);
    for group in sorted.chunk_by(same) {
        let bucket = s.value_bucket(group[0])?;
        if group.len() > VALUE_CELLS {
            return Ok(Tried::Never);
        }
        let Some(guard) = lock::try_acquire(s, &bucket.lock) else {
            return Ok(Tried::Taken(bucket));
        };
        lock::settle(&bucket.version);
        if room(s, bucket) < group.len() {
            return Ok(Tried::Full);
        }
        all.push(guard);
    }
    Ok(Tried::Locked(Locked::Many(all)))
}

/// Says of each change whether another one of its key may wait for the trees. The buckets are
/// locked: it stays so until the changes are published. `hashes`: those of the keys, in order.
pub(super) fn mark_alone(s: &Session, ops: &mut [u8], hashes: &[u64]) {
    let mut hashes = hashes.iter();
    pool::journal::mark_alone(ops, || {
        let Some(hash) = hashes.next() else {
            return false;
        };
        let Ok(bucket) = s.value_bucket(*hash) else {
            return false;
        };
        bucket.cells.iter().all(|cell| {
            let cell = cell.load(Relaxed);
            cell == 0 || cell & !PLACE != tag_of(*hash) || !is_waiting(s, unpack(cell))
        })
    });
}

/// Cells that a new change may take.
fn room(s: &Session, bucket: &ValueBucket) -> usize {
    let free = |cell: &&AtomicU64| {
        let cell = cell.load(Relaxed);
        cell == 0 || !is_waiting(s, unpack(cell))
    };
    bucket.cells.iter().filter(free).count()
}

/// Says that the index may have changes with this number. Best before the record is stored: what
/// was stored around the cache makes a locked instruction wait.
#[inline]
pub(crate) fn raise_values_seq(s: &Session, seq: u64) {
    let newest = &s.header().values_seq;
    if newest.load(Relaxed) < seq {
        newest.fetch_max(seq, SeqCst);
    }
}

/// Makes the changes of record `seq` at `place` visible. `NoMemory`: they will be when the trees
/// have them.
pub(crate) fn publish(
    s: &Session,
    ops: &[u8],
    (seq, time): (u64, i64),
    place: Place,
    room: Prepared<'_>,
) -> Result<()> {
    raise_values_seq(s, seq);
    let mut all = Ops::new(ops);
    let first = all.next();
    if let (Some(Ok(op)), None) = (&first, all.next()) {
        let done = match op.change.is_about_files() {
            true => publish_values::single(s, op, (seq, time), place, room),
            false => Ok(()),
        };
        if !op.change.is_keyed() {
            let in_tables = op.change.is_about_files();
            return done.and(in_tables.then_some(()).ok_or(Error::NoMemory));
        }
        let hash = hash(s, op.keyspace, op.key);
        let bucket = s.value_bucket(hash)?;
        let _change = lock::Changing::begin(&bucket.version);
        let start = pool::journal::OPS_AT as u64;
        return done.and(insert(s, (bucket, hash), op, place, start));
    }
    let done = publish_many(s, ops, place);
    let names = first.is_some_and(|op| op.is_ok_and(|op| op.change.is_about_files()));
    match names {
        // After the values that replace them.
        true => publish_values::unname(s, ops, (seq, time), room).and(done),
        false => done,
    }
}

/// A change and where it goes: its place behind the start of its record, and its key's bucket.
struct Cell<'a, 's> {
    op: Op<'a>,
    back: u64,
    hash: u64,
    bucket: &'s ValueBucket,
}

fn publish_many(s: &Session, ops: &[u8], place: Place) -> Result<()> {
    let mut cells = Vec::with_capacity(ops.len() / OP_LIKELY + 1);
    let mut all = Ops::new(ops);
    loop {
        let back = all.place();
        let Some(Ok(op)) = all.next() else { break };
        if op.change.is_keyed() {
            let hash = hash(s, op.keyspace, op.key);
            let bucket = s.value_bucket(hash)?;
            cells.push(Cell {
                op,
                back,
                hash,
                bucket,
            });
        } else if !op.change.is_about_files() {
            return Err(Error::NoMemory);
        }
    }
    for cell in &cells {
        let version = &cell.bucket.version;
        version.store(version.load(Relaxed) | 1, Relaxed);
    }
    fence(Release);
    let mut done = Ok(());
    for cell in &cells {
        let to = (cell.bucket, cell.hash);
        done = done.and(insert(s, to, &cell.op, place, cell.back));
    }
    cells
        .iter()
        .for_each(|cell| lock::settle(&cell.bucket.version));
    done
}

/// Stores the cell of one change, in the place of the key's last one if that still waits.
fn insert(
    s: &Session,
    (b, hash): (&ValueBucket, u64),
    op: &Op<'_>,
    record: Place,
    back: u64,
) -> Result<()> {
    let place = Place {
        lane: record.lane,
        position: record.position + back,
    };
    let cell = pack(hash, place).ok_or(Error::NoMemory)?;
    let mut free = None;
    for slot in &b.cells {
        let old = slot.load(Relaxed);
        if old == 0 || !is_waiting(s, unpack(old)) {
            free = free.or(Some(slot));
        } else if old & !PLACE == cell & !PLACE && is_about(s, unpack(old), op) {
            slot.store(cell, Release);
            return Ok(());
        }
    }
    free.ok_or(Error::NoMemory)?.store(cell, Release);
    Ok(())
}

/// Whether the change at `place` is one of the same key.
fn is_about(s: &Session, place: Place, op: &Op<'_>) -> bool {
    let at = offset(s, place);
    let mut head = [0; OP_HEADER];
    if s.journal().read(at, &mut head).is_err() {
        return false;
    }
    OpHeader::decode(&head).is_some_and(|h| h.keyspace == op.keyspace && h.key_len == op.key.len())
        && is_key(s, at, op.key)
}

const _: () = assert!(USER_KEY_MAX <= u16::MAX as usize);
