//! Entries for byte-range locks.
//!
//! Invariants:
//!  * An entry in use has `kind` and `slot` set; one whose slot has no live process and that is in
//!    no inode's list is free after a `sweep`.
//!  * Calls for other users take none of the last `LOCKS_RESERVED`, so that they keep the pool's
//!    owner from none.

use crate::base::error::{Error, Result};
use crate::session::free_list::FreeList;
use crate::session::{Session, fd_tables};
use crate::tables::inode::{self, InodeRef, LockedInode};
use pmem::atomic::{AtomicU32, Ordering::*};
use pool::session::*;

/// How often a lock that somebody holds is looked at.
const TRIES: u32 = 1000;

fn table(s: &Session) -> FreeList<'_> {
    let h = s.header();
    FreeList {
        lock: &h.locks_lock,
        free: &h.locks_free,
        used: &h.locks_used,
        capacity: RESERVED_FROM,
        base: 0,
    }
}

/// Index of the first that is reserved.
const RESERVED_FROM: u32 = (LOCKS - LOCKS_RESERVED) as u32;

fn reserved(s: &Session) -> FreeList<'_> {
    let h = s.header();
    FreeList {
        lock: &h.locks_lock,
        free: &h.reserved_locks_free,
        used: &h.reserved_locks_used,
        capacity: LOCKS_RESERVED as u32,
        base: RESERVED_FROM,
    }
}

fn next_of(s: &Session, index: u32) -> Result<&AtomicU32> {
    Ok(&s.range_lock(index + 1)?.next)
}

/// A free entry with `kind` 1 and `slot` set, for the list of `held`; its link. `NoLocks` when
/// there is none.
pub fn alloc(s: &Session, held: &LockedInode<'_>) -> Result<u32> {
    let claim = |index: u32| {
        let lock = s.range_lock(index + 1)?;
        lock.slot.store(s.table_index() + 1, Relaxed);
        let generation = fd_tables::generation(s);
        lock.slot_generation.store(generation, Relaxed);
        lock.kind.store(1, Release);
        Ok(())
    };
    let pop = || match table(s).pop(s, |i| next_of(s, i), claim)? {
        None if !s.is_for_another() => reserved(s).pop(s, |i| next_of(s, i), claim),
        index => Ok(index),
    };
    let index = match pop()? {
        Some(index) => index,
        None => {
            sweep(s, held)?;
            pop()?.ok_or(Error::NoLocks)?
        }
    };
    Ok(index + 1)
}

/// Frees an entry that no inode's list holds any more.
pub fn free(s: &Session, link: u32) {
    let Ok(lock) = s.range_lock(link) else { return };
    // Without the table's lock (a given-up session) the entry waits for a sweep.
    let table = match link - 1 {
        ..RESERVED_FROM => table(s),
        _ => reserved(s),
    };
    let _ = table.push(s, link - 1, &lock.next, || lock.kind.store(0, Release));
}

/// Finds entries that are in no list: their holders died while adding or removing them. The caller
/// holds one inode, and others may hold what is looked at and want that one: nobody is waited for,
/// and where somebody is at work for long, nothing is found.
#[cold]
fn sweep(s: &Session, held: &LockedInode<'_>) -> Result<u32> {
    // Too large for the stacks of other people's threads.
    let mut listed = alloc::vec![0u64; LOCKS / 64];
    mark(s, held, &mut listed);
    let inodes = s.header().inode_used.load(Acquire).min(INODES as u32);
    for link in 1..=inodes {
        let e = s.inode(link)?;
        if e.locks.load(Relaxed) == 0 || link == held.link {
            continue;
        }
        let ino = e.ino.load(Relaxed);
        let inode = InodeRef { link, ino, e };
        let mut locked = (0..TRIES).filter_map(|_| {
            let locked = inode::try_lock(s, inode);
            if locked.is_none() {
                rustix::thread::sched_yield();
            }
            locked
        });
        match locked.next() {
            Some(locked) => mark(s, &locked, &mut listed),
            None if !inode.is_current() => {}
            None => return Ok(0),
        }
    }
    let is_free = |index: u32| {
        let bit = listed[index as usize / 64] >> (index % 64) & 1;
        bit == 0
            && s.range_lock(index + 1).is_ok_and(|lock| {
                let holder = (lock.slot.load(Relaxed), lock.slot_generation.load(Relaxed));
                lock.kind.load(Acquire) == 0 || !fd_tables::is_same(s, holder.0, holder.1)
            })
    };
    let tables = [table(s), reserved(s)];
    let mut found = tables
        .iter()
        .map(|t| t.rebuild(s, |i| next_of(s, i), is_free));
    found.try_fold(0, |all, found| Ok(all + found?))
}

/// Notes which entries are in the list of an inode.
fn mark(s: &Session, inode: &InodeRef<'_>, listed: &mut [u64]) {
    let mut at = inode.e.locks.load(Relaxed);
    for _ in 0..LOCKS {
        let Ok(lock) = s.range_lock(at) else { break };
        listed[(at as usize - 1) / 64] |= 1 << ((at - 1) % 64);
        at = lock.next.load(Relaxed);
    }
}
