//! Free blocks for new data.
//!
//! Invariants:
//!  * A free block is in exactly one grant, ring, chunk or piece of a process, or nowhere (it died
//!    with a process between two steps; the service takes it back when the session ends).
//!  * A chunk is one word, `block << RUN_SHIFT | len`, so taking from it is one store; so is each
//!    piece, what is left of a fragment. A grant gives from its end, so that too is one store;
//!    what is taken leaves its old place before it enters a new one. A fragment is taken out of its
//!    ring by one compare-and-swap of the ring's count.
//!  * Here a block is the word of its address (`BlockAddr`): only words below `data_blocks` are
//!    handed on, which are blocks of data segment 0.
//!  * Few blocks come from fragments as long as there are such that suffice, many in a row from
//!    grants. Only when there are no grants any more, everything is taken as it comes.
//!  * Locks: the chunk's and the grants' are never held together, nor with another table's.

use crate::base::error::{Error, Result};
use crate::session::Session;
use crate::session::drain;
use crate::session::lock;
use pmem::atomic::AtomicU64;
use pmem::atomic::Ordering::*;
use pool::layout::BlockAddr;
use pool::session::{GRANTS, Grant, RING_RUNS, RINGS, RUN_SHIFT, Slot, ring_of};

/// Blocks of a huge page.
pub const HUGE_BLOCKS: u32 = 512;

/// Blocks that a process takes from the grants at a time, at most.
const CHUNK_MAX: u64 = HUGE_BLOCKS as u64;
/// With fewer granted blocks than this the service is asked for more. It keeps two huge pages
/// ahead of a session at least, and more of one that uses them up fast.
const LOW: u64 = 2 * CHUNK_MAX;
/// How many blocks are asked for: the service knows better, so it only has to look.
const ASK: u32 = 1;
/// The service is asked for more fragments when a ring is down to so many, not when it ends: where
/// there are few, there may be no more.
const RING_LOW: u64 = 4096;
/// Who wants so many blocks wants them in a row.
const LONG: u32 = 64;
/// How often the service may say that there is nothing.
const ROUNDS: u32 = 3;
/// Others may take what came in between, but not as often as this.
const TRIES: u32 = 10_000;

/// Less than usual when the pool is almost full, so that no process sits on the rest.
fn chunk_size(s: &Session) -> u64 {
    (s.header().free_blocks.load(Relaxed) / 64).clamp(16, CHUNK_MAX)
}

fn unpack(word: u64) -> (u64, u64) {
    (word >> RUN_SHIFT, word & ((1 << RUN_SHIFT) - 1))
}

fn pack(block: u64, len: u64) -> u64 {
    block << RUN_SHIFT | len
}

/// Between 1 and `want` blocks in a row: (first block, how many). `near`: begin there if that
/// block is free; `align_2m`: begin on a 2 MiB boundary where there is such a run.
/// `NoSpace` when the pool is full.
pub fn alloc(
    s: &Session,
    want: u32,
    near: Option<BlockAddr>,
    align_2m: bool,
) -> Result<(BlockAddr, u32)> {
    let near = near.map(BlockAddr::word);
    let (block, len) = alloc_somewhere(s, want.max(1), near, align_2m)?;
    let block = BlockAddr::from_word(block);
    s.enter_blocks(block, len.into());
    Ok((block, len))
}

fn alloc_somewhere(
    s: &Session,
    want: u32,
    near: Option<u64>,
    align_2m: bool,
) -> Result<(u64, u32)> {
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
    if want < HUGE_BLOCKS
        && let Some(run) = take_fragment(s, want.into(), near)?
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
    let word = &slot.chunk_block;
    if unpack(word.load(Relaxed)).1 == 0 {
        return Ok(None);
    }
    let _guard = lock::acquire_plain(s, &slot.chunk_lock)?;
    match unpack(word.load(Relaxed)) {
        (_, 0) => Ok(None),
        (block, len) => take_from(s, word, (block, len), len.min(want.into())),
    }
}

/// The first `n` blocks of a run that is in `word`.
#[inline]
fn take_from(
    s: &Session,
    word: &AtomicU64,
    (block, len): (u64, u64),
    n: u64,
) -> Result<Option<(u64, u32)>> {
    word.store(pack(block + n, len - n), Relaxed);
    in_range(s, block, n)
}

/// `want` blocks from the smallest piece that has as many.
#[inline]
fn take_piece(s: &Session, slot: &Slot, want: u64) -> Result<Option<(u64, u32)>> {
    let smallest = || {
        let all = slot
            .pieces
            .iter()
            .map(|word| (unpack(word.load(Relaxed)), word));
        let enough = all.filter(|((_, len), _)| *len >= want);
        enough.min_by_key(|((_, len), _)| *len)
    };
    if smallest().is_none() {
        return Ok(None);
    }
    let _guard = lock::acquire_plain(s, &slot.chunk_lock)?;
    match smallest() {
        Some((run, word)) => take_from(s, word, run, want),
        None => Ok(None),
    }
}

