//! The locked byte ranges of a file.
//!
//! Invariants:
//!  * An inode's locks are a list that its lock word guards. Locks of one owner do not overlap.
//!  * POSIX locks belong to a process, OFD and flock locks to a description; flock locks do not
//!    conflict with the others.

use crate::base::error::{Error, Result};
use crate::session::{OfdLink, Session, fd_tables};
use crate::tables::inode_table::{self, InodeRef, LockedInode};
use crate::tables::range_locks;
use pmem::atomic::{AtomicU32, Ordering::*};
use pmem::futex;
use pool::session::RangeLock;

/// Values of `RangeLock::kind`.
pub(crate) const POSIX: u32 = 1;
pub(crate) const OFD: u32 = 2;
pub(crate) const WHOLE: u32 = 3;
/// Values of `RangeLock::mode`.
pub(crate) const SHARED: u32 = 1;
pub(crate) const EXCLUSIVE: u32 = 2;
pub(crate) const LAST_BYTE: u64 = i64::MAX as u64;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub kind: u32,
    /// Slot + 1.
    pub slot: u32,
    pub generation: u32,
    /// 0 for POSIX locks.
    pub ofd: u32,
}

/// What somebody wants to lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub owner: Owner,
    pub mode: u32,
    pub first: u64,
    pub last: u64,
}

impl Owner {
    pub fn me(s: &Session, kind: u32, ofd: OfdLink) -> Owner {
        Owner {
            kind,
            slot: s.table_index() + 1,
            generation: fd_tables::generation(s),
            ofd: if kind == POSIX { 0 } else { ofd.raw() },
        }
    }

    /// The process of slot `index`, by its POSIX locks.
    pub fn process(s: &Session, index: u32) -> Result<Owner> {
        Ok(Owner {
            kind: POSIX,
            slot: index + 1,
            generation: s.slot_at(index)?.generation.load(Acquire),
            ofd: 0,
        })
    }

    pub fn of(lock: &RangeLock) -> Owner {
        Owner {
            kind: lock.kind.load(Relaxed),
            slot: lock.slot.load(Relaxed),
            generation: lock.slot_generation.load(Relaxed),
            ofd: lock.ofd.load(Relaxed),
        }
    }

    pub fn is(&self, other: &Owner) -> bool {
        let same = match self.kind {
            POSIX => self.slot == other.slot && self.generation == other.generation,
            _ => self.ofd == other.ofd,
        };
        self.kind == other.kind && same
    }
}

/// Waiters of the whole session, so that releasing without one costs no system call.
pub(crate) fn waiters(s: &Session) -> &AtomicU32 {
    &s.header().locks_waiting
}

/// Calls `f` with each lock of the inode until it gives something.
pub(crate) fn find<'s, T>(
    s: &'s Session,
    inode: &LockedInode,
    mut f: impl FnMut(u32, &'s RangeLock) -> Option<T>,
) -> Result<Option<T>> {
    let mut link = inode.e.locks.load(Relaxed);
    for _ in 0..pool::session::LOCKS {
        if link == 0 {
            return Ok(None);
        }
        let lock = s.range_lock(link)?;
        if let Some(found) = f(link, lock) {
            return Ok(Some(found));
        }
        link = lock.next.load(Relaxed);
    }
    Err(Error::Damaged {
        what: "lock list of inode",
        index: inode.ino,
    })
}

pub(crate) fn overlaps(lock: &RangeLock, first: u64, last: u64) -> bool {
    lock.first.load(Relaxed) <= last && lock.last.load(Relaxed) >= first
}

/// The first lock of somebody else that forbids `wish`; of its owner itself if it asks for none, as
/// F_OFD_GETLK of F_UNLCK does.
pub(crate) fn conflict(s: &Session, inode: &LockedInode, wish: &Wish) -> Result<Option<u32>> {
    find(s, inode, |link, lock| forbids(lock, wish).then_some(link))
}

/// As `conflict`: the one that begins first.
pub(crate) fn first_conflict(s: &Session, inode: &LockedInode, wish: &Wish) -> Result<Option<u32>> {
    let mut first: Option<(u64, u32)> = None;
    find(s, inode, |link, lock| {
        let at = lock.first.load(Relaxed);
        if forbids(lock, wish) && first.is_none_or(|(least, _)| at < least) {
            first = Some((at, link));
        }
        None::<()>
    })?;
    Ok(first.map(|(_, link)| link))
}

fn forbids(lock: &RangeLock, wish: &Wish) -> bool {
    let owner = Owner::of(lock);
    let same_world = (owner.kind == WHOLE) == (wish.owner.kind == WHOLE);
    let exclusive = wish.mode == EXCLUSIVE || lock.mode.load(Relaxed) == EXCLUSIVE;
    let overlaps = same_world && overlaps(lock, wish.first, wish.last);
    let blocks = match wish.mode {
        0 => owner.is(&wish.owner),
        _ => exclusive && !owner.is(&wish.owner),
    };
    overlaps && blocks
}

