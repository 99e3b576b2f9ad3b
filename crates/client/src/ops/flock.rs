//! Byte-range locks (POSIX and OFD) and whole-file locks.
//!
//! Invariants:
//!  * A waiter looks again at least every `NAP`, so an owner that died delays nobody for long.
//!  * A process that waits for a POSIX lock names its blocker in its slot; a cycle of these names
//!    is a deadlock.

use crate::base::abi::*;
use crate::base::error::{Error, Result};
use crate::base::types::Flock;
use crate::content::file::File;
use crate::content::ranges::*;
use crate::ops::client::Client;
use crate::ops::slots;
use crate::session::{OfdLink, Session};
use crate::session::{fd_tables, live};
use crate::tables::inode_table::{self, InodeRef};
use core::time::Duration;
use pmem::atomic::Ordering::*;
use pmem::futex::{self, WaitResult};
use pool::session::SLOTS;

const NAP: Duration = Duration::from_millis(5);
/// Looks of a waiter of which one finds out who is dead.
const LOOKS: u32 = 16;

/// What one look at the locks came to.
enum Attempt {
    Granted,
    BlockedBy(Blocker),
}

/// A lock that is in the way.
struct Blocker {
    link: u32,
    owner: Owner,
}

fn attempt(s: &Session, inode: &InodeRef, wish: &Wish) -> Result<Attempt> {
    let locked = inode_table::lock_ref(s, *inode)?;
    while let Some(link) = conflict(s, &locked, wish)? {
        let owner = Owner::of(s.range_lock(link)?);
        if owner.kind != POSIX || fd_tables::is_same(s, owner.slot, owner.generation) {
            return Ok(Attempt::BlockedBy(Blocker { link, owner }));
        }
        remove(s, &locked, link)?;
    }
    grant(s, &locked, wish).map(|()| Attempt::Granted)
}

/// Takes the lock; waits for it if `wait`.
fn acquire(s: &Session, inode: &InodeRef, wish: &Wish, wait: bool) -> Result<()> {
    let done = acquire_saying(s, inode, wish, wait);
    let slot = s.slot_at(wish.owner.slot.wrapping_sub(1))?;
    if slot.waits_for.load(Relaxed) != 0 {
        slot.waits_for.store(0, Relaxed);
    }
    done
}

/// As `acquire`; a process that had to wait still says so.
fn acquire_saying(s: &Session, inode: &InodeRef, wish: &Wish, wait: bool) -> Result<()> {
    let mut looks = 0u32;
    loop {
        let tick = s.header().locks_tick.load(SeqCst);
        let blocker = match attempt(s, inode, wish)? {
            Attempt::Granted => return Ok(()),
            Attempt::BlockedBy(blocker) => blocker,
        };
        if blocker.owner.kind != POSIX && looks % LOOKS == 0 {
            // The last descriptors of the description that holds the lock may be those of a dead
            // process, also if another one has locked it.
            if slots::reap_dead(s) > 0 {
                continue;
            }
        }
        if !wait {
            return Err(Error::WouldBlock);
        }
        sleep(s, wish, &blocker, tick)?;
        looks = looks.wrapping_add(1);
    }
}

