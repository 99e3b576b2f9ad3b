//! What the kernel tells of files, of mapped pages and of free cores.
//!
//! Invariants: nothing here changes what is mapped. The files that are asked are the helper's own,
//! in a table of descriptors that the program does not have.

use super::stream::{BLOCK, Memory};
use crate::dispatch::nr;
use crate::sys::{self, Fd};
use core::cell::Cell;

const PAGE: usize = 4096;
/// Entries of one page of /proc/self/pagemap.
const ENTRIES: usize = 512;
const PRESENT: u64 = 1 << 63;

const AT_EMPTY_PATH: usize = 0x1000;
const STATX_TYPE_SIZE_BLOCKS: usize = 0x1 | 0x200 | 0x400;
const STATX_ATTR_DAX: u64 = 0x20_0000;
const S_IFMT: u16 = 0o170_000;
const S_IFREG: u16 = 0o100_000;
const SECTOR: u64 = 512;

/// The kernel's `struct statx`.
#[repr(C)]
struct Statx {
    mask: u32,
    blksize: u32,
    attributes: u64,
    nlink: u32,
    uid: u32,
    gid: u32,
    mode: u16,
    pad: u16,
    ino: u64,
    size: u64,
    blocks: u64,
    rest: [u64; 25],
}

const _: () = assert!(size_of::<Statx>() == 256);

/// A file that may be mapped ahead.
pub struct File {
    size: u64,
    /// It is memory itself: nothing of it is read from anywhere.
    pub is_memory: bool,
}

impl File {
    /// Bytes from `offset` to the end.
    pub fn mappable(&self, offset: usize) -> usize {
        self.size.saturating_sub(offset as u64) as usize
    }
}

/// Of descriptor `fd`, if it is a regular file without holes: reading one of those may cost memory.
pub fn file(fd: usize) -> Option<File> {
    let mut st = core::mem::MaybeUninit::<Statx>::zeroed();
    let at = st.as_mut_ptr() as usize;
    let args = [
        fd,
        c"".as_ptr() as usize,
        AT_EMPTY_PATH,
        STATX_TYPE_SIZE_BLOCKS,
        at,
        0,
    ];
    // SAFETY: the kernel writes a struct statx, which is as long.
    let ret = unsafe { sys::raw(nr::STATX, args) };
    // SAFETY: zeroed and plain integers: any bytes are valid.
    let st = unsafe { st.assume_init() };
    let is_memory = st.attributes & STATX_ATTR_DAX != 0;
    let is_whole = st.blocks.saturating_mul(SECTOR) >= st.size || is_memory;
    let is_fit = ret == 0 && st.mode & S_IFMT == S_IFREG && is_whole;
    is_fit.then_some(File {
        size: st.size,
        is_memory,
    })
}

/// Reads from the beginning of a file of /proc.
fn read(file: &Fd, buf: &mut [u8], offset: usize) -> usize {
    let args = [file.0, buf.as_mut_ptr() as usize, buf.len(), offset, 0, 0];
    // SAFETY: the kernel writes at most `buf.len()` bytes of `buf`.
    let ret = unsafe { sys::raw(nr::PREAD64, args) };
    ret.max(0) as usize
}

/// Whether no filter of system calls is in force here.
pub fn is_unfiltered() -> bool {
    let mut text = [0; 2048];
    let Some(file) = Fd::open(b"/proc/self/status\0", 0, 0) else {
        return false;
    };
    let len = read(&file, &mut text, 0);
    let key = b"\nSeccomp:\t0\n";
    text[..len].windows(key.len()).any(|part| part == key)
}

/// Entries of a range.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Pages that are mapped.
    pub pages: u64,
    /// Of huge pages, and of blocks in which some page is mapped: so many faults at least.
    pub faults: u64,
    /// Huge pages that are mapped as such.
    pub huge: u64,
}

/// Blocks in which some page is mapped, of the pages from `addr` on.
fn blocks_in(addr: usize, entries: &[u64]) -> u64 {
    let before = addr % BLOCK / PAGE;
    let (first, rest) =
        entries.split_at(entries.len().min((BLOCK / PAGE - before) % (BLOCK / PAGE)));
    let some = |block: &&[u64]| block.iter().any(|entry| entry & PRESENT != 0);
    let all = core::iter::once(first).chain(rest.chunks(BLOCK / PAGE));
    all.filter(some).count() as u64
}

/// What is mapped in this process.
pub struct Pagemap(Fd);

impl Pagemap {
    pub fn open() -> Option<Pagemap> {
        Fd::open(b"/proc/self/pagemap\0", 0, 0).map(Pagemap)
    }

