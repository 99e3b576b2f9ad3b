//! Free blocks for new data.
//!
//! Invariants:
//!  * A free block is in exactly one grant, or in the chunk of one process, or nowhere (it died
//!    with a process between two steps; the service takes it back when the session ends).
//!  * A chunk is one word, `block << CHUNK_SHIFT | len`, so taking from it is one store. A grant
//!    gives from its end, so that too is one store; what is taken leaves its old place before it
//!    enters a new one.
//!  * Locks: the chunk's and the grants' are never held together, nor with another table's.

use crate::error::{Error, Result};
use crate::lock;
use crate::session::Session;
use crate::{drain, inode_table};
use core::sync::atomic::Ordering::*;
use pool::session::{GRANTS, Grant, Slot};

/// Blocks of a huge page.
pub const HUGE_BLOCKS: u32 = 512;

const CHUNK_SHIFT: u32 = 16;
/// Blocks that a process takes from the grants at a time, at most.
const CHUNK_MAX: u64 = HUGE_BLOCKS as u64;
/// With fewer granted blocks than this the service is asked for more. It keeps two huge pages
/// ahead of a session at least, and more of one that uses them up fast.
const LOW: u64 = 2 * CHUNK_MAX;
/// How many blocks are asked for: the service knows better, so it only has to look.
const ASK: u32 = 1;

/// Less than usual when the pool is almost full, so that no process sits on the rest.
fn chunk_size(s: &Session) -> u64 {
    (s.header().free_blocks.load(Relaxed) / 64).clamp(16, CHUNK_MAX)
}

fn unpack(word: u64) -> (u64, u64) {
    (word >> CHUNK_SHIFT, word & ((1 << CHUNK_SHIFT) - 1))
}

fn pack(block: u64, len: u64) -> u64 {
    block << CHUNK_SHIFT | len
}

/// Between 1 and `want` blocks in a row: (first block, how many). `near`: begin there if that
/// block is free; `align_2m`: begin on a 2 MiB boundary where there is such a run.
/// `NoSpace` when the pool is full.
pub fn alloc(s: &Session, want: u32, near: Option<u64>, align_2m: bool) -> Result<(u64, u32)> {
    let want = want.max(1);
    if s.is_read_only() {
        return Err(Error::NoSpace);
    }
    if align_2m
        && want >= HUGE_BLOCKS
        && near.is_none_or(|near| near % u64::from(HUGE_BLOCKS) == 0)
        && let Some(run) = take_huge(s, near)?
    {
        return Ok(run);
    }
    for _ in 0..REFILLS {
        if let Some(run) = take_chunk(s, want)? {
            return Ok(run);
        }
        refill(s, want, near)?;
    }
    Err(Error::NoSpace)
}

/// Other threads of the process may empty a chunk again before its filler takes from it.
const REFILLS: u32 = 64;

/// From the process's own chunk.
fn take_chunk(s: &Session, want: u32) -> Result<Option<(u64, u32)>> {
    let slot = s.slot();
    let _guard = lock::acquire_plain(s, &slot.chunk_lock)?;
    let (block, len) = unpack(slot.chunk_block.load(Relaxed));
    let n = len.min(u64::from(want));
    if n == 0 {
        return Ok(None);
    }
    slot.chunk_block.store(pack(block + n, len - n), Relaxed);
    in_range(s, block, n)
}

/// Session memory may say anything: only blocks that are mapped are handed on.
fn in_range(s: &Session, block: u64, len: u64) -> Result<Option<(u64, u32)>> {
    match block.checked_add(len) {
        Some(end) if end <= s.data_blocks() => Ok(Some((block, len as u32))),
        _ => Err(Error::Damaged {
            what: "free block",
            index: block,
        }),
    }
}

/// A whole huge page from the grants, the one at `near` if it is there.
fn take_huge(s: &Session, near: Option<u64>) -> Result<Option<(u64, u32)>> {
    let _guard = lock::acquire_plain(s, &s.header().grants_lock)?;
    let mut found = None;
    for index in 0..used(s) {
        let grant = s.grant(index)?;
        let (block, len) = (grant.block.load(Relaxed), grant.len.load(Relaxed));
        let end = block.saturating_add(len);
        if len < CHUNK_MAX || end % CHUNK_MAX != 0 {
            continue;
        }
        if near.is_some_and(|near| near == end - CHUNK_MAX) {
            found = Some((grant, end - CHUNK_MAX, len));
            break;
        }
        found = found.or(Some((grant, end - CHUNK_MAX, len)));
    }
    let Some((grant, block, len)) = found else {
        return Ok(None);
    };
    grant.len.store(len - CHUNK_MAX, Relaxed);
    in_range(s, block, CHUNK_MAX)
}

fn used(s: &Session) -> u32 {
    s.header().grants_used.load(Acquire).min(GRANTS as u32)
}

