//! What is done with the system calls that were caught. This is the face towards the client.
//!
//! Contract with the rest of the library, for every function here:
//! * It runs on the program's own stack (perhaps a small signal stack): keep frames small.
//! * Signals of the program are held back until the hook leaves, so locks may be held. Only
//!   `holdfast_pmem::futex::wait` lets a handler run; it then reports `Interrupted`. Before such
//!   a wait look at [`crate::signals::is_held`]: a signal that came earlier in this call waits.
//! * Never make a blocking raw call here: answer [`Verdict::Native`] instead.
//! * `sys::raw` reaches the kernel directly; it is never caught again.
//! * The program's memory is read and written only by `user::read`/`user::write` and by the
//!   copies of pmem, which end with a fault reported and not with a signal.
//! * A call on a descriptor arrives only if [`crate::calls::mark_fd`] was called for it (class
//!   `BY_FD` in `calls`); calls of class `ALWAYS` always arrive. After a fork marks are as they
//!   were; after exec they are all clear.
//! * In a child that shares its parent's memory ([`crate::process::in_shared_child`]) nothing
//!   that the parent relies on may be changed; marks may be set but not cleared.
//!
//! What is here now serves no pool: it passes everything on, counts, and under
//! `HOLDFAST_SESSION=selftest` or `selftest-serve` exercises both ways through the hook.
use crate::calls;
use crate::env::Env;
use crate::hook::{Call, ENTERED, HANDLED, Verdict};
use crate::sys::{self, Fd, nr};
use core::sync::atomic::{AtomicU8, Ordering};

const OFF: u8 = 0;
/// Every call of interest enters the hook and is passed on.
const PASS: u8 = 1;
/// Those that cannot block are made from within the hook.
const SERVE: u8 = 2;
static SELFTEST: AtomicU8 = AtomicU8::new(OFF);

/// Once, before any site is patched. False: leave this process alone.
pub fn start(env: &Env) -> bool {
    let mode = match env.get(b"HOLDFAST_SESSION") {
        Some(b"selftest") => PASS,
        Some(b"selftest-serve") => SERVE,
        _ => OFF,
    };
    SELFTEST.store(mode, Ordering::Relaxed);
    if mode != OFF {
        (0..1024).for_each(calls::mark_fd);
    }
    true
}

/// One caught call. `Handled(n)` is what the program gets in rax; `Native` lets the kernel do it.
/// rt_sigaction, fork, vfork, clone and clone3 never come here.
pub fn handle(call: &Call) -> Verdict {
    let mode = SELFTEST.load(Ordering::Relaxed);
    if mode == OFF {
        return Verdict::Native;
    }
    if matches!(call.nr, nr::EXIT_GROUP | nr::EXECVE) {
        report();
    }
    match mode == SERVE && never_blocks(call.nr) {
        // SAFETY: the program's own call, with its arguments, made on its behalf.
        true => Verdict::Handled(unsafe { sys::raw(call.nr, call.args) }),
        false => Verdict::Native,
    }
}

/// stat, fstat, lseek, close, access, getcwd, chdir, readlink, newfstatat, unlink, getdents64
fn never_blocks(number: usize) -> bool {
    matches!(number, 3..=6 | 8 | 21 | 59 | 72 | 79..=84 | 87 | 89 | 90 | 95 | 217 | 262 | 267 | 269)
}

/// A fault at `addr` outside of the copies that survive one: true when it was mended (a page
/// was filled or mapped) and the access can be repeated. Runs in a signal handler.
pub fn on_fault(_addr: usize) -> bool {
    false
}

/// Before the process is copied: take what must not be held by another thread at that moment.
pub fn before_fork() {}

/// In the parent; `result` is the child's id or a negated errno.
pub fn after_fork_parent(_result: isize) {}

/// In the child, which has only this thread.
pub fn after_fork_child() {}

/// Before vfork or a clone that shares memory but is a process of its own.
pub fn before_shared_child() {}

/// In such a child, right after its birth.
pub fn in_shared_child() {}

/// In its parent: after exec or exit of the child for vfork, else at once.
pub fn after_shared_child(_result: isize) {}

/// An object has `sites` calls of interest that could not be patched: they run natively.
pub fn on_unpatchable(_sites: u32) {}

/// The self-test's account: one line per program image.
fn report() -> Option<()> {
    let fd = Fd::open(b"/dev/shm/holdfast-selftest\0", sys::O_WRONLY | 0o2000, 0)?;
    let mut line = [b' '; 32];
    let entered = ENTERED.load(Ordering::Relaxed);
    let handled = HANDLED.load(Ordering::Relaxed);
    decimal(&mut line[..15], entered);
    decimal(&mut line[16..31], handled);
    line[31] = b'\n';
    fd.write_all(&line)
}

fn decimal(out: &mut [u8], mut value: u64) {
    for digit in out.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}
