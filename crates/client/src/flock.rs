//! Byte-range locks (POSIX and OFD) and whole-file locks.
//!
//! Invariants:
//!  * An inode's locks are a list that its lock word guards. Locks of one owner do not overlap.
//!  * POSIX locks belong to a process, OFD and flock locks to a description; flock locks do not
//!    see the others.
//!  * A waiter looks again at least every `NAP`, so an owner that died delays nobody for long.
//!  * A process that waits for a POSIX lock names its blocker in its slot; following these names
//!    in a circle is a deadlock.

use crate::abi::*;
use crate::api::Client;
use crate::error::{Error, Result};
use crate::file::File;
use crate::inode_table::{self, InodeRef, LockedInode};
use crate::session::{OfdLink, Session};
use crate::types::Flock;
use crate::{range_locks, slots};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use core::time::Duration;
use pmem::futex::{self, WaitResult};
use pool::session::{RangeLock, SLOTS};

/// Values of `RangeLock::kind`.
const POSIX: u32 = 1;
const OFD: u32 = 2;
const WHOLE: u32 = 3;
/// Values of `RangeLock::mode`.
const SHARED: u32 = 1;
const EXCLUSIVE: u32 = 2;
const LAST_BYTE: u64 = i64::MAX as u64;
const NAP: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    kind: u32,
    /// Slot + 1.
    slot: u32,
    generation: u32,
    /// 0 for POSIX locks.
    ofd: u32,
}

/// What somebody wants to lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wish {
    owner: Owner,
    mode: u32,
    first: u64,
    last: u64,
}

impl Owner {
    fn me(s: &Session, kind: u32, ofd: OfdLink) -> Owner {
        Owner {
            kind,
            slot: s.table_index() + 1,
            generation: slots::table_generation(s),
            ofd: if kind == POSIX { 0 } else { ofd.raw() },
        }
    }

    fn of(lock: &RangeLock) -> Owner {
        Owner {
            kind: lock.kind.load(Relaxed),
            slot: lock.slot.load(Relaxed),
            generation: lock.slot_generation.load(Relaxed),
            ofd: lock.ofd.load(Relaxed),
        }
    }

    fn is(&self, other: &Owner) -> bool {
        let same = match self.kind {
            POSIX => self.slot == other.slot && self.generation == other.generation,
            _ => self.ofd == other.ofd,
        };
        self.kind == other.kind && same
    }
}

/// Waiters of the whole session, so that releasing without one costs no system call.
fn waiters(s: &Session) -> &AtomicU32 {
    &s.header().spare[0]
}

/// Slot + 1 of the process that blocks the process of `slot`.
fn blocker_of(slot: &pool::session::Slot) -> &AtomicU64 {
    &slot.spare[0]
}

/// Calls `f` with each lock of the inode until it gives something.
fn find<'s, T>(
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

fn overlaps(lock: &RangeLock, first: u64, last: u64) -> bool {
    lock.first.load(Relaxed) <= last && lock.last.load(Relaxed) >= first
}

/// The first lock of somebody else that forbids `wish`.
fn conflict(s: &Session, inode: &LockedInode, wish: &Wish) -> Result<Option<u32>> {
    find(s, inode, |link, lock| {
        let owner = Owner::of(lock);
        let same_world = (owner.kind == WHOLE) == (wish.owner.kind == WHOLE);
        let exclusive = wish.mode == EXCLUSIVE || lock.mode.load(Relaxed) == EXCLUSIVE;
        let blocks = same_world && exclusive && overlaps(lock, wish.first, wish.last);
        (blocks && !owner.is(&wish.owner)).then_some(link)
    })
}

