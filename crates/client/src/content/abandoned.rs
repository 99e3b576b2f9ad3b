//! Open-file descriptions that processes died with.
//!
//! Invariant: a reference count is never below the number of descriptors that refer to it.

use crate::base::error::{Error, Result};
use crate::content::close;
use crate::session::{OfdLink, Session, fd_tables, lock};
use crate::tables::inode_table::InodeRef;
use crate::tables::ofd;
use pmem::atomic::Ordering::*;
use pool::session::Ofd;

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
pub(crate) fn sweep(s: &Session) -> Result<u32> {
    let used = ofd::used(s);
    let dead = |word: u32| word != 0 && !lock::owner_lives(s, word);
    for link in 1..=used {
        let ofd = s.ofd(link)?;
        if ofd.inode.load(Acquire) != 0 && dead(ofd.spare.load(Acquire)) {
            abandon(s, link, ofd);
        }
    }
    recount(s, used);
    ofd::rebuild(s)
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
        (0..s.slots_used()).all(|i| {
            s.slot_at(i).is_ok_and(|slot| {
                slot.state.load(Acquire) == 0 || slot.fd_changes.load(SeqCst) == 0
            })
        })
    };
    if !quiet() {
        return;
    }
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
