//! Which processes are alive.
//!
//! Invariants:
//!  * A process holds a record lock on its *life*: a byte of session memory's file that no other
//!    process ever has, of this slot or another. The kernel ends the lock with the process, in
//!    whichever PID namespace it is; only then is the process dead.
//!  * A process that runs is never considered dead; if the kernel cannot tell, the process counts
//!    as alive.
//!  * Until a child has taken over its slot, the slot lives as long as the parent does.

use super::{OWNER_EPOCH, OWNER_SLOT, SERVICE_SLOT, SLOTS, Slot};
use core::sync::atomic::Ordering::*;
use holdfast_pmem::process::{boot_ms, namespace, own_pid, process_lives};
use holdfast_pmem::{Holder, RecordLocks};

/// Slot states.
pub const SLOT_FREE: u32 = 0;
/// Being set up.
pub const SLOT_SETUP: u32 = 1;
/// A process.
pub const SLOT_LIVE: u32 = 2;
/// Dead and being reaped.
pub const SLOT_DEAD: u32 = 3;

/// How long a child whose parent is gone may take to say that it was born, and a process that left
/// a shared descriptor table by exec until its new program is there.
pub const ORPHAN_MS_MAX: u32 = 2000;

/// Lives are apart from each other: the kernel would join locks on neighbours.
const APART: u64 = 2;
const RUNS_FROM: u64 = 1 << 62;
const JOINING_FROM: u64 = 3 << 61;

/// Numbers of processes that have no slot yet: 1 to this.
pub const JOINING_MAX: u32 = OWNER_EPOCH >> OWNER_SLOT.count_ones();

/// The slot that no process gets. Lock words name with it, and with a number for the epoch, a
/// process that has no slot yet.
pub const NOBODY: u32 = SERVICE_SLOT as u32 - 1;

/// The life of the process that has slot `index` in its `generation`-th use.
pub fn life_of(index: u32, generation: u32) -> u64 {
    (u64::from(generation) * SLOTS as u64 + u64::from(index)) * APART
}

/// The life of the command that has run `index`, held by an open file description of its own.
pub fn run_life(index: u32) -> u64 {
    RUNS_FROM + u64::from(index) * APART
}

/// The life of the process that has no slot yet, and this number.
pub fn joining_life(number: u32) -> u64 {
    JOINING_FROM + u64::from(number) * APART
}

/// The life of the process that a lock word names, if it is one that has no slot yet.
pub fn joining_life_of(word: u32) -> Option<u64> {
    let number = (word & OWNER_EPOCH) >> OWNER_SLOT.count_ones();
    (word & OWNER_SLOT == NOBODY + 1 && number != 0).then(|| joining_life(number))
}

/// Whether the process lives that a lock word names, if it is one that has no slot yet.
pub fn joining_lives(locks: &RecordLocks, word: u32) -> bool {
    joining_life_of(word).is_some_and(|life| locks.holder(life) != Ok(Holder::Nobody))
}

/// Whether the process in `slot`, which has this `index`, lives.
pub fn is_alive(locks: &RecordLocks, index: u32, slot: &Slot) -> bool {
    for _ in 0..LOOKS_MAX {
        let generation = slot.generation.load(Acquire);
        let state = slot.state.load(Acquire);
        let life = life_of(index, generation);
        let alive = match state {
            SLOT_FREE | SLOT_DEAD => false,
            SLOT_SETUP => is_awaited(locks, life, slot),
            _ => is_running(locks, life, slot),
        };
        if slot.state.load(Acquire) == state && slot.generation.load(Acquire) == generation {
            return alive;
        }
        // It has just been taken, taken over or freed: what was read may be of two processes.
    }
    true
}

/// So often a slot may change hands while it is looked at.
const LOOKS_MAX: u32 = 100;

fn is_running(locks: &RecordLocks, life: u64, slot: &Slot) -> bool {
    match locks.holder(life) {
        Ok(Holder::Nobody) => slot.start_time.load(Acquire) != 0 && is_expected(slot),
        Ok(Holder::Process(pid)) => sharer_lives(slot.namespace.load(Acquire), pid),
        _ => true,
    }
}

/// A slot that is being set up: by its own process, which holds its life, or for a child.
fn is_awaited(locks: &RecordLocks, life: u64, slot: &Slot) -> bool {
    let shares = slot.files.load(Acquire) != 0;
    match locks.holder(life) {
        Ok(Holder::Nobody) => {}
        Ok(Holder::Process(child @ 1..)) if shares => return process_lives(child, 0),
        _ => return true,
    }
    let lives = match locks.holder(slot.parent.load(Acquire)) {
        Ok(Holder::Nobody) => false,
        // The parent knows its child by this number, and asks about it here.
        Ok(Holder::Process(parent)) if parent == own_pid() => {
            let child = slot.pid.load(Acquire);
            child == parent || process_lives(child, 0)
        }
        // Its table may have outlived it.
        Ok(Holder::Process(parent @ 1..)) => process_lives(parent, 0),
        _ => true,
    };
    lives || is_expected(slot)
}

/// `Slot::namespace` of a process whose descriptor table is its own.
const NOT_SHARED: u64 = 0;
/// That of one in a namespace which is not known.
const UNKNOWN: u64 = 1;

/// Notes that others may have the descriptor table of the process in `slot`, which is the caller,
/// and so hold its life after it. It stays noted as long as the slot is its own.
pub fn note_shared(slot: &Slot) {
    slot.namespace.store(namespace().max(UNKNOWN), Release);
}

/// Whether a process lives whose life is locked, by its `Slot::namespace`. `pid`: who locked it;
/// 0: not of the caller's PID namespace, or gone for good.
fn sharer_lives(theirs: u64, pid: u32) -> bool {
    match (theirs, pid) {
        (NOT_SHARED, _) | (UNKNOWN, 0) => true,
        (theirs, 0) => theirs != namespace(),
        (_, pid) => process_lives(pid, 0),
    }
}

/// Whether a process may still come for the slot. If it comes later than this it finds the slot
/// gone.
fn is_expected(slot: &Slot) -> bool {
    let now = boot_ms();
    match slot.orphaned.compare_exchange(0, now, AcqRel, Acquire) {
        Ok(_) => true,
        Err(since) => now.wrapping_sub(since) < ORPHAN_MS_MAX,
    }
}

/// The number of the process in `slot` as the caller's PID namespace has it; 0: it has none there.
pub fn shown_pid(locks: &RecordLocks, index: u32, slot: &Slot) -> u32 {
    pid_of(locks, life_of(index, slot.generation.load(Acquire)))
}

/// The number of the process that has this life, as `shown_pid`.
pub fn pid_of(locks: &RecordLocks, life: u64) -> u32 {
    match locks.holder(life) {
        Ok(Holder::Process(pid)) => pid,
        _ => 0,
    }
}
