//! Blocks of a locked file: new ones for holes and appends, zeroes, inline content.
//!
//! Invariants:
//!  * A block joins a file only after its bytes are written and fenced, so neither readers nor
//!    recovery ever see its earlier content.
//!  * Bytes of a file's blocks beyond its size may be anything: whoever raises the size zeroes the
//!    bytes that are then inside.
//!  * Blocks that no record mentions are exactly: the pending run, the reserve behind it, and the
//!    block that shadows inline data.

use crate::base::error::{Error, Result};
use crate::content::{close, cow, lent};
use crate::session::drain;
use crate::session::quota::{self, Payers};
use crate::session::space::{self, HUGE_BLOCKS};
use crate::session::{BLOCK, Session};
use crate::tables::block_map::{self, Run};
use crate::tables::dirty_range;
use crate::tables::inode_table::{self, InodeRef, LockedInode};
use pmem::atomic::Ordering::*;
use pool::layout::BlockAddr;
use pool::session::*;

/// Files of which what is pending is journaled when pages of block maps run out.
const FLUSHED_AT_ONCE: u32 = 4096;

/// Content that is only in the inode record comes into block 0, which stays the session's.
pub(crate) fn load_shadow(s: &Session, inode: &LockedInode) -> Result<()> {
    let e = inode.e;
    if e.state.load(Relaxed) & (INODE_INLINE | INODE_SHADOW) != INODE_INLINE {
        return Ok(());
    }
    let mut content = [0; BLOCK as usize];
    inode_table::inline_data(s, inode, &mut content)?;
    let (block, _) = inode_table::alloc_blocks(s, 1, None)?;
    let stored = s
        .segment(block)
        .and_then(|data| Ok(data.write_nt(block.offset(), &content)?));
    s.data().fence();
    let mapped = stored.and_then(|()| block_map::map(s, inode, 0, block, 1, false));
    if mapped.is_err() {
        space::give_back(s, block, 1);
        return mapped;
    }
    e.state.fetch_or(INODE_SHADOW, Release);
    Ok(())
}

/// Before anything in block 0 of an inline file changes: its shadow becomes a block of the file
/// that awaits its record.
pub(crate) fn leave_inline(s: &Session, inode: &LockedInode) -> Result<()> {
    let e = inode.e;
    if e.state.load(Relaxed) & INODE_INLINE == 0 {
        return Ok(());
    }
    load_shadow(s, inode)?;
    let shadowed = e.state.load(Relaxed) & INODE_SHADOW != 0;
    s.ensure(shadowed, "inline data that is in a block has a shadow")?;
    let block = close::shadow_block(s, inode)?;
    if e.pending_len.load(Relaxed) > 0 {
        close::flush(s, inode)?;
    }
    // Pending before it stops being the shadow: a death in between leaves it both, and then it is
    // the shadow (`inode_table::repair`).
    set_pending(
        e,
        &NewRun {
            file_block: 0,
            block,
            len: 1,
            charged: false,
        },
    );
    e.state.fetch_and(!(INODE_INLINE | INODE_SHADOW), Release);
    block_map::map(s, inode, 0, block, 1, true)?;
    count_new(s, e, 1);
    Ok(())
}

/// Blocks for a file that are not part of it yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRun {
    pub file_block: u64,
    pub block: BlockAddr,
    pub len: u32,
    /// Its blocks are taken from the quotas.
    pub charged: bool,
}

/// Between 1 and `want` blocks for the hole at `file_block`, after what is pending if possible.
/// `growing`: more is likely to follow, so some are set aside. Ends in `adopt` or `give_up`.
pub(crate) fn new_run(
    s: &Session,
    inode: &LockedInode,
    file_block: u64,
    want: u64,
    growing: bool,
) -> Result<NewRun> {
    if !quota::is_on(s) {
        return find_run(s, inode, file_block, want, growing);
    }
    let payers = Payers::of(inode.e);
    let want = quota::fitting(s, payers, want)?;
    let run = find_run(s, inode, file_block, want, growing)?;
    // Others may have taken what fitted.
    match quota::take(s, payers, quota::blocks(run.len.into())) {
        Ok(()) => Ok(NewRun {
            charged: true,
            ..run
        }),
        Err(e) => {
            give_up(s, inode, run);
            Err(e)
        }
    }
}

