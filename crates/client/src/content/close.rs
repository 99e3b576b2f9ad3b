//! The end of a use of an object: writing back what is still dirty, freeing what has no name any
//! more.
//!
//! Invariants:
//!  * An object without a name is freed exactly once, by the process that drops its last pin.
//!  * When the last pin of a file is dropped, everything about it is in the journal, and blocks
//!    that no record mentions are returned, except the block that shadows inline data.
//!  * `INODE_ORPHAN` is set before `opens` is looked at, and `opens` is lowered before
//!    `INODE_ORPHAN` is looked at: one of the two sides sees the other.

use crate::base::error::{Error, Result};
use crate::content::durable;
use crate::content::perm;
use crate::content::ranges;
use crate::journal;
use crate::session::space;
use crate::session::{OfdLink, Session};
use crate::tables::block_map::{self, Run};
use crate::tables::inode_table::{self, InodeRef, LockedInode};
use crate::tables::ofd;
use pmem::atomic::Ordering::{AcqRel, Relaxed, Release, SeqCst};
use pool::journal::{Record, SET_ATIME};
use pool::layout::{BlockAddr, INLINE_MAX};
use pool::session::*;

/// Drops a reference to a description; the last one closes it.
pub fn put_ofd(s: &Session, link: OfdLink) -> Result<()> {
    let ofd = s.ofd(link.raw())?;
    let one_less = |n: u32| n.checked_sub(1);
    let before = ofd.refs.fetch_update(AcqRel, Relaxed, one_less);
    s.ensure(
        before.is_ok(),
        "a description that is let go has a reference",
    )?;
    if before != Ok(1) {
        return Ok(());
    }
    let inode = ofd.inode.load(Relaxed);
    let inode = InodeRef {
        link: inode,
        ino: ofd.ino.load(Relaxed),
        e: s.inode(inode)?,
    };
    ranges::drop_ofd_locks(s, &inode, link);
    ofd.spare.store(s.owner(), Release);
    // Before the pin goes it is not the description's any more: a death in between leaves a pin
    // too many, and whoever finishes for the dead never takes that of somebody else.
    let done = put_pin(s, &inode, || ofd.inode.store(0, Release));
    ofd::free(s, link);
    done
}

/// Drops a pin (`inode_table::pin`).
pub fn put_inode(s: &Session, inode: &InodeRef) -> Result<()> {
    put_pin(s, inode, || ())
}

/// As `put_inode`; what owns the pin gives it up by `disown`, right before it goes.
fn put_pin(s: &Session, inode: &InodeRef, disown: impl Fn()) -> Result<()> {
    let e = inode.e;
    if is_lazy(e) {
        return put_lazy(s, inode, disown);
    }
    disown();
    if !unpin(s, e) {
        return Ok(());
    }
    let state = e.state.load(SeqCst);
    if state & INODE_ORPHAN != 0 {
        return release_orphan(s, inode);
    }
    if state & INODE_VALUE != 0 {
        inode_table::leave_value(s, inode);
        return Ok(());
    }
    if is_lazy(e) {
        // Another user wrote and went since we looked, and took us for the last one. What is
        // lazy keeps the entry from being evicted.
        e.opens.fetch_add(1, SeqCst);
        return put_lazy(s, inode, disown);
    }
    Ok(())
}

/// Whether something about the file is not in the journal, or blocks are set aside for it.
#[inline]
fn is_lazy(e: &Inode) -> bool {
    e.state.load(SeqCst) & INODE_DIRTY != 0 || e.reserve_len.load(Relaxed) != 0
}

/// Drops a pin; true: it was the last one.
#[inline]
pub(crate) fn unpin(s: &Session, e: &Inode) -> bool {
    let before = e.opens.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1));
    let counted = s.ensure(before.is_ok(), "an inode has as many pins as users");
    counted.is_ok() && before == Ok(1)
}

/// Drops a pin under the lock, after journaling what is lazy if the pin is the last one.
#[cold]
fn put_lazy(s: &Session, inode: &InodeRef, disown: impl Fn()) -> Result<()> {
    let e = inode.e;
    let locked = inode_table::lock_ref(s, *inode);
    let flushed = match &locked {
        Ok(locked) if e.opens.load(SeqCst) == 1 => flush_last(s, locked),
        Ok(_) | Err(Error::NotFound) => Ok(()),
        Err(e) => Err(e.clone()),
    };
    disown();
    let last = unpin(s, e);
    drop(locked);
    if last && e.state.load(SeqCst) & INODE_ORPHAN != 0 {
        return release_orphan(s, inode);
    }
    flushed
}

fn flush_last(s: &Session, inode: &LockedInode) -> Result<()> {
    if inode.e.state.load(SeqCst) & INODE_ORPHAN != 0 {
        return Ok(());
    }
    return_reserve(s, inode);
    if becomes_inline(inode.e) {
        return store_inline(s, inode);
    }
    if inode.e.state.load(Relaxed) & INODE_REWRITTEN != 0 {
        inode.e.state.fetch_and(!INODE_REWRITTEN, Release);
        durable::before_records_if_small(s, inode)?;
    }
    flush(s, inode)
}