/// Keeps a run as a piece, instead of the shortest one, which becomes a grant.
fn keep_piece(s: &Session, slot: &Slot, block: u64, len: u64) {
    let mut shortest = (block, len);
    if let Ok(_guard) = lock::acquire_plain(s, &slot.chunk_lock) {
        let by_len = |word: &&AtomicU64| unpack(word.load(Relaxed)).1;
        if let Some(word) = slot.pieces.iter().min_by_key(by_len)
            && by_len(&word) < len
        {
            shortest = unpack(word.swap(pack(block, len), Relaxed));
        }
    }
    if shortest.1 > 0 {
        // Where there is no room they wait for the end of the session.
        let _ = put_grant(s, shortest.0, shortest.1);
    }
}

/// `want` blocks from a fragment that has as many, unless the chunk goes on where `near` is.
fn take_fragment(s: &Session, want: u64, near: Option<u64>) -> Result<Option<(u64, u32)>> {
    let slot = s.slot();
    let (next, left) = unpack(slot.chunk_block.load(Relaxed));
    if left > 0 && near == Some(next) {
        return Ok(None);
    }
    if let Some(run) = take_piece(s, slot, want)? {
        return Ok(Some(run));
    }
    for ring in ring_of(want)..RINGS {
        if let Some((block, len)) = take_from_ring(s, ring, want)? {
            in_range(s, block, len)?;
            if len > want {
                keep_piece(s, slot, block + want, len - want);
            }
            return in_range(s, block, want);
        }
    }
    Ok(None)
}

/// The next fragment of a ring if it has at least `least` blocks.
#[inline]
fn take_from_ring(s: &Session, ring: usize, least: u64) -> Result<Option<(u64, u64)>> {
    let rings = s.rings()?;
    let (put, taken) = (&rings.put[ring], &rings.taken[ring]);
    loop {
        let (next, end) = (taken.load(Acquire), put.load(Acquire));
        let there = end.wrapping_sub(next);
        if there == 0 || there > RING_RUNS as u64 {
            return Ok(None);
        }
        let (block, len) = unpack(s.ring_word(ring, next)?.load(Relaxed));
        // If somebody took it, this may be anything.
        if len < least {
            return Ok(None);
        }
        if taken
            .compare_exchange(next, next + 1, AcqRel, Relaxed)
            .is_ok()
        {
            if there == RING_LOW {
                drain::ring(s);
            }
            return Ok(Some((block, len)));
        }
    }
}

/// Whatever fragment there is, the longest ones first.
#[cold]
fn take_any_fragment(s: &Session) -> Result<Option<(u64, u64)>> {
    for ring in (0..RINGS).rev() {
        if let Some((block, len)) = take_from_ring(s, ring, 1)? {
            in_range(s, block, len)?;
            return Ok(Some((block, len)));
        }
    }
    let slot = s.slot();
    let _guard = lock::acquire_plain(s, &slot.chunk_lock)?;
    let pieces = slot.pieces.iter().map(|word| unpack(word.swap(0, Relaxed)));
    let Some((block, len)) = pieces.into_iter().find(|(_, len)| *len > 0) else {
        return Ok(None);
    };
    in_range(s, block, len)?;
    Ok(Some((block, len)))
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
    let (block, len) = match take_any(s, want, near)? {
        Some(run) => run,
        None => wait_for_grant(s, want, near)?,
    };
    in_range(s, block, len)?;
    keep_chunk(s, s.slot(), block, len);
    Ok(())
}

/// Makes the run the chunk if that is empty, else a grant.
fn keep_chunk(s: &Session, slot: &Slot, block: u64, len: u64) {
    let word = &slot.chunk_block;
    if let Ok(_guard) = lock::acquire_plain(s, &slot.chunk_lock)
        && unpack(word.load(Relaxed)).1 == 0
    {
        word.store(pack(block, len), Relaxed);
        return;
    }
    // Where there is no room they wait for the end of the session.
    let _ = put_grant(s, block, len);
}

/// From a grant, else from a fragment.
fn take_any(s: &Session, want: u32, near: Option<u64>) -> Result<Option<(u64, u64)>> {
    match take_grant(s, want, near, kept(s, want))? {
        Some(run) => Ok(Some(run)),
        None => take_any_fragment(s),
    }
}

/// Granted blocks that are left for those who want many in a row.
fn kept(s: &Session, want: u32) -> u64 {
    match s.header().grants_kept.load(Acquire) {
        1 if want < LONG => LOW,
        _ => 0,
    }
}

