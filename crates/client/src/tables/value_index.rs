//! The index of changes that the trees do not have yet: the volatile half of the root buffer.
//!
//! Invariants:
//!  * A cell refers to a change in the journal. It is valid while its position is not before the
//!    tail of its lane; then the change's record is whole and its bytes stay.
//!  * A key has at most one valid cell, that of its newest change: a publisher holds the buckets of
//!    all its keys, and replaces.
//!  * The changes of one record become visible together: every bucket's `version` is odd from
//!    before the first cell is stored until after the last.
//!  * `values_seq` is raised before a cell is stored.

use crate::base::cold;
use crate::base::error::{Error, Result};
use crate::session::lock::{self, Guard};
use crate::session::place::Place;
use crate::session::{BLOCK, Session};
use alloc::vec::Vec;
use pmem::atomic::{AtomicU64, Ordering::*, fence};
use pool::journal::{OP_ALIGN, OP_HEADER, Op, OpHeader, RECORD_HEADER};
use pool::layout::dirent::name_hash;
use pool::layout::value::{
    ENTRY_MAX, EXPIRES, IN_BLOCKS_MAX, InBlocks, NEVER, USER_KEY_MAX, ValueRun,
};
use pool::session::{VALUE_CELLS, ValueBucket};

const LANE_BITS: u32 = 4;
const PLACE_BITS: u32 = 48;
const PLACE: u64 = (1 << PLACE_BITS) - 1;
/// Positions from here on have no cell: 2^47 bytes of one lane in one session.
const POSITION_END: u64 = 1 << (PLACE_BITS - LANE_BITS + OP_ALIGN.trailing_zeros());
/// Bits of a hash that choose the bucket are below those of the tag.
const TAG_AT: u32 = 24;

/// The hash of a key.
#[inline]
pub(crate) fn hash(s: &Session, keyspace: u64, key: &[u8]) -> u64 {
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

/// What is wanted of a value.
pub(crate) struct Out<'a> {
    /// The first bytes of it.
    pub bytes: &'a mut [u8],
    /// Where its blocks are, instead of what is in them.
    pub locate: bool,
    /// The answer to that; nothing if the value has none.
    pub blocks: Option<InBlocks>,
    pub mtime: i64,
    /// When it expires, or expired, which is not looked at here.
    pub expires: i64,
}