/// Fills the process's chunk, from where `near` is if possible.
#[cold]
fn refill(s: &Session, want: u32, near: Option<u64>) -> Result<()> {
    let (block, len) = match take_grant(s, near)? {
        Some(run) => run,
        None => wait_for_grant(s, want, near)?,
    };
    in_range(s, block, len)?;
    let slot = s.slot();
    let guard = lock::acquire_plain(s, &slot.chunk_lock)?;
    let (_, left) = unpack(slot.chunk_block.load(Relaxed));
    if left == 0 {
        slot.chunk_block.store(pack(block, len), Relaxed);
        return Ok(());
    }
    drop(guard);
    put_grant(s, block, len)
}

/// Up to a chunk from one grant.
fn take_grant(s: &Session, near: Option<u64>) -> Result<Option<(u64, u64)>> {
    let _guard = lock::acquire_plain(s, &s.header().grants_lock)?;
    let (mut best, mut left) = (None::<(&Grant, u64, u64)>, 0u64);
    for index in 0..used(s) {
        let grant = s.grant(index)?;
        let (block, len) = (grant.block.load(Relaxed), grant.len.load(Relaxed));
        if len == 0 {
            continue;
        }
        left = left.saturating_add(len);
        let n = len.min(chunk_size(s));
        if near == Some(block.wrapping_add(len - n)) {
            best = Some((grant, block, len));
            left = LOW.max(left);
            break;
        }
        // Small remains first, so that whole huge pages stay whole.
        if best.is_none_or(|(_, _, least)| len < least) {
            best = Some((grant, block, len));
        }
    }
    let Some((grant, block, len)) = best else {
        return Ok(None);
    };
    let n = len.min(chunk_size(s));
    grant.len.store(len - n, Relaxed);
    if left - n < LOW && s.header().out_of_space.load(Relaxed) == 0 {
        // Before they are used up, so that nobody has to wait.
        s.header().grant_wanted.fetch_max(ASK, AcqRel);
        drain::ring(s);
    }
    Ok(Some((block.wrapping_add(len - n), n)))
}

/// The grants are used up: asks the service for more and waits until it has answered.
#[cold]
fn wait_for_grant(s: &Session, want: u32, near: Option<u64>) -> Result<(u64, u64)> {
    let h = s.header();
    for round in 0..2 {
        // What was freed a moment ago counts only once it is applied.
        drain::wait_applied(s, h.next_seq.load(Acquire).saturating_sub(1))?;
        h.out_of_space.store(0, SeqCst);
        h.grant_wanted.fetch_max(want.max(HUGE_BLOCKS), AcqRel);
        drain::wait_until(s, true, || {
            h.out_of_space.load(Acquire) != 0 || any_grant(s)
        })?;
        if let Some(run) = take_grant(s, near)? {
            return Ok(run);
        }
        if round == 0 {
            inode_table::drop_shadows(s);
            if let Some(run) = take_grant(s, near)? {
                return Ok(run);
            }
        }
    }
    Err(Error::NoSpace)
}

fn any_grant(s: &Session) -> bool {
    (0..used(s)).any(|index| {
        s.grant(index)
            .is_ok_and(|grant| grant.len.load(Relaxed) != 0)
    })
}

/// Returns blocks that no journal record mentions.
pub fn give_back(s: &Session, block: u64, len: u32) {
    let len = u64::from(len);
    if len == 0 || in_range(s, block, len).is_err() {
        return;
    }
    if !give_to_chunk(s, block, len) {
        // Where there is no room they wait for the end of the session.
        let _ = put_grant(s, block, len);
    }
}

/// To the process's chunk if they lie right before it, or it is empty.
fn give_to_chunk(s: &Session, block: u64, len: u64) -> bool {
    let slot = s.slot();
    let Ok(_guard) = lock::acquire_plain(s, &slot.chunk_lock) else {
        return false;
    };
    let (first, left) = unpack(slot.chunk_block.load(Relaxed));
    let fits = len + left < 1 << CHUNK_SHIFT && (left == 0 || block + len == first);
    if fits {
        slot.chunk_block.store(pack(block, len + left), Relaxed);
    }
    fits
}

/// To the grant that they follow, or to a grant of their own.
fn put_grant(s: &Session, block: u64, len: u64) -> Result<()> {
    let h = s.header();
    let _guard = lock::acquire_plain(s, &h.grants_lock)?;
    let mut free = None;
    for index in 0..used(s) {
        let grant = s.grant(index)?;
        let (first, left) = (grant.block.load(Relaxed), grant.len.load(Relaxed));
        if left == 0 {
            free = free.or(Some(index));
        } else if first.checked_add(left) == Some(block) {
            grant.len.store(left + len, Relaxed);
            return Ok(());
        }
    }
    let index = free.unwrap_or_else(|| used(s));
    let grant = s.grant(index)?;
    grant.block.store(block, Relaxed);
    grant.len.store(len, Release);
    h.grants_used.fetch_max(index + 1, AcqRel);
    Ok(())
}

/// Returns the chunk of a slot whose process is gone or leaves.
pub(crate) fn return_chunk(s: &Session, slot: &Slot) {
    let Ok(guard) = lock::acquire_plain(s, &slot.chunk_lock) else {
        return;
    };
    let (block, len) = unpack(slot.chunk_block.swap(0, AcqRel));
    drop(guard);
    if len > 0 {
        // Where there is no room they wait for the end of the session.
        let _ = put_grant(s, block, len);
    }
}
