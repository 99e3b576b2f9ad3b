//! What is done with the system calls that were caught. This is the library's interface to the
//! client.
//!
//! Contract with the rest of the library, for every function here:
//! * It runs on the program's own stack (perhaps a small signal stack): keep frames small.
//! * Signals of the program are held back until the hook leaves, so locks may be held. Only
//!   `holdfast_pmem::futex::wait_interruptible` lets a handler run, and reports `Interrupted`, at
//!   once for a signal that came earlier in this call; no lock is held there.
//! * Never make a blocking raw call here: answer [`Verdict::Native`] instead.
//! * `sys::raw` reaches the kernel directly; it is never caught again.
//! * The program's memory is read and written only by the copies of pmem, which report a fault
//!   instead of raising a signal.
//! * A call on a descriptor arrives only if [`crate::calls::mark_fd`] was called for it (class
//!   `BY_FD` in `calls`); calls of class `ALWAYS` always arrive. Marks survive a fork; exec clears
//!   them all.
//! * A process without a place in the session never reaches a handler: see `lost`.
//! * In a child that shares its parent's memory ([`crate::process::in_shared_child`]) nothing that
//!   the parent relies on may be changed; marks may be set but not cleared.

mod advice;
mod args;
mod at;
mod copies;
mod data;
mod exec;
mod fds;
mod handover;
mod identity;
mod leaving;
mod limits;
mod locked;
mod lost;
mod mapping;
mod maps;
mod mutex;
mod names;
mod no_pool;
mod nr;
mod open;
mod outcome;
mod parent;
mod passing;
mod place;
mod pool;
mod process;
mod ranges;
mod recognize;
mod refuse;
mod selftest;
mod sockets;
mod special;
mod split;
mod start;
mod stat;
mod table;
mod trace;
mod transfer;
mod xattrs;

use crate::hook::{Call, Verdict};
use crate::sys;
use crate::table::Unpatchable;
use alloc::boxed::Box;
use outcome::{Stop, Way, Why};
use process::Process;

pub use maps::on_fault;
pub use split::hold_still;
pub use split::{after_child, after_fork_child, before_child};
pub use split::{in_shared_child, refuse_half_thread};
pub use start::start;
pub use trace::began;

const EFAULT: args::Errno = 14;

/// One caught call. `Handled(n)` is what the program gets in rax; `Native` lets the kernel do it.
/// rt_sigaction, fork, vfork, clone and clone3 never come here.
pub fn handle(call: &Call) -> Verdict {
    match trace::is_on() {
        false => serve(call, 0, &mut |_| {}),
        true => trace::handle(call, |mut way| serve(call, 0, &mut way)),
    }
}

/// Walks that left the pool and came back to it, in one call.
const RETURNS_MAX: u32 = 8;

/// `told` is what became of the call.
fn serve(call: &Call, returns: u32, told: &mut impl FnMut(Way)) -> Verdict {
    let Some(p) = process::process() else {
        return match no_pool::is_on() {
            true => no_pool::handle(call),
            false => selftest::handle(call),
        };
    };
    let Some(handler) = table::HANDLERS.get(call.nr).copied().flatten() else {
        return match mapping::is_on() {
            true => unhandled(p, call),
            false => Verdict::Native,
        };
    };
    if !p.client.has_place() {
        let verdict = lost::handle(p, handler, call);
        if matches!(verdict, Verdict::Handled(_)) {
            told(Way::Served);
        }
        return verdict;
    }
    let mut outcome = handler(p, &call.args);
    if matches!(outcome, Err(Stop::Errno(EFAULT))) && maps::fill(p, call) {
        outcome = handler(p, &call.args);
    }
    match outcome {
        Err(Stop::Left) => return Verdict::Native,
        Err(Stop::Moved(result, retired)) => {
            // `p` is not used any more.
            drop(retired);
            told(Way::Served);
            return Verdict::Handled(result);
        }
        _ => maps::apply_cuts(p),
    }
    match outcome {
        Ok(value) => {
            p.client.count_served();
            told(Way::Served);
            Verdict::Handled(value)
        }
        Err(Stop::Outside(path)) if at::inside(&p.at, &path).is_some() => {
            come_back(call, path, returns, told)
        }
        Err(stop) => {
            let (verdict, way) = stopped(p, call, stop);
            told(way);
            verdict
        }
    }
}

