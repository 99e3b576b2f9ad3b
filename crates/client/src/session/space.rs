//! Free blocks for new data.
//!
//! Invariants:
//!  * A free extent is in the table, or cached by one process, or nowhere (it died with a process
//!    between two steps; the service takes it back when the session ends).
//!  * A process caches two extents: what remains of a short one, and what remains of a whole one.
//!    Each is one word, which changes by compare-and-swap: so does the table. No lock is held here,
//!    and a process that is stopped or killed keeps nobody waiting.
//!  * Short extents come before whole ones, cached ones before the table: blocks that were freed a
//!    moment ago are in short ones, and this process has most likely mapped them already.
//!  * What remains of an extent is cached; the shorter one of that and the old one goes back to the
//!    service.
//!  * `NoSpace` only when the service has nothing, the table is empty, and no process has an extent
//!    cached.
//!  * Here a block is the word of its address (`BlockAddr`): only words below `data_blocks` are
//!    handed on, which are blocks of data segment 0.

use crate::base::error::{Error, Result};
use crate::session::Session;
use crate::session::drain;
use pmem::atomic::AtomicU64;
use pmem::atomic::Ordering::*;
use pool::layout::BlockAddr;
use pool::session::free_table::{EXTENT_MAX, class_of, pack, unpack};
use pool::session::{CACHED_SHORT, FreeTable, Slot, WHOLE, WHOLE_BLOCKS};
use pool::space::Run;

/// Blocks of a huge page.
pub const HUGE_BLOCKS: u32 = WHOLE_BLOCKS as u32;

/// With fewer whole extents than this the service is asked for more, before they are used up. It
/// keeps as many ahead of a session at least, and more of one that uses them up fast.
const WHOLE_LOW: u64 = 2;
/// The same for shorter ones. Only when so many are left, not when the ring ends: where there are
/// few, there may be no more.
const SHORT_LOW: u64 = 4096;
/// How many blocks are asked for: the service knows better, so it only has to look.
const ASK: u32 = 1;
/// Who wants so many blocks wants them in a row.
const LONG: u64 = 64;
/// How often the service may say that there is nothing.
const ROUNDS: u32 = 3;
/// Others may take what came in between, but not as often as this.
const TRIES: u32 = 10_000;

/// Between 1 and `want` blocks in a row: (first block, how many). `near`: begin there if that
/// block is free. `HUGE_BLOCKS` and more begin on a 2 MiB boundary where there is such an extent.
/// `NoSpace` when the pool is full.
pub fn alloc(s: &Session, want: u32, near: Option<BlockAddr>) -> Result<(BlockAddr, u32)> {
    if s.is_read_only() || s.is_for_another() && is_down_to_reserve(s, want) {
        return Err(Error::NoSpace);
    }
    let (want, near) = (u64::from(want.max(1)), near.map(BlockAddr::word));
    let run = match take(s, want, near)? {
        Some(run) => run,
        None => wait_for_blocks(s, want, near)?,
    };
    let block = BlockAddr::from_word(run.start);
    s.enter_blocks(block, run.len);
    Ok((block, run.len as u32))
}

/// Of so many blocks one is left to the processes that have the pool mapped, its owner's and
/// root's, so that no other user can keep them from working;
const RESERVED: u64 = 20;
/// but no more than these: 1 GiB.
const RESERVED_MAX: u64 = 1 << 18;

/// The blocks that calls for other users leave free.
pub(crate) fn reserve(s: &Session) -> u64 {
    let blocks = s.header().total_blocks.load(Relaxed);
    (blocks / RESERVED).min(RESERVED_MAX)
}

/// Whether only the reserve would be left, also once what was removed a moment ago is free.
fn is_down_to_reserve(s: &Session, want: u32) -> bool {
    if has_beside_reserve(s, want) {
        return false;
    }
    let seq = s.header().next_seq.load(Acquire).saturating_sub(1);
    // Without the service the last count is the best there is.
    let _ = drain::wait_applied(s, seq);
    !has_beside_reserve(s, want)
}

/// What the service has is enough mostly, and cheap to look at; then comes what the session has.
fn has_beside_reserve(s: &Session, want: u32) -> bool {
    let (free, least) = (&s.header().free_blocks, reserve(s) + u64::from(want));
    free.load(Relaxed) >= least || free.load(Relaxed).saturating_add(count_free(s)) >= least
}

/// Whether the caller may have a block that it could do without: nobody waits for one, and nothing
/// is dropped.
pub(crate) fn has_spare(s: &Session) -> bool {
    !s.is_for_another() || has_beside_reserve(s, 1)
}