fn find_run(
    s: &Session,
    inode: &LockedInode,
    file_block: u64,
    want: u64,
    growing: bool,
) -> Result<NewRun> {
    if !block_map::has_room(s) {
        make_map_room(s, inode)?;
    }
    let e = inode.e;
    let want = want.min(RUN_MAX) as u32;
    let behind = behind_pending(e, file_block);
    let reserved = e.reserve_len.load(Relaxed);
    if reserved > 0 {
        let block = BlockAddr::from_word(e.reserve_block.load(Relaxed));
        if behind == Some(block) {
            let len = want.min(reserved);
            // The length first: a process that dies in between leaves a shorter run, not one that
            // reaches into blocks of others.
            e.reserve_len.store(reserved - len, Release);
            let next = block.end(len.into());
            e.reserve_block.store(next.word(), Release);
            return Ok(NewRun {
                file_block,
                block,
                len,
                charged: false,
            });
        }
        close::return_reserve(s, inode);
    }
    let ahead = if growing {
        room_ahead(file_block, want)
    } else {
        0
    };
    let (block, got) = inode_table::alloc_blocks(s, want + ahead, behind)?;
    let fits = got > 0 && block.is_within(got.into(), s.data_blocks());
    s.ensure(fits, "blocks that are handed out are in the segment")?;
    let len = want.min(got);
    // It is empty until its length says otherwise.
    e.reserve_block.store(block.end(len.into()).word(), Relaxed);
    e.reserve_len.store(got - len, Release);
    Ok(NewRun {
        file_block,
        block,
        len,
        charged: false,
    })
}

/// All pages of block maps are in use: waits until the service knows what is in some.
#[cold]
fn make_map_room(s: &Session, inode: &LockedInode) -> Result<()> {
    for _ in 0..4 {
        if block_map::make_room(s)? {
            return Ok(());
        }
        close::flush(s, inode)?;
        flush_others(s)?;
        drain::wait_applied(s, s.header().next_seq.load(Acquire).saturating_sub(1))?;
        block_map::trim(s, inode);
    }
    match block_map::has_room(s) {
        true => Ok(()),
        false => Err(Error::NoMemory),
    }
}

/// Journals what is pending of some files with block maps: then they can spare these.
fn flush_others(s: &Session) -> Result<()> {
    let mut left = FLUSHED_AT_ONCE;
    for link in 1..=s.header().inode_used.load(Acquire).min(INODES as u32) {
        let e = s.inode(link)?;
        let ino = e.ino.load(Relaxed);
        let is_pending = e.map_root.load(Relaxed) != 0 && e.pending_len.load(Relaxed) != 0;
        if ino == 0 || !is_pending {
            continue;
        }
        if let Some(locked) = inode_table::try_lock(s, InodeRef { link, ino, e }) {
            close::flush(s, &locked)?;
            left -= 1;
        }
        if left == 0 {
            break;
        }
    }
    Ok(())
}

/// The longest run that is asked for at once: 512 MiB.
const RUN_MAX: u64 = 1 << 17;

/// The block that would continue the pending run at `file_block`.
fn behind_pending(e: &Inode, file_block: u64) -> Option<BlockAddr> {
    let len = u64::from(e.pending_len.load(Relaxed));
    let follows =
        len > 0 && e.pending_file_block.load(Relaxed).checked_add(len) == Some(file_block);
    follows.then(|| BlockAddr::from_word(e.pending_block.load(Relaxed)).end(len))
}

/// How many blocks to set aside for a growing file: as many as it has, up to the next 2 MiB.
fn room_ahead(file_block: u64, want: u32) -> u32 {
    let end = file_block + u64::from(want);
    let huge = u64::from(HUGE_BLOCKS);
    let to_boundary = end.next_multiple_of(huge) - end;
    to_boundary.min(file_block).min(huge) as u32
}

