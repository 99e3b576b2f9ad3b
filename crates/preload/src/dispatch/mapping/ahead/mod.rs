//! Pages of the host's files that are mapped before the program touches them.
//!
//! Invariants: what a program sees is the same with and without it. A thread of ours, the helper,
//! makes page-table entries and nothing else; it never touches a page, and where a page is not in
//! memory it reads a chunk at most before it sees that. Once `gone` has returned, nothing is mapped
//! ahead at these addresses until a file is mapped there again. The helper ends with its process,
//! and before each call of the program that acts on one thread alone, or that a process with
//! several threads may not make.

mod helper;
mod jobs;
mod look;
mod stream;

use super::count::{self, What};
use super::watch;
use crate::process;
use crate::sys::{self, nr};
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
use holdfast_client::Ahead;
use jobs::Range;
use stream::{CHUNK, Expect};

pub use helper::wake;
pub use look::{Counted, Pagemap, is_resident};

const PAGE: usize = 4096;
const PROT_READ: usize = 1;
const MAP_LOCKED: usize = 0x2000;
const MAP_POPULATE: usize = 0x8000;
const MAP_HUGETLB: usize = 0x4_0000;

const MADV_RANDOM: usize = 1;
const MADV_SEQUENTIAL: usize = 2;
const MADV_WILLNEED: usize = 3;
const MADV_DONTNEED: usize = 4;
const MADV_REMOVE: usize = 9;
const MADV_COLD: usize = 20;
const MADV_PAGEOUT: usize = 21;
const MADV_POPULATE_READ: usize = 22;
const MADV_DONTNEED_LOCKED: usize = 24;

static MODE: AtomicU8 = AtomicU8::new(Ahead::Off as u8);
static SHORTEST: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Before the program's first instruction: mappings of at least `shortest` bytes are looked at.
pub fn start(mode: Ahead, shortest: usize) {
    MODE.store(mode as u8, Relaxed);
    SHORTEST.store(shortest, Relaxed);
}

fn is(mode: Ahead) -> bool {
    MODE.load(Relaxed) == mode as u8
}

/// A file of the host was mapped, by a call that the kernel answered just now.
pub fn mapped(addr: usize, a: &[usize; 6]) {
    let [_, len, prot, flags, fd, offset] = *a;
    let unfit = MAP_LOCKED | MAP_POPULATE | MAP_HUGETLB;
    if len < SHORTEST.load(Relaxed) || prot & PROT_READ == 0 || flags & unfit != 0 {
        return;
    }
    if let Some(file) = look::file(fd) {
        let len = file.mappable(offset).min(len).next_multiple_of(PAGE);
        if len >= SHORTEST.load(Relaxed) {
            let range = Range {
                start: addr,
                end: addr + len,
                is_memory: file.is_memory,
            };
            expect(range, Expect::Unknown);
        }
    }
}

/// Whether a helper may be made here.
pub fn has_helper() -> bool {
    is(Ahead::Async) && !process::in_shared_child() && helper::is_allowed()
}

/// The program will read these addresses, as far as is known.
fn expect(range: Range, how: Expect) {
    if is(Ahead::Sync) {
        at_once(range.start, range.end);
    } else if has_helper() {
        jobs::add(range, how);
        helper::wake();
    }
}

fn at_once(start: usize, end: usize) {
    for addr in (start..end).step_by(CHUNK) {
        let len = CHUNK.min(end - addr);
        if map(addr, len) < 0 {
            return;
        }
    }
}

/// Makes the page-table entries of these addresses, as reading them would.
fn map(addr: usize, len: usize) -> isize {
    // SAFETY: changes no byte of memory, only which pages are mapped where they belong.
    let ret = unsafe { sys::raw(nr::MADVISE, [addr, len, MADV_POPULATE_READ, 0, 0, 0]) };
    if ret == 0 {
        count::add(What::AheadPages, (len / PAGE) as u64);
    }
    ret
}

/// The addresses are about to be unmapped, replaced or protected.
#[inline]
pub fn gone(addr: usize, len: usize) {
    if !jobs::is_empty() {
        jobs::remove(addr, addr.saturating_add(len.next_multiple_of(PAGE)));
    }
}

/// Before madvise(2): what the program does not need is not mapped ahead.
pub fn advising(addr: usize, len: usize, advice: usize) {
    match advice {
        MADV_RANDOM | MADV_DONTNEED | MADV_REMOVE | MADV_COLD | MADV_PAGEOUT
        | MADV_DONTNEED_LOCKED => gone(addr, len),
        _ => {}
    }
}

/// After madvise(2), which the kernel took.
pub fn advised(addr: usize, len: usize, advice: usize) {
    let how = match advice {
        MADV_SEQUENTIAL => Expect::Sequential,
        MADV_WILLNEED => Expect::Whole,
        _ => return,
    };
    if len < SHORTEST.load(Relaxed) || watch::is_passive() {
        return;
    }
    let end = addr.saturating_add(len.next_multiple_of(PAGE));
    if let Some(range) = jobs::known(addr, end) {
        expect(range, how);
    }
}

/// The helper has ended when this returns, and nothing is mapped ahead until the next file is
/// mapped or the next advice is given.
pub fn end() {
    if is(Ahead::Async) && !process::in_shared_child() {
        helper::end();
    }
}

/// The program forbids itself calls, and those of a new helper might be among them; or calls of
/// this process are not seen any more.
pub fn stop() {
    helper::forbid();
    jobs::clear();
    end();
}

/// Nobody changes the list of what is mapped ahead while the value lives.
pub fn hold_still() -> impl Sized {
    jobs::hold_still()
}

/// In a child with a memory of its own, which has no helper.
pub fn forked() {
    jobs::forked();
    helper::forked();
}
