//! Open-file descriptions.
//!
//! Invariants:
//!  * A description in use has `inode` set and owns one pin of it. `inode` 0 means a free entry, or
//!    one that `spare` is closing; `ino` then says of which object.
//!  * `refs` counts the descriptors of all processes that refer to it, or 1 for the caller that
//!    made it and has not bound it yet. `spare` names that caller until just before the binding,
//!    and again names a process that closes the description, so that `sweep` can finish for a dead
//!    one.

use crate::base::error::{Error, Result};
use crate::session::free_list::FreeList;
use crate::session::lock;
use crate::session::{OfdLink, Session};
use crate::tables::inode_table::InodeRef;
use pmem::atomic::{AtomicU32, Ordering::*};
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
    let popped = table(s).pop(s, |i| next_of(s, i), claim)?;
    let index = popped.ok_or(Error::TableFull)?;
    let ofd = s.ofd(index + 1)?;
    let is_free = ofd.inode.load(Relaxed) == 0;
    s.ensure(is_free, "a description on the free list is nobody's")?;
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

/// A descriptor is about to refer to it: it is nobody's in particular any more. Before the
/// descriptor does, or whoever finishes for a dead caller drops its reference twice.
#[inline]
pub(crate) fn bound(s: &Session, link: u32) {
    if let Ok(ofd) = s.ofd(link)
        && ofd.spare.load(Relaxed) != 0
    {
        ofd.spare.store(0, Release);
    }
}

/// Frees the entry of a description whose last reference and whose pin are gone. The caller is its
/// `spare`.
#[inline]
pub fn free(s: &Session, link: OfdLink) {
    let Ok(ofd) = s.ofd(link.raw()) else { return };
    let unused = ofd.refs.load(Relaxed) == 0 && ofd.inode.load(Relaxed) == 0;
    let once = "a description is freed once, after its last reference";
    if s.ensure(unused, once).is_err() {
        return;
    }
    // Without the table's lock (a given-up session) the entry waits for a sweep.
    let _ = table(s).push(s, link.raw() - 1, &ofd.next, || {
        ofd.spare.store(0, Release);
    });
}

/// Entries that were ever used.
pub(crate) fn used(s: &Session) -> u32 {
    table(s).used()
}

/// Makes the free list anew, of all that nobody alive has; how many those are.
pub(crate) fn rebuild(s: &Session) -> Result<u32> {
    let dead = |word: u32| word != 0 && !lock::owner_lives(s, word);
    let is_free = |index: u32| {
        s.ofd(index + 1).is_ok_and(|ofd| {
            let holder = ofd.spare.load(Acquire);
            ofd.inode.load(Acquire) == 0 && (holder == 0 || dead(holder))
        })
    };
    table(s).rebuild(s, |i| next_of(s, i), is_free)
}
