//! The end of a use of an object: writing what is still lazy, freeing what has no name any more.
//!
//! Invariants:
//!  * An object without a name is freed by whoever drops its last pin, exactly once.
//!  * When the last pin of a file goes, everything about it is in the journal, and blocks that no
//!    record mentions are returned, except the one that shadows inline data.
//!  * `INODE_ORPHAN` is set before `opens` is looked at, and `opens` is lowered before
//!    `INODE_ORPHAN` is looked at: one of the two sides sees the other.

use crate::error::Result;
use crate::flock;
use crate::inode_table::{self, InodeRef, LockedInode};
use crate::journal;
use crate::session::{OfdLink, Session};
use crate::{block_map, ofd, perm, space};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use pool::journal::{Record, SET_ATIME};
use pool::layout::INLINE_MAX;
use pool::session::*;

/// Drops a reference to a description; the last one closes it.
pub fn put_ofd(s: &Session, link: OfdLink) -> Result<()> {
    let ofd = s.ofd(link.raw())?;
    let one_less = |n: u32| n.checked_sub(1);
    if ofd.refs.fetch_update(AcqRel, Relaxed, one_less) != Ok(1) {
        return Ok(());
    }
    let inode = ofd.inode.load(Relaxed);
    let inode = InodeRef {
        link: inode,
        ino: ofd.ino.load(Relaxed),
        e: s.inode(inode)?,
    };
    flock::drop_ofd_locks(s, &inode, link);
    let done = put_inode(s, &inode);
    ofd::free(s, link);
    done
}

/// Drops a pin (`inode_table::pin`).
pub fn put_inode(s: &Session, inode: &InodeRef) -> Result<()> {
    let e = inode.e;
    let lazy = e.state.load(Acquire) & INODE_DIRTY != 0 || e.reserve_len.load(Relaxed) != 0;
    let flushed = match lazy {
        true => flush_last(s, inode),
        false => Ok(()),
    };
    let one_less = |n: u32| n.checked_sub(1);
    let last = e.opens.fetch_update(SeqCst, SeqCst, one_less) == Ok(1);
    if last && e.state.load(SeqCst) & INODE_ORPHAN != 0 {
        return release_orphan(s, inode);
    }
    flushed
}

/// Journals what is lazy if the caller's pin is the last one.
#[cold]
fn flush_last(s: &Session, inode: &InodeRef) -> Result<()> {
    let locked = inode_table::lock_ref(s, *inode)?;
    let e = inode.e;
    if e.opens.load(Acquire) != 1 || e.state.load(Acquire) & INODE_ORPHAN != 0 {
        return Ok(());
    }
    return_reserve(s, &locked);
    if becomes_inline(e) {
        return store_inline(s, &locked);
    }
    flush(s, &locked)
}

/// The object without a name is not used any more.
#[cold]
fn release_orphan(s: &Session, inode: &InodeRef) -> Result<()> {
    // Not there: whoever removed the name saw that nobody uses it and freed it.
    let Ok(locked) = inode_table::lock_ref(s, *inode) else {
        return Ok(());
    };
    let e = inode.e;
    let state = e.state.load(SeqCst);
    if e.opens.load(SeqCst) != 0 || state & INODE_ORPHAN == 0 || state & INODE_VALID == 0 {
        return Ok(());
    }
    let unjournaled = Unjournaled::take(&locked);
    journal::commit(s, &Record::Release { ino: inode.ino })?;
    unjournaled.give_back(s);
    Ok(())
}

/// Blocks of a file that no journal record mentions.
pub(crate) struct Unjournaled {
    runs: [(u64, u32); 3],
}

impl Unjournaled {
    /// Takes them from the file, which is about to lose its blocks.
    pub fn take(inode: &LockedInode) -> Unjournaled {
        let e = inode.e;
        if perm::file_type(e.mode.load(Relaxed)) != crate::abi::S_IFREG {
            return Unjournaled { runs: [(0, 0); 3] };
        }
        let shadow = match e.state.load(Relaxed) & INODE_SHADOW {
            0 => (0, 0),
            _ => shadow_block(e).map_or((0, 0), |block| (block, 1)),
        };
        let pending = (
            e.pending_block.load(Relaxed),
            e.pending_len.swap(0, Relaxed),
        );
        let reserve = (
            e.reserve_block.load(Relaxed),
            e.reserve_len.swap(0, Relaxed),
        );
        e.state.fetch_and(!(INODE_SHADOW | INODE_DIRTY), Relaxed);
        Unjournaled {
            runs: [shadow, pending, reserve],
        }
    }

