//! Entries for byte-range locks.
//!
//! Invariant: an entry in use has `kind` and `slot` set; one whose slot has no live process and
//! that is in no inode's list is free after a `sweep`.

use crate::base::error::{Error, Result};
use crate::session::free_list::FreeList;
use crate::session::{Session, fd_tables};
use crate::tables::inode_table;
use pmem::atomic::{AtomicU32, Ordering::*};
use pool::session::*;

fn table(s: &Session) -> FreeList<'_> {
    let h = s.header();
    FreeList {
        lock: &h.locks_lock,
        free: &h.locks_free,
        used: &h.locks_used,
        capacity: LOCKS as u32,
        base: 0,
    }
}

fn next_of(s: &Session, index: u32) -> Result<&AtomicU32> {
    Ok(&s.range_lock(index + 1)?.next)
}

/// A free entry with `kind` 1 and `slot` set; its link. `NoLocks` when there is none.
pub fn alloc(s: &Session) -> Result<u32> {
    let claim = |index: u32| {
        let lock = s.range_lock(index + 1)?;
        lock.slot.store(s.table_index() + 1, Relaxed);
        let generation = fd_tables::generation(s);
        lock.slot_generation.store(generation, Relaxed);
        lock.kind.store(1, Release);
        Ok(())
    };
    let pop = || table(s).pop(s, |i| next_of(s, i), claim);
    let index = match pop()? {
        Some(index) => index,
        None => {
            sweep(s)?;
            pop()?.ok_or(Error::NoLocks)?
        }
    };
    Ok(index + 1)
}

/// Frees an entry that no inode's list holds any more.
pub fn free(s: &Session, link: u32) {
    let Ok(lock) = s.range_lock(link) else { return };
    // Without the table's lock (a given-up session) the entry waits for a sweep.
    let _ = table(s).push(s, link - 1, &lock.next, || lock.kind.store(0, Release));
}

/// Finds entries that are in no list: their holders died while adding or removing them.
#[cold]
fn sweep(s: &Session) -> Result<u32> {
    // Too large for the stacks of other people's threads.
    let mut listed = alloc::vec![0u64; LOCKS / 64];
    let inodes = s.header().inode_used.load(Acquire).min(INODES as u32);
    for link in 1..=inodes {
        let e = s.inode(link)?;
        if e.locks.load(Relaxed) == 0 {
            continue;
        }
        let ino = e.ino.load(Relaxed);
        let Ok(locked) = inode_table::lock(s, ino) else {
            continue;
        };
        let mut at = locked.e.locks.load(Relaxed);
        for _ in 0..LOCKS {
            let Ok(lock) = s.range_lock(at) else { break };
            listed[(at as usize - 1) / 64] |= 1 << ((at - 1) % 64);
            at = lock.next.load(Relaxed);
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
    table(s).rebuild(s, |i| next_of(s, i), is_free)
}