/// Somebody died while it closed its description of object `ino`, which has no pin any more.
pub(crate) fn finish(s: &Session, ino: u64) {
    if let Some(inode) = inode_table::find(s, ino)
        && inode.e.state.load(SeqCst) & INODE_ORPHAN != 0
    {
        // If the service is gone, recovery of the pool ends orphans.
        let _ = release_orphan(s, &inode);
    }
}

/// The object without a name is not used any more.
#[cold]
pub(crate) fn release_orphan(s: &Session, inode: &InodeRef) -> Result<()> {
    // Not there: whoever removed the name saw that nobody uses it and freed it.
    let Ok(_locked) = inode_table::lock_ref(s, *inode) else {
        return Ok(());
    };
    let e = inode.e;
    let state = e.state.load(SeqCst);
    if e.opens.load(SeqCst) != 0 || state & INODE_ORPHAN == 0 || state & INODE_VALID == 0 {
        return Ok(());
    }
    journal::commit(s, &Record::Release { ino: inode.ino }).map(|_| ())
}

/// Blocks of a file that no journal record mentions.
pub(crate) struct Unjournaled {
    runs: [(BlockAddr, u32); 3],
}

impl Unjournaled {
    /// Takes them from the file, which is about to lose its blocks.
    pub fn take(s: &Session, inode: &LockedInode) -> Unjournaled {
        let e = inode.e;
        let shadow = match e.state.load(Relaxed) & INODE_SHADOW {
            0 => Default::default(),
            _ => shadow_block(s, inode).map_or(Default::default(), |block| (block, 1)),
        };
        let pending = (
            BlockAddr::from_word(e.pending_block.load(Relaxed)),
            e.pending_len.swap(0, Relaxed),
        );
        let reserve = (
            BlockAddr::from_word(e.reserve_block.load(Relaxed)),
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
pub(crate) fn shadow_block(s: &Session, inode: &LockedInode) -> Result<BlockAddr> {
    match block_map::lookup_run_locked(s, inode, 0, 1)? {
        Run::Blocks { block, .. } => Ok(block),
        Run::Hole(_) => Err(Error::Damaged {
            what: "shadow of inode",
            index: inode.ino,
        }),
    }
}

/// Returns the blocks set aside for appends.
pub(crate) fn return_reserve(s: &Session, inode: &LockedInode) {
    let len = inode.e.reserve_len.swap(0, Relaxed);
    if len > 0 {
        let block = BlockAddr::from_word(inode.e.reserve_block.load(Relaxed));
        space::give_back(s, block, len);
    }
}

/// Whether the whole content is in block 0, which no record mentions, and fits the inode record.
fn becomes_inline(e: &Inode) -> bool {
    let size = e.size.load(Relaxed);
    (1..=INLINE_MAX as u64).contains(&size)
        && e.pending_len.load(Relaxed) == 1
        && e.pending_file_block.load(Relaxed) == 0
        && e.blocks.load(Relaxed) == 1
        && e.maps.load(Relaxed) == 0
        && perm::file_type(e.mode.load(Relaxed)) == crate::base::abi::S_IFREG
}

/// Journals all of the lazy state.
pub(crate) fn flush(s: &Session, inode: &LockedInode) -> Result<()> {
    let e = inode.e;
    if e.state.load(Relaxed) & INODE_DIRTY == 0 {
        return Ok(());
    }
    let (ino, size) = (inode.ino, e.size.load(Relaxed));
    let [atime, mtime, ctime] = times(e);
    let file = perm::file_type(e.mode.load(Relaxed)) == crate::base::abi::S_IFREG;
    let record = match e.pending_len.load(Relaxed) {
        len if file && len > 0 => {
            let file_block = e.pending_file_block.load(Relaxed);
            let block = BlockAddr::from_word(e.pending_block.load(Relaxed));
            Record::Extent {
                ino,
                file_block,
                block,
                len,
                size,
                mtime,
                ctime,
                flags: durable::extent_flags(s),
            }
        }
        _ if file => Record::Size {
            ino,
            size,
            atime,
            mtime,
            ctime,
        },
        _ => {
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
        }
    };
    journal::commit(s, &record)?;
    if file {
        e.pending_len.store(0, Relaxed);
    }
    if e.state.load(Relaxed) & INODE_DIRTY != 0 {
        e.state.fetch_and(!INODE_DIRTY, Release);
    }
    Ok(())
}

/// Journals the content of block 0 as the file's inline data; the block stays as its shadow.
fn store_inline(s: &Session, inode: &LockedInode) -> Result<()> {
    let e = inode.e;
    let fits = e.size.load(Relaxed) <= INLINE_MAX as u64 && e.pending_len.load(Relaxed) == 1;
    s.ensure(
        fits,
        "content that comes to be inline is in one pending block",
    )?;
    let mut data = [0; INLINE_MAX];
    let data = data
        .get_mut(..e.size.load(Relaxed) as usize)
        .ok_or(Error::Invalid)?;
    let block = BlockAddr::from_word(e.pending_block.load(Relaxed));
    s.segment(block)?.read(block.offset(), data)?;
    let [_, mtime, ctime] = times(e);
    journal::commit(
        s,
        &Record::Inline {
            ino: inode.ino,
            mtime,
            ctime,
            data,
        },
    )?;
    e.state.fetch_and(!INODE_DIRTY, Release);
    Ok(())
}

fn times(e: &Inode) -> [i64; 3] {
    [&e.atime, &e.mtime, &e.ctime].map(|t| t.load(Relaxed) as i64)
}
