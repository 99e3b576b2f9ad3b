//! Setting sizes: truncate, ftruncate, fallocate.
//!
//! Invariants: bytes by which a file grows read as zeroes; blocks that leave a file are reused only
//! after `truncations` rose and the record is durable. Blocks of a mapped file that is not lent
//! stay where they are: they are zeroed instead.

use crate::base::abi::*;
use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::base::types::{Base, Caller};
use crate::content::close::{self, Unjournaled};
use crate::content::file::{self, File};
use crate::content::pin;
use crate::content::{cow, data, durable, lent, perm};
use crate::journal;
use crate::ops::client::Client;
use crate::ops::path::Walk;
use crate::ops::write;
use crate::session::RETRIES;
use crate::session::{BLOCK, OfdLink, Session};
use crate::tables::block_map::{self, Run};
use crate::tables::inode_table::{self, InodeRef, LockedInode};
use pmem::atomic::Ordering::*;
use pool::journal::Record;
use pool::layout::FILE_SIZE_MAX;
use pool::session::{INODE_INLINE, INODE_REWRITTEN};

/// Runs that are looked at to learn where a file ends.
const LOOKS: usize = 4;
const FILE_BLOCKS: u64 = FILE_SIZE_MAX.div_ceil(BLOCK);

pub(crate) fn truncate(c: &Client, who: &Caller, base: Base, path: &[u8], size: i64) -> Result<()> {
    let size = file::offset(size)?;
    let s = &c.session;
    let walk = Walk::new(s, &c.at, who);
    let mut tries = RETRIES;
    let inode = loop {
        match pin::pin(s, walk.object(base, path, 0)?.ino) {
            // It lost its last name since it was found; another may have taken the name.
            Err(Error::NotFound) if tries > 0 => tries -= 1,
            other => break other?,
        }
    };
    let done = checked(s, who, &inode).and_then(|()| named_to_size(s, &inode, size));
    let put = close::put_inode(s, &inode);
    done.and(put)
}

/// An empty file that is cut by its name keeps its times, as on tmpfs.
fn named_to_size(s: &Session, inode: &InodeRef, size: u64) -> Result<()> {
    if size > 0 || inode.e.size.load(Acquire) > 0 {
        return to_size(s, inode, size);
    }
    let locked = inode_table::lock_to_store(s, *inode)?;
    write::drop_privileges_slow(s, &locked, clock::now())
}

fn checked(s: &Session, who: &Caller, inode: &InodeRef) -> Result<()> {
    let a = inode_table::attrs(s, inode)?;
    if perm::is_dir(&a) {
        return Err(Error::IsDirectory);
    }
    if !perm::is_file(&a) {
        return Err(Error::Invalid);
    }
    perm::check(s, who, &a, W_OK)
}

pub(crate) fn ftruncate(c: &Client, ofd: OfdLink, size: i64) -> Result<()> {
    let size = file::offset(size)?;
    let file = File::usable(&c.session, ofd)?;
    // The kernel says EINVAL, not EBADF, to a descriptor that is not open for writing.
    let writes = matches!(file.flags & O_ACCMODE, O_WRONLY | O_RDWR);
    if !writes || file.kind() != S_IFREG {
        return Err(Error::Invalid);
    }
    to_size(&c.session, &file.inode, size)
}

/// Sets the size of a pinned regular file, also to what it is: times change.
pub(crate) fn to_size(s: &Session, inode: &InodeRef, size: u64) -> Result<()> {
    if size > FILE_SIZE_MAX {
        return Err(Error::FileTooLarge);
    }
    let now = clock::now();
    let locked = inode_table::lock_to_store(s, *inode)?;
    check_limit(s, &locked, size)?;
    lent::check(s, &locked)?;
    write::drop_privileges_slow(s, &locked, now)?;
    if !stays(s, &locked, size)? {
        return set_size(s, &locked, size, now);
    }
    locked.e.mtime.store(now as u64, Relaxed);
    locked.e.ctime.store(now as u64, Relaxed);
    inode_table::mark_dirty(s, locked.e);
    match s.consistency() {
        0 => Ok(()),
        _ => durable::now(s, locked),
    }
}

