//! Writes that happen as a whole or not at all (consistency `strict`).
//!
//! Invariants:
//!  * Bytes that a reader or recovery could already see are not overwritten before a redo record is
//!    durable (short writes), or are replaced by one record (long writes). On an ordinary file all
//!    writes are long.
//!  * Two writes are not atomic. One that is longer than the longest run of free blocks happens in
//!    as many pieces as needed, from its start on. A long one to a mapped file, whose blocks must
//!    stay where they are, is made in place.

use crate::base::error::Result;
use crate::content::data;
use crate::content::in_place::write_locked;
use crate::content::source::Write;
use crate::content::{close, cow, durable};
use crate::journal;
use crate::session::{BLOCK, Session};
use crate::tables::inode_table::LockedInode;
use pmem::atomic::Ordering::Relaxed;
use pool::journal::Record;

/// Longer writes go to new blocks.
const REDO_MAX: usize = 2048;

pub(crate) fn write(s: &Session, inode: &LockedInode, mut w: Write) -> Result<usize> {
    data::leave_inline(s, inode)?;
    let stays = cow::stays(s, inode);
    if w.offset >= inode.e.size.load(Relaxed) {
        // Nothing below the size changes, and the size rises with one record: not with the one
        // that replaces a last block which a snapshot has.
        if !stays {
            cow::own(s, inode, w.offset / BLOCK, w.end().div_ceil(BLOCK))?;
        }
        return write_locked(s, inode, w);
    }
    // Blocks must be the file's own before a record may speak of them.
    close::flush(s, inode)?;
    // On an ordinary file no store can be held back until a record is durable, and a redo would
    // undo stores through a mapping that came later: new blocks always, or in place.
    let redoes = w.n <= REDO_MAX && !durable::is_needed(s);
    if redoes && (stays || !cow::is_shared(s, inode, w.offset, w.n)?) {
        return redo(s, inode, w);
    }
    if stays {
        // New blocks would leave the mappings behind; a mapped file is written in place.
        return write_locked(s, inode, w);
    }
    let mut done = 0;
    while done < w.n {
        match cow::replace(s, inode, w.part(done, usize::MAX)) {
            Ok(piece) => done += piece,
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// One record with the bytes, then the bytes.
fn redo(s: &Session, inode: &LockedInode, w: Write) -> Result<usize> {
    let mut bytes = [0; REDO_MAX];
    let bytes = &mut bytes[..w.n];
    w.source.read(bytes)?;
    let (offset, end) = (w.offset, w.end());
    data::zero_gap(s, inode, inode.e.size.load(Relaxed), offset)?;
    data::fill_holes(s, inode, offset / BLOCK, end.div_ceil(BLOCK))?;
    close::flush(s, inode)?;
    let record = Record::Write {
        ino: inode.ino,
        offset,
        size: end.max(inode.e.size.load(Relaxed)),
        mtime: w.now,
        data: bytes,
    };
    journal::commit(s, &record)?;
    s.data().fence();
    Ok(w.n)
}
