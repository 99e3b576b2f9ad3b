//! When a file is lent: from when a process that is served maps it until nobody maps it any more.
//!
//! Invariant: a lent file is mapped by somebody. Who drops its last mapping writes back what was
//! stored through mappings, and only then the lent file goes; if that fails, the mapping stays
//! counted (`INODE_KEPT`), and the helper goes on trying.

use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::content::lent::{self, Reader, is_lent};
use crate::content::source::{Source, Write};
use crate::content::{data, in_place};
use crate::session::quota::{self, Payers};
use crate::session::{BLOCK, Session};
use crate::tables::block_map::{self, Run};
use crate::tables::inode_table::{self, InodeRef, LockedInode};
use crate::tables::open_values::is_value;
use alloc::vec;
use pmem::ConstBuf;
use pmem::atomic::Ordering::*;
use pool::session::{
    INODE_AHEAD, INODE_KEPT, INODE_LENT, INODE_ORPHAN, INODE_STORED_TO, OWNER_WAITERS,
};
use rustix::fd::OwnedFd;

/// Permissions of whoever does not own a file. What an access control list gives is among them.
const OTHERS_WRITE: u32 = 0o022;

/// Whether a file that is about to be mapped in pieces of the pool should be lent: others may want
/// to map it, too, and by then it could not be.
pub(crate) fn is_wanted(s: &Session, inode: &LockedInode) -> bool {
    let e = inode.e;
    let is_theirs = e.uid.load(Relaxed) != s.lender().owner;
    lent::others_came(s) && (is_theirs || e.mode.load(Relaxed) & OTHERS_WRITE != 0)
}

/// Lends a file that is about to be mapped. `NoDevice`: it is mapped already, in pieces of the
/// pool.
pub(crate) fn begin(s: &Session, inode: &LockedInode) -> Result<()> {
    let e = inode.e;
    if is_lent(e) {
        return Ok(());
    }
    if e.maps.load(SeqCst) > 0 || is_value(e) || s.is_read_only() {
        return Err(Error::NoDevice);
    }
    data::leave_inline(s, inode)?;
    if let Err(e) = lent::fill(s, inode) {
        lent::remove(s, inode);
        return Err(e);
    }
    e.state.fetch_or(INODE_LENT, SeqCst);
    e.truncations.fetch_add(1, Release);
    Ok(())
}

/// The lent file, to be mapped. `writes`: somebody may store to it from now on.
pub(crate) fn file(s: &Session, inode: &InodeRef<'_>, writes: bool) -> Result<OwnedFd> {
    let locked = inode_table::lock_ref(s, *inode)?;
    if !is_lent(locked.e) {
        return Err(Error::NoDevice);
    }
    if writes {
        take_holes(s, &locked)?;
    }
    let file = lent::open(s, inode.ino, writes)?;
    if writes && !lent::is_stored_to(locked.e) {
        lent::catch_up(s, &locked)?;
        locked.e.state.fetch_or(INODE_STORED_TO, SeqCst);
        s.header().writeback_wanted.store(1, SeqCst);
    }
    Ok(file)
}

/// Before somebody may store to a file whose bytes count for a quota: its holes get blocks, since
/// nobody can be told of a store for which there is no room any more. `OverQuota` where there is
/// not for all of them.
fn take_holes(s: &Session, inode: &LockedInode) -> Result<()> {
    let payers = Payers::of(inode.e);
    if !quota::limits_bytes(s, payers) {
        return Ok(());
    }
    let blocks = inode.e.size.load(Relaxed).div_ceil(BLOCK);
    let wanted = blocks.saturating_sub(inode.e.blocks.load(Relaxed));
    if wanted > 0 && quota::fitting(s, payers, wanted)? < wanted {
        return Err(Error::OverQuota);
    }
    data::fill_holes(s, inode, 0, blocks)
}

/// Writes to blocks what was stored through mappings in bytes `from..to`.
pub(crate) fn write_back(s: &Session, inode: &LockedInode, from: u64, to: u64) -> Result<()> {
    if !lent::is_stored_to(inode.e) {
        return Ok(());
    }
    let file = Reader::open(s, inode.ino)?;
    let end = to.min(inode.e.size.load(Relaxed));
    let mut at = from - from % BLOCK;
    let mut theirs = vec![0; Reader::PIECE];
    let mut ours = vec![0; Reader::PIECE];
    loop {
        at = behind_hole(s, inode, &file, at, end)?;
        if at >= end {
            return Ok(());
        }
        let n = (end - at).min(Reader::PIECE as u64) as usize;
        file.read(at, &mut theirs[..n])?;
        read_blocks(s, inode, at, &mut ours[..n])?;
        let pairs = theirs[..n]
            .chunks(BLOCK as usize)
            .zip(ours.chunks(BLOCK as usize));
        for (i, (new, old)) in pairs.enumerate() {
            if new != &old[..new.len()] {
                store(s, inode, at + i as u64 * BLOCK, new)?;
                // Also in blocks that are there: a record follows whenever content is another.
                inode_table::mark_dirty(s, inode.e);
            }
        }
        at += n as u64;
    }
}