/// Whether the file ends there already, and so do its blocks.
fn stays(s: &Session, inode: &LockedInode, size: u64) -> Result<bool> {
    let is_mapped = inode.e.maps.load(Relaxed) > 0;
    if is_mapped || size == 0 || size != inode.e.size.load(Relaxed) {
        return Ok(false);
    }
    ends_at(s, inode, size)
}

/// Growing beyond the process's limit is refused; a file that is larger already may stay so.
fn check_limit(s: &Session, inode: &LockedInode, end: u64) -> Result<()> {
    match end > s.file_limit() && end > inode.e.size.load(Relaxed) {
        true => Err(Error::OverLimit),
        false => Ok(()),
    }
}

fn set_size(s: &Session, inode: &LockedInode, size: u64, now: i64) -> Result<()> {
    let e = inode.e;
    let old = e.size.load(Relaxed);
    if cow::stays(s, inode) {
        return resize_mapped(s, inode, size, now);
    }
    if size >= old {
        data::zero_gap(s, inode, old, size)?;
    }
    if size == 0 && old > 0 && durable::is_needed(s) {
        e.state.fetch_or(INODE_REWRITTEN, Release);
    }
    let unjournaled = match size {
        0 => Some(Unjournaled::take(s, inode)),
        _ => {
            cut_pending(s, inode, size)?;
            None
        }
    };
    journal::commit(
        s,
        &Record::Truncate {
            ino: inode.ino,
            size,
            time: now,
        },
    )?;
    if let Some(unjournaled) = unjournaled {
        e.state.fetch_and(!INODE_INLINE, Release);
        unjournaled.give_back(s);
    }
    if lent::is_lent(e) {
        lent::follow_size(s, inode)?;
    }
    match size < old {
        // In a pool without a free block the end stays as it is.
        true => cow::renew_tail(s, inode, size).or_else(|e| match e {
            Error::NoSpace => Ok(()),
            e => Err(e),
        }),
        false => Ok(()),
    }
}

