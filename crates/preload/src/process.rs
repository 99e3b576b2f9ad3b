//! Who we are: this process, or a child that still runs in its parent's memory.
//!
//! Invariants: `PID` belongs to the process that owns this memory; only fork (which copies it)
//! and start-up change it. While a child made by vfork, or by clone with CLONE_VM, may run,
//! `SHARED` is not zero, and only then is the kernel asked.
use crate::dispatch;
use crate::hook::{Call, Verdict};
use crate::patch;
use crate::signals;
use crate::sys::{self, nr};
use crate::user::{self, Plain};
use core::sync::atomic::{AtomicU32, Ordering};

static PID: AtomicU32 = AtomicU32::new(0);
static SHARED: AtomicU32 = AtomicU32::new(0);

const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_THREAD: u64 = 0x1_0000;

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
    SHARED.load(Ordering::Acquire) != 0 && sys::getpid() != pid()
}

/// What a call to clone, clone3, fork or vfork makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split {
    Thread,
    /// Shares memory with its parent; `waits`: the parent sleeps until it has gone.
    Shared {
        waits: bool,
    },
    /// A copy, on the same stack.
    Fork,
    /// A copy, on a stack of its own.
    ForkOnStack,
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
}
// SAFETY: integers only.
unsafe impl Plain for CloneArgs {}

impl Split {
    pub fn of(call: &Call) -> Option<Split> {
        let (flags, stack) = match call.nr {
            nr::FORK => return Some(Split::Fork),
            nr::VFORK => return Some(Split::Shared { waits: true }),
            nr::CLONE => (call.args[0] as u64, call.args[1] as u64),
            nr::CLONE3 => {
                let args = user::read::<CloneArgs>(call.args[0])?;
                (args.flags, args.stack)
            }
            _ => return None,
        };
        Some(match (flags & CLONE_VM != 0, flags & CLONE_THREAD != 0) {
            (true, true) => Split::Thread,
            (true, false) => Split::Shared {
                waits: flags & CLONE_VFORK != 0,
            },
            (false, _) if stack == 0 => Split::Fork,
            (false, _) => Split::ForkOnStack,
        })
    }
}

/// Makes the child. A fork happens here, in both processes at once; everything else is left to
/// the trampoline, because it may return on another stack.
pub fn split(call: &Call) -> Verdict {
    match Split::of(call) {
        Some(Split::Fork) => Verdict::Handled(fork(call)),
        Some(Split::Shared { .. }) => {
            SHARED.fetch_add(1, Ordering::AcqRel);
            dispatch::before_shared_child();
            Verdict::NativeThen
        }
        Some(Split::ForkOnStack) => {
            dispatch::before_fork();
            Verdict::NativeThen
        }
        Some(Split::Thread) | None => Verdict::Native,
    }
}

fn fork(call: &Call) -> isize {
    let parent = sys::gettid();
    dispatch::before_fork();
    let still = dispatch::hold_still();
    // SAFETY: the child gets a copy of this stack and returns from here as the parent does.
    let ret = unsafe { sys::raw(call.nr, call.args) };
    drop(still);
    forked(ret, Some(parent));
    ret
}

/// `parent`: the thread that forked, where it is known in the child too.
fn forked(ret: isize, parent: Option<u32>) {
    if ret == 0 {
        init();
        SHARED.store(0, Ordering::Release);
        signals::forked(parent);
        patch::forked();
        dispatch::after_fork_child(parent);
    } else {
        dispatch::after_fork_parent(ret);
    }
}

/// After a call that was answered `NativeThen`; runs in parent and child.
pub fn after_split(call: &Call, result: isize) {
    // The number is known where the site tells it; else the owner of this memory decides.
    let shared = match Split::of(call) {
        Some(Split::Shared { waits }) => Some(waits),
        Some(_) => None,
        None => (SHARED.load(Ordering::Acquire) != 0).then_some(true),
    };
    match (shared, result) {
        (Some(_), 0) => dispatch::in_shared_child(),
        (Some(waits), _) => {
            // One that outlives the call may go on sharing: ask the kernel from now on.
            if waits || result < 0 {
                SHARED.fetch_sub(1, Ordering::AcqRel);
            }
            dispatch::after_shared_child(result);
        }
        (None, _) => forked(result, None),
    }
}