/// Up to a chunk from one grant: from the smallest that has `want` blocks, so that whole huge pages
/// stay whole, or from the largest one.
/// `kept`: so many have to be left.
fn take_grant(s: &Session, want: u32, near: Option<u64>, kept: u64) -> Result<Option<(u64, u64)>> {
    let _guard = lock::acquire_plain(s, &s.header().grants_lock)?;
    let (mut best, mut left) = (None::<(&Grant, u64, u64)>, 0u64);
    let want = u64::from(want).min(chunk_size(s));
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
            left = (LOW + CHUNK_MAX).max(left);
            break;
        }
        let better = |old: u64| match old >= want {
            true => len >= want && len < old,
            false => len > old,
        };
        if best.is_none_or(|(_, _, old)| better(old)) {
            best = Some((grant, block, len));
        }
    }
    let Some((grant, block, len)) = best else {
        return Ok(None);
    };
    let n = len.min(chunk_size(s));
    if left < n + kept {
        return Ok(None);
    }
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
    let mut round = 0;
    for _ in 0..TRIES {
        if round == ROUNDS {
            break;
        }
        if round > 0 {
            // What was freed a moment ago counts only once it is applied.
            drain::wait_applied(s, h.next_seq.load(Acquire).saturating_sub(1))?;
        }
        h.out_of_space.store(0, SeqCst);
        h.grant_wanted.fetch_max(want.max(HUGE_BLOCKS), AcqRel);
        drain::wait_until(s, true, || {
            let any = any_fragment(s) || kept(s, want) == 0 && any_grant(s);
            any || h.out_of_space.load(Acquire) != 0
        })?;
        let full = h.out_of_space.load(Acquire) != 0;
        if let Some(run) = take_any(s, want, near)? {
            return Ok(run);
        }
        // Else others were faster.
        round += u32::from(full);
    }
    Err(Error::NoSpace)
}

fn any_grant(s: &Session) -> bool {
    (0..used(s)).any(|index| {
        s.grant(index)
            .is_ok_and(|grant| grant.len.load(Relaxed) != 0)
    })
}

fn any_fragment(s: &Session) -> bool {
    let Ok(rings) = s.rings() else {
        return false;
    };
    let pairs = rings.put.iter().zip(&rings.taken);
    let mut left = pairs.map(|(put, taken)| put.load(Acquire).wrapping_sub(taken.load(Acquire)));
    left.any(|n| n != 0 && n <= RING_RUNS as u64)
}

/// Free blocks that the session has in its rings.
pub(crate) fn in_fragments(s: &Session) -> u64 {
    let mut sum = 0;
    let Ok(rings) = s.rings() else { return 0 };
    for (ring, (put, taken)) in rings.put.iter().zip(&rings.taken).enumerate() {
        let (first, end) = (taken.load(Acquire), put.load(Acquire));
        if end.wrapping_sub(first) > RING_RUNS as u64 {
            continue;
        }
        for at in first..end {
            let word = s.ring_word(ring, at).map_or(0, |word| word.load(Relaxed));
            sum += unpack(word).1;
        }
    }
    sum
}

/// Returns blocks that no journal record mentions.
pub fn give_back(s: &Session, block: BlockAddr, len: u32) {
    let (block, len) = (block.word(), u64::from(len));
    if len == 0 || in_range(s, block, len).is_err() {
        return;
    }
    if !give_to_chunk(s, block, len) {
        // Where there is no room they wait for the end of the session.
        let _ = put_grant(s, block, len);
    }
}

/// To the process's chunk or piece if they lie right before it, or it is empty.
fn give_to_chunk(s: &Session, block: u64, len: u64) -> bool {
    let slot = s.slot();
    let Ok(_guard) = lock::acquire_plain(s, &slot.chunk_lock) else {
        return false;
    };
    for fits in [|before, _| before, |_, empty| empty] as [fn(bool, bool) -> bool; 2] {
        for word in [&slot.chunk_block].into_iter().chain(&slot.pieces) {
            let (first, left) = unpack(word.load(Relaxed));
            let before = left > 0 && block + len == first;
            if len + left < 1 << RUN_SHIFT && fits(before, left == 0) {
                word.store(pack(block, len + left), Relaxed);
                return true;
            }
        }
    }
    false
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
    let chunk = slot.chunk_block.swap(0, AcqRel);
    let pieces = slot.pieces.each_ref().map(|word| word.swap(0, AcqRel));
    drop(guard);
    for (block, len) in [chunk].into_iter().chain(pieces).map(unpack) {
        if len > 0 {
            // Where there is no room they wait for the end of the session.
            let _ = put_grant(s, block, len);
        }
    }
}
