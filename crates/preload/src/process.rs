//! Which process runs here: the owner of this memory, or a child that still runs in it.
//!
//! Invariants: `PID` belongs to the process that owns this memory; only fork (which copies it) and
//! start-up change it. While a child that shares the memory may run, `SHARED` is not zero, and only
//! then is the kernel asked. What kind of child a call makes is decided once, before the call is
//! made.
use crate::births::{self, Birth, Memory};
use crate::dispatch;
use crate::hook::{Call, Verdict};
use crate::patch;
use crate::signals;
use crate::sys::{self, nr};
use crate::user::{self, Plain};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static PID: AtomicU32 = AtomicU32::new(0);
static SHARED: AtomicU32 = AtomicU32::new(0);
/// Whether a thread was ever made in this memory.
static THREADS: AtomicBool = AtomicBool::new(false);

const CLONE_VM: u64 = 0x100;
const CLONE_FS: u64 = 0x200;
const CLONE_FILES: u64 = 0x400;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_THREAD: u64 = 0x1_0000;
const CLONE_NEWUSER: u64 = 0x1000_0000;
/// The last byte of the flags of clone(2) is the signal.
const SIGNAL: u64 = 0xff;

pub fn init() {
    PID.store(sys::getpid(), Ordering::Relaxed);
}

/// The process that owns this memory.
pub fn pid() -> u32 {
    PID.load(Ordering::Relaxed)
}

/// Whether the caller is a child that runs in its parent's memory: tables kept in memory are the
/// parent's, descriptors and signal actions its own.
pub fn in_shared_child() -> bool {
    is_shared() && sys::getpid() != pid()
}

/// Whether another process may run in this memory.
pub fn is_shared() -> bool {
    SHARED.load(Ordering::Acquire) != 0
}

/// Whether the process may have more threads than the caller.
pub fn has_threads() -> bool {
    THREADS.load(Ordering::Relaxed)
}

/// What a call to clone, clone3, fork or vfork makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split {
    /// `whole`: descriptors and working directory are those of the process.
    Thread {
        whole: bool,
    },
    Child(Child),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Child {
    pub memory: Memory,
    pub shares_files: bool,
    pub shares_directory: bool,
    pub new_user: bool,
    /// Where its stack pointer is when it begins; `None`: where its parent's is.
    pub stack: Option<usize>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
}
// SAFETY: integers only.
unsafe impl Plain for CloneArgs {}

impl Split {
    pub fn of(call: &Call) -> Option<Split> {
        let (flags, stack) = match call.nr {
            nr::FORK => (0, 0),
            nr::VFORK => (CLONE_VM | CLONE_VFORK, 0),
            nr::CLONE => (call.args[0] as u64 & !SIGNAL, call.args[1] as u64),
            nr::CLONE3 => {
                let args = user::read::<CloneArgs>(call.args[0])?;
                let end = args.stack.wrapping_add(args.stack_size);
                (args.flags, if args.stack == 0 { 0 } else { end })
            }
            _ => return None,
        };
        let has = |flag| flags & flag != 0;
        let (shares_files, shares_directory) = (has(CLONE_FILES), has(CLONE_FS));
        if has(CLONE_THREAD) {
            let whole = shares_files && shares_directory;
            return Some(Split::Thread { whole });
        }
        let memory = match (has(CLONE_VM), has(CLONE_VFORK)) {
            (false, _) => Memory::Own,
            (true, false) => Memory::Shared,
            (true, true) => Memory::Borrowed,
        };
        Some(Split::Child(Child {
            memory,
            shares_files,
            shares_directory,
            new_user: has(CLONE_NEWUSER),
            stack: (stack != 0).then_some(stack as usize),
        }))
    }
}

/// Makes the child. One with a copy of the memory and of the stack is made here, in both
/// processes at once; everything else is left to the trampoline, because it may return on another
/// stack. `stack` is the caller's stack pointer.
pub fn split(call: &Call, stack: usize) -> Verdict {
    let child = match Split::of(call) {
        Some(Split::Child(child)) => child,
        Some(Split::Thread { whole: false }) => {
            return dispatch::refuse_half_thread(call).unwrap_or(Verdict::Native);
        }
        Some(Split::Thread { .. }) => {
            THREADS.store(true, Ordering::Relaxed);
            return Verdict::Native;
        }
        None => return Verdict::Native,
    };
    let slot = match dispatch::before_child(call, &child) {
        Ok(slot) => slot,
        Err(verdict) => return verdict,
    };
    let memory = child.memory;
    if memory != Memory::Own {
        SHARED.fetch_add(1, Ordering::AcqRel);
    }
    let birth = Birth {
        memory,
        slot,
        new_user: child.new_user,
    };
    if !births::expect(sys::gettid(), child.stack.unwrap_or(stack), birth) {
        made(&birth, -EAGAIN);
        return Verdict::Handled(-EAGAIN);
    }
    match (memory, child.stack) {
        (Memory::Own, None) => Verdict::Handled(fork(call, &birth)),
        _ => Verdict::NativeThen,
    }
}

const EAGAIN: isize = 11;

fn fork(call: &Call, birth: &Birth) -> isize {
    let parent = sys::gettid();
    let still = dispatch::hold_still();
    // SAFETY: the child gets a copy of this stack and returns from here as the parent does.
    let ret = unsafe { sys::raw(call.nr, call.args) };
    drop(still);
    match ret {
        0 => forked(birth.slot, birth.new_user, Some(parent)),
        _ => after_call(ret),
    }
    ret
}

/// In a child with a memory of its own. `parent`: the thread that forked, where it is known.
fn forked(slot: u64, new_user: bool, parent: Option<u32>) {
    init();
    births::forked();
    SHARED.store(0, Ordering::Release);
    THREADS.store(false, Ordering::Relaxed);
    signals::forked(parent);
    patch::forked();
    dispatch::after_fork_child(slot, new_user, parent.is_some());
}

/// In the parent.
fn after_call(result: isize) {
    if let Some(birth) = births::made(sys::gettid(), result) {
        made(&birth, result);
    }
}

fn made(birth: &Birth, result: isize) {
    // A child that outlives the call may go on sharing: ask the kernel from now on.
    let left = birth.memory == Memory::Borrowed || result < 0;
    if birth.memory != Memory::Own && left {
        SHARED.fetch_sub(1, Ordering::AcqRel);
    }
    dispatch::after_child(birth, result);
}

/// After a call that was answered `NativeThen`; runs in parent and child.
pub fn after_split(result: isize, stack: usize) {
    if result != 0 {
        return after_call(result);
    }
    match births::born(stack) {
        Some(Birth {
            memory: Memory::Own,
            slot,
            new_user,
        }) => forked(slot, new_user, None),
        Some(birth) => dispatch::in_shared_child(birth.slot),
        // Made behind our back: it has no place of its own, and gets none of somebody else's.
        None if is_shared() => dispatch::in_shared_child(0),
        None => forked(0, false, None),
    }
}
