//! Mappings of the host's files, in a run with `--map`.
//!
//! Invariants: without `--map` nothing here runs but `is_on`; every function that answers a call
//! has the kernel do what the program asked for, with the program's arguments, and gives its
//! answer. A mapping of executable pages is left to `crate::patch`.

mod ahead;

use super::args;
use super::nr;
use super::outcome::{Outcome, Stop};
use super::process::Process;
use crate::hook::{Call, Verdict};
use crate::sys;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

type Args = [usize; 6];

const PROT_EXEC: usize = 4;
const MAP_FIXED: usize = 0x10;
const MAP_ANONYMOUS: usize = 0x20;
const MREMAP_FIXED: usize = 2;

static ON: AtomicBool = AtomicBool::new(false);

/// Before the program's first instruction.
pub fn start(p: &Process) {
    ON.store(p.map.is_some(), Relaxed);
    if p.map.is_some() {
        ahead::start(ahead::Mode::Beside, 8 << 20);
    }
}

/// Whether the run has `--map`.
#[inline]
pub fn is_on() -> bool {
    ON.load(Relaxed)
}

/// Makes the program's own call.
fn kernel(nr: usize, a: &Args) -> isize {
    // SAFETY: the program asked for this change of its own address space; ours is never inside a
    // range that the program may name without having mapped it.
    unsafe { sys::raw(nr, *a) }
}

/// mmap(2) of what is no pool file.
pub fn mmap(a: &Args) -> Outcome {
    let [_, _, prot, flags, ..] = *a;
    if flags & MAP_ANONYMOUS != 0 || prot & PROT_EXEC != 0 {
        return Err(Stop::Native);
    }
    let ret = kernel(nr::MMAP, a);
    if let Ok(addr) = args::result(ret) {
        ahead::mapped(addr, a);
    }
    Err(Stop::Passed(ret))
}

/// Before mmap(2), of whatever it is: what it replaces goes.
pub fn before_mmap(a: &Args) {
    if a[3] & MAP_FIXED != 0 {
        gone(a[0], a[1]);
    }
}

/// Before mremap(2).
pub fn before_mremap(a: &Args) {
    gone(a[0], a[1].max(a[2]));
    if a[3] & MREMAP_FIXED != 0 {
        gone(a[4], a[2]);
    }
}

/// Before addresses are unmapped, replaced or protected.
pub fn gone(addr: usize, len: usize) {
    ahead::gone(addr, len);
}

/// Before a call that acts on the calling thread alone, or that only a process with one thread may
/// make: there is none of ours when this returns.
pub fn stand_alone() {
    if is_on() {
        ahead::end();
    }
}

/// Before the program forbids calls to itself, or when its calls are not answered here any more.
pub fn confine() {
    if is_on() {
        ahead::confine();
    }
}

/// Nobody changes our lists while the value lives.
pub fn hold_still() -> impl Sized {
    ahead::hold_still()
}

/// In a child with a memory of its own.
pub fn forked() {
    if is_on() {
        ahead::forked();
    }
}

/// Before the program takes the faults of some addresses upon itself.
#[cold]
pub fn before_ioctl(a: &Args) {
    const UFFDIO_REGISTER: u32 = 0xc020_aa00;
    if a[1] as u32 == UFFDIO_REGISTER
        && let (Ok(start), Ok(len)) = (args::read_u64(a[2]), args::read_u64(a[2] + 8))
    {
        gone(start as usize, len as usize);
    }
}

/// A caught call that has no handler.
#[cold]
pub fn unhandled(call: &Call) -> Verdict {
    let [addr, len, advice, ..] = call.args;
    if call.nr != nr::MADVISE {
        return Verdict::Native;
    }
    let ret = kernel(nr::MADVISE, &call.args);
    if ret == 0 {
        ahead::advised(addr, len, advice);
    }
    Verdict::Handled(ret)
}