/// Where the next block begins that the file has or the lent file: a file may be longer than
/// anybody could read.
fn behind_hole(
    s: &Session,
    inode: &LockedInode,
    file: &Reader,
    mut at: u64,
    end: u64,
) -> Result<u64> {
    let mut stored = None;
    while at < end {
        let most = (end - at).div_ceil(BLOCK);
        let Run::Hole(len) = block_map::lookup_run_locked(s, inode, at / BLOCK, most)? else {
            break;
        };
        let next = *stored.get_or_insert_with(|| file.seek(at, true).unwrap_or(u64::MAX));
        let hole_end = at.saturating_add(len.max(1).saturating_mul(BLOCK));
        if next < hole_end {
            return Ok(at.max(next - next % BLOCK));
        }
        at = hole_end;
    }
    Ok(at)
}

/// What the blocks have.
fn read_blocks(s: &Session, inode: &LockedInode, offset: u64, out: &mut [u8]) -> Result<()> {
    for (i, part) in out.chunks_mut(BLOCK as usize).enumerate() {
        let file_block = offset / BLOCK + i as u64;
        match block_map::lookup_run_locked(s, inode, file_block, 1)? {
            Run::Blocks { block, .. } => s.segment(block)?.read(block.offset(), part)?,
            Run::Hole(_) => part.fill(0),
        }
    }
    Ok(())
}

fn store(s: &Session, inode: &LockedInode, offset: u64, bytes: &[u8]) -> Result<()> {
    let bufs = [ConstBuf::from(bytes)];
    let mut done = 0;
    let mut source = Source::new(&bufs);
    while done < bytes.len() {
        let write = Write {
            source: &mut source,
            offset: offset + done as u64,
            n: bytes.len() - done,
            now: clock::now(),
        };
        match in_place::write_locked(s, inode, write)? {
            0 => return Err(Error::NoSpace),
            n => done += n,
        }
    }
    Ok(())
}

/// Locks a file that is written back: nobody stores into blocks while a snapshot is taken, except
/// whoever takes it, beforehand.
pub(crate) fn lock<'s>(s: &'s Session, inode: InodeRef<'s>) -> Result<LockedInode<'s>> {
    let stopper = s.header().stores_lock.load(SeqCst) & !OWNER_WAITERS;
    match stopper != 0 && stopper == s.owner() & !OWNER_WAITERS {
        true => inode_table::lock_ref(s, inode),
        false => inode_table::lock_to_store(s, inode),
    }
}

/// A mapping of a lent file is gone: how many pins go with it. With the last one lending ends, if
/// what was stored has room in the pool; until it has, one mapping stays counted.
pub(crate) fn unmapped(s: &Session, inode: &LockedInode) -> Result<u32> {
    let e = inode.e;
    let kept = u32::from(e.state.load(SeqCst) & INODE_KEPT != 0);
    if e.maps.load(SeqCst) > 1 + kept {
        return uncount(s, inode, 1);
    }
    if !is_over(s, inode) {
        e.state.fetch_or(INODE_KEPT, SeqCst);
        return uncount(s, inode, kept);
    }
    uncount(s, inode, 1 + kept)
}

/// The pool may have room by now for what was stored through mappings that are gone: how many pins
/// go with them.
pub(crate) fn release_kept(s: &Session, inode: &LockedInode) -> Result<u32> {
    let e = inode.e;
    let is_kept = e.state.load(SeqCst) & INODE_KEPT != 0 && e.maps.load(SeqCst) == 1;
    match is_kept && is_over(s, inode) {
        true => uncount(s, inode, 1),
        false => Ok(0),
    }
}

fn uncount(s: &Session, inode: &LockedInode, gone: u32) -> Result<u32> {
    let less = |maps: u32| maps.checked_sub(gone);
    let before = inode.e.maps.fetch_update(SeqCst, SeqCst, less);
    s.ensure(before.is_ok(), "a mapping is counted")?;
    Ok(gone)
}

/// Ends lending, unless what was stored has no room.
fn is_over(s: &Session, inode: &LockedInode) -> bool {
    let e = inode.e;
    let is_used = e.state.load(SeqCst) & INODE_ORPHAN == 0 || e.opens.load(SeqCst) > 1;
    if is_used && write_back(s, inode, 0, u64::MAX).is_err() {
        return false;
    }
    let bits = INODE_LENT | INODE_STORED_TO | INODE_AHEAD | INODE_KEPT;
    e.state.fetch_and(!bits, SeqCst);
    e.truncations.fetch_add(1, Release);
    lent::remove(s, inode);
    true
}
