//! Waiting on a word of shared memory.
//!
//! What always holds here:
//! - A waiter is inside [`interruptible_range`] exactly while a signal may interrupt it: from
//!   the entry of the wait to the return of its system call.
//! - Waits end by themselves when given a time; nothing here assumes that a waker lives.

use core::arch::global_asm;
use core::ops::Range;
use core::sync::atomic::AtomicU32;
use core::time::Duration;
use rustix::thread::futex::Flags;

/// Why a wait ended. The word must be looked at again in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitResult {
    /// Somebody called [`wake`], or the kernel woke us for no reason.
    Woken,
    /// The word did not hold the expected value.
    Changed,
    /// A signal handler ran.
    Interrupted,
    /// The time passed.
    TimedOut,
}

#[repr(C)]
struct Timespec {
    sec: i64,
    nsec: i64,
}

global_asm!(
    r#"
    .pushsection .text.holdfast_futex,"ax",@progbits
    .p2align 4
    .globl holdfast_futex_wait
    .hidden holdfast_futex_wait
    .type holdfast_futex_wait,@function
// holdfast_futex_wait(word rdi, expected esi, timeout rdx) -> rax
holdfast_futex_wait:
    mov r10, rdx
    mov edx, esi
    xor esi, esi
    xor r8d, r8d
    xor r9d, r9d
    mov eax, 202
    .globl holdfast_futex_syscall
    .hidden holdfast_futex_syscall
holdfast_futex_syscall:
    syscall
    .globl holdfast_futex_done
    .hidden holdfast_futex_done
holdfast_futex_done:
    ret
    .globl holdfast_futex_interrupted
    .hidden holdfast_futex_interrupted
holdfast_futex_interrupted:
    mov rax, -4
    ret
    .popsection
"#
);

unsafe extern "sysv64" {
    fn holdfast_futex_wait(word: *const u32, expected: u32, timeout: *const Timespec) -> isize;
}

unsafe extern "C" {
    static holdfast_futex_syscall: u8;
    static holdfast_futex_done: u8;
    static holdfast_futex_interrupted: u8;
}

/// Sleeps while `word` holds `expected`, until [`wake`], a signal, or the timeout.
#[inline(never)]
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> WaitResult {
    let time = timeout.map(|d| Timespec {
        sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
        nsec: i64::from(d.subsec_nanos()),
    });
    let time = time.as_ref().map_or(core::ptr::null(), |t| &raw const *t);
    // SAFETY: FUTEX_WAIT (shared) reads the word, which is alive and aligned while borrowed, and
    // the timespec on our stack; the routine clobbers only what its calling convention allows.
    let ret = unsafe { holdfast_futex_wait(word.as_ptr(), expected, time) };
    match -ret {
        0 => WaitResult::Woken,
        4 => WaitResult::Interrupted,
        110 => WaitResult::TimedOut,
        _ => WaitResult::Changed,
    }
}

/// Wakes up to `n` waiters of any process; returns how many.
pub fn wake(word: &AtomicU32, n: u32) -> usize {
    rustix::thread::futex::wake(word, Flags::empty(), n).unwrap_or(0)
}

/// Instruction pointers at which a thread is about to wait, waits, or has just returned from
/// the wait's system call. A signal that finds the thread here interrupted exactly this wait.
pub fn interruptible_range() -> Range<usize> {
    let done = (&raw const holdfast_futex_done) as usize;
    holdfast_futex_wait as *const () as usize..done + 1
}

/// For a thread that a signal found at `ip` before or at the system call (the kernel backs up
/// to it to restart it): where to resume so that the wait ends as [`WaitResult::Interrupted`].
/// `None` when `ip` is elsewhere, or the call has already returned.
pub fn interrupt(ip: usize) -> Option<usize> {
    let syscall = (&raw const holdfast_futex_syscall) as usize;
    let start = holdfast_futex_wait as *const () as usize;
    let landing = (&raw const holdfast_futex_interrupted) as usize;
    (start..=syscall).contains(&ip).then_some(landing)
}
