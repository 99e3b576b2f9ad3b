//! fork, vfork, clone and the end of a process, as far as they concern the pool.
//!
//! Invariants: a child has its slot before it is born; what it does not share with its parent is a
//! copy, made then. A slot is given back by its own process, and only if no other thread of that
//! process can use it; what cannot be represented is refused before a child is born.

use super::outcome::{Outcome, Stop, Why};
use super::process::{Process, process};
use super::{UNKNOWN_CALL, nr};
use super::{mapping, maps};
use crate::births::{self, Birth, Memory};
use crate::calls;
use crate::hook::{Call, Verdict};
use crate::process::{Child, has_threads, is_shared};
use crate::sys;
use holdfast_client::{Error, Share, SlotId, live};

const EAGAIN: isize = 11;
const EINVAL: isize = 22;

/// Nobody changes our lists while the value lives: a forked child gets them whole and unlocked.
pub fn hold_still() -> impl Sized {
    (maps::hold_still(), mapping::hold_still())
}

/// Before `child` is made: its slot, 0 if it gets none; or why it must not be made.
pub fn before_child(call: &Call, child: &Child) -> Result<u64, Verdict> {
    let Some(p) = process() else { return Ok(0) };
    let lives = |pid| live::process_lives(pid, 0);
    births::sweep(lives, |birth| gone(p, &birth, 0));
    let shares_memory = child.memory != Memory::Own;
    if child.shares_files && !shares_memory {
        calls::mark_all();
    }
    let share = Share {
        memory: shares_memory,
        files: child.shares_files,
        directory: child.shares_directory,
        ids: !child.new_user,
    };
    if shares_memory || child.new_user {
        // It may change its own, and what it does not change is as it is here.
        p.know_credentials();
    }
    let prepared = match p.client.child_prepare(share) {
        // Where nothing is served any more, programs may go on outside: the child has no place.
        Err(Error::NoPlace | Error::Poisoned(_)) if shares_memory => {
            p.client.expect_shared_child().map(|()| 0)
        }
        Err(Error::NoPlace | Error::Poisoned(_)) => Ok(0),
        prepared => prepared.map(SlotId::to_bits),
    };
    prepared.map_err(|_| {
        p.client.refuse(call.nr as u32, Why::NoRoom as u32);
        Verdict::Handled(-EAGAIN)
    })
}

/// A thread with descriptors or a working directory of its own: the answer, if there is a pool.
pub fn refuse_half_thread(call: &Call) -> Option<Verdict> {
    let p = process()?;
    p.client.refuse(call.nr as u32, Why::OwnDescriptors as u32);
    Some(Verdict::Handled(-EINVAL))
}

/// In the parent, with the answer of its call.
pub fn after_child(birth: &Birth, result: isize) {
    let Some(p) = process() else { return };
    match (birth.memory, SlotId::from_bits(birth.slot)) {
        (Memory::Own, Some(slot)) => p.client.child_made(slot, result),
        (Memory::Shared, Some(slot)) if result > 0 => p.client.child_made(slot, result),
        (Memory::Own, None) => {}
        (Memory::Shared, None) if result > 0 => {}
        _ => gone(p, birth, result),
    }
}

/// A child that shared this memory was not born, or has left it.
fn gone(p: &Process, birth: &Birth, result: isize) {
    match SlotId::from_bits(birth.slot) {
        Some(slot) => p.client.shared_child_gone(slot),
        None => p.client.placeless_child_gone(result.max(0) as u32),
    }
}

/// In a child with a memory of its own. `still`: a copy that was made while `hold_still` held.
pub fn after_fork_child(slot: u64, new_user: bool, still: bool) {
    mapping::forked(still);
    let Some(p) = process() else { return };
    p.set_pid(sys::getpid());
    if new_user {
        p.look_at_namespace();
    }
    // Without a slot the child has no place in the session: see `lost`.
    if p.client.fork_child(SlotId::from_bits(slot)).is_ok() {
        maps::inherit_all(p);
    }
}