/// What there is now, cached or in the table.
#[inline]
fn take(s: &Session, want: u64, near: Option<u64>) -> Result<Option<Run>> {
    let [short, whole] = &s.slot().cached;
    if let Some(run) = take_near(short, want, near).or_else(|| take_near(whole, want, near)) {
        return in_range(s, run).map(Some);
    }
    let table = s.free_table()?;
    if want < WHOLE_BLOCKS {
        if let Some(run) = take_cached(short, want, want) {
            return in_range(s, run).map(Some);
        }
        let mut fitting = class_of(want)..WHOLE;
        if let Some(extent) = fitting.find_map(|class| take_from(s, table, class, want, want)) {
            return cut(s, short, extent, want).map(Some);
        }
        if let Some(run) = take_cached(whole, want, want) {
            return in_range(s, run).map(Some);
        }
    }
    match take_from(s, table, WHOLE, want, want) {
        Some(extent) => cut(s, whole, extent, want).map(Some),
        None => take_longest(s, table, want),
    }
}

/// Nothing is as long: the longest that there is.
#[cold]
fn take_longest(s: &Session, table: &FreeTable, want: u64) -> Result<Option<Run>> {
    let len = |word: &AtomicU64| unpack(word.load(Relaxed)).len;
    let [short, whole] = &s.slot().cached;
    let longer = if len(short) < len(whole) {
        whole
    } else {
        short
    };
    let have = len(longer);
    let mut classes = (class_of(have)..=class_of(want).min(WHOLE - 1)).rev();
    let longest = classes.find_map(|class| take_from(s, table, class, want, have + 1));
    match longest.or_else(|| take_cached(longer, want, 1)) {
        Some(extent) => cut(s, short, extent, want).map(Some),
        None => Ok(None),
    }
}

/// The first blocks of a cached extent that begins at `near`, `want` or what it has.
#[inline]
fn take_near(cached: &AtomicU64, want: u64, near: Option<u64>) -> Option<Run> {
    let have = unpack(cached.load(Relaxed));
    match have.len > 0 && near == Some(have.start) {
        true => take_cached(cached, want, 1),
        false => None,
    }
}

/// The first blocks of a cached extent that has at least `least`: `want` or what it has.
#[inline]
fn take_cached(cached: &AtomicU64, want: u64, least: u64) -> Option<Run> {
    let mut word = cached.load(Relaxed);
    loop {
        let have = unpack(word);
        if have.len < least.max(1) {
            return None;
        }
        let len = have.len.min(want);
        let rest = pack(Run::new(have.start + len, have.len - len));
        match cached.compare_exchange(word, rest, AcqRel, Relaxed) {
            Ok(_) => return Some(Run::new(have.start, len)),
            Err(now) => word = now,
        }
    }
}

/// The next extent of a class for who wants `want` blocks, if it has at least `least`.
#[inline]
fn take_from(s: &Session, table: &FreeTable, class: usize, want: u64, least: u64) -> Option<Run> {
    let (h, ring) = (s.header(), &table.classes[class]);
    if class == WHOLE && want < LONG && ring.count() <= kept(s) {
        return None;
    }
    let (extent, left) = ring.take(least.min(WHOLE_BLOCKS))?;
    let low = match class {
        WHOLE => left < WHOLE_LOW && h.out_of_space.load(Relaxed) == 0,
        _ => left == SHORT_LOW,
    };
    if low {
        h.blocks_wanted.fetch_max(ASK, AcqRel);
        drain::ring(s);
    }
    Some(extent)
}

/// Whole extents that are left to those who want many blocks in a row.
#[inline]
fn kept(s: &Session) -> u64 {
    s.header().whole_kept.load(Acquire).into()
}

/// The first `want` blocks of an extent; what remains is cached in `cached`.
fn cut(s: &Session, cached: &AtomicU64, extent: Run, want: u64) -> Result<Run> {
    in_range(s, extent)?;
    let len = extent.len.min(want);
    keep(s, cached, Run::new(extent.start + len, extent.len - len));
    Ok(Run::new(extent.start, len))
}

/// Session memory may say anything: only blocks that are mapped are handed on.
#[inline]
fn in_range(s: &Session, run: Run) -> Result<Run> {
    match run.end() <= s.data_blocks() {
        true => Ok(run),
        false => Err(Error::Damaged {
            what: "free block",
            index: run.start,
        }),
    }
}

/// Makes a remainder part of a cached extent, if it lies right before that, or the cached extent,
/// if it is the longer one. The shorter one goes back to the service.
fn keep(s: &Session, cached: &AtomicU64, remainder: Run) {
    let mut word = cached.load(Relaxed);
    while remainder.len > 0 {
        let have = unpack(word);
        let joined = Run::new(remainder.start, remainder.len + have.len);
        let before = have.len > 0 && remainder.end() == have.start;
        let (new, other) = match before && joined.len <= EXTENT_MAX {
            true => (joined, Run::new(0, 0)),
            false if remainder.len > have.len => (remainder, have),
            false => return return_extent(s, remainder),
        };
        match cached.compare_exchange(word, pack(new), AcqRel, Relaxed) {
            Ok(_) => return return_extent(s, other),
            Err(now) => word = now,
        }
    }
}

