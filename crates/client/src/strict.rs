//! Writes that happen as a whole or not at all (consistency `strict`).
//!
//! Invariants: bytes that a reader or a recovery could already see are never overwritten before a
//! record allows to redo it (short writes) or replaced otherwise than by one record (long writes).
//! A write that is longer than the longest run of free blocks happens in as many pieces, from its
//! start on; so does one to a file that is mapped, whose blocks must stay where they are.

use crate::data;
use crate::error::Result;
use crate::inode_table::LockedInode;
use crate::session::{BLOCK, Session};
use crate::write::{Source, write_locked};
use crate::{close, cow, durable, journal};
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
        // Nothing below the size changes, and the size rises with one record: not with the one
        // that replaces a last block which a snapshot has.
        if !cow::must_stay(inode) {
            cow::own(
                s,
                inode,
                offset / BLOCK,
                (offset + n as u64).div_ceil(BLOCK),
            )?;
        }
        return write_locked(s, inode, source, offset, n, now);
    }
    // Blocks must be the file's own before a record may speak of them.
    close::flush(s, inode)?;
    let stays = cow::must_stay(inode);
    // On an ordinary file no store can be held back until a record is durable: new blocks always.
    let redoes = stays || !durable::is_needed(s);
    if n <= REDO_MAX && redoes && (stays || !cow::is_shared(s, inode, offset, n)?) {
        return redo(s, inode, source, offset, n, now);
    }
    if stays {
        // New blocks would leave the mappings behind; a mapped file is written in place.
        return write_locked(s, inode, source, offset, n, now);
    }
    let mut done = 0;
    while done < n {
        match cow::replace(s, inode, source, offset + done as u64, n - done, now) {
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
