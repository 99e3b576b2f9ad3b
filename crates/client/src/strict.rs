//! Writes that happen as a whole or not at all (consistency `strict`).
//!
//! Invariants: bytes that a reader or a recovery could already see are never overwritten before a
//! record allows to redo it (short writes) or replaced otherwise than by one record (long writes).
//! A write that is longer than the longest run of free blocks happens in as many pieces, from its
//! start on; so does one to a file that is mapped, whose blocks must stay where they are.

use crate::block_map::{self, Run};
use crate::data;
use crate::error::{Error, Result};
use crate::inode_table::LockedInode;
use crate::session::{BLOCK, Session};
use crate::write::{Source, write_locked};
use crate::{close, journal, space};
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
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
    if offset >= size {
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
    let mut done = 0;
    while done < n {
        match replace(s, inode, source, offset + done as u64, n - done, now) {
            Ok(piece) => done += piece,
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
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
    s.data().fence();
    Ok(n)
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
    let (block, got) = longest_run(s, end - first)?;
    let want = got.min((end - first) as u32);
    let n = n.min((u64::from(want) * BLOCK - offset % BLOCK) as usize);
    let give_up = |e| {
        space::give_back(s, block, got);
        Err(e)
    };
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

/// Blocks in a row, as many as wanted or as few tries find; at most 2 MiB.
fn longest_run(s: &Session, want: u64) -> Result<(u64, u32)> {
    let want = want.min(space::HUGE_BLOCKS.into()) as u32;
    let mut runs = [(0, 0); TRIES];
    for run in &mut runs {
        match space::alloc(s, want, None, want == space::HUGE_BLOCKS) {
            Ok(found) => *run = found,
            Err(Error::NoSpace) => break,
            Err(e) => return Err(e),
        }
        if run.1 == want {
            break;
        }
    }
    let best = runs
        .iter()
        .copied()
        .max_by_key(|run| run.1)
        .unwrap_or_default();
    for (block, len) in runs {
        if (block, len) != best {
            space::give_back(s, block, len);
        }
    }
    if best.1 == 0 {
        Err(Error::NoSpace)
    } else {
        Ok(best)
    }
}

/// Runs that are looked at for one write.
const TRIES: usize = 8;

/// Old bytes before and after the new ones in their first and last block, new bytes between them.
fn fill(
    s: &Session,
    inode: &LockedInode,
    source: &mut Source,
    offset: u64,
    n: usize,
    block: u64,
) -> Result<()> {
    let end = offset + n as u64;
    let (first, last) = (offset / BLOCK, (end - 1) / BLOCK);
    keep(s, inode, first, block, 0..(offset % BLOCK) as usize)?;
    let used = (end - last * BLOCK) as usize;
    keep(s, inode, last, block + (last - first), used..BLOCK as usize)?;
    let (_, copied) = source.copy_in(s, block * BLOCK + offset % BLOCK, n);
    copied?;
    s.data().fence();
    Ok(())
}

/// Copies the present bytes `range` of a file block to the same place in block `to`.
fn keep(
    s: &Session,
    inode: &LockedInode,
    file_block: u64,
    to: u64,
    range: Range<usize>,
) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let mut bytes = [0; BLOCK as usize];
    let (from, bytes) = (range.start as u64, &mut bytes[range]);
    if let Run::Blocks { block, .. } = block_map::lookup_run_locked(s, inode, file_block, 1)? {
        s.data().read(block * BLOCK + from, bytes)?;
    }
    Ok(s.data().write_nt(to * BLOCK + from, bytes)?)
}
