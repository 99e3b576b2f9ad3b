//! Open-file descriptions of processes that died.
//!
//! Invariant: a reference count is never below the number of descriptors that refer to it, in
//! tables and in transit.

use crate::base::error::{Error, Result};
use crate::content::close;
use crate::session::{OfdLink, Session, fd_tables, lock};
use crate::tables::inode_table::InodeRef;
use crate::tables::ofd;
use alloc::vec::Vec;
use pmem::atomic::Ordering::*;
use pool::session::{FD_CHANGE_DONE, Ofd, TRANSITS};

/// As `ofd::alloc`, once what the dead had open is released where there is no room.
#[inline]
pub(crate) fn alloc_ofd(s: &Session, inode: &InodeRef<'_>, flags: u32) -> Result<OfdLink> {
    match ofd::alloc(s, inode, flags) {
        Err(Error::TableFull) => {
            sweep(s)?;
            ofd::alloc(s, inode, flags)
        }
        done => done,
    }
}

/// Finishes what processes that died while opening or closing left behind, recounts references
/// if nobody is moving any, and rebuilds the free list.
#[cold]
pub fn sweep(s: &Session) -> Result<u32> {
    let used = ofd::used(s);
    let dead = |word: u32| word != 0 && !lock::owner_lives(s, word);
    for link in 1..=used {
        let ofd = s.ofd(link)?;
        if dead(ofd.spare.load(Acquire)) {
            abandon(s, link, ofd);
        }
    }
    recount(s, used);
    ofd::rebuild(s)
}

/// The opener died before it bound the description, or the closer before it was done.
pub(crate) fn abandon(s: &Session, link: u32, ofd: &Ofd) {
    let holder = ofd.spare.load(Acquire);
    if ofd.inode.load(Acquire) == 0 {
        // The entry itself waits for a rebuild of the free list.
        return close::finish(s, ofd.ino.load(Relaxed));
    }
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

/// What each slot's `fd_changes` was, and in which epoch; `None`: references are moving.
fn moves(s: &Session) -> Option<Vec<(u32, u64)>> {
    let of = |index| {
        let slot = s.slot_at(index).ok()?;
        let changes = slot.fd_changes.load(SeqCst);
        let quiet = slot.state.load(Acquire) == 0 || changes % FD_CHANGE_DONE == 0;
        quiet.then(|| (slot.epoch.load(Acquire), changes))
    };
    (0..s.slots_used()).map(of).collect()
}

/// The descriptions that messages have references to.
fn in_transit(s: &Session) -> impl Iterator<Item = u32> + '_ {
    let link = |key| s.transit(key).map_or(0, |entry| entry.ofd.load(SeqCst));
    (0..TRANSITS as u64).map(link).filter(|link| *link != 0)
}

/// Lowers reference counts to what descriptor tables and messages say: processes that died between
/// clearing a descriptor and dropping its reference, or before they set one to a new description,
/// leave one too many. Only while no reference
/// moves from before the count until after it.
fn recount(s: &Session, used: u32) {
    let Some(before) = moves(s) else { return };
    let still = || moves(s).is_some_and(|now| now == before);
    let mut counts = alloc::vec![0u32; used as usize + 1];
    for index in 0..s.slots_used() {
        let Ok(slot) = s.slot_at(index) else { return };
        if slot.state.load(Acquire) == 0 {
            continue;
        }
        for (_, link) in fd_tables::bound(s, index) {
            if let Some(count) = counts.get_mut(link as usize) {
                *count += 1;
            }
        }
    }
    for link in in_transit(s) {
        if let Some(count) = counts.get_mut(link as usize) {
            *count += 1;
        }
    }
    for link in 1..=used {
        let (Ok(ofd), Some(count)) = (s.ofd(link), counts.get(link as usize)) else {
            return;
        };
        let refs = ofd.refs.load(SeqCst);
        let bound = ofd.inode.load(Acquire) != 0 && ofd.spare.load(Acquire) == 0;
        // One without a reference that nobody closes: its closer died right at the start.
        let too_many = refs > *count || refs == 0;
        if !bound || !too_many || !still() {
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