impl<'a> Out<'a> {
    #[inline]
    pub fn copy(bytes: &'a mut [u8]) -> Out<'a> {
        Out {
            bytes,
            locate: false,
            blocks: None,
            mtime: 0,
            expires: NEVER,
        }
    }

    pub fn locate(bytes: &'a mut [u8]) -> Out<'a> {
        let locate = true;
        Out {
            locate,
            ..Out::copy(bytes)
        }
    }

    /// Takes a value in blocks; its length.
    pub fn take(&mut self, s: &Session, blocks: InBlocks) -> Result<u64> {
        if self.locate {
            let len = blocks.len;
            self.blocks = Some(blocks);
            return Ok(len);
        }
        copy_blocks(s, &blocks, self.bytes)
    }
}

/// What the index says about a key.
pub(crate) enum Look {
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
pub(crate) struct Between {
    pub applied: u64,
    pub upto: u64,
}

/// Looks for the newest change of `key`.
pub(crate) fn lookup(
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
        if !place.is_waiting(s) {
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
    let at = place.offset(s);
    let mut head = [0; OP_HEADER];
    s.journal().read(at, &mut head)?;
    let found = OpHeader::decode(&head)
        .filter(|h| h.keyspace == keyspace && h.key_len == key.len() && h.back <= at);
    let Some(h) = found.filter(|_| is_key(s, at, key)) else {
        return Ok((!place.is_waiting(s)).then_some(Look::Again));
    };
    let seq = s.journal().load_u64((at - h.back + 8) & !7)?;
    let look = if seq <= between.applied {
        Ok(Look::Unknown)
    } else if seq > between.upto && h.alone {
        // What was before it is in the trees.
        Ok(Look::Unknown)
    } else if seq > between.upto {
        Ok(Look::Newer)
    } else if h.is_put() || h.is_put_blocks() {
        read_value(s, at, &h, out)
    } else {
        Ok(Look::Erased)
    };
    fence(Acquire);
    match place.is_waiting(s) {
        true => look.map(Some),
        false => Ok(Some(Look::Again)),
    }
}

/// The value that the change at `at` puts.
fn read_value(s: &Session, at: u64, h: &OpHeader, out: &mut Out<'_>) -> Result<Look> {
    let mut value_at = at + (OP_HEADER + h.key_len) as u64;
    let Some(len) = h.value_len.checked_sub(h.value_at()) else {
        return Ok(Look::Again);
    };
    out.expires = NEVER;
    if h.value_at() > 0 {
        let mut expires = [0; EXPIRES];
        s.journal().read(value_at, &mut expires)?;
        out.expires = i64::from_le_bytes(expires);
        value_at += EXPIRES as u64;
    }
    out.mtime = time_of(s, at, h.back)?;
    if h.is_put() {
        if len > ENTRY_MAX {
            return Ok(Look::Again);
        }
        let n = len.min(out.bytes.len());
        s.journal().read(value_at, &mut out.bytes[..n])?;
        out.blocks = None;
        return Ok(Look::Value(len as u64));
    }
    let mut runs = [0; IN_BLOCKS_MAX];
    let runs = &mut runs[..len.min(IN_BLOCKS_MAX)];
    s.journal().read(value_at, runs)?;
    match InBlocks::decode(runs) {
        Ok(blocks) => out.take(s, blocks).map(Look::Value),
        Err(_) => Ok(Look::Again),
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
pub(crate) fn check_blocks(s: &Session, blocks: &InBlocks) -> Result<()> {
    let is_inside = |run: &ValueRun| run.block.is_within(run.len.into(), s.data_blocks());
    let inside = blocks.runs().iter().all(is_inside);
    match inside && blocks.len <= s.data_blocks().saturating_mul(BLOCK) {
        true => Ok(()),
        false => Err(Error::Damaged {
            what: "length of a value",
            index: blocks.len,
        }),
    }
}

/// Copies as much as there is room for; the value's length.
pub(crate) fn copy_blocks(s: &Session, blocks: &InBlocks, out: &mut [u8]) -> Result<u64> {
    check_blocks(s, blocks)?;
    let mut left = usize::try_from(blocks.len).map_or(out.len(), |len| len.min(out.len()));
    let mut done = 0;
    for run in blocks.runs() {
        let n = left.min((u64::from(run.len) * BLOCK) as usize);
        if n == 0 {
            break;
        }
        let piece = &mut out[done..done + n];
        s.copy_out(cold::VALUES, (run.block, 0), piece.into())?;
        (done, left) = (done + n, left - n);
    }
    Ok(blocks.len)
}

pub(crate) fn take<'s>(s: &'s Session, bucket: &'s ValueBucket) -> Result<Guard<'s>> {
    let guard = lock::acquire(s, &bucket.lock)?;
    // Recovery has published what the last holder died with.
    lock::close_change(&bucket.version);
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
pub(crate) fn lock_all<'s>(s: &'s Session, hashes: &[u64]) -> Result<Option<Locked<'s>>> {
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
                crate::session::drain::wait_applied(s, upto)?;
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
        lock::close_change(&bucket.version);
        if room(s, bucket) < group.len() {
            return Ok(Tried::Full);
        }
        all.push(guard);
    }
    Ok(Tried::Locked(Locked::Many(all)))
}

/// Says of each change whether another one of its key may wait for the trees. The buckets are
/// locked: it stays so until the changes are published. `hashes`: those of the keys, in order.
pub(crate) fn mark_alone(s: &Session, ops: &mut [u8], hashes: &[u64]) {
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
            cell == 0 || cell & !PLACE != tag_of(*hash) || !unpack(cell).is_waiting(s)
        })
    });
}

/// Cells that a new change may take.
fn room(s: &Session, bucket: &ValueBucket) -> usize {
    let free = |cell: &&AtomicU64| {
        let cell = cell.load(Relaxed);
        cell == 0 || !unpack(cell).is_waiting(s)
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

/// Stores the cell of one change, in the place of the key's last one if that still waits.
pub(crate) fn insert(
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
        if old == 0 || !unpack(old).is_waiting(s) {
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
    let at = place.offset(s);
    let mut head = [0; OP_HEADER];
    if s.journal().read(at, &mut head).is_err() {
        return false;
    }
    OpHeader::decode(&head).is_some_and(|h| h.keyspace == op.keyspace && h.key_len == op.key.len())
        && is_key(s, at, op.key)
}

const _: () = assert!(USER_KEY_MAX <= u16::MAX as usize);
