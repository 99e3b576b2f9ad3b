//! fork, vfork and the end of a process, as far as the pool is concerned.
//!
//! Invariants: a child has its slot before it runs; a forked child owns a copy of the parent's
//! descriptors, a vfork child a copy that only it uses while it borrows the parent's memory.

use super::held::Held;
use super::maps;
use super::outcome::{Outcome, Stop};
use super::process::{Process, process};
use crate::sys;
use alloc::vec::Vec;
use holdfast_client::SlotId;

/// Slots made for children that are being born, by the thread that makes them.
static EXPECTED: Held<Vec<(u32, SlotId)>> = Held::new(Vec::new());

fn expect(slot: SlotId) {
    let tid = sys::gettid();
    EXPECTED.lock().push((tid, slot));
}

/// The slot that thread `tid` prepared last.
fn expected(tid: u32) -> Option<SlotId> {
    let mut list = EXPECTED.lock();
    let at = list.iter().rposition(|(t, _)| *t == tid)?;
    Some(list.swap_remove(at).1)
}

/// The slot that the finished vfork child `pid` had claimed, else one the thread prepared.
fn finished(tid: u32, pid: isize, claimed_by: impl Fn(SlotId) -> u32) -> Option<SlotId> {
    let mut list = EXPECTED.lock();
    let by_pid = list
        .iter()
        .position(|(_, slot)| claimed_by(*slot) as isize == pid);
    let at = by_pid.or_else(|| list.iter().rposition(|(t, _)| *t == tid))?;
    Some(list.swap_remove(at).1)
}

/// Nobody changes our lists while the value lives: a forked child gets them whole and unlocked.
pub fn hold_still() -> impl Sized {
    (EXPECTED.lock(), maps::hold_still())
}

pub fn before_fork() {
    if let Some(p) = process()
        && let Ok(slot) = p.client.fork_prepare()
    {
        expect(slot);
    }
}

pub fn after_fork_parent(result: isize) {
    let Some(p) = process() else { return };
    if let Some(slot) = expected(sys::gettid()) {
        p.client.forked(slot, result);
    }
}

/// In the child: the thread id is new; what counts is which thread of the parent forked.
pub fn after_fork_child(parent_tid: Option<u32>) {
    let Some(p) = process() else { return };
    p.set_pid(sys::getpid());
    let slot = match parent_tid {
        Some(tid) => expected(tid),
        None => EXPECTED.lock().pop().map(|(_, slot)| slot),
    };
    EXPECTED.lock().clear();
    match slot {
        // Without a slot the child shares its parent's, as before: its locks name the parent.
        Some(slot) => drop(p.client.fork_child(slot)),
        None => {}
    }
    maps::enter_all(p);
}

pub fn before_shared_child() {
    if let Some(p) = process()
        && let Ok(slot) = p.client.vfork_prepare()
    {
        expect(slot);
    }
}

/// In a vfork child. Its slot is the newest that was prepared and not claimed.
pub fn in_shared_child() {
    let Some(p) = process() else { return };
    let slot = EXPECTED.lock().last().map(|(_, slot)| *slot);
    if let Some(slot) = slot {
        drop(p.client.vfork_child(slot));
    }
}

pub fn after_shared_child(result: isize) {
    let Some(p) = process() else { return };
    if let Some(slot) = finished(sys::gettid(), result, |slot| p.client.slot_pid(slot)) {
        p.client.vfork_done(slot);
    }
}

/// exit_group(2): descriptors, locks and mappings go before the kernel ends the process.
pub fn exit_group(p: &Process, _: &[usize; 6]) -> Outcome {
    if !p.borrowed() {
        maps::leave_all(p);
    }
    p.client.exit();
    Err(Stop::Native)
}