/// In a child that runs in its parent's memory.
pub fn in_shared_child(slot: u64) {
    let Some(p) = process() else { return };
    if let Err(Error::Exists) = p.client.shared_child(SlotId::from_bits(slot)) {
        p.client.refuse(UNKNOWN_CALL, Why::OwnDescriptors as u32);
        end_unborn();
    }
}

/// The child cannot be told from another process in this memory: it ends before it begins.
fn end_unborn() -> ! {
    const STATUS: usize = 127;
    loop {
        // SAFETY: ends the process.
        unsafe { sys::raw(nr::EXIT_GROUP, [STATUS, 0, 0, 0, 0, 0]) };
    }
}

fn is_alone() -> bool {
    if !has_threads() {
        return true;
    }
    mapping::stand_alone();
    live::is_single_threaded()
}

/// exit_group(2): descriptors, locks and mappings go before the kernel ends the process.
pub fn exit_group(p: &Process, _: &[usize; 6]) -> Outcome {
    leave(p, is_alone());
    Err(Stop::Left)
}

/// exit(2): the same if this is the last thread.
pub fn exit(p: &Process, _: &[usize; 6]) -> Outcome {
    if !is_alone() {
        return Err(Stop::Native);
    }
    mapping::stand_alone();
    leave(p, true);
    Err(Stop::Left)
}

fn leave(p: &Process, alone: bool) {
    mapping::ending();
    p.client.count_passed();
    match (alone, is_shared()) {
        (true, false) => maps::leave_all(p),
        // Others may go on storing.
        _ => maps::touch_all(p),
    }
    p.client.exit(alone);
}

const CLONE_FS: usize = 0x200;
const CLONE_FILES: usize = 0x400;
const CLONE_NEWNS: usize = 0x2_0000;
const CLONE_NEWUSER: usize = 0x1000_0000;

/// unshare(flags)
pub fn unshare(p: &Process, a: &[usize; 6]) -> Outcome {
    mapping::stand_alone();
    let files = a[0] & CLONE_FILES != 0;
    if a[0] & CLONE_NEWUSER != 0 {
        p.know_credentials();
    }
    let directory = a[0] & (CLONE_FS | CLONE_NEWNS | CLONE_NEWUSER) != 0;
    let parted = match files || directory {
        true => part(p, nr::UNSHARE, a, files, directory),
        false => Err(Stop::Native),
    };
    match parted {
        Err(Stop::Native) if a[0] & CLONE_NEWUSER != 0 => enter_namespace(p, nr::UNSHARE, a),
        Ok(0) if a[0] & CLONE_NEWUSER != 0 => {
            entered_namespace(p);
            Ok(0)
        }
        parted => parted,
    }
}

/// setns(fd, nstype)
pub fn setns(p: &Process, a: &[usize; 6]) -> Outcome {
    mapping::stand_alone();
    enter_namespace(p, nr::SETNS, a)
}

/// Makes a call that may leave the caller in another user namespace.
fn enter_namespace(p: &Process, nr: usize, a: &[usize; 6]) -> Outcome {
    p.know_credentials();
    // SAFETY: the program's own call; it touches no memory.
    let ret = unsafe { sys::raw(nr, *a) };
    if ret == 0 {
        entered_namespace(p);
    }
    Ok(ret)
}

fn entered_namespace(p: &Process) {
    if p.client.has_place() {
        p.client.note_ids_of_namespace();
    }
    p.look_at_namespace();
}

/// Makes a call that gives the caller descriptors or a working directory of its own.
pub fn part(p: &Process, nr: usize, a: &[usize; 6], files: bool, directory: bool) -> Outcome {
    mapping::stand_alone();
    if !is_alone() {
        return match files {
            true => Err(Stop::Refused(EINVAL as i32, Why::OwnDescriptors)),
            false => Err(Stop::Native),
        };
    }
    let Some(next) = p.client.part_prepare(files, directory)? else {
        return Err(Stop::Native);
    };
    // SAFETY: the program's own call; it touches no memory.
    let ret = unsafe { sys::raw(nr, *a) };
    p.client.parted(next, ret)?;
    Ok(ret)
}
