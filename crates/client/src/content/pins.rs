//! The mapped files of a process, recorded so that they are unpinned when it is killed.
//!
//! Invariants: a note is removed before its pin, so a death in between leaves a pin too many. A
//! mapping belongs to the memory, not to the process that made it: while another process runs in
//! that memory, it takes over the notes of a process that ends.

use crate::base::error::Result;
use crate::content::{close, lending, lent};
use crate::session::Session;
use crate::session::live::{SLOT_LIVE, SLOT_SETUP};
use crate::session::lock;
use crate::tables::inode_table::{self, InodeRef};
use pmem::atomic::Ordering::*;
use pool::session::{INODE_KEPT, Pin, Slot};

/// Notes that the caller has pinned `inode` for one more mapping (after it has).
pub(crate) fn note(s: &Session, inode: &InodeRef<'_>) -> Result<()> {
    note_in(s, s.slot_index(), (inode.link, inode.ino), 1)
}

fn note_in(s: &Session, index: u32, (link, ino): (u32, u64), count: u32) -> Result<()> {
    let table = s.pin_table(index)?;
    let _guard = lock::acquire_plain(s, &s.slot_at(index)?.pins_lock)?;
    let same = |pin: &&Pin| pin.count.load(Relaxed) > 0 && pin.ino.load(Relaxed) == ino;
    if let Some(pin) = table.entries.iter().find(same) {
        pin.count.fetch_add(count, Release);
    } else if let Some(pin) = table.entries.iter().find(|p| p.count.load(Relaxed) == 0) {
        pin.inode.store(link, Relaxed);
        pin.ino.store(ino, Relaxed);
        pin.count.store(count, Release);
    }
    Ok(())
}

/// Takes a note back (before the pin goes).
pub(crate) fn forget(s: &Session, inode: &InodeRef<'_>) -> Result<()> {
    let index = s.slot_index();
    if forget_in(s, index, inode)? {
        return Ok(());
    }
    let memory = s.slot_at(index)?.memory.load(Acquire);
    for other in others(s, index, memory) {
        if forget_in(s, other, inode)? {
            break;
        }
    }
    Ok(())
}

fn forget_in(s: &Session, index: u32, inode: &InodeRef<'_>) -> Result<bool> {
    let table = s.pin_table(index)?;
    let _guard = lock::acquire_plain(s, &s.slot_at(index)?.pins_lock)?;
    let same = |pin: &&Pin| pin.count.load(Relaxed) > 0 && pin.ino.load(Relaxed) == inode.ino;
    let found = table.entries.iter().find(same);
    if let Some(pin) = found {
        pin.count.fetch_sub(1, Release);
    }
    Ok(found.is_some())
}

/// Slots beside `index` whose processes may run in `memory`.
fn others(s: &Session, index: u32, memory: u32) -> impl Iterator<Item = u32> {
    let runs_there = move |slot: &Slot| {
        matches!(slot.state.load(Acquire), SLOT_SETUP | SLOT_LIVE)
            && slot.memory.load(Acquire) == memory
    };
    let all = if memory == 0 { 0 } else { s.slots_used() };
    (0..all).filter(move |other| *other != index && s.slot_at(*other).is_ok_and(runs_there))
}

/// The process of slot `index` leaves its memory: the mappings are those of another process that
/// runs there, or gone.
pub(crate) fn leave_memory(s: &Session, index: u32) {
    let (Ok(slot), Ok(table)) = (s.slot_at(index), s.pin_table(index)) else {
        return;
    };
    let memory = slot.memory.swap(0, AcqRel);
    let lives = |other: &u32| s.is_alive(*other);
    let mut heir = None;
    for pin in &table.entries {
        let count = pin.count.swap(0, AcqRel);
        if count == 0 {
            continue;
        }
        let noted = (pin.inode.load(Relaxed), pin.ino.load(Relaxed));
        match *heir.get_or_insert_with(|| others(s, index, memory).find(lives)) {
            Some(heir) => drop(note_in(s, heir, noted, count)),
            None => unpin(s, noted, count),
        }
    }
}

fn unpin(s: &Session, (link, ino): (u32, u64), count: u32) {
    for _ in 0..count {
        let Some(inode) = inode_table::by_link(s, link, ino) else {
            break;
        };
        let _ = drop_mapping(s, &inode);
    }
}

/// A mapping is gone, and its pin with it.
pub(crate) fn drop_mapping(s: &Session, inode: &InodeRef) -> Result<()> {
    if lent::is_lent(inode.e) {
        let locked = lending::lock(s, *inode)?;
        let gone = lending::unmapped(s, &locked)?;
        drop(locked);
        return put(s, inode, gone);
    }
    let one_less = |n: u32| n.checked_sub(1);
    let before = inode.e.maps.fetch_update(SeqCst, SeqCst, one_less);
    s.ensure(before.is_ok(), "a mapping is counted")?;
    close::put_inode(s, inode)
}

/// Looks whether mappings that are gone need to be counted still.
pub(crate) fn release_kept(s: &Session, inode: &InodeRef) -> Result<()> {
    if inode.e.state.load(SeqCst) & INODE_KEPT == 0 {
        return Ok(());
    }
    let locked = lending::lock(s, *inode)?;
    let gone = lending::release_kept(s, &locked)?;
    drop(locked);
    put(s, inode, gone)
}

fn put(s: &Session, inode: &InodeRef, pins: u32) -> Result<()> {
    (0..pins).try_for_each(|_| close::put_inode(s, inode))
}
