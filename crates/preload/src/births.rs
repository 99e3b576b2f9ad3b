//! Children between the call that makes them and their first instruction here.
//!
//! Invariants:
//!  * A child has its entry before it is born. It finds the entry by its stack pointer, which two
//!    births of one memory never share. Nothing else tells the child which one it is: it may share
//!    its parent's memory, and the arguments of the call may be gone.
//!  * An entry is free again when the parent knows the child's number and the child has taken the
//!    entry's content, in either order; a child that is dead takes nothing more.
//!  * It has only atomics: a copy of this memory made at any moment is usable.
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// Births at a time; more fail with EAGAIN.
const MAX: usize = 256;

/// What the child runs in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// A copy.
    Own = 1,
    /// Its parent's, and the parent goes on meanwhile.
    Shared = 2,
    /// Its parent's, and the parent waits until it has left it.
    Borrowed = 3,
}

const FREE: u32 = 0;
const FILLING: u32 = 1;
const WAITING: u32 = 2;
/// The parent knows the child's number.
const MADE: u32 = 4;
/// The child has taken what is here.
const BORN: u32 = 8;

struct Entry {
    state: AtomicU32,
    /// The thread that makes the child, and the how-manieth birth this is.
    tid: AtomicU32,
    number: AtomicU32,
    /// The child's stack pointer when it is born.
    stack: AtomicUsize,
    memory: AtomicU32,
    /// Its slot, as `SlotId::to_bits`.
    slot: AtomicU64,
    new_user: AtomicBool,
    pid: AtomicU32,
}

static ENTRIES: [Entry; MAX] = [const {
    Entry {
        state: AtomicU32::new(FREE),
        tid: AtomicU32::new(0),
        number: AtomicU32::new(0),
        stack: AtomicUsize::new(0),
        memory: AtomicU32::new(0),
        slot: AtomicU64::new(0),
        new_user: AtomicBool::new(false),
        pid: AtomicU32::new(0),
    }
}; MAX];
static NUMBERS: AtomicU32 = AtomicU32::new(0);
/// Entries that are not free.
static USED: AtomicU32 = AtomicU32::new(0);

/// One birth.
#[derive(Clone, Copy, Debug)]
pub struct Birth {
    pub memory: Memory,
    /// As `SlotId::to_bits`, 0: none.
    pub slot: u64,
    /// It begins in a user namespace of its own.
    pub new_user: bool,
}

impl Entry {
    fn birth(&self) -> Birth {
        let memory = match self.memory.load(Relaxed) {
            2 => Memory::Shared,
            3 => Memory::Borrowed,
            _ => Memory::Own,
        };
        Birth {
            memory,
            slot: self.slot.load(Relaxed),
            new_user: self.new_user.load(Relaxed),
        }
    }

    fn free(&self) {
        self.state.store(FREE, Release);
        USED.fetch_sub(1, Relaxed);
    }

    /// One side is done with it; the second one frees it.
    fn done(&self, side: u32) {
        if self.state.fetch_or(side, AcqRel) & (MADE | BORN) == (MADE | BORN) & !side {
            self.free();
        }
    }
}

/// Thread `tid` is about to make a child that begins with this stack pointer. False: too many.
pub fn expect(tid: u32, stack: usize, birth: Birth) -> bool {
    let free = |e: &&Entry| {
        let taken = e.state.compare_exchange(FREE, FILLING, AcqRel, Relaxed);
        taken.is_ok()
    };
    let Some(entry) = ENTRIES.iter().find(free) else {
        return false;
    };
    USED.fetch_add(1, Relaxed);
    entry.tid.store(tid, Relaxed);
    entry.number.store(NUMBERS.fetch_add(1, Relaxed), Relaxed);
    entry.stack.store(stack, Relaxed);
    entry.memory.store(birth.memory as u32, Relaxed);
    entry.slot.store(birth.slot, Relaxed);
    entry.new_user.store(birth.new_user, Relaxed);
    entry.pid.store(0, Relaxed);
    entry.state.store(WAITING, Release);
    true
}

/// In the child: what was prepared for the one that begins with this stack pointer.
pub fn born(stack: usize) -> Option<Birth> {
    let waits = |e: &&Entry| {
        let state = e.state.load(Acquire);
        state & WAITING != 0 && state & BORN == 0 && e.stack.load(Relaxed) == stack
    };
    let newest = |e: &&Entry| NUMBERS.load(Relaxed).wrapping_sub(e.number.load(Relaxed));
    let entry = ENTRIES.iter().filter(waits).min_by_key(newest)?;
    let birth = entry.birth();
    entry.done(BORN);
    Some(birth)
}

/// In the parent, when its call is over with this result: what it had prepared last.
pub fn made(tid: u32, result: isize) -> Option<Birth> {
    let ours = |e: &&Entry| {
        let state = e.state.load(Acquire);
        state & WAITING != 0 && state & MADE == 0 && e.tid.load(Relaxed) == tid
    };
    let newest = |e: &&Entry| NUMBERS.load(Relaxed).wrapping_sub(e.number.load(Relaxed));
    let entry = ENTRIES.iter().filter(ours).min_by_key(newest)?;
    let birth = entry.birth();
    if result > 0 && birth.memory == Memory::Shared {
        entry.pid.store(result as u32, Relaxed);
        entry.done(MADE);
    } else {
        // No child takes it from here any more: it has a copy, is gone, or never was.
        entry.free();
    }
    Some(birth)
}

/// Calls `gone` with each birth whose child died before it took its entry; `lives` tells of
/// processes and threads.
pub fn sweep(lives: impl Fn(u32) -> bool, mut gone: impl FnMut(Birth)) {
    if USED.load(Relaxed) == 0 {
        return;
    }
    for entry in &ENTRIES {
        // A process that shared this memory died, and its child was born.
        let left = WAITING | BORN;
        if entry.state.load(Acquire) == left
            && !lives(entry.tid.load(Relaxed))
            && entry
                .state
                .compare_exchange(left, FILLING, AcqRel, Relaxed)
                .is_ok()
        {
            entry.free();
        }
        let state = WAITING | MADE;
        if entry.state.load(Acquire) == state
            && !lives(entry.pid.load(Relaxed))
            && entry
                .state
                .compare_exchange(state, FILLING, AcqRel, Relaxed)
                .is_ok()
        {
            gone(entry.birth());
            entry.free();
        }
    }
}

/// In a child with a memory of its own: the births here are its parent's.
pub fn forked() {
    for entry in &ENTRIES {
        entry.state.store(FREE, Relaxed);
    }
    USED.store(0, Relaxed);
}
