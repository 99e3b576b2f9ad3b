//! Writeback: dirty state of objects, which is in session memory alone, goes to the journal.
//!
//! Invariants:
//!  * An inode that was dirty when a writeback began is clean when it ends, or was reported as left
//!    over.
//!  * A writeback looks at a lock at most `ROUNDS` times: a stopped process holds back only what it
//!    has locked.

use crate::base::error::{Error, Result};
use crate::content::{close, lending, lent, pins};
use crate::ops::client::Client;
use crate::session::{Session, lock, stores};
use crate::tables::inode_table::{self, InodeRef, LockedInode};
use alloc::vec::Vec;
use core::time::Duration;
use pmem::atomic::Ordering::*;
use pmem::futex;
use pool::session::{INODE_DIRTY, INODE_GONE, INODE_STORED_TO, INODE_VALID};

/// Looks at an inode that somebody else has locked, and what is between two of them.
const ROUNDS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(5);
/// After so many rounds the owner of a lock may be stopped.
const STALLED: u32 = 20;

/// All inodes that are dirty, or may be stored to through mappings that nobody sees.
pub(crate) fn dirty(s: &Session) -> impl Iterator<Item = InodeRef<'_>> {
    let used = s.header().inode_used.load(Acquire);
    let entry = |link| s.inode(link).ok().map(|e| (link, e));
    (1..=used).map_while(entry).filter_map(|(link, e)| {
        let (ino, state) = (e.ino.load(Acquire), e.state.load(SeqCst));
        let is_dirty = state & INODE_VALID != 0 && state & (INODE_DIRTY | INODE_STORED_TO) != 0;
        (ino != 0 && is_dirty).then_some(InodeRef { link, ino, e })
    })
}

/// Writes all of them back, and waits for whoever has one of them locked.
pub(crate) fn all(s: &Session) -> Result<()> {
    for inode in dirty(s) {
        let locked = match lent::is_lent(inode.e) {
            true => lending::lock(s, inode),
            false => inode_table::lock_ref(s, inode),
        };
        match locked {
            Ok(locked) => flush(s, locked)?,
            // It went meanwhile, and what was dirty about it with it.
            Err(Error::NotFound) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Into blocks what was stored through mappings, into the journal what is lazy.
fn flush(s: &Session, locked: LockedInode) -> Result<()> {
    if !lent::is_lent(locked.e) {
        return close::flush(s, &locked);
    }
    // What has no room in the pool now is tried again.
    let _ = lending::write_back(s, &locked, 0, u64::MAX);
    // It may be stored to again, at any time.
    s.header().writeback_wanted.store(1, SeqCst);
    close::flush(s, &locked)?;
    let inode = *locked;
    drop(locked);
    pins::release_kept(s, &inode)
}

/// Writes back what is dirty now, and can be locked within a second; how many are left over. They
/// are asked for again.
pub(crate) fn now(c: &Client) -> Result<usize> {
    let s = &c.session;
    s.header().writeback_wanted.store(0, SeqCst);
    let mut left: Vec<InodeRef<'_>> = Vec::new();
    let mut lent: Vec<InodeRef<'_>> = Vec::new();
    for inode in dirty(s) {
        if lent::is_lent(inode.e) {
            lent.push(inode);
        } else if !write_back(s, inode)? {
            left.push(inode);
        }
    }
    // It takes longest, so it comes last.
    for inode in lent {
        if !write_back(s, inode)? {
            left.push(inode);
        }
    }
    for round in 1..=ROUNDS {
        let Some(inode) = left.first() else {
            return Ok(0);
        };
        let word = &inode.e.lock;
        futex::wait(word, word.load(Relaxed), Some(PAUSE));
        let mut again = Vec::new();
        for inode in left {
            if !write_back(s, inode)? {
                again.push(inode);
            }
        }
        left = again;
        if round % STALLED == 0 {
            left.iter().for_each(|i| lock::tell_stalled(s, &i.e.lock));
        }
    }
    s.header().writeback_wanted.store(1, SeqCst);
    Ok(left.len())
}

/// Writes an inode back; false where somebody else has it locked.
fn write_back<'s>(s: &'s Session, inode: InodeRef<'s>) -> Result<bool> {
    let locked = match inode_table::try_lock(s, inode) {
        Some(locked) => Ok(locked),
        None if !inode.is_current() => return Ok(true),
        None if !lock::is_dead_ones(s, &inode.e.lock) => return Ok(false),
        None => inode_table::lock_ref(s, inode),
    };
    match locked {
        // Of an object that is gone nothing is kept.
        Ok(locked) if locked.e.state.load(Relaxed) & INODE_GONE != 0 => Ok(true),
        // Nobody stores into blocks while a snapshot is taken.
        Ok(locked) if lent::is_lent(locked.e) && stores::are_stopped(s) => Ok(false),
        Ok(locked) => flush(s, locked).map(|()| true),
        Err(Error::NotFound) => Ok(true),
        Err(e) => Err(e),
    }
}
