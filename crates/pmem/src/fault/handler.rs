//! Handlers for processes that have no other way to route faults: our own commands, the service,
//! and programs that use the library. That of SIGBUS is for what the host cannot provide, that of
//! SIGSEGV for stray stores into what is protected.
//!
//! What always holds here:
//! - Each is installed once per process. A fault outside our copies goes to the previous handler,
//!   with the arguments that the kernel gave, or has the effect that it would have had without us.
//! - It takes no lock, allocates nothing and touches no thread-local storage.

use super::{landing_for, stray};
use crate::sigaction::{Action, SA_RESTORER, sigaction};
use crate::sys;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};

const SIGBUS: i32 = 7;
const SIGSEGV: i32 = 11;
const SYS_WRITE: usize = 1;
const SYS_GETPID: usize = 39;
const SYS_GETTID: usize = 186;
const SYS_TGKILL: usize = 234;
const SYS_EXIT_GROUP: usize = 231;

const SA_SIGINFO: u64 = 4;
const SA_ONSTACK: u64 = 0x0800_0000;
const DEFAULT: usize = Action::DEFAULT;
const IGNORE: usize = 1;

/// Where `struct ucontext` has the instruction pointer: flags, link and stack, then 16 registers.
const RIP_AT: usize = 40 + 16 * 8;
/// Where `siginfo_t` says who sent the signal: above 0, the kernel because of a fault.
const CODE_AT: usize = 8;
/// And where, if it was one.
const ADDRESS_AT: usize = 16;
/// Where `struct ucontext` has the error code of the fault: three words behind the pointer.
const ERROR_AT: usize = RIP_AT + 3 * 8;
/// In the error code: it was a store.
const STORE: usize = 2;

type Handler = extern "C" fn(i32, *mut u8, *mut u8);

/// The handler of one signal.
struct Handled {
    signal: i32,
    /// 0: not installed; 1: installed, or about to be.
    state: AtomicUsize,
    /// What was there before.
    old: AtomicUsize,
}

static BUS: Handled = Handled::new(SIGBUS);
static SEGV: Handled = Handled::new(SIGSEGV);
/// What is said before the process ends because of a fault that is not in a copy.
static LAST_WORDS: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static LAST_WORDS_LEN: AtomicUsize = AtomicUsize::new(0);

/// From now on a copy that meets pool memory which the host cannot provide ends with a short
/// count. Does nothing when called again. False when the kernel refused.
pub fn install() -> bool {
    BUS.install(on_fault)
}

/// From now on a stray store into a protected region is reported before it has the effect that it
/// would have had without us. Does nothing when called again. False when the kernel refused.
pub fn report_strays() -> bool {
    SEGV.install(on_stray)
}

impl Handled {
    const fn new(signal: i32) -> Handled {
        Handled {
            signal,
            state: AtomicUsize::new(0),
            old: AtomicUsize::new(DEFAULT),
        }
    }

    fn install(&self, handler: Handler) -> bool {
        if self.state.compare_exchange(0, 1, AcqRel, Acquire).is_err() {
            return true;
        }
        let mut old = Action::default_action();
        let asked = sigaction(self.signal, None, Some(&mut old));
        self.old.store(old.handler, Relaxed);
        let new = Action {
            handler: handler as usize,
            // What was there before runs with the stack and the mask that it asked for.
            flags: old.flags | SA_SIGINFO | SA_RESTORER | SA_ONSTACK,
            mask: old.mask,
            ..Action::default_action()
        };
        let done = asked && sigaction(self.signal, Some(&new), None);
        self.state.store(done.into(), Release);
        done
    }

    /// What was there before has its turn.
    fn pass_on(&self, code: i32, info: *mut u8, context: *mut u8) {
        match self.old.load(Relaxed) {
            IGNORE if code <= 0 => {}
            DEFAULT | IGNORE => {
                // A fault happens again at once, and ends the process as it would have without us.
                sigaction(self.signal, Some(&Action::default_action()), None);
                if code <= 0 {
                    let [pid, thread] =
                        [SYS_GETPID, SYS_GETTID].map(|n| syscall(n, [0; 4]) as usize);
                    syscall(SYS_TGKILL, [pid, thread, self.signal as usize, 0]);
                }
            }
            old => {
                // SAFETY: the address was a handler of this signal until ours took its place, and
                // the program that set it expects to be called so; one that was set without
                // SA_SIGINFO ignores what it does not ask for.
                let old = unsafe { core::ptr::from_ref(&old).cast::<Handler>().read() };
                old(self.signal, info, context);
            }
        }
    }
}

/// As `install`, for a process of our own: a fault elsewhere ends it with `words` on standard
/// error and exit status 1.
pub fn install_with(words: &'static str) -> bool {
    LAST_WORDS.store(words.as_ptr().cast_mut(), Relaxed);
    LAST_WORDS_LEN.store(words.len(), Release);
    install()
}

extern "C" fn on_fault(_signal: i32, info: *mut u8, context: *mut u8) {
    // SAFETY: the kernel passes a siginfo and a ucontext to a handler set with SA_SIGINFO.
    let (code, rip) = unsafe {
        (
            info.add(CODE_AT).cast::<i32>().read(),
            &mut *context.add(RIP_AT).cast::<usize>(),
        )
    };
    if code > 0 {
        if let Some(landing) = landing_for(*rip) {
            *rip = landing;
            return;
        }
        let (words, len) = (LAST_WORDS.load(Relaxed), LAST_WORDS_LEN.load(Acquire));
        if len > 0 {
            syscall(SYS_WRITE, [2, words as usize, len, 0]);
            syscall(SYS_EXIT_GROUP, [1, 0, 0, 0]);
        }
    }
    BUS.pass_on(code, info, context);
}

extern "C" fn on_stray(_signal: i32, info: *mut u8, context: *mut u8) {
    // SAFETY: as in `on_fault`.
    let (code, address, rip, error) = unsafe {
        (
            info.add(CODE_AT).cast::<i32>().read(),
            info.add(ADDRESS_AT).cast::<usize>().read(),
            context.add(RIP_AT).cast::<usize>().read(),
            context.add(ERROR_AT).cast::<usize>().read(),
        )
    };
    if code > 0
        && error & STORE != 0
        && let Some(found) = stray::find(address)
    {
        found.count();
        let report = stray::Report::new(found.off, address, rip);
        let text = report.text();
        syscall(SYS_WRITE, [2, text.as_ptr() as usize, text.len(), 0]);
    }
    SEGV.pass_on(code, info, context);
}

fn syscall(number: usize, arguments: [usize; 4]) -> isize {
    // SAFETY: only called above, with numbers and with addresses of values that live until it
    // returns; none of these calls changes other memory of this process.
    unsafe { sys::syscall(number, arguments) }
}