    /// Entries of the pages from `addr` on, as many as could be read.
    fn entries<'a>(&self, addr: usize, into: &'a mut [u64]) -> &'a [u64] {
        let bytes = size_of_val(into);
        let args = [
            self.0.0,
            into.as_mut_ptr() as usize,
            bytes,
            addr / PAGE * 8,
            0,
            0,
        ];
        // SAFETY: the kernel writes at most `bytes` bytes, and any are valid integers.
        let ret = unsafe { sys::raw(nr::PREAD64, args) };
        &into[..ret.max(0) as usize / 8]
    }

    /// The first page of a kind in a range, by PAGEMAP_SCAN; an error where that is not known.
    fn scan(&self, start: usize, end: usize, kind: u64) -> Result<Option<usize>, ()> {
        const PAGEMAP_SCAN: usize = 0xc060_6610;
        let mut region = [0u64; 3];
        let words = [
            96,
            0,
            start as u64,
            end as u64,
            0,
            region.as_mut_ptr() as u64,
            1,
            1,
            0,
            kind,
            0,
            kind,
        ];
        let args = [self.0.0, PAGEMAP_SCAN, words.as_ptr() as usize, 0, 0, 0];
        // SAFETY: the kernel reads a struct pm_scan_arg of 96 bytes, of which it writes the fifth
        // word, and writes one region of 24 bytes.
        let ret = unsafe { sys::raw(nr::IOCTL, args) };
        match ret {
            0 => Ok(None),
            1.. => Ok(Some(region[0] as usize)),
            _ => Err(()),
        }
    }

    /// What is mapped in a range.
    pub fn count(&self, start: usize, end: usize) -> Counted {
        const HUGE: usize = ENTRIES * PAGE;
        let some_huge = end - start >= HUGE && self.has_huge(start, end);
        let (mut counted, mut buf) = (Counted::default(), [0; ENTRIES]);
        let mut at = start;
        while at < end {
            let next = ((at & !(HUGE - 1)) + HUGE).min(end);
            let entries = self.entries(at, &mut buf[..(next - at) / PAGE]);
            let pages = entries.iter().filter(|entry| **entry & PRESENT != 0);
            let pages = pages.count() as u64;
            let is_huge = some_huge && pages == ENTRIES as u64 && self.has_huge(at, next);
            counted.pages += pages;
            counted.huge += u64::from(is_huge);
            counted.faults += match is_huge {
                true => 1,
                false => blocks_in(at, entries),
            };
            at = next;
        }
        counted
    }

    /// Whether a huge page is mapped in this range.
    pub fn has_huge(&self, start: usize, end: usize) -> bool {
        const PAGE_IS_HUGE: u64 = 1 << 6;
        matches!(self.scan(start, end, PAGE_IS_HUGE), Ok(Some(_)))
    }
}

impl Memory for Pagemap {
    fn is_mapped(&self, addr: usize) -> bool {
        let entry = self.entries(addr, &mut [0]).first().copied();
        entry.is_some_and(|entry| entry & PRESENT != 0)
    }

    fn first_absent(&self, from: usize, end: usize) -> usize {
        let mut buf = [0; ENTRIES];
        let (mut base, mut at) = (from, from);
        while at < end {
            let entries = self.entries(base, &mut buf);
            if entries.is_empty() {
                return end;
            }
            let read_to = base + entries.len() * PAGE;
            while at < end && at < read_to {
                if entries[(at - base) / PAGE] & PRESENT == 0 {
                    return at;
                }
                at = (at & !(BLOCK - 1)) + BLOCK;
            }
            base = at;
        }
        end
    }

    fn first_mapped(&self, from: usize, end: usize) -> usize {
        const PAGE_IS_PRESENT: u64 = 1 << 3;
        match self.scan(from, end, PAGE_IS_PRESENT) {
            Ok(found) => found.unwrap_or(end),
            Err(()) if self.is_mapped(from) => from,
            Err(()) => end,
        }
    }
}

/// Whether all pages of the file at these addresses are in memory, as far as the kernel says so. Of
/// files that are memory themselves it says so of none.
pub fn is_resident(addr: usize, len: usize) -> bool {
    const MINCORE: usize = 27;
    let mut pages = [0u8; super::CHUNK / PAGE];
    let at = pages.as_mut_ptr() as usize;
    // SAFETY: the kernel writes a byte for each page of at most a chunk.
    let ret = unsafe { sys::raw(MINCORE, [addr, len, at, 0, 0, 0]) };
    ret == 0 && pages[..len.div_ceil(PAGE)].iter().all(|page| page & 1 != 0)
}

/// How long this thread was ready to run and had no core.
pub struct Delay {
    file: Fd,
    seen_ns: Cell<u64>,
}

impl Delay {
    pub fn open() -> Option<Delay> {
        let file = Fd::open(b"/proc/thread-self/schedstat\0", 0, 0)?;
        let delay = Delay {
            file,
            seen_ns: Cell::new(0),
        };
        delay.total().map(|_| delay)
    }

    fn total(&self) -> Option<u64> {
        let mut text = [0; 64];
        let len = read(&self.file, &mut text, 0);
        let mut words = text[..len].split(|b| *b == b' ');
        core::str::from_utf8(words.nth(1)?).ok()?.parse().ok()
    }

    /// Nanoseconds since the last time that this was asked.
    pub fn since(&self) -> u64 {
        let total = self.total().unwrap_or(0);
        total.saturating_sub(self.seen_ns.replace(total))
    }
}

/// Of the process: whether the helper is the only thread that has not ended.
pub struct Company(Fd);

impl Company {
    pub fn open() -> Option<Company> {
        Fd::open(b"/proc/self/stat\0", 0, 0).map(Company)
    }

    /// The process's first thread stays until all have ended, as `Z`; it and the helper are two.
    pub fn is_gone(&self) -> bool {
        let mut text = [0; 512];
        let len = read(&self.0, &mut text, 0);
        let Some(end) = text[..len].iter().rposition(|b| *b == b')') else {
            return false;
        };
        let mut fields = text[end..len].split(|b| *b == b' ').skip(1);
        let is_zombie = fields.next() == Some(b"Z");
        // The state is field 3, the number of threads field 20.
        is_zombie && fields.nth(16) == Some(b"2")
    }
}