/// Whether no block beyond `size` belongs to the file, as far as a few looks tell.
fn ends_at(s: &Session, inode: &LockedInode, size: u64) -> Result<bool> {
    let mut at = size.div_ceil(BLOCK);
    for _ in 0..LOOKS {
        match block_map::lookup_run_locked(s, inode, at, FILE_BLOCKS - at)? {
            Run::Blocks { .. } => return Ok(false),
            Run::Hole(len) => at = at.saturating_add(len.max(1)),
        }
        if at >= FILE_BLOCKS {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Before a cut: the reserve goes back, and a pending run that the cut touches is journaled.
fn cut_pending(s: &Session, inode: &LockedInode, size: u64) -> Result<()> {
    let e = inode.e;
    close::return_reserve(s, inode);
    let len = u64::from(e.pending_len.load(Relaxed));
    let end = e.pending_file_block.load(Relaxed).saturating_add(len);
    if len > 0 && end > size.div_ceil(BLOCK) {
        close::flush(s, inode)?;
    }
    Ok(())
}

/// No block leaves a mapped file, also none beyond its end: mappings may reach there from earlier.
fn resize_mapped(s: &Session, inode: &LockedInode, size: u64, now: i64) -> Result<()> {
    let e = inode.e;
    let old = e.size.load(Relaxed);
    data::zero_gap(s, inode, old, size)?;
    e.size.store(size, Release);
    e.truncations.fetch_add(1, Release);
    if size.div_ceil(BLOCK) < old.div_ceil(BLOCK) {
        s.header().mapped_cuts.fetch_add(1, AcqRel);
    }
    data::zero(s, inode, size, old.next_multiple_of(BLOCK))?;
    e.mtime.store(now as u64, Relaxed);
    e.ctime.store(now as u64, Relaxed);
    inode_table::mark_dirty(s, e);
    close::flush(s, inode)
}

pub(crate) fn fallocate(c: &Client, ofd: OfdLink, mode: u32, offset: i64, len: i64) -> Result<()> {
    File::usable(&c.session, ofd)?;
    let (start, n) = (file::offset(offset)?, file::offset(len)?);
    if n == 0 {
        return Err(Error::Invalid);
    }
    check_mode(mode)?;
    let file = File::writable(&c.session, ofd)?;
    match file.kind() {
        S_IFREG => {}
        S_IFDIR => return Err(Error::IsDirectory),
        _ => return Err(Error::NoDevice),
    }
    let end = start
        .checked_add(n)
        .filter(|end| *end <= FILE_SIZE_MAX)
        .ok_or(Error::FileTooLarge)?;
    let keep = mode & FALLOC_FL_KEEP_SIZE != 0;
    let work = mode & !FALLOC_FL_KEEP_SIZE;
    if !matches!(work, 0 | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE) {
        return Err(Error::NotSupported);
    }
    let now = clock::now();
    let s = &c.session;
    let inode = inode_table::lock_to_store(s, file.inode)?;
    if work != FALLOC_FL_PUNCH_HOLE {
        check_limit(s, &inode, end)?;
    }
    lent::check(s, &inode)?;
    write::drop_privileges_slow(s, &inode, now)?;
    match work {
        FALLOC_FL_PUNCH_HOLE => punch(s, &inode, start, end, now)?,
        _ => {
            if work == FALLOC_FL_ZERO_RANGE {
                zero_range(s, &inode, start, end, now)?;
            }
            allocate(s, &inode, start, end, keep, now)?;
        }
    }
    if s.consistency() > 0 || file.flags & O_DSYNC != 0 {
        durable::now(s, inode)?;
    }
    Ok(())
}

/// `NotSupported` for modes that nobody knows, or that contradict themselves: these are refused
/// before the file is looked at, as by the kernel; what no pool can do is refused behind that.
fn check_mode(mode: u32) -> Result<()> {
    let keep = mode & FALLOC_FL_KEEP_SIZE != 0;
    match mode & !FALLOC_FL_KEEP_SIZE {
        0 | FALLOC_FL_ZERO_RANGE | FALLOC_FL_UNSHARE_RANGE => Ok(()),
        FALLOC_FL_PUNCH_HOLE if keep => Ok(()),
        FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE if !keep => Ok(()),
        _ => Err(Error::NotSupported),
    }
}

/// Blocks for all of the range; the size rises to its end unless `keep`.
fn allocate(
    s: &Session,
    inode: &LockedInode,
    start: u64,
    end: u64,
    keep: bool,
    now: i64,
) -> Result<()> {
    let e = inode.e;
    let size = e.size.load(Relaxed);
    data::zero_gap(s, inode, size, if keep { size } else { end })?;
    data::fill_holes(s, inode, start / BLOCK, end.div_ceil(BLOCK))?;
    if end > size && !keep {
        e.size.store(end, Release);
        if lent::is_lent(e) {
            lent::follow_size(s, inode)?;
        }
    }
    e.mtime.store(now as u64, Relaxed);
    e.ctime.store(now as u64, Relaxed);
    inode_table::mark_dirty(s, e);
    Ok(())
}

fn zero_range(s: &Session, inode: &LockedInode, start: u64, end: u64, now: i64) -> Result<()> {
    data::leave_inline(s, inode)?;
    data::zero(
        s,
        inode,
        start,
        end.min(inode.e.size.load(Relaxed)).max(start),
    )?;
    inode.e.mtime.store(now as u64, Relaxed);
    inode.e.ctime.store(now as u64, Relaxed);
    inode_table::mark_dirty(s, inode.e);
    Ok(())
}

/// Whole blocks of the range become a hole, the rest is zeroed.
fn punch(s: &Session, inode: &LockedInode, start: u64, end: u64, now: i64) -> Result<()> {
    let e = inode.e;
    let (first, last) = (start.div_ceil(BLOCK), end / BLOCK);
    if first >= last || cow::stays(s, inode) {
        return zero_range(s, inode, start, end, now);
    }
    zero_range(s, inode, start, (first * BLOCK).max(start), now)?;
    zero_range(s, inode, last * BLOCK, end, now)?;
    close::return_reserve(s, inode);
    close::flush(s, inode)?;
    let (file_block, len) = (first, last - first);
    let size = e.size.load(Relaxed);
    let record = Record::Punch {
        ino: inode.ino,
        file_block,
        len,
        size,
        time: now,
    };
    journal::commit(s, &record)?;
    match lent::is_lent(e) {
        true => lent::zero(s, inode, first * BLOCK, last * BLOCK),
        false => Ok(()),
    }
}
