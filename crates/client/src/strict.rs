//! Writes that happen as a whole or not at all (consistency `strict`).
//!
//! Invariants: bytes that a reader or a recovery could already see are never overwritten before a
//! record allows to redo it (short writes) or replaced otherwise than by one record (long writes).
//! A long write that finds no single run of free blocks fails with `NoSpace`, unchanged.

use crate::block_map::{self, Run};
use crate::data;
use crate::error::{Error, Result};
use crate::inode_table::LockedInode;
use crate::session::{BLOCK, Session};
use crate::write::{Source, write_locked};
use crate::{close, journal, space};
use core::sync::atomic::Ordering::Relaxed;
use pmem::ConstBuf;
use pool::journal::Record;

/// Longer writes go to new blocks.
const REDO_MAX: usize = 2048;

pub(crate) fn write(
    s: &Session,
    inode: &LockedInode,
    source: &mut Source,
    offset: u64,
    n: usize,
    now: i64,
) -> Result<usize> {
    data::leave_inline(s, inode)?;
    let size = inode.e.size.load(Relaxed);
    if offset >= size && offset % BLOCK == 0 {
        // Nothing below the size changes, and the size rises with one record.
        return write_locked(s, inode, source, offset, n, now);
    }
    // Blocks must be the file's own before a record may speak of them.
    close::flush(s, inode)?;
    if n <= REDO_MAX {
        return redo(s, inode, source, offset, n, now);
    }
    if inode.e.maps.load(Relaxed) > 0 {
        // New blocks would leave the mappings behind; a mapped file is written in place.
        return write_locked(s, inode, source, offset, n, now);
    }
    replace(s, inode, source, offset, n, now)
}

/// One record with the bytes, then the bytes.
fn redo(
    s: &Session,
    inode: &LockedInode,
    source: &mut Source,
    offset: u64,
    n: usize,
    now: i64,
) -> Result<usize> {
    let mut bytes = [0; REDO_MAX];
    let bytes = &mut bytes[..n];
    source.read(bytes)?;
    let end = offset + n as u64;
    data::zero_gap(s, inode, inode.e.size.load(Relaxed), offset)?;
    data::fill_holes(s, inode, offset / BLOCK, end.div_ceil(BLOCK))?;
    close::flush(s, inode)?;
    let size = end.max(inode.e.size.load(Relaxed));
    let record = Record::Write {
        ino: inode.ino,
        offset,
        size,
        mtime: now,
        data: bytes,
    };
    journal::commit(s, &record)?;
    let bytes: &[u8] = bytes;
    let copy = [ConstBuf::from(bytes)];
    write_locked(s, inode, &mut Source::new(&copy), offset, n, now)
}

/// New blocks with the old bytes around the new ones, which one record puts in the place of the
/// old blocks.
fn replace(
    s: &Session,
    inode: &LockedInode,
    source: &mut Source,
    offset: u64,
    n: usize,
    now: i64,
) -> Result<usize> {
    let e = inode.e;
    let size = e.size.load(Relaxed);
    let (first, end) = (offset / BLOCK, (offset + n as u64).div_ceil(BLOCK));
    data::zero_gap(s, inode, size, offset)?;
    let want = u32::try_from(end - first).map_err(|_| Error::NoSpace)?;
    let (block, got) = space::alloc(s, want, None, want >= space::HUGE_BLOCKS)?;
    let give_up = |e| {
        space::give_back(s, block, got);
        Err(e)
    };
    if got < want {
        return give_up(Error::NoSpace);
    }
    if let Err(e) = fill(s, inode, source, offset, n, block) {
        return give_up(e);
    }
    let record = Record::Extent {
        ino: inode.ino,
        file_block: first,
        block,
        len: want,
        size: size.max(offset + n as u64),
        mtime: now,
        ctime: now,
    };
    if let Err(e) = journal::commit(s, &record) {
        return give_up(e);
    }
    e.truncations
        .fetch_add(1, core::sync::atomic::Ordering::Release);
    Ok(n)
}

/// Old bytes at both ends, new bytes between them.
fn fill(
    s: &Session,
    inode: &LockedInode,
    source: &mut Source,
    offset: u64,
    n: usize,
    block: u64,
) -> Result<()> {
    let (first, last) = (offset / BLOCK, (offset + n as u64 - 1) / BLOCK);
    keep(s, inode, first, block)?;
    if last != first {
        keep(s, inode, last, block + (last - first))?;
    }
    let (_, copied) = source.copy_in(s, block * BLOCK + offset % BLOCK, n);
    copied?;
    s.data().fence();
    Ok(())
}

/// Copies the present bytes of a file block to `to`.
fn keep(s: &Session, inode: &LockedInode, file_block: u64, to: u64) -> Result<()> {
    let mut bytes = [0; BLOCK as usize];
    if let Run::Blocks { block, .. } = block_map::lookup_run_locked(s, inode, file_block, 1)? {
        s.data().read(block * BLOCK, &mut bytes)?;
    }
    Ok(s.data().write_nt(to * BLOCK, &bytes)?)
}
