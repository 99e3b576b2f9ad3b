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

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::SeqCst;
    use core::sync::atomic::{AtomicBool, AtomicUsize};
    use std::sync::Mutex;
    use std::time::Instant;

    #[test]
    fn waits_end_by_value_time_and_wake() {
        let word = AtomicU32::new(1);
        assert_eq!(wait(&word, 0, None), WaitResult::Changed);
        let start = Instant::now();
        let time = Some(Duration::from_millis(20));
        assert_eq!(wait(&word, 1, time), WaitResult::TimedOut);
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert_eq!(wake(&word, 1), 0);
        std::thread::scope(|s| {
            let waiter = s.spawn(|| {
                while word.load(SeqCst) == 1 {
                    wait(&word, 1, Some(Duration::from_secs(5)));
                }
            });
            std::thread::sleep(Duration::from_millis(10));
            word.store(2, SeqCst);
            wake(&word, u32::MAX);
            waiter.join().unwrap();
        });
        assert!(start.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_wake_crosses_mappings() {
        use crate::SharedMem;
        use rustix::fd::AsFd;
        let (fd, a) = SharedMem::create_memfd("futex", 4096).unwrap();
        let b = SharedMem::map(fd.as_fd(), 4096).unwrap();
        let (a, b) = (
            a.at::<AtomicU32>(64).unwrap(),
            b.at::<AtomicU32>(64).unwrap(),
        );
        std::thread::scope(|s| {
            let waiter = s.spawn(|| wait(a, 0, Some(Duration::from_secs(5))));
            let start = Instant::now();
            while wake(b, 1) == 0 && start.elapsed() < Duration::from_secs(5) {
                std::thread::yield_now();
            }
            assert_eq!(waiter.join().unwrap(), WaitResult::Woken);
        });
    }

    static SEEN_INSIDE: AtomicUsize = AtomicUsize::new(0);
    static HANDLED: AtomicBool = AtomicBool::new(false);
    static SERIAL: Mutex<()> = Mutex::new(());

    /// What a runtime does on a signal that should end the wait.
    extern "C" fn on_signal(_: i32, _: *mut libc::siginfo_t, ctx: *mut libc::c_void) {
        // SAFETY: the kernel passes a ucontext to a handler set with SA_SIGINFO.
        let regs = unsafe { &mut (*ctx.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let rip = &mut regs[libc::REG_RIP as usize];
        if interruptible_range().contains(&(*rip as usize)) {
            SEEN_INSIDE.fetch_add(1, SeqCst);
        }
        if let Some(ip) = interrupt(*rip as usize) {
            *rip = ip as i64;
        }
        HANDLED.store(true, SeqCst);
    }

    fn interrupted_with(flags: i32, timeout: Option<Duration>) {
        let _serial = SERIAL.lock();
        // SAFETY: a zeroed sigaction with a handler of the SA_SIGINFO kind is valid.
        unsafe {
            let mut sa: libc::sigaction = std::mem::zeroed();
            sa.sa_sigaction = on_signal as *const () as usize;
            sa.sa_flags = libc::SA_SIGINFO | flags;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &sa, std::ptr::null_mut()), 0);
        }
        let before = SEEN_INSIDE.load(SeqCst);
        HANDLED.store(false, SeqCst);
        let word = AtomicU32::new(0);
        let tid = AtomicUsize::new(0);
        std::thread::scope(|s| {
            let waiter = s.spawn(|| {
                // SAFETY: gettid and pthread_self have no preconditions.
                tid.store(unsafe { libc::pthread_self() } as usize, SeqCst);
                wait(&word, 0, timeout)
            });
            while tid.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(30));
            // SAFETY: the thread waits and is joined below, so its handle is alive.
            unsafe { libc::pthread_kill(tid.load(SeqCst) as libc::pthread_t, libc::SIGUSR1) };
            assert_eq!(waiter.join().unwrap(), WaitResult::Interrupted);
        });
        assert!(HANDLED.load(SeqCst));
        assert_eq!(SEEN_INSIDE.load(SeqCst), before + 1);
    }

    #[test]
    fn a_signal_ends_the_wait_whatever_its_flags() {
        interrupted_with(0, None);
        interrupted_with(0, Some(Duration::from_secs(5)));
        // The kernel would restart this one without the landing.
        interrupted_with(libc::SA_RESTART, None);
        interrupted_with(libc::SA_RESTART, Some(Duration::from_secs(5)));
    }
}
