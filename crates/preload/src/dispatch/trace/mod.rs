//! `holdfast run --trace`: caught calls are written down, in the form of strace(1).
//!
//! Invariants: one write(2) per line, to a descriptor that the program does not have, so lines of
//! several threads and processes do not mix; what is written changes nothing that the program can
//! see, also if nobody reads it any more. Without `--trace` a call costs one look at a pointer.

mod line;
mod structs;
mod words;

use super::outcome::Way;
use super::{exec, nr};
use crate::env::Env;
use crate::hook::{Call, Verdict};
use crate::sys;
use alloc::boxed::Box;
use core::ffi::c_char;
use core::sync::atomic::{AtomicPtr, Ordering::*};
use holdfast_client::calls::kind;
use holdfast_client::refusal::sentence;
use holdfast_client::{TraceFilter, TraceSettings};
use line::{Begun, Ended, Line, Nanoseconds};

struct Trace {
    fd: usize,
    filter: TraceFilter,
    /// Whether a write may raise SIGPIPE.
    may_break: bool,
}

static TRACE: AtomicPtr<Trace> = AtomicPtr::new(core::ptr::null_mut());

fn trace() -> Option<&'static Trace> {
    // SAFETY: null or leaked by `start`, and only shared from then on.
    unsafe { TRACE.load(Acquire).as_ref() }
}

/// Whether calls are written down.
#[inline]
pub fn is_on() -> bool {
    !TRACE.load(Relaxed).is_null()
}

/// Before the program's first instruction.
pub fn start(settings: TraceSettings) {
    const S_IFMT: u32 = 0o170_000;
    const S_IFIFO: u32 = 0o10_000;
    const S_IFSOCK: u32 = 0o140_000;
    let fd = settings.fd as usize;
    let kind = sys::stat_fd(fd).map(|st| st.mode & S_IFMT);
    let trace = Trace {
        fd,
        filter: settings.filter,
        may_break: matches!(kind, Some(S_IFIFO | S_IFSOCK)),
    };
    TRACE.store(Box::leak(Box::new(trace)), Release);
}

/// The exec(2) that made this program, which its caller could not say the end of.
///
/// # Safety
/// `argv` is the program's list of arguments, with the environment behind it.
pub unsafe fn began(argv: *const *const c_char, envp: *const *const c_char, env: &Env) {
    const AT_EXECFN: usize = 31;
    let Some((trace, kind)) = trace().zip(kind(nr::EXECVE)) else {
        return;
    };
    if !trace.filter.has(nr::EXECVE) || only_failures(trace) {
        return;
    }
    let path = env.get(&exec::EXE_VARIABLE[..exec::EXE_VARIABLE.len() - 1]);
    let path = path.map_or(
        env.auxiliary(AT_EXECFN),
        |path| Some(path.as_ptr() as usize),
    );
    let args = [path.unwrap_or(0), argv as usize, envp as usize, 0, 0, 0];
    let mut line = Line::begin(sys::gettid(), now(REALTIME));
    line.call(kind, &Begun::new(kind, args), Ended::With(0));
    trace.write(line);
}

fn only_failures(trace: &Trace) -> bool {
    trace.filter.only_failed() || trace.filter.only_refused()
}

/// Has `serve` do the call, and writes it down if it is wanted.
#[cold]
pub fn handle(call: &Call, serve: impl FnOnce(&mut dyn FnMut(Way)) -> Verdict) -> Verdict {
    let wanted = |trace: &&Trace| trace.filter.has(call.nr);
    let Some((trace, kind)) = trace().filter(wanted).zip(kind(call.nr)) else {
        return serve(&mut |_| {});
    };
    let begun = Begun::new(kind, call.args);
    let (time, start) = (now(REALTIME), now(MONOTONIC));
    if matches!(call.nr, nr::EXIT | nr::EXIT_GROUP) {
        if !only_failures(trace) {
            let mut line = Line::begin(sys::gettid(), time);
            line.call(kind, &begun, Ended::Unknown);
            trace.write(line);
        }
        return serve(&mut |_| {});
    }
    let mut way = Way::Passed;
    let verdict = serve(&mut |it| way = it);
    let took = now(MONOTONIC).saturating_sub(start);
    if trace.wants(way, verdict) {
        let ended = match verdict {
            Verdict::Handled(result) => Ended::With(result),
            Verdict::Native | Verdict::NativeThen => Ended::Unknown,
        };
        let mut line = Line::begin(sys::gettid(), time);
        line.call(kind, &begun, ended);
        match way {
            Way::Served => {}
            Way::Passed => line.remark("left to the kernel"),
            Way::Refused(why) => line.remark(sentence(why as u32)),
        }
        line.took(took);
        trace.write(line);
    }
    verdict
}

const REALTIME: usize = 0;
const MONOTONIC: usize = 1;

fn now(clock: usize) -> Nanoseconds {
    let mut time = [0u64; 2];
    let args = [clock, time.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel fills the two words.
    unsafe { sys::raw(sys::nr::CLOCK_GETTIME, args) };
    time[0] * 1_000_000_000 + time[1]
}

impl Trace {
    /// Whether a call with such an end is.
    fn wants(&self, way: Way, verdict: Verdict) -> bool {
        let failed = matches!(verdict, Verdict::Handled(result) if sys::is_err(result));
        let refused = matches!(way, Way::Refused(_));
        (way != Way::Passed || self.filter.passed())
            && (failed || !self.filter.only_failed())
            && (refused || !self.filter.only_refused())
    }

    /// What cannot be written is lost.
    fn write(&self, line: Line) {
        let bytes = line.end();
        let write = || {
            let args = [self.fd, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
            // SAFETY: the kernel only reads the line.
            unsafe { sys::raw(nr::WRITE, args) }
        };
        match self.may_break {
            false => {
                write();
            }
            true => without_sigpipe(write),
        }
    }
}

const SIGPIPE: u64 = 1 << (13 - 1);
const EPIPE: isize = 32;

/// Runs `write` so that a reader who is gone goes unnoticed.
fn without_sigpipe(write: impl FnOnce() -> isize) {
    const SIG_BLOCK: usize = 0;
    const SIG_SETMASK: usize = 2;
    const SET: usize = 8;
    let (pipe, mut before, mut pending) = (SIGPIPE, 0u64, 0u64);
    let at = |word: *const u64| word as usize;
    let (mask, old) = (at(&raw const pipe), at(&raw mut before));
    // SAFETY: these calls read and fill words of this function. SIGPIPE is blocked for a moment
    // that the program's own code does not run in.
    unsafe {
        sys::raw(nr::RT_SIGPENDING, [at(&raw mut pending), SET, 0, 0, 0, 0]);
        sys::raw(sys::nr::RT_SIGPROCMASK, [SIG_BLOCK, mask, old, SET, 0, 0]);
    }
    if write() == -EPIPE && pending & SIGPIPE == 0 {
        let none = [0u64; 2];
        let args = [mask, 0, none.as_ptr() as usize, SET, 0, 0];
        // SAFETY: as above; takes the signal that the write has raised.
        unsafe { sys::raw(nr::RT_SIGTIMEDWAIT, args) };
    }
    // SAFETY: as above.
    unsafe { sys::raw(sys::nr::RT_SIGPROCMASK, [SIG_SETMASK, old, 0, SET, 0, 0]) };
}