#[cold]
fn unhandled(p: &Process, call: &Call) -> Verdict {
    // A process that has lost its place is not told of its other mappings.
    match p.client.has_place() {
        true => mapping::unhandled(call).map_or(Verdict::Native, Verdict::Handled),
        false => Verdict::Native,
    }
}

#[inline(never)]
fn stopped(p: &Process, call: &Call, stop: Stop) -> (Verdict, Way) {
    let handled = |errno: i32| Verdict::Handled(-(errno as isize));
    match stop {
        Stop::Left => (Verdict::Native, Way::Passed),
        Stop::Moved(result, _) => (Verdict::Handled(result), Way::Served),
        Stop::Native => {
            if mapping::is_on() {
                mapping::passing(call, p.client.map_drops());
            }
            p.client.count_passed();
            (Verdict::Native, Way::Passed)
        }
        Stop::Passed(result) => {
            p.client.count_passed();
            (Verdict::Handled(result), Way::Passed)
        }
        Stop::Errno(errno) => {
            p.client.count_served();
            (handled(errno), Way::Served)
        }
        Stop::OverLimit => {
            p.client.count_served();
            (Verdict::Handled(limits::exceeded()), Way::Served)
        }
        Stop::Refused(errno, why) => {
            p.client.refuse(call.nr as u32, why as u32);
            (handled(errno), Way::Refused(why))
        }
        Stop::Outside(path) => {
            p.client.count_passed();
            let result = continue_outside(call, path);
            (Verdict::Handled(result), Way::Passed)
        }
    }
}

/// The walk left the pool and leads into it again: the same call with the path from there.
#[inline(never)]
fn come_back(call: &Call, path: Box<[u8]>, returns: u32, told: &mut impl FnMut(Way)) -> Verdict {
    const ELOOP: isize = 40;
    let path = names::terminated(&path);
    let Some(args) = with_path(call, &path) else {
        return Verdict::Handled(-EXDEV);
    };
    if returns >= RETURNS_MAX {
        return Verdict::Handled(-ELOOP);
    }
    let nr = call.nr;
    match serve(&Call { nr, args }, returns + 1, told) {
        // SAFETY: the program's own call; only its path is replaced by one that lives until here.
        Verdict::Native | Verdict::NativeThen => Verdict::Handled(unsafe { sys::raw(nr, args) }),
        handled => handled,
    }
}

/// The walk left the pool: the same call in the kernel with the path that it led to.
fn continue_outside(call: &Call, path: Box<[u8]>) -> isize {
    let path = names::terminated(&path);
    match with_path(call, &path) {
        // SAFETY: as in `come_back`.
        Some(args) => unsafe { sys::raw(call.nr, args) },
        None => -EXDEV,
    }
}

const EXDEV: isize = 18;

/// The arguments with another path, which is absolute and NUL-terminated.
fn with_path(call: &Call, path: &[u8]) -> Option<[usize; 6]> {
    const AT_FDCWD: usize = -100isize as usize;
    let (dirfd, at) = table::path_argument(call.nr)?;
    let mut args = call.args;
    args[at] = path.as_ptr() as usize;
    if let Some(dirfd) = dirfd {
        args[dirfd] = AT_FDCWD;
    }
    Some(args)
}

/// An object has calls of interest that could not be patched: they run natively.
pub fn on_unpatchable(sites: Unpatchable) {
    if sites.of_mappings > 0 {
        // What they unmap nobody would know of.
        mapping::stop(mapping::Stopped::StoppedUnseen);
    }
    if let Some(p) = process::process() {
        p.client.refuse(UNKNOWN_CALL, Why::Unpatchable as u32);
    }
}

/// In place of a number, for calls that were not seen.
const UNKNOWN_CALL: u32 = 1023;
