//! Locks in session memory.
//!
//! Invariants:
//!  * The word is 0 (free) or names the owner by slot and epoch; bit 31 says that somebody may be
//!    asleep on it. It is taken by one compare-and-swap and released by one store. The epoch
//!    distinguishes a dead owner from a later process in its slot, and from a later program after
//!    exec.
//!  * A waiter sleeps at most 2 ms before it looks again, so a wake-up that is lost with a dead
//!    process costs no more than that. A dead owner's lock is taken over after `recover::lanes`
//!    completed what the owner had committed. An owner that lives and holds a lock for long may be
//!    stopped: the service is told, and lets it finish (`Header::stalled`).
//!  * Order: `stores_lock`, rename lock, inodes (by number), OFD, lane, bucket, table locks (one at
//!    a time). Nobody waits for an earlier kind while holding a later one; recovery is the
//!    exception, and takes only what dead processes hold.
//!  * All threads of a process count as one owner; no lock is recursive.

use crate::base::error::Result;
use crate::session::live;
use crate::session::members::NOWHERE;
use crate::session::{NOBODY, Session};
use core::time::Duration;
use pmem::atomic::{AtomicU32, Ordering::*};
use pmem::futex;
use pool::session::{OWNER_EPOCH, OWNER_SLOT, OWNER_WAITERS, SERVICE_SLOT, Stall};

/// Somebody may wait.
pub const WAITERS: u32 = OWNER_WAITERS;
const SPINS: u32 = 200;
const NAP: Duration = Duration::from_millis(2);
/// After so many naps the owner may be stopped.
const NAPS_STALLED: u32 = 20;

/// What must happen before a dead owner's lock is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// Recovery: the lock protects what a committed record may speak of.
    Normal,
    /// Nothing: what the lock protects is right after every single store (free lists,
    /// chains), or the taker is recovery itself.
    Plain,
}

/// A held lock; dropping it releases.
pub struct Guard<'a> {
    word: &'a AtomicU32,
    /// As wide as the reference: guards are moved in words.
    stolen: usize,
}

impl<'a> Guard<'a> {
    /// A lock that the caller holds without a guard.
    pub(crate) fn adopt(word: &'a AtomicU32) -> Guard<'a> {
        Guard { word, stolen: 0 }
    }

    /// The last owner died while it held the lock: what it protects may be half-changed.
    #[inline]
    pub fn was_stolen(&self) -> bool {
        self.stolen != 0
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        // A plain store: a swap would wait here for all that was stored around the cache. Who
        // begins to wait between the two, or when we die, wakes by itself in at most 2 ms.
        let seen = self.word.load(Relaxed);
        self.word.store(0, Release);
        if seen & WAITERS != 0 {
            futex::wake(self.word, 1);
        }
    }
}

/// Takes the lock, however long it takes; a dead owner does not stop us. Fails only when the
/// session was given up, or the service is gone while what a dead owner did waits for it.
#[inline]
pub fn acquire<'a>(session: &Session, word: &'a AtomicU32) -> Result<Guard<'a>> {
    acquire_as(session, word, Rank::Normal)
}

#[inline]
pub(crate) fn acquire_as<'a>(
    session: &Session,
    word: &'a AtomicU32,
    rank: Rank,
) -> Result<Guard<'a>> {
    let me = session.owner();
    debug_assert!(
        me != NOWHERE,
        "a lock that others would take for a dead one's"
    );
    match word.compare_exchange(0, me, SeqCst, Relaxed) {
        Ok(_) => Ok(Guard { word, stolen: 0 }),
        Err(_) => acquire_slow(session, word, me, rank),
    }
}

/// As `acquire` for a lock of `Rank::Plain`.
#[inline]
pub fn acquire_plain<'a>(session: &Session, word: &'a AtomicU32) -> Result<Guard<'a>> {
    acquire_as(session, word, Rank::Plain)
}

/// Takes the lock if it is free now.
#[inline]
pub fn try_acquire<'a>(session: &Session, word: &'a AtomicU32) -> Option<Guard<'a>> {
    let me = session.owner();
    word.compare_exchange(0, me, SeqCst, Relaxed).ok()?;
    Some(Guard { word, stolen: 0 })
}

/// Whether the caller's process holds the lock.
#[inline]
pub fn is_mine(session: &Session, word: &AtomicU32) -> bool {
    word.load(Relaxed) & !WAITERS == session.owner()
}