/// The run, whose bytes are written, becomes part of the file.
pub(crate) fn adopt(s: &Session, inode: &LockedInode, run: NewRun) -> Result<()> {
    let e = inode.e;
    s.data().fence();
    if behind_pending(e, run.file_block) == Some(run.block) {
        block_map::map(s, inode, run.file_block, run.block, run.len.into(), true)?;
        let len = e.pending_len.load(Relaxed).checked_add(run.len);
        s.ensure(len.is_some(), "a pending run has a length")?;
        e.pending_len.store(len.unwrap_or(u32::MAX), Release);
    } else {
        if e.pending_len.load(Relaxed) > 0 {
            close::flush(s, inode)?;
        }
        let journaled = e.pending_len.load(Relaxed) == 0;
        s.ensure(journaled, "a file has one pending run")?;
        block_map::map(s, inode, run.file_block, run.block, run.len.into(), true)?;
        set_pending(e, &run);
    }
    count_new(s, e, run.len);
    Ok(())
}

fn set_pending(e: &Inode, run: &NewRun) {
    e.pending_file_block.store(run.file_block, Relaxed);
    e.pending_block.store(run.block.word(), Relaxed);
    e.pending_len.store(run.len, Release);
}

/// The file has `len` blocks more, which no record mentions.
fn count_new(s: &Session, e: &Inode, len: u32) {
    // Only the holder of the lock changes them: no need to wait for what goes around the cache.
    let blocks = e.blocks.load(Relaxed);
    e.blocks.store(blocks.wrapping_add(len.into()), Relaxed);
    inode_table::mark_dirty(s, e);
}

/// The run is not needed after all.
pub(crate) fn give_up(s: &Session, inode: &LockedInode, run: NewRun) {
    if run.charged {
        quota::put_back(s, Payers::of(inode.e), quota::blocks(run.len.into()));
    }
    space::give_back(s, run.block, run.len);
}

/// Zeroes bytes `from..to` of the file where it has blocks.
pub(crate) fn zero(s: &Session, inode: &LockedInode, from: u64, to: u64) -> Result<()> {
    let mut at = from;
    while at < to {
        let (file_block, skip) = (at / BLOCK, at % BLOCK);
        let blocks = (skip + (to - at)).div_ceil(BLOCK);
        let run = block_map::lookup_run_locked(s, inode, file_block, blocks)?;
        let (Run::Hole(len) | Run::Blocks { len, .. }) = run;
        let n = (to - at).min(len.max(1).saturating_mul(BLOCK) - skip);
        match run {
            Run::Blocks {
                shared: true,
                block,
                ..
            } if !cow::stays(s, inode) => {
                if !cow::is_zero(s, (block, skip), n)? {
                    cow::own(s, inode, file_block, (at + n).div_ceil(BLOCK))?;
                    continue;
                }
            }
            Run::Blocks { block, .. } => {
                dirty_range::widen(s, inode.e, file_block, (at + n).div_ceil(BLOCK));
                s.segment(block)?
                    .zero_nt(block.offset() + skip, n as usize)?;
            }
            Run::Hole(_) => {}
        }
        at += n;
    }
    s.data().fence();
    match lent::is_lent(inode.e) {
        true => lent::zero(s, inode, from, to),
        false => Ok(()),
    }
}

/// Before the size rises from `size` to `to`: zeroes what comes to lie inside the file.
pub(crate) fn zero_gap(s: &Session, inode: &LockedInode, size: u64, to: u64) -> Result<()> {
    if to <= size {
        return Ok(());
    }
    // Beyond the size the record of an inline file has nothing, so its shadow may be zeroed.
    load_shadow(s, inode)?;
    zero(s, inode, size, to)
}

fn zero_run(s: &Session, run: &NewRun) -> Result<()> {
    let len = run.len as usize * BLOCK as usize;
    Ok(s.segment(run.block)?.zero_nt(run.block.offset(), len)?)
}

/// Gives zeroed blocks to every hole in blocks `from..to`.
pub(crate) fn fill_holes(s: &Session, inode: &LockedInode, from: u64, to: u64) -> Result<()> {
    leave_inline(s, inode)?;
    let mut at = from;
    while at < to {
        match block_map::lookup_run_locked(s, inode, at, to - at)? {
            Run::Blocks { len, .. } => at += len.max(1),
            Run::Hole(len) => {
                let run = new_run(s, inode, at, len.clamp(1, to - at), false)?;
                if let Err(e) = zero_run(s, &run) {
                    give_up(s, inode, run);
                    return Err(e);
                }
                adopt(s, inode, run)?;
                at += u64::from(run.len);
            }
        }
    }
    Ok(())
}
