//! Where mappings of files in memory go: so that huge pages under them can be mapped whole, which
//! the kernel sees to on disks, and on tmpfs only if that is mounted with huge pages.
//!
//! Invariants: only a mapping is placed whose address the program leaves to the kernel; nothing of
//! it but the address differs from what the program asked for, and where that cannot be had the
//! call is left to the kernel.

use super::Args;
use super::file::{TMPFS, kind_of_system};
use crate::dispatch::args;
use crate::dispatch::nr;
use crate::sys;

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

const MAP_FIXED: usize = 0x10;
/// Flags that say where a mapping goes, or that it is none of ordinary pages.
const ELSEWHERE: usize = MAP_FIXED | 0x10_0000 | 0x40 | 0x100 | 0x4_0000;

/// mmap(2) of a file of the host at an address of our choice.
pub fn map(a: &Args) -> Option<isize> {
    let [addr, len, prot, flags, fd, offset] = *a;
    if super::watch::is_passive() {
        return None;
    }
    if addr != 0 || len < HUGE || flags & ELSEWHERE != 0 || kind_of_system(fd) != Some(TMPFS) {
        return None;
    }
    // What is reserved replaces nothing, and is replaced by the mapping or given back.
    let room = len.checked_next_multiple_of(4096)?.checked_add(HUGE)?;
    const MAP_NORESERVE: usize = 0x4000;
    let base = sys::map_anon(0, room, 0, MAP_NORESERVE)?;
    let at = base + (offset % HUGE + HUGE - base % HUGE) % HUGE;
    // SAFETY: all of it lies in what was reserved.
    let ret = unsafe { sys::raw(nr::MMAP, [at, len, prot, flags | MAP_FIXED, fd, offset]) };
    if args::result(ret).is_err() {
        // SAFETY: nobody knows of it.
        unsafe { sys::unmap(base, room) };
        return None;
    }
    let end = at + (room - HUGE);
    for (from, to) in [(base, at), (end, base + room)] {
        if from < to {
            // SAFETY: as above; the mapping lies in between.
            unsafe { sys::unmap(from, to - from) };
        }
    }
    Some(ret)
}