fn insert(s: &Session, inode: &LockedInode, link: u32, wish: &Wish) -> Result<()> {
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

fn remove(s: &Session, inode: &LockedInode, link: u32) -> Result<()> {
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
fn carve(s: &Session, inode: &LockedInode, owner: &Owner, first: u64, last: u64) -> Result<bool> {
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
                insert(s, inode, range_locks::alloc(s)?, &rest)?;
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
fn grant(s: &Session, inode: &LockedInode, wish: &Wish) -> Result<()> {
    let link = range_locks::alloc(s)?;
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

fn released(s: &Session) {
    let tick = &s.header().locks_tick;
    tick.fetch_add(1, SeqCst);
    if waiters(s).load(SeqCst) > 0 {
        futex::wake(tick, i32::MAX as u32);
    }
}

/// What one look at the locks came to.
enum Attempt {
    Granted,
    BlockedBy(Owner),
}

fn attempt(s: &Session, inode: &InodeRef, wish: &Wish) -> Result<Attempt> {
    let locked = inode_table::lock_ref(s, *inode)?;
    while let Some(link) = conflict(s, &locked, wish)? {
        let owner = Owner::of(s.range_lock(link)?);
        if owner.kind != POSIX || slots::alive(s, owner.slot, owner.generation) {
            return Ok(Attempt::BlockedBy(owner));
        }
        remove(s, &locked, link)?;
    }
    grant(s, &locked, wish).map(|()| Attempt::Granted)
}

/// Takes the lock; waits for it if `wait`.
fn acquire(s: &Session, inode: &InodeRef, wish: &Wish, wait: bool) -> Result<()> {
    loop {
        let tick = s.header().locks_tick.load(SeqCst);
        let blocker = match attempt(s, inode, wish)? {
            Attempt::Granted => return Ok(()),
            Attempt::BlockedBy(owner) => owner,
        };
        if blocker.kind != POSIX && !slots::alive(s, blocker.slot, blocker.generation) {
            // Its descriptors may be the last of the description that holds the lock.
            if slots::reap_dead(s) > 0 {
                continue;
            }
        }
        if !wait {
            return Err(Error::WouldBlock);
        }
        sleep(s, wish, &blocker, tick)?;
    }
}

fn sleep(s: &Session, wish: &Wish, blocker: &Owner, tick: u32) -> Result<()> {
    let deadlocks = wish.owner.kind == POSIX && blocker.kind == POSIX;
    let slot = s.slot_at(wish.owner.slot.wrapping_sub(1))?;
    if deadlocks {
        blocker_of(slot).store(blocker.slot.into(), SeqCst);
        if leads_to_me(s, blocker.slot, wish.owner.slot) {
            blocker_of(slot).store(0, SeqCst);
            return Err(Error::Deadlock);
        }
    }
    waiters(s).fetch_add(1, SeqCst);
    let woken = futex::wait_interruptible(&s.header().locks_tick, tick, Some(NAP));
    waiters(s).fetch_sub(1, SeqCst);
    if deadlocks {
        blocker_of(slot).store(0, SeqCst);
    }
    match woken {
        WaitResult::Interrupted => Err(Error::Interrupted),
        _ => Ok(()),
    }
}

fn leads_to_me(s: &Session, from: u32, me: u32) -> bool {
    let mut at = from;
    for _ in 0..SLOTS {
        if at == me {
            return true;
        }
        let Ok(slot) = s.slot_at(at.wrapping_sub(1)) else {
            return false;
        };
        at = blocker_of(slot).load(SeqCst) as u32;
        if at == 0 {
            return false;
        }
    }
    false
}

fn release(s: &Session, inode: &InodeRef, owner: &Owner, first: u64, last: u64) -> Result<()> {
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

pub(crate) fn fcntl_lock(c: &Client, ofd: OfdLink, cmd: u32, lock: &mut Flock) -> Result<()> {
    let s = &c.session;
    let file = File::usable(s, ofd)?;
    let (kind, wait) = match cmd {
        F_GETLK | F_SETLK => (POSIX, false),
        F_SETLKW => (POSIX, true),
        F_OFD_GETLK | F_OFD_SETLK => (OFD, false),
        F_OFD_SETLKW => (OFD, true),
        _ => return Err(Error::Invalid),
    };
    if kind == OFD && lock.pid != 0 {
        return Err(Error::Invalid);
    }
    let (first, last) = range(&file, lock)?;
    let mode = match lock.kind {
        F_RDLCK => SHARED,
        F_WRLCK => EXCLUSIVE,
        F_UNLCK if !matches!(cmd, F_GETLK | F_OFD_GETLK) => 0,
        _ => return Err(Error::Invalid),
    };
    let wish = Wish {
        owner: Owner::me(s, kind, ofd),
        mode,
        first,
        last,
    };
    if matches!(cmd, F_GETLK | F_OFD_GETLK) {
        return test(s, &file.inode, &wish, lock);
    }
    if mode == 0 {
        return release(s, &file.inode, &wish.owner, first, last);
    }
    let allowed = matches!(
        (mode, file.flags & O_ACCMODE),
        (SHARED, O_RDONLY | O_RDWR) | (EXCLUSIVE, O_WRONLY | O_RDWR)
    );
    if !allowed {
        return Err(Error::BadDescriptor);
    }
    let taken = acquire(s, &file.inode, &wish, wait);
    if taken.is_ok() {
        // Turning an exclusive lock into a shared one lets others in.
        released(s);
    }
    taken
}

/// F_GETLK: who is in the way.
fn test(s: &Session, inode: &InodeRef, wish: &Wish, out: &mut Flock) -> Result<()> {
    let locked = inode_table::lock_ref(s, *inode)?;
    while let Some(link) = conflict(s, &locked, wish)? {
        let lock = s.range_lock(link)?;
        let owner = Owner::of(lock);
        if owner.kind == POSIX && !slots::alive(s, owner.slot, owner.generation) {
            remove(s, &locked, link)?;
            continue;
        }
        let (first, last) = (lock.first.load(Relaxed), lock.last.load(Relaxed));
        let pid = match owner.kind {
            POSIX => s.slot_at(owner.slot.wrapping_sub(1))?.pid.load(Relaxed) as i32,
            _ => -1,
        };
        *out = Flock {
            kind: if lock.mode.load(Relaxed) == EXCLUSIVE {
                F_WRLCK
            } else {
                F_RDLCK
            },
            whence: SEEK_SET as i16,
            start: first as i64,
            len: if last >= LAST_BYTE {
                0
            } else {
                (last - first + 1) as i64
            },
            pid,
        };
        return Ok(());
    }
    out.kind = F_UNLCK;
    Ok(())
}

/// First and last byte of a `struct flock`.
fn range(file: &File, lock: &Flock) -> Result<(u64, u64)> {
    let origin = match lock.whence as u32 {
        SEEK_SET => 0,
        SEEK_CUR => file.ofd.offset.load(Relaxed) as i64,
        SEEK_END => file.inode.e.size.load(Relaxed) as i64,
        _ => return Err(Error::Invalid),
    };
    let start = origin.checked_add(lock.start).ok_or(Error::Overflow)?;
    if start < 0 {
        return Err(Error::Invalid);
    }
    let (first, last) = match lock.len {
        0 => (start, i64::MAX),
        len if len > 0 => (start, start.checked_add(len - 1).ok_or(Error::Overflow)?),
        len => (start.checked_add(len).ok_or(Error::Invalid)?, start - 1),
    };
    if first < 0 {
        return Err(Error::Invalid);
    }
    Ok((first as u64, last as u64))
}

pub(crate) fn flock(c: &Client, ofd: OfdLink, op: u32) -> Result<()> {
    let s = &c.session;
    let file = File::usable(s, ofd)?;
    let owner = Owner::me(s, WHOLE, ofd);
    let mode = match op & !LOCK_NB {
        LOCK_SH => SHARED,
        LOCK_EX => EXCLUSIVE,
        LOCK_UN => return release(s, &file.inode, &owner, 0, LAST_BYTE),
        _ => return Err(Error::Invalid),
    };
    if has(s, &file.inode, &owner, mode)? {
        return Ok(());
    }
    // Changing the mode gives the lock up first, as on Linux.
    release(s, &file.inode, &owner, 0, LAST_BYTE)?;
    let wish = Wish {
        owner,
        mode,
        first: 0,
        last: LAST_BYTE,
    };
    acquire(s, &file.inode, &wish, op & LOCK_NB == 0)
}

fn has(s: &Session, inode: &InodeRef, owner: &Owner, mode: u32) -> Result<bool> {
    let locked = inode_table::lock_ref(s, *inode)?;
    let found = find(s, &locked, |_, lock| {
        (Owner::of(lock).is(owner) && lock.mode.load(Relaxed) == mode).then_some(())
    })?;
    Ok(found.is_some())
}

/// The process closes a descriptor of `ofd`: its POSIX locks on the file go.
pub(crate) fn drop_process_locks(s: &Session, ofd: OfdLink) {
    let Ok(file) = File::any(s, ofd) else { return };
    if file.inode.e.locks.load(Acquire) == 0 {
        return;
    }
    // What cannot be released now is when the process ends.
    let _ = release(s, &file.inode, &Owner::me(s, POSIX, ofd), 0, LAST_BYTE);
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
