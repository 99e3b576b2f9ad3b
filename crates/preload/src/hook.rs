//! The path of every caught system call.
//!
//! Invariants: it runs on the program's stack with the program's signals held back; it allocates
//! nothing itself; the trampoline finds in `Regs` where to continue and the value of rax.
use crate::dispatch;
use crate::entry::{FRAME, Regs, SYSCALL_LEN, THEN_BACK};
use crate::patch;
use crate::process;
use crate::signals;
use crate::sys::nr;
use core::sync::atomic::{AtomicU64, Ordering};

/// A caught system call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub nr: usize,
    pub args: [usize; 6],
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Done: the result, or a negated errno.
    Handled(isize),
    /// The kernel does it, with the program's registers and stack untouched.
    Native,
    /// Like `Native`, for calls that make processes: `process::after_split` is told the result.
    NativeThen,
}

/// Calls that entered the hook, and those that were answered here. Not exact under threads.
pub static ENTERED: AtomicU64 = AtomicU64::new(0);
pub static HANDLED: AtomicU64 = AtomicU64::new(0);

fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

fn call_of(regs: &Regs) -> Call {
    let args = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
    Call {
        nr: regs.rax as usize,
        args: args.map(|arg| arg as usize),
    }
}

/// Called by the entry for a call that the trampoline's tests did not pass.
///
/// # Safety
/// `regs` is the frame that the entry has just made on this stack.
pub unsafe extern "C" fn hook(regs: *mut Regs) {
    // SAFETY: the entry pushed the registers on this stack; nothing else refers to them.
    let regs = unsafe { &mut *regs };
    bump(&ENTERED);
    let stack = stack_of(regs);
    match decide(&call_of(regs), stack) {
        Verdict::Handled(result) => {
            bump(&HANDLED);
            regs.rax = result as u64;
            regs.target += SYSCALL_LEN;
        }
        Verdict::Native => {}
        Verdict::NativeThen if patch::reports(regs.target as usize) => regs.target -= THEN_BACK,
        Verdict::NativeThen => {}
    }
}

/// The program's stack pointer.
fn stack_of(regs: &Regs) -> usize {
    core::ptr::from_ref(regs) as usize + FRAME as usize
}

fn decide(call: &Call, stack: usize) -> Verdict {
    match call.nr {
        nr::RT_SIGACTION => return signals::sigaction(call),
        nr::RT_SIGPROCMASK => return signals::sigprocmask(call),
        nr::FORK | nr::VFORK | nr::CLONE | nr::CLONE3 => return process::split(call, stack),
        _ => {}
    }
    match (dispatch::handle(call), call.nr) {
        (Verdict::Native, nr::MMAP) => patch::mmap(call),
        (Verdict::Native, nr::MPROTECT) => patch::mprotect(call),
        (verdict, _) => verdict,
    }
}

/// Called by the entry after a native call that was answered `NativeThen`.
///
/// # Safety
/// As for `hook`.
pub unsafe extern "C" fn post(regs: *mut Regs) {
    // SAFETY: as in `hook`.
    let regs = unsafe { &mut *regs };
    process::after_split(regs.rax as isize, stack_of(regs));
}