    /// Returns them.
    pub fn give_back(self, s: &Session) {
        for (block, len) in self.runs {
            if len > 0 {
                space::give_back(s, block, len);
            }
        }
    }
}

/// The block that shadows inline data.
pub(crate) fn shadow_block(e: &Inode) -> Option<u64> {
    let entry = e.direct[0].load(Relaxed);
    (e.map_root.load(Relaxed) == 0 && entry & MAP_BLOCK != 0).then_some(entry >> MAP_SHIFT)
}

/// Returns the blocks set aside for appends.
pub(crate) fn return_reserve(s: &Session, inode: &LockedInode) {
    let len = inode.e.reserve_len.swap(0, Relaxed);
    if len > 0 {
        space::give_back(s, inode.e.reserve_block.load(Relaxed), len);
    }
}

/// Whether the whole content is in block 0, which no record mentions, and fits the inode record.
fn becomes_inline(e: &Inode) -> bool {
    let size = e.size.load(Relaxed);
    if size > INLINE_MAX as u64 || e.state.load(Relaxed) & INODE_DIRTY == 0 {
        return false;
    }
    if perm::file_type(e.mode.load(Relaxed)) != crate::abi::S_IFREG {
        return false;
    }
    e.state.load(Relaxed) & INODE_SHADOW != 0 || only_first_block_pending(e)
}

fn only_first_block_pending(e: &Inode) -> bool {
    e.pending_len.load(Relaxed) == 1
        && e.pending_file_block.load(Relaxed) == 0
        && e.blocks.load(Relaxed) == 1
        && e.size.load(Relaxed) > 0
}

/// Journals all of the lazy state.
pub(crate) fn flush(s: &Session, inode: &LockedInode) -> Result<()> {
    let e = inode.e;
    let state = e.state.load(Relaxed);
    if state & INODE_DIRTY == 0 {
        return Ok(());
    }
    if state & INODE_SHADOW != 0 {
        return store_inline(s, inode);
    }
    let (ino, size) = (inode.ino, e.size.load(Relaxed));
    let [atime, mtime, ctime] = times(e);
    let len = e.pending_len.load(Relaxed);
    let record = if len > 0 {
        let file_block = e.pending_file_block.load(Relaxed);
        let block = e.pending_block.load(Relaxed);
        Record::Extent {
            ino,
            file_block,
            block,
            len,
            size,
            mtime,
            ctime,
        }
    } else if perm::file_type(e.mode.load(Relaxed)) == crate::abi::S_IFREG {
        Record::Size {
            ino,
            size,
            atime,
            mtime,
            ctime,
        }
    } else {
        let (mask, mode, uid, gid) = (SET_ATIME, 0, 0, 0);
        Record::SetAttr {
            ino,
            mask,
            mode,
            uid,
            gid,
            atime,
            mtime,
            ctime,
        }
    };
    journal::commit(s, &record)?;
    e.pending_len.store(0, Relaxed);
    e.state.fetch_and(!INODE_DIRTY, Release);
    Ok(())
}

/// Journals the content of block 0 as the file's inline data; the block stays as its shadow.
fn store_inline(s: &Session, inode: &LockedInode) -> Result<()> {
    let e = inode.e;
    let mut data = [0; INLINE_MAX];
    let len = (e.size.load(Relaxed) as usize).min(INLINE_MAX);
    let block = match shadow_block(e) {
        Some(block) => block,
        None => match block_map::lookup_run(s, inode, 0, 1)? {
            block_map::Run::Blocks { block, .. } => block,
            block_map::Run::Hole(_) => return flush_without_block(s, inode),
        },
    };
    s.data()
        .read(block * crate::session::BLOCK, &mut data[..len])?;
    let [_, mtime, ctime] = times(e);
    let record = Record::Inline {
        ino: inode.ino,
        mtime,
        ctime,
        data: &data[..len],
    };
    journal::commit(s, &record)?;
    e.pending_len.store(0, Relaxed);
    e.state.fetch_or(INODE_INLINE | INODE_SHADOW, Relaxed);
    e.blocks.store(0, Relaxed);
    block_map::map(s, inode, 0, block, 1, false)?;
    e.state.fetch_and(!INODE_DIRTY, Release);
    Ok(())
}

/// A shadow that is a hole: nothing but size and times.
fn flush_without_block(s: &Session, inode: &LockedInode) -> Result<()> {
    let e = inode.e;
    e.state.fetch_and(!INODE_SHADOW, Relaxed);
    flush(s, inode)
}

fn times(e: &Inode) -> [i64; 3] {
    [&e.atime, &e.mtime, &e.ctime].map(|t| t.load(Relaxed) as i64)
}
