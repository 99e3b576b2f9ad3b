//! Waiting on a word of shared memory.
//!
//! What always holds here:
//! - In [`wait`] no signal handler of the program runs because of us. [`wait_interruptible`] is for
//!   callers that hold no lock: a waiter is inside [`interruptible_range`] exactly while a signal
//!   may interrupt it, from the look at [`note_put_off`]'s count to the return of its system call.
//!   So no signal falls between the look and the wait.
//! - Waits with a timeout end by themselves; nothing here assumes that a waker lives.

use crate::atomic::AtomicU32;
use core::arch::global_asm;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, Ordering};
use core::time::Duration;
#[cfg(not(feature = "model"))]
use rustix::io::Errno;
#[cfg(not(feature = "model"))]
use rustix::thread::futex::{self, Flags};

/// Why a wait ended. The word must be looked at again in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitResult {
    /// Somebody called [`wake`], or the kernel woke us for no reason.
    Woken,
    /// The word did not hold the expected value.
    Changed,
    /// A signal handler ran, or waits for the caller to return.
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
// holdfast_futex_wait(word rdi, expected esi, timeout rdx, count rcx, seen r8d) -> rax
holdfast_futex_wait:
    cmp dword ptr [rcx], r8d
    jne holdfast_futex_again
    mov r10, rdx
    mov edx, esi
    xor esi, esi
    xor r8d, r8d
    xor r9d, r9d
    mov eax, 202
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
    .globl holdfast_futex_again
    .hidden holdfast_futex_again
holdfast_futex_again:
    xor eax, eax
    ret
    .popsection
"#
);

unsafe extern "sysv64" {
    fn holdfast_futex_wait(
        word: *const u32,
        expected: u32,
        timeout: *const Timespec,
        count: *const u32,
        seen: u32,
    ) -> isize;
}

unsafe extern "C" {
    static holdfast_futex_done: u8;
    static holdfast_futex_interrupted: u8;
    static holdfast_futex_again: u8;
}

/// Counts signals that were put off until their thread is done here, in all threads.
static PUT_OFF: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);
/// Tells whether the calling thread must end its wait.
static MUST_END: AtomicPtr<fn() -> bool> = AtomicPtr::new(core::ptr::null_mut());

/// A signal was put off; [`set_must_end`]'s function knows it already.
pub fn note_put_off() {
    PUT_OFF.fetch_add(1, Ordering::Release);
}

/// `f` tells whether a signal was put off for the calling thread that must end its wait.
pub fn set_must_end(f: &'static fn() -> bool) {
    MUST_END.store(core::ptr::from_ref(f).cast_mut(), Ordering::Release);
}

/// The count of signals that were put off, for waits of others that begin like ours.
pub fn put_off() -> &'static core::sync::atomic::AtomicU32 {
    &PUT_OFF
}

/// Whether a signal was put off for the calling thread that must end its wait. Others that were
/// put off for it are handled now.
#[cfg(not(feature = "model"))]
pub fn must_end() -> bool {
    // SAFETY: null, or what `set_must_end` was given, which lives for ever and is only read.
    unsafe { MUST_END.load(Ordering::Acquire).as_ref() }.is_some_and(|f| f())
}

/// As without a scheduler, in virtual time.
#[cfg(feature = "model")]
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> WaitResult {
    crate::model::wait(word, expected, timeout)
}

/// Sleeps while `word` holds `expected`, until [`wake`] or the timeout; a signal may wake it too.
#[cfg(not(feature = "model"))]
#[inline(never)]
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> WaitResult {
    let time = timeout.map(|d| futex::Timespec {
        tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(d.subsec_nanos()),
    });
    match futex::wait(word, Flags::empty(), expected, time.as_ref()) {
        Ok(()) => WaitResult::Woken,
        Err(Errno::INTR) => WaitResult::Interrupted,
        Err(Errno::TIMEDOUT) => WaitResult::TimedOut,
        Err(_) => WaitResult::Changed,
    }
}

/// As [`wait`]: no signal comes.
#[cfg(feature = "model")]
pub fn wait_interruptible(
    word: &AtomicU32,
    expected: u32,
    timeout: Option<Duration>,
) -> WaitResult {
    wait(word, expected, timeout)
}

/// Waits in which handlers may run just now, and those that one left by longjmp(3).
#[cfg(not(feature = "model"))]
static WAITS: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// Makes a wait in which handlers of the program may run.
#[cfg(not(feature = "model"))]
pub fn while_waiting<T>(wait: impl FnOnce() -> T) -> T {
    WAITS.fetch_add(1, Ordering::Relaxed);
    let result = wait();
    WAITS.fetch_sub(1, Ordering::Relaxed);
    result
}

/// Whether whoever asks may be a handler that interrupted a wait, which goes on afterwards.
#[cfg(not(feature = "model"))]
pub fn is_within_wait() -> bool {
    WAITS.load(Ordering::Relaxed) != 0
}

/// As [`wait`], until a signal too: its handler runs in the wait, so the caller holds no lock.
#[cfg(not(feature = "model"))]
pub fn wait_interruptible(
    word: &AtomicU32,
    expected: u32,
    timeout: Option<Duration>,
) -> WaitResult {
    while_waiting(|| until_signal(word, expected, timeout))
}

