//! RLIMIT_FSIZE: setrlimit(2), prlimit(2); and what RLIMIT_NOFILE allows.
//!
//! Invariant: the kernel keeps the limit; the client's copy is the limit as of the program's start,
//! or as the program last set it. A limit that another process sets takes effect at the next exec.

use super::nr;
use super::outcome::{Outcome, Stop};
use super::pool::Pool;
use super::process::Process;
use crate::sys;

type Args = [usize; 6];

const RLIMIT_FSIZE: usize = 1;
const RLIMIT_NOFILE: usize = 7;
const SIGXFSZ: usize = 25;
const EFBIG: isize = 27;

/// A limit as it is now.
fn current(resource: usize) -> Option<u64> {
    let mut now = [u64::MAX; 2];
    let at = now.as_mut_ptr() as usize;
    // SAFETY: the kernel writes two words.
    let ret = unsafe { sys::raw(nr::PRLIMIT64, [0, resource, 0, at, 0, 0]) };
    (ret == 0).then_some(now[0])
}

/// Makes the client know the limit as it is now.
pub fn look(client: &Pool) {
    if let Some(limit) = current(RLIMIT_FSIZE) {
        client.set_file_limit(limit);
    }
}

/// Whether a descriptor may have this number.
pub fn allows(fd: u32) -> bool {
    current(RLIMIT_NOFILE).is_none_or(|limit| u64::from(fd) < limit)
}

fn set(p: &Process, number: usize, a: &Args) -> Outcome {
    // SAFETY: the program's own call; it writes at most where the program said.
    let ret = unsafe { sys::raw(number, *a) };
    // A vfork child has a limit of its own, but not a client.
    if !p.borrowed() {
        look(&p.client);
    }
    Ok(ret)
}

/// setrlimit(resource, limit)
pub fn setrlimit(p: &Process, a: &Args) -> Outcome {
    match a[0] {
        RLIMIT_FSIZE => set(p, nr::SETRLIMIT, a),
        _ => Err(Stop::Native),
    }
}

/// prlimit64(pid, resource, new, old)
pub fn prlimit64(p: &Process, a: &Args) -> Outcome {
    match (a[1], a[2]) {
        (RLIMIT_FSIZE, new) if new != 0 => set(p, nr::PRLIMIT64, a),
        _ => Err(Stop::Native),
    }
}

/// What the kernel does to a thread that would exceed the limit.
pub fn exceeded() -> isize {
    let (pid, tid) = (sys::getpid() as usize, sys::gettid() as usize);
    // SAFETY: touches no memory.
    unsafe { sys::raw(nr::TGKILL, [pid, tid, SIGXFSZ, 0, 0, 0]) };
    -EFBIG
}
