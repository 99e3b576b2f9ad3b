//! What programs say of their mappings of pool files: madvise(2), mlock(2), munlock(2).
//!
//! Invariants: no block of the pool is given up through a mapping that may not store to its file;
//! where a call wants pages to be there, holes and what a file has grown by are filled first, as
//! the kernel does in files of its own; what the kernel remembers of a mapping is remembered with
//! its range, because that divides ranges, and is said again of pages that we map anew.

use super::args::{self, Errno};
use super::mapping;
use super::maps;
use super::nr;
use super::outcome::{Outcome, Stop};
use super::process::Process;
use super::ranges::{self, Range};
use crate::sys;
use alloc::vec::Vec;

type Args = [usize; 6];

const PAGE: usize = 4096;
const EACCES: Errno = 13;
const EFAULT: Errno = 14;
const EINVAL: Errno = 22;
const ENOMEM: Errno = 12;

const MADV_REMOVE: usize = 9;
const MADV_POPULATE: [usize; 2] = [22, 23];

/// What the kernel remembers of a mapping, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner(u8);

const RANDOM: u8 = 1;
const SEQUENTIAL: u8 = 2;
const NOT_FORKED: u8 = 4;
const NOT_DUMPED: u8 = 8;
const HUGE: u8 = 16;
const NOT_HUGE: u8 = 32;
const LOCKED: u8 = 64;

/// Advice that is remembered: what it sets, and what it clears.
const REMEMBERED: [(usize, u8, u8); 9] = [
    (0, 0, RANDOM | SEQUENTIAL),
    (1, RANDOM, SEQUENTIAL),
    (2, SEQUENTIAL, RANDOM),
    (10, NOT_FORKED, 0),
    (11, 0, NOT_FORKED),
    (16, NOT_DUMPED, 0),
    (17, 0, NOT_DUMPED),
    (14, HUGE, NOT_HUGE),
    (15, NOT_HUGE, HUGE),
];

impl Manner {
    pub fn with(self, set: u8, clear: u8) -> Manner {
        Manner(self.0 & !clear | set)
    }

    /// Says it of pages that were just mapped.
    pub fn say_again(self, addr: usize, len: usize) {
        let advised = |&&(_, set, _): &&(usize, u8, u8)| set != 0 && self.0 & set == set;
        for (advice, ..) in REMEMBERED.iter().filter(advised) {
            // As good as the first time, or not at all: it is advice.
            let _ = kernel(nr::MADVISE, &[addr, len, *advice, 0, 0, 0]);
        }
        if self.0 & LOCKED != 0 {
            // Beyond the limit of memory that may be locked, these pages are not.
            let _ = kernel(nr::MLOCK, &[addr, len, 0, 0, 0, 0]);
        }
    }
}

fn kernel(nr: usize, a: &Args) -> Result<usize, Errno> {
    // SAFETY: none of the calls made here changes what is mapped where, or what pages hold that the
    // program may not change.
    args::result(unsafe { sys::raw(nr, *a) })
}

/// madvise(addr, len, advice)
pub fn madvise(p: &Process, a: &Args) -> Outcome {
    let [addr, len, advice, ..] = *a;
    let made = || match mapping::is_on() {
        true => args::result(mapping::madvise(a)),
        false => kernel(nr::MADVISE, a),
    };
    if !maps::any_in(addr, len) {
        return match mapping::is_on() {
            true => Err(Stop::Passed(mapping::madvise(a))),
            false => Err(Stop::Native),
        };
    }
    if advice == MADV_REMOVE {
        return remove(p, addr, len);
    }
    let mut done = made();
    if MADV_POPULATE.contains(&advice) && done == Err(EFAULT) && maps::fill_range(p, addr, len) {
        done = made();
    }
    let found = REMEMBERED.iter().find(|(known, ..)| *known == advice);
    // It holds for what is mapped, also if not all of the range is.
    if let Some((_, set, clear)) = found
        && matches!(done, Ok(_) | Err(ENOMEM))
    {
        ranges::lock().remember(p, addr, end(addr, len), *set, *clear)?;
    }
    Ok(done? as isize)
}

fn end(addr: usize, len: usize) -> usize {
    let len = len.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX);
    addr.saturating_add(len)
}

/// MADV_REMOVE: zeroes in the place of pages of a file that the program may store to.
fn remove(p: &Process, addr: usize, len: usize) -> Outcome {
    if addr % PAGE != 0 {
        return Err(EINVAL.into());
    }
    if mapping::is_on() {
        mapping::gone(addr, len);
    }
    let end = end(addr, len);
    let list: Vec<Range> = ranges::lock().within(addr, end - addr).copied().collect();
    let (mut at, mut gaps) = (addr, false);
    for r in list {
        let (from, to) = (r.addr.max(at), r.end().min(end));
        // What is no file of the pool lies in between, or nothing.
        gaps |= between(at, from)?;
        if !(r.shared && r.may_write) {
            return Err(EACCES.into());
        }
        kernel(nr::MADVISE, &[from, to - from, MADV_REMOVE, 0, 0, 0])?;
        p.client.map_stored(r.pin)?;
        at = to;
    }
    gaps |= between(at, end)?;
    match gaps {
        true => Err(ENOMEM.into()),
        false => Ok(0),
    }
}

/// The same of what is not ours; whether something of it is not mapped.
fn between(from: usize, to: usize) -> Result<bool, Errno> {
    if from == to {
        return Ok(false);
    }
    match kernel(nr::MADVISE, &[from, to - from, MADV_REMOVE, 0, 0, 0]) {
        Err(ENOMEM) => Ok(true),
        done => done.map(|_| false),
    }
}

/// mlock(addr, len)
pub fn mlock(p: &Process, a: &Args) -> Outcome {
    lock(p, nr::MLOCK, a)
}

/// mlock2(addr, len, flags)
pub fn mlock2(p: &Process, a: &Args) -> Outcome {
    lock(p, nr::MLOCK2, a)
}

fn lock(p: &Process, nr: usize, a: &Args) -> Outcome {
    let [addr, len, ..] = *a;
    if mapping::is_on() {
        mapping::gone(addr, len);
    }
    if !maps::any_in(addr, len) {
        return Err(Stop::Native);
    }
    let mut done = kernel(nr, a);
    if done == Err(ENOMEM) && maps::fill_range(p, addr, len) {
        done = kernel(nr, a);
    }
    if matches!(done, Ok(_) | Err(ENOMEM)) {
        remember_lock(p, addr, len, LOCKED, 0)?;
    }
    Ok(done? as isize)
}

/// munlock(addr, len)
pub fn munlock(p: &Process, a: &Args) -> Outcome {
    let [addr, len, ..] = *a;
    if mapping::is_on() {
        mapping::looked_at(addr, len);
    }
    if !maps::any_in(addr, len) {
        return Err(Stop::Native);
    }
    let done = kernel(nr::MUNLOCK, a);
    remember_lock(p, addr, len, 0, LOCKED)?;
    Ok(done? as isize)
}

/// Of all pages of which a part is in the range.
fn remember_lock(p: &Process, addr: usize, len: usize, set: u8, clear: u8) -> Result<(), Stop> {
    let from = addr & !(PAGE - 1);
    let len = len.saturating_add(addr - from);
    ranges::lock().remember(p, from, end(from, len), set, clear)
}
