//! Which processes run in this memory: its owner, and children that share it.
//!
//! Invariants:
//!  * While nobody can share the memory (`sharing` is 0) the caller is its owner, and no system
//!    call is needed to know that.
//!  * A child that shares it is counted in `sharing` from before it is born until it is known to
//!    have ended or to run in another memory. It has an entry from its first caught call on.
//!  * A process that is neither the owner nor has an entry is `NOWHERE`: it never acts in the name
//!    of another one.

use crate::base::error::{Error, Result};
use crate::session::live::{self, own_pid};
use crate::session::{NOBODY, Session, owner_word};
use alloc::boxed::Box;
use pmem::atomic::{AtomicU32, AtomicU64, Ordering::*};
use pool::session::{OWNER_SLOT, Slot};

/// How lock words name a process without a place in the session.
pub(crate) const NOWHERE: u32 = NOBODY + 1;
/// Processes beside the owner that can be told apart in one memory.
const OTHERS: usize = 512;
/// Looks by which a child that was killed is found to be gone.
const LOOKS: u32 = 4096;

/// The processes of one memory.
pub(crate) struct Members {
    /// The process that the memory belongs to, as lock words name it.
    me: AtomicU32,
    pid: AtomicU32,
    sharing: AtomicU32,
    looks: AtomicU32,
    /// The others: process id << 32 | as lock words name them; 0: free.
    others: Box<[AtomicU64]>,
}

/// Of an entry's process id: it is that of another namespace, and says nothing here.
const FOREIGN: u32 = 1 << 31;

fn pid_of(entry: u64) -> u32 {
    (entry >> 32) as u32 & !FOREIGN
}

fn is_foreign(entry: u64) -> bool {
    (entry >> 32) as u32 & FOREIGN != 0
}

impl Members {
    pub fn new() -> Members {
        Members {
            me: AtomicU32::new(NOWHERE),
            pid: AtomicU32::new(0),
            sharing: AtomicU32::new(0),
            looks: AtomicU32::new(0),
            others: (0..OTHERS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The caller, as lock words name it.
    #[inline]
    pub fn owner(&self, s: &Session) -> u32 {
        match self.sharing.load(Relaxed) {
            0 => self.me.load(Relaxed),
            _ => self.find(s),
        }
    }

    #[cold]
    fn find(&self, s: &Session) -> u32 {
        if self.looks.fetch_add(1, Relaxed) % LOOKS == LOOKS - 1 {
            self.sweep(s);
        }
        let pid = own_pid();
        if self.pid.load(Relaxed) == pid {
            return self.me.load(Relaxed);
        }
        let mut entries = self.others.iter().map(|entry| entry.load(Acquire));
        let found = entries.find(|entry| pid_of(*entry) == pid);
        found.map_or(NOWHERE, |entry| entry as u32)
    }

    /// The memory belongs to this process alone, which is `owner`.
    pub fn alone(&self, owner: u32) {
        self.pid.store(own_pid(), Relaxed);
        self.me.store(owner, Release);
        for entry in &self.others {
            if entry.load(Relaxed) != 0 {
                entry.store(0, Relaxed);
            }
        }
        self.sharing.store(0, Release);
    }

    /// Whether another process may run in this memory.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.sharing.load(Acquire) != 0
    }

    /// A child that shares the memory is about to be born. `TableFull`: there are too many.
    pub fn expect(&self, s: &Session) -> Result<()> {
        self.sweep(s);
        let one_more = |n: u32| (n < OTHERS as u32).then(|| n + 1);
        let done = self.sharing.fetch_update(AcqRel, Acquire, one_more);
        done.map(drop).map_err(|_| Error::TableFull)
    }

    /// It was not born, or is gone, and had no entry.
    pub fn unexpect(&self) {
        self.sharing.fetch_sub(1, AcqRel);
    }

    /// The caller was born, as `owner`. False: its process id is that of another member, in
    /// another namespace, and they could not be told apart.
    pub fn add(&self, owner: u32) -> bool {
        let pid = own_pid();
        if pid == self.pid.load(Relaxed) {
            return false;
        }
        for entry in &self.others {
            let old = entry.load(Acquire);
            if old == 0 || pid_of(old) != pid {
                continue;
            }
            if is_foreign(old) {
                return false;
            }
            // It is dead.
            self.clear(entry, old);
        }
        let namespace = match rustix::process::getppid() {
            Some(_) => 0,
            None => FOREIGN,
        };
        let value = u64::from(pid | namespace) << 32 | u64::from(owner);
        let free = |entry: &&AtomicU64| entry.compare_exchange(0, value, AcqRel, Relaxed).is_ok();
        // There is room: no more are born than there are entries. Without one the child is nowhere.
        let _ = self.others.iter().find(free);
        true
    }

    fn clear(&self, entry: &AtomicU64, old: u64) {
        if entry.compare_exchange(old, 0, AcqRel, Relaxed).is_ok() {
            self.unexpect();
        }
    }

    /// The process `owner` runs in this memory no more.
    pub fn remove(&self, owner: u32) {
        for entry in &self.others {
            let old = entry.load(Acquire);
            if old != 0 && old as u32 == owner {
                self.clear(entry, old);
            }
        }
    }

    /// A process that was nowhere runs in this memory no more; 0: it was not born.
    pub fn remove_placeless(&self, pid: u32) {
        if pid == 0 {
            return self.unexpect();
        }
        for entry in &self.others {
            let old = entry.load(Acquire);
            if pid_of(old) == pid && old as u32 == NOWHERE {
                self.clear(entry, old);
            }
        }
    }

    /// The caller has another slot now.
    pub fn replace(&self, old: u32, new: u32) {
        let pid = own_pid();
        if self.pid.load(Relaxed) == pid {
            self.me.store(new, Release);
            return;
        }
        for entry in &self.others {
            let seen = entry.load(Acquire);
            if pid_of(seen) == pid && seen as u32 == old {
                let value = seen & !u64::from(u32::MAX) | u64::from(new);
                let _ = entry.compare_exchange(seen, value, AcqRel, Relaxed);
            }
        }
    }

    /// Children that were killed, or run another program, are no members.
    fn sweep(&self, s: &Session) {
        for entry in &self.others {
            let value = entry.load(Acquire);
            let index = (value as u32 & OWNER_SLOT).wrapping_sub(1);
            let is_same = |slot: &Slot| owner_word(index, slot.epoch.load(Acquire)) == value as u32;
            let runs_here = match (value, value as u32) {
                (0, _) => continue,
                // Without a slot nobody but the kernel knows of it, in its namespace.
                (_, NOWHERE) => is_foreign(value) || live::process_lives(pid_of(value), 0),
                _ => s.slot_at(index).is_ok_and(is_same) && s.is_alive(index),
            };
            if !runs_here {
                self.clear(entry, value);
            }
        }
    }
}