#[cold]
fn acquire_slow<'a>(
    session: &Session,
    word: &'a AtomicU32,
    me: u32,
    rank: Rank,
) -> Result<Guard<'a>> {
    for _ in 0..SPINS {
        core::hint::spin_loop();
        if word.load(Relaxed) == 0 && word.compare_exchange(0, me, SeqCst, Relaxed).is_ok() {
            return Ok(Guard { word, stolen: 0 });
        }
    }
    let mut naps = 0;
    loop {
        let seen = word.load(Relaxed);
        if seen == 0 {
            // Others may sleep here too; we cannot know, so keep the bit.
            if word
                .compare_exchange(0, me | WAITERS, SeqCst, Relaxed)
                .is_ok()
            {
                return Ok(Guard { word, stolen: 0 });
            }
            continue;
        }
        let waiting = seen | WAITERS;
        if seen != waiting
            && word
                .compare_exchange(seen, waiting, Relaxed, Relaxed)
                .is_err()
        {
            continue;
        }
        if futex::wait(word, waiting, Some(NAP)) != futex::WaitResult::TimedOut {
            continue;
        }
        session.check_poison()?;
        if word.load(Relaxed) != waiting {
            continue;
        }
        if owner_lives(session, waiting) {
            naps += 1;
            if naps % NAPS_STALLED == 0 {
                tell_stalled(session, word);
            }
        } else if steal(session, word, waiting, me, rank)? {
            return Ok(Guard { word, stolen: 1 });
        }
    }
}

/// Has the service look after the owner of a lock, which may be stopped.
#[cold]
pub(crate) fn tell_stalled(session: &Session, word: &AtomicU32) {
    let place = session.place_of(word);
    if let Some(stall) = place.and_then(|at| Stall::of(word.load(Relaxed), at)) {
        stall.tell(session.header());
    }
}

/// Whether somebody died with the lock, and nobody took it over since.
#[inline]
pub(crate) fn is_dead_ones(session: &Session, word: &AtomicU32) -> bool {
    let seen = word.load(Acquire);
    seen != 0 && !owner_lives(session, seen)
}

/// Whether the owner that `word` names lives. A number that is no slot never lived.
pub(crate) fn owner_lives(session: &Session, word: u32) -> bool {
    let index = (word & OWNER_SLOT).wrapping_sub(1);
    if index == NOBODY {
        return live::joining_lives(session.locks(), word);
    }
    let Ok(slot) = session.slot_at(index) else {
        return false;
    };
    let epoch = slot.epoch.load(Acquire) << OWNER_SLOT.count_ones();
    let same = index as usize == SERVICE_SLOT || (word ^ epoch) & OWNER_EPOCH == 0;
    same && session.is_alive(index)
}

fn steal(session: &Session, word: &AtomicU32, seen: u32, me: u32, rank: Rank) -> Result<bool> {
    if rank == Rank::Normal {
        session.recover()?;
    }
    // One thief wins: the others find the word changed.
    Ok(word
        .compare_exchange(seen, me | WAITERS, Acquire, Relaxed)
        .is_ok())
}

/// Makes a sequence word odd for the time of a change, for readers that take no lock.
pub struct Changing<'a> {
    version: &'a AtomicU32,
}

impl<'a> Changing<'a> {
    /// The caller holds the lock that orders the changes. Dying inside leaves the word odd; the
    /// next holder of the lock makes it even (`close_change`).
    #[inline]
    pub fn begin(version: &'a AtomicU32) -> Changing<'a> {
        let v = version.load(Relaxed) | 1;
        version.store(v, Relaxed);
        pmem::atomic::fence(Release);
        Changing { version }
    }
}

impl Drop for Changing<'_> {
    #[inline]
    fn drop(&mut self) {
        self.version
            .store(self.version.load(Relaxed).wrapping_add(1), Release);
    }
}

/// Ends a change that a dead process left open. The caller holds the lock.
#[inline]
pub fn close_change(version: &AtomicU32) {
    if version.load(Relaxed) & 1 == 1 {
        drop(Changing { version });
    }
}

/// Runs `read` until nothing changed under it; `None` after too many tries (then take the lock).
#[inline]
pub fn read_stable<T>(version: &AtomicU32, mut read: impl FnMut() -> T) -> Option<T> {
    for _ in 0..READ_TRIES {
        let before = version.load(Acquire);
        if before & 1 == 0 {
            let value = read();
            pmem::atomic::fence(Acquire);
            if version.load(Relaxed) == before {
                return Some(value);
            }
        }
        core::hint::spin_loop();
    }
    None
}

const READ_TRIES: u32 = 64;
