//! Open-file descriptions.
//!
//! Invariants:
//!  * A description in use has `inode` set and owns one pin of it; `inode` 0 is a free entry.
//!  * `refs` counts the descriptors of all processes that refer to it, or 1 for the caller that
//!    made it and has not bound it yet; `spare` names that caller until then, and again while
//!    somebody closes it, so that `sweep` can finish for a dead one.

use crate::close;
use crate::error::{Error, Result};
use crate::free_list::FreeList;
use crate::inode_table::InodeRef;
use crate::lock;
use crate::session::{OfdLink, Session};
use core::sync::atomic::{AtomicU32, Ordering::*};
use pool::session::*;

fn table(s: &Session) -> FreeList<'_> {
    let h = s.header();
    FreeList {
        lock: &h.ofd_lock,
        free: &h.ofd_free,
        used: &h.ofd_used,
        capacity: OFDS as u32,
        base: 0,
    }
}

fn next_of(s: &Session, index: u32) -> Result<&AtomicU32> {
    Ok(&s.ofd(index + 1)?.next)
}

/// A new description with `refs` = 1, not bound to a descriptor yet. The caller has pinned the
/// inode, and the description owns that pin from now on. `TableFull` when there are too many.
#[inline]
pub fn alloc(s: &Session, inode: &InodeRef<'_>, flags: u32) -> Result<OfdLink> {
    let claim = |index: u32| {
        s.ofd(index + 1)?.spare.store(s.owner(), Release);
        Ok(())
    };
    let pop = || table(s).pop(s, |i| next_of(s, i), claim);
    let index = match pop()? {
        Some(index) => index,
        None => {
            sweep(s)?;
            pop()?.ok_or(Error::TableFull)?
        }
    };
    let ofd = s.ofd(index + 1)?;
    ofd.flags.store(flags, Relaxed);
    ofd.offset.store(0, Relaxed);
    ofd.name_len.store(0, Relaxed);
    ofd.parent.store(0, Relaxed);
    let errors = s.header().sync_errors.load(Relaxed);
    ofd.errors_seen.store(errors, Relaxed);
    ofd.ino.store(inode.ino, Relaxed);
    ofd.generation
        .store(ofd.generation.load(Relaxed).wrapping_add(1), Relaxed);
    // `inode` last: before it the pin is still the caller's, and a death leaks only that.
    ofd.refs.store(1, Relaxed);
    ofd.inode.store(inode.link, Release);
    OfdLink::from_raw(index + 1).ok_or(Error::TableFull)
}

/// A descriptor refers to it from now on: it is nobody's in particular any more.
#[inline]
pub(crate) fn bound(s: &Session, link: u32) {
    if let Ok(ofd) = s.ofd(link)
        && ofd.spare.load(Relaxed) != 0
    {
        ofd.spare.store(0, Release);
    }
}

/// Frees the entry of a description whose last reference is gone; its pin was dropped before.
#[inline]
pub fn free(s: &Session, link: OfdLink) {
    let Ok(ofd) = s.ofd(link.raw()) else { return };
    ofd.spare.store(s.owner(), Relaxed);
    ofd.inode.store(0, Release);
    // Without the table's lock (a given-up session) the entry waits for a sweep.
    let _ = table(s).push(s, link.raw() - 1, &ofd.next, || {
        ofd.spare.store(0, Release);
    });
}

/// Finishes what processes that died while opening or closing left behind, recounts references
/// if nobody is moving any, and rebuilds the free list.
#[cold]
pub(crate) fn sweep(s: &Session) -> Result<u32> {
    let used = table(s).used();
    let dead = |word: u32| word != 0 && !lock::owner_lives(s, word);
    for link in 1..=used {
        let ofd = s.ofd(link)?;
        if ofd.inode.load(Acquire) != 0 && dead(ofd.spare.load(Acquire)) {
            abandon(s, link, ofd);
        }
    }
    recount(s, used);
    let is_free = |index: u32| {
        s.ofd(index + 1).is_ok_and(|ofd| {
            let holder = ofd.spare.load(Acquire);
            ofd.inode.load(Acquire) == 0 && (holder == 0 || dead(holder))
        })
    };
    table(s).rebuild(s, |i| next_of(s, i), is_free)
}

/// The opener died before it bound the description, or the closer before it was done.
pub(crate) fn abandon(s: &Session, link: u32, ofd: &Ofd) {
    let holder = ofd.spare.load(Acquire);
    // One sweeper takes it.
    if ofd
        .spare
        .compare_exchange(holder, s.owner(), AcqRel, Relaxed)
        .is_err()
    {
        return;
    }
    ofd.refs.store(1, Release);
    if let Some(link) = OfdLink::from_raw(link) {
        let _ = close::put_ofd(s, link);
    }
}

/// Lowers reference counts to what the descriptor tables say: processes that died between
/// clearing a descriptor and dropping its reference leave one too many. Only while nobody is in
/// between: `Slot::fd_changes` of every live process is 0 before and after counting.
fn recount(s: &Session, used: u32) {
    let mut counts = alloc::vec![0u32; used as usize + 1];
    let quiet = || {
        (0..SLOTS as u32).all(|i| {
            s.slot_at(i).is_ok_and(|slot| {
                slot.state.load(Acquire) == 0 || slot.fd_changes.load(SeqCst) == 0
            })
        })
    };
    if !quiet() {
        return;
    }
    for index in 0..SLOTS as u32 {
        let (Ok(slot), Ok(fds)) = (s.slot_at(index), s.fd_table(index)) else {
            return;
        };
        if slot.state.load(Acquire) == 0 {
            continue;
        }
        let limit = (slot.fd_limit.load(Acquire) as usize).min(FDS);
        for entry in fds.entries.iter().take(limit) {
            if let Some(count) = counts.get_mut(entry.load(SeqCst) as usize) {
                *count += 1;
            }
        }
    }
    for link in 1..=used {
        let (Ok(ofd), Some(count)) = (s.ofd(link), counts.get(link as usize)) else {
            return;
        };
        let refs = ofd.refs.load(SeqCst);
        let bound = ofd.inode.load(Acquire) != 0 && ofd.spare.load(Acquire) == 0;
        if !bound || refs <= *count || !quiet() {
            continue;
        }
        if *count == 0 {
            ofd.spare.store(s.owner(), Release);
            abandon(s, link, ofd);
        } else {
            let _ = ofd.refs.compare_exchange(refs, *count, SeqCst, Relaxed);
        }
    }
}
