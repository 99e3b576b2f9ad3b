//! Pins: a user of an object keeps its entry, and keeps the object itself when its last name is
//! removed.
//!
//! Invariants:
//!  * Whoever pins adds to `opens` before looking at `INODE_VALID` and `INODE_ORPHAN`; whoever
//!    removes an entry clears `INODE_VALID` before looking at `opens`. One of them sees the other.
//!  * An object without a name is freed exactly once, by the process that drops its last pin.

use crate::base::error::{Error, Result};
use crate::content::close;
use crate::session::Session;
use crate::tables::inode_table::{self, InodeRef};
use pmem::atomic::Ordering::*;
use pool::session::INODE_ORPHAN;

/// Keeps the entry of `ino` in memory (`opens` + 1). `NotFound`: its last name went.
pub fn pin(s: &Session, ino: u64) -> Result<InodeRef<'_>> {
    loop {
        let inode = inode_table::get(s, ino)?;
        match pin_ref(s, &inode) {
            Ok(()) => return Ok(inode),
            Err(Error::Stale) => core::hint::spin_loop(),
            Err(e) => return Err(e),
        }
    }
}

/// As `pin` from a reference at hand; `Stale`: the entry is another inode's now.
#[inline]
pub fn pin_ref(s: &Session, inode: &InodeRef<'_>) -> Result<()> {
    // Sequentially consistent against `begin_removal` and eviction.
    inode.e.opens.fetch_add(1, SeqCst);
    if !inode.is_current() {
        inode.e.opens.fetch_sub(1, SeqCst);
        return Err(Error::Stale);
    }
    match inode.e.state.load(SeqCst) & INODE_ORPHAN {
        0 => Ok(()),
        _ => pin_doubtful(s, inode),
    }
}

/// Somebody removes the last name now, or did: its outcome decides.
#[cold]
fn pin_doubtful(s: &Session, inode: &InodeRef<'_>) -> Result<()> {
    let locked = match inode_table::lock_entry(s, *inode) {
        Ok(locked) => locked,
        Err(e) => {
            close::unpin(s, inode.e);
            return Err(e);
        }
    };
    let named = match &locked {
        Some(_) => Ok(inode.e.nlink.load(Relaxed) > 0),
        None => Err(Error::Stale),
    };
    if matches!(named, Ok(true)) {
        return Ok(());
    }
    // Our passing pin may have kept the remover from freeing the object.
    let last = close::unpin(s, inode.e) && locked.is_some();
    drop(locked);
    if last {
        // If the service is gone, recovery of the pool ends orphans.
        let _ = close::release_orphan(s, inode);
    }
    named.and(Err(Error::NotFound))
}

/// As `pin` of what was found by no name, such as a working directory: it may have lost its last
/// name, as long as somebody uses it.
#[cold]
pub fn pin_in_use(s: &Session, ino: u64) -> Result<InodeRef<'_>> {
    let locked = inode_table::lock(s, ino)?;
    // Under the lock nobody frees it: who drops the last pin looks again.
    match locked.e.opens.load(SeqCst) {
        0 => Err(Error::NotFound),
        _ => {
            locked.e.opens.fetch_add(1, SeqCst);
            Ok(*locked)
        }
    }
}