pub(crate) fn insert(s: &Session, inode: &LockedInode, link: u32, wish: &Wish) -> Result<()> {
    let lock = s.range_lock(link)?;
    lock.kind.store(wish.owner.kind, Relaxed);
    lock.mode.store(wish.mode, Relaxed);
    lock.slot.store(wish.owner.slot, Relaxed);
    lock.slot_generation.store(wish.owner.generation, Relaxed);
    lock.ofd.store(wish.owner.ofd, Relaxed);
    lock.first.store(wish.first, Relaxed);
    lock.last.store(wish.last, Relaxed);
    lock.ino.store(inode.ino, Relaxed);
    lock.next.store(inode.e.locks.load(Relaxed), Relaxed);
    inode.e.locks.store(link, Release);
    Ok(())
}

pub(crate) fn remove(s: &Session, inode: &LockedInode, link: u32) -> Result<()> {
    let after = s.range_lock(link)?.next.load(Relaxed);
    if inode.e.locks.load(Relaxed) == link {
        inode.e.locks.store(after, Release);
    } else {
        let before = find(s, inode, |_, l| (l.next.load(Relaxed) == link).then_some(l))?;
        let before = before.ok_or(Error::Damaged {
            what: "lock",
            index: link.into(),
        })?;
        before.next.store(after, Relaxed);
    }
    range_locks::free(s, link);
    Ok(())
}

/// Frees `first..=last` of all that the owner has; true if it had any of it. A lock that is cut
/// in two needs one entry more.
pub(crate) fn carve(
    s: &Session,
    inode: &LockedInode,
    owner: &Owner,
    first: u64,
    last: u64,
) -> Result<bool> {
    let mut any = false;
    while let Some((link, lock)) = find(s, inode, |link, lock| {
        (Owner::of(lock).is(owner) && overlaps(lock, first, last)).then_some((link, lock))
    })? {
        any = true;
        let (from, to) = (lock.first.load(Relaxed), lock.last.load(Relaxed));
        match (from < first, to > last) {
            (true, true) => {
                let mode = lock.mode.load(Relaxed);
                let rest = Wish {
                    owner: *owner,
                    mode,
                    first: last + 1,
                    last: to,
                };
                insert(s, inode, range_locks::alloc(s, inode)?, &rest)?;
                lock.last.store(first - 1, Relaxed);
            }
            (true, false) => lock.last.store(first - 1, Relaxed),
            (false, true) => lock.first.store(last + 1, Relaxed),
            (false, false) => remove(s, inode, link)?,
        }
    }
    Ok(any)
}

/// Grants what does not conflict: replaces what the owner had there, joins what touches it.
pub(crate) fn grant(s: &Session, inode: &LockedInode, wish: &Wish) -> Result<()> {
    let link = range_locks::alloc(s, inode)?;
    if let Err(e) = carve(s, inode, &wish.owner, wish.first, wish.last) {
        range_locks::free(s, link);
        return Err(e);
    }
    let mut whole = *wish;
    while let Some((neighbour, lock)) = find(s, inode, |l, lock| {
        let touches = lock.last.load(Relaxed).checked_add(1) == Some(whole.first)
            || whole.last.checked_add(1) == Some(lock.first.load(Relaxed));
        let same = lock.mode.load(Relaxed) == whole.mode && Owner::of(lock).is(&whole.owner);
        (touches && same).then_some((l, lock))
    })? {
        whole.first = whole.first.min(lock.first.load(Relaxed));
        whole.last = whole.last.max(lock.last.load(Relaxed));
        remove(s, inode, neighbour)?;
    }
    insert(s, inode, link, &whole)
}

pub(crate) fn released(s: &Session) {
    let tick = &s.header().locks_tick;
    tick.fetch_add(1, SeqCst);
    if waiters(s).load(SeqCst) > 0 {
        futex::wake(tick, i32::MAX as u32);
    }
}

/// Frees `first..=last` of all that the owner has, and wakes who waits.
pub(crate) fn release(
    s: &Session,
    inode: &InodeRef,
    owner: &Owner,
    first: u64,
    last: u64,
) -> Result<()> {
    if inode.e.locks.load(Acquire) == 0 {
        return Ok(());
    }
    let locked = inode_table::lock_ref(s, *inode)?;
    let any = carve(s, &locked, owner, first, last)?;
    drop(locked);
    if any {
        released(s);
    }
    Ok(())
}

/// The POSIX locks of process `from` are those of `to` from now on; nobody finds them free
/// meanwhile.
pub(crate) fn pass(s: &Session, inode: &InodeRef, from: &Owner, to: &Owner) -> Result<()> {
    if inode.e.locks.load(Acquire) == 0 {
        return Ok(());
    }
    let locked = inode_table::lock_ref(s, *inode)?;
    find(s, &locked, |_, lock| {
        if Owner::of(lock).is(from) {
            lock.slot.store(to.slot, Relaxed);
            lock.slot_generation.store(to.generation, Relaxed);
        }
        None::<()>
    })?;
    Ok(())
}

/// The description is closed: its locks go.
pub(crate) fn drop_ofd_locks(s: &Session, inode: &InodeRef, ofd: OfdLink) {
    if inode.e.locks.load(Acquire) == 0 {
        return;
    }
    for kind in [OFD, WHOLE] {
        // An error means that the list is damaged, which later users report.
        let _ = release(s, inode, &Owner::me(s, kind, ofd), 0, LAST_BYTE);
    }
}