#[cfg(not(feature = "model"))]
#[inline(never)]
fn until_signal(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> WaitResult {
    let time = timeout.map(|d| Timespec {
        sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
        nsec: i64::from(d.subsec_nanos()),
    });
    let time = time.as_ref().map_or(core::ptr::null(), |t| &raw const *t);
    let seen = PUT_OFF.load(Ordering::Acquire);
    if must_end() {
        return WaitResult::Interrupted;
    }
    let count = PUT_OFF.as_ptr();
    // SAFETY: FUTEX_WAIT (shared) reads the word, which is alive and aligned while borrowed, and
    // the timespec on our stack; the routine clobbers only what its calling convention allows.
    let ret = unsafe { holdfast_futex_wait(word.as_ptr(), expected, time, count, seen) };
    match -ret {
        0 => WaitResult::Woken,
        4 => WaitResult::Interrupted,
        110 => WaitResult::TimedOut,
        _ => WaitResult::Changed,
    }
}

/// As without a scheduler; how many it wakes is not limited.
#[cfg(feature = "model")]
pub fn wake(word: &AtomicU32, _: u32) -> usize {
    crate::model::wake(word)
}

/// Wakes up to `n` waiters of any process; returns how many.
#[cfg(not(feature = "model"))]
pub fn wake(word: &AtomicU32, n: u32) -> usize {
    futex::wake(word, Flags::empty(), n).unwrap_or(0)
}

/// Instruction pointers at which a thread is about to wait, waits, or has just returned from
/// the wait's system call. A signal that finds the thread here interrupted exactly this wait.
pub fn interruptible_range() -> Range<usize> {
    let done = (&raw const holdfast_futex_done) as usize;
    holdfast_futex_wait as *const () as usize..done + 1
}

/// For a thread that a signal found at `ip`: where to resume so that the wait ends as
/// [`WaitResult::Interrupted`], also where the call returns at that very moment: a wait whose time
/// has passed when the signal is delivered would begin anew. `None` when `ip` is elsewhere.
pub fn interrupt(ip: usize) -> Option<usize> {
    let landing = (&raw const holdfast_futex_interrupted) as usize;
    interruptible_range().contains(&ip).then_some(landing)
}

/// The same for a signal that restarts what it interrupts: the wait ends as
/// [`WaitResult::Woken`], wherever in the range it was.
pub fn restart(ip: usize) -> Option<usize> {
    let landing = (&raw const holdfast_futex_again) as usize;
    interruptible_range().contains(&ip).then_some(landing)
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
                wait_interruptible(&word, 0, timeout)
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

    #[test]
    fn no_signal_is_lost_that_comes_as_the_time_passes() {
        let _serial = SERIAL.lock();
        // SAFETY: as in `interrupted_with`.
        unsafe {
            let mut sa: libc::sigaction = std::mem::zeroed();
            sa.sa_sigaction = on_signal as *const () as usize;
            sa.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &sa, std::ptr::null_mut()), 0);
        }
        let before = SEEN_INSIDE.load(SeqCst);
        let (word, done, tid) = (
            AtomicU32::new(0),
            AtomicBool::new(false),
            AtomicUsize::new(0),
        );
        let interrupted = std::thread::scope(|s| {
            let waiter = s.spawn(|| {
                // SAFETY: pthread_self has no preconditions.
                tid.store(unsafe { libc::pthread_self() } as usize, SeqCst);
                let mut interrupted = 0;
                while !done.load(SeqCst) {
                    let ended = wait_interruptible(&word, 0, Some(Duration::from_micros(1)));
                    interrupted += usize::from(ended == WaitResult::Interrupted);
                }
                interrupted
            });
            while tid.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            for _ in 0..20_000 {
                HANDLED.store(false, SeqCst);
                // SAFETY: the thread is joined below, so its handle is alive.
                unsafe { libc::pthread_kill(tid.load(SeqCst) as libc::pthread_t, libc::SIGUSR1) };
                while !HANDLED.load(SeqCst) {
                    std::thread::yield_now();
                }
            }
            done.store(true, SeqCst);
            waiter.join().unwrap()
        });
        assert_eq!(interrupted, SEEN_INSIDE.load(SeqCst) - before);
    }

    #[test]
    fn a_signal_that_was_put_off_keeps_the_wait_from_beginning() {
        let _serial = SERIAL.lock();
        let (word, long) = (AtomicU32::new(0), Some(Duration::from_secs(5)));
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        fn second_time() -> bool {
            // It arrives between the look and the wait: the next look finds it.
            note_put_off();
            CALLS.fetch_add(1, SeqCst) > 0
        }
        set_must_end(&(second_time as fn() -> bool));
        let start = Instant::now();
        assert_eq!(wait_interruptible(&word, 0, long), WaitResult::Woken);
        assert_eq!(wait_interruptible(&word, 0, long), WaitResult::Interrupted);
        assert!(start.elapsed() < Duration::from_secs(4));
        set_must_end(&((|| false) as fn() -> bool));
    }
}