fn sleep(s: &Session, wish: &Wish, blocker: &Blocker, tick: u32) -> Result<()> {
    let (link, owner) = (blocker.link, &blocker.owner);
    let deadlocks = wish.owner.kind == POSIX && owner.kind == POSIX;
    let slot = s.slot_at(wish.owner.slot.wrapping_sub(1))?;
    if deadlocks {
        slot.blocker.store(owner.slot.into(), SeqCst);
        if leads_to_me(s, owner.slot, wish.owner.slot) {
            slot.blocker.store(0, SeqCst);
            return Err(Error::Deadlock);
        }
    }
    slot.waits_for.store(link.into(), Relaxed);
    waiters(s).fetch_add(1, SeqCst);
    let woken = futex::wait_interruptible(&s.header().locks_tick, tick, Some(NAP));
    waiters(s).fetch_sub(1, SeqCst);
    if deadlocks {
        slot.blocker.store(0, SeqCst);
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
        at = slot.blocker.load(SeqCst) as u32;
        if at == 0 {
            return false;
        }
    }
    false
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
    let asks_for_nothing = cmd == F_GETLK && lock.kind == F_UNLCK;
    if asks_for_nothing || (kind == OFD && lock.pid != 0) {
        return Err(Error::Invalid);
    }
    let (first, last) = range(&file, lock)?;
    let mode = match lock.kind {
        F_RDLCK => SHARED,
        F_WRLCK => EXCLUSIVE,
        F_UNLCK => 0,
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

/// The number that the process in slot `index` has in the PID namespace of the caller, or 0.
fn pid_of(s: &Session, index: u32) -> Result<u32> {
    let shown = s.slot_at(index)?.shown.load(Relaxed);
    if shown != 0 {
        return Ok(shown as u32);
    }
    Ok(live::shown_pid(s.locks(), index, s.slot_at(index)?))
}

/// F_GETLK: who is in the way.
fn test(s: &Session, inode: &InodeRef, wish: &Wish, out: &mut Flock) -> Result<()> {
    let asked = *out;
    let mut found = in_the_way(s, inode, wish, out)?;
    if found.is_some_and(|kind| kind != POSIX) && slots::reap_dead(s) > 0 {
        // The last descriptors of its description may have been those of a dead process.
        *out = asked;
        found = in_the_way(s, inode, wish, out)?;
    }
    if found.is_none() {
        out.kind = F_UNLCK;
    }
    Ok(())
}

/// Describes the first lock that is in the way; its kind.
fn in_the_way(s: &Session, inode: &InodeRef, wish: &Wish, out: &mut Flock) -> Result<Option<u32>> {
    let locked = inode_table::lock_ref(s, *inode)?;
    while let Some(link) = first_conflict(s, &locked, wish)? {
        let lock = s.range_lock(link)?;
        let owner = Owner::of(lock);
        if owner.kind == POSIX && !fd_tables::is_same(s, owner.slot, owner.generation) {
            remove(s, &locked, link)?;
            continue;
        }
        let (first, last) = (lock.first.load(Relaxed), lock.last.load(Relaxed));
        let pid = match owner.kind {
            POSIX => pid_of(s, owner.slot.wrapping_sub(1))? as i32,
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
        return Ok(Some(owner.kind));
    }
    Ok(None)
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
    if op & LOCK_MAND != 0 {
        // As on Linux since 5.18: there are no such locks.
        return Ok(());
    }
    let mode = match op & !LOCK_NB {
        LOCK_SH => SHARED,
        LOCK_EX => EXCLUSIVE,
        LOCK_UN => 0,
        _ => return Err(Error::Invalid),
    };
    let s = &c.session;
    let file = File::usable(s, ofd)?;
    let owner = Owner::me(s, WHOLE, ofd);
    if mode == 0 {
        return release(s, &file.inode, &owner, 0, LAST_BYTE);
    }
    if file.flags & O_ACCMODE == O_ACCMODE {
        return Err(Error::BadDescriptor);
    }
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

/// The POSIX locks of the process of slot `from` become those of the process of slot `to`, on all
/// files that the caller has open: on others it has none.
pub(crate) fn pass_locks(s: &Session, from: u32, to: u32) -> Result<()> {
    let (from, to) = (Owner::process(s, from)?, Owner::process(s, to)?);
    for (_, ofd) in fd_tables::bound(s, s.table_index()) {
        if let Some(ofd) = OfdLink::from_raw(ofd)
            && let Ok(file) = File::any(s, ofd)
        {
            pass(s, &file.inode, &from, &to)?;
        }
    }
    Ok(())
}

/// The process closes a descriptor of `ofd`: its POSIX locks on the file go.
pub(crate) fn drop_process_locks(s: &Session, ofd: OfdLink) {
    let Ok(file) = File::any(s, ofd) else { return };
    // Who has a path alone has not opened the file.
    if file.inode.e.locks.load(Acquire) == 0 || file.flags & O_PATH != 0 {
        return;
    }
    // What cannot be released now is when the process ends.
    let _ = release(s, &file.inode, &Owner::me(s, POSIX, ofd), 0, LAST_BYTE);
}