/// Gives an extent back to the service, which hands it out again with what is free around it.
fn return_extent(s: &Session, extent: Run) {
    if let Ok(table) = s.free_table()
        && extent.len > 0
        && !table.given_back.give_back(extent)
    {
        // There is no room until the service comes: it waits for the end of the session.
        drain::ring(s);
    }
}

/// Nothing is left here: asks the service for more and waits until it has answered.
#[cold]
fn wait_for_blocks(s: &Session, want: u64, near: Option<u64>) -> Result<Run> {
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
        let ask = want.clamp(WHOLE_BLOCKS, u32::MAX.into());
        h.blocks_wanted.fetch_max(ask as u32, AcqRel);
        let table = s.free_table()?;
        drain::wait_until(s, true, || {
            is_any(s, table, want) || h.out_of_space.load(Acquire) != 0
        })?;
        let full = h.out_of_space.load(Acquire) != 0;
        if let Some(run) = take(s, want, near)? {
            return Ok(run);
        }
        if full && let Some(extent) = reclaim(s) {
            return cut(s, &s.slot().cached[CACHED_SHORT], extent, want);
        }
        // Else others were faster.
        round += u32::from(full);
    }
    Err(Error::NoSpace)
}

/// After blocks were found in too many pieces: what was freed a moment ago is free, and the service
/// has put together and handed out what it can for who wants `want` blocks in long runs.
#[cold]
pub(crate) fn gather(s: &Session, want: u64) -> Result<()> {
    let h = s.header();
    drain::wait_applied(s, h.next_seq.load(Acquire).saturating_sub(1))?;
    h.out_of_space.store(0, SeqCst);
    let ask = want.clamp(WHOLE_BLOCKS, u32::MAX.into());
    h.blocks_wanted.fetch_max(ask as u32, AcqRel);
    drain::wait_until(s, true, || {
        h.blocks_wanted.load(Acquire) == 0 || h.out_of_space.load(Acquire) != 0
    })
}

/// Whether the table has anything for who wants `want` blocks.
fn is_any(s: &Session, table: &FreeTable, want: u64) -> bool {
    let left = match want < LONG {
        true => kept(s),
        false => 0,
    };
    let (whole, shorter) = (&table.classes[WHOLE], &table.classes[..WHOLE]);
    shorter.iter().any(|ring| ring.count() > 0) || whole.count() > left
}

/// There is nothing else: an extent that some process has cached.
#[cold]
fn reclaim(s: &Session) -> Option<Run> {
    let used = s.header().slots_used.load(Acquire);
    let slots = (0..used).map_while(|index| s.slot_at(index).ok());
    slots
        .flat_map(|slot| &slot.cached)
        .find_map(take_all_cached)
}

fn take_all_cached(cached: &AtomicU64) -> Option<Run> {
    if cached.load(Relaxed) == 0 {
        return None;
    }
    let extent = unpack(cached.swap(0, AcqRel));
    (extent.len > 0).then_some(extent)
}

/// Free blocks that the session has, in the table or cached.
pub(crate) fn count_free(s: &Session) -> u64 {
    let used = s.header().slots_used.load(Acquire);
    let slots = (0..used).map_while(|index| s.slot_at(index).ok());
    let words = slots.flat_map(|slot| &slot.cached);
    let cached = words.map(|word| unpack(word.load(Relaxed)).len);
    s.free_table().map_or(0, FreeTable::blocks) + cached.sum::<u64>()
}

/// Returns blocks that no journal record mentions.
pub fn give_back(s: &Session, block: BlockAddr, len: u32) {
    let mut left = Run::of_data(block, len.into());
    if in_range(s, left).is_err() {
        return;
    }
    let [short, whole] = &s.slot().cached;
    while left.len > 0 {
        let part = Run::new(left.start, left.len.min(WHOLE_BLOCKS));
        let behind = unpack(whole.load(Relaxed)).start;
        let is_whole = part.len == WHOLE_BLOCKS || part.end() == behind;
        keep(s, if is_whole { whole } else { short }, part);
        left = Run::new(part.end(), left.len - part.len);
    }
}

/// Returns the cached extents of a slot whose process is gone or leaves.
pub(crate) fn return_cached(s: &Session, slot: &Slot) {
    for extent in slot.cached.iter().filter_map(take_all_cached) {
        return_extent(s, extent);
    }
}
