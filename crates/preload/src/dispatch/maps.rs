//! Mappings of pool files in this process: mmap(2), munmap(2), mremap(2), mprotect(2), msync(2).
//!
//! Invariants: every page of a mapping of a pool file is one of its lent file, where it has one, or
//! a page of the data segment, zeroes (private mappings of holes), or raises SIGBUS (beyond the end
//! of the file, and holes of shared mappings, which are filled then); so SIGSEGV is always the
//! program's own. The list of ranges knows each mapping, so that blocks stay where they are while
//! they are mapped. When this process truncates a file, its pages beyond the end are removed before
//! the call returns; when another process does, at our next caught call.

use super::advice::Manner;
use super::args::{self, EFAULT, EINVAL, Errno};
use super::data::ours;
use super::mapping::{self, Piece};
use super::nr;
use super::outcome::{Outcome, Stop, Why};
use super::pool::Pool;
use super::process::Process;
use super::ranges::{self, Range};
use crate::hook::Call;
use crate::sys;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::*};
use holdfast_client::abi::O_PATH;
use holdfast_client::{MapPiece, MapPin, OfdLink};
use holdfast_pmem::huge_page;
use rustix::fd::{AsRawFd, BorrowedFd};

type Args = [usize; 6];

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;
/// So much of a file that has grown gets its page tables with the mapping, not at a fault more.
const AT_ONCE: usize = 64 << 10;
/// More pieces than this would exhaust vm.max_map_count.
const PIECES_MAX: usize = 16 * 1024;

const EBADF: Errno = 9;
const ENOMEM: Errno = 12;
const EACCES: Errno = 13;
const ENODEV: Errno = 19;
const EOVERFLOW: Errno = 75;
const EROFS: Errno = 30;
const EOPNOTSUPP: Errno = 95;

const PROT_MASK: usize = 7;
pub(super) const PROT_WRITE: usize = 2;
const MAP_SHARED: usize = 1;
const MAP_PRIVATE: usize = 2;
const MAP_TYPE: usize = 0xf;
const MAP_FIXED: usize = 0x10;
const MAP_ANONYMOUS: usize = 0x20;
const MAP_NORESERVE: usize = 0x4000;
const MAP_POPULATE: usize = 0x8000;
const MAP_LOCKED: usize = 0x2000;
const MAP_HUGETLB: usize = 0x4_0000;
/// What every kernel knows, with sizes of huge pages: all that MAP_SHARED_VALIDATE takes.
const MAP_KNOWN: usize = 0xfc07_f9ff | MAP_FIXED_NOREPLACE;
/// Longer than all addresses of a program.
const ADDRESSES: usize = 1 << 47;
const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
const MREMAP_MAYMOVE: usize = 1;
const MREMAP_FIXED: usize = 2;
const MREMAP_DONTUNMAP: usize = 4;
const IOV_MAX: usize = 1024;

/// The cuts of mapped files that the ranges have been told of.
static CUTS_SEEN: AtomicU32 = AtomicU32::new(0);

fn kernel(nr: usize, words: [usize; 6]) -> Result<usize, Stop> {
    // SAFETY: the program asked for this change of its own address space; ours (library, heap,
    // segments) is never inside a range that the program may name without having mapped it.
    let made = || args::result(unsafe { sys::raw(nr, words) });
    match made() {
        Err(ENOMEM) if mapping::is_on() && mapping::give_way() => Ok(made()?),
        made => Ok(made?),
    }
}

fn round_up(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(PAGE)
}

/// mmap(addr, len, prot, flags, fd, offset)
pub fn mmap(p: &Process, a: &Args) -> Outcome {
    let fixed = a[3] & (MAP_FIXED | MAP_FIXED_NOREPLACE) == MAP_FIXED;
    if mapping::is_on() {
        mapping::before_mmap(a);
    }
    let ofd = match a[3] & MAP_ANONYMOUS {
        0 => ours(p, a[4]),
        _ => Err(Stop::Native),
    };
    let ofd = match ofd {
        Err(Stop::Native) if fixed && any_in(a[0], a[1]) => {
            forget(p, a[0], a[1])?;
            return outside(a);
        }
        Err(Stop::Native) => return outside(a),
        ofd => ofd?,
    };
    let flags = p.client.getfl(ofd)?;
    if a[5] % PAGE == 0 && flags & O_PATH != 0 {
        return Err(EBADF.into());
    }
    if a[5] % PAGE != 0 || a[3] & MAP_HUGETLB != 0 || a[1] == 0 {
        return Err(EINVAL.into());
    }
    let len = round_up(a[1])
        .filter(|len| *len <= ADDRESSES)
        .ok_or(ENOMEM)?;
    if a[5] > i64::MAX as usize - len {
        return Err(EOVERFLOW.into());
    }
    let shared = match a[3] & MAP_TYPE {
        MAP_PRIVATE => false,
        MAP_SHARED | 3 => true,
        _ => return Err(EINVAL.into()),
    };
    if a[3] & MAP_TYPE == 3 && a[3] & !MAP_KNOWN != 0 {
        return Err(EOPNOTSUPP.into());
    }
    let Some(pin) = pin(p, ofd, a[2], shared)? else {
        let addr = super::copies::map(p, ofd, a, len)?;
        forget(p, addr as usize, len)?;
        return Ok(addr);
    };
    let range = Range {
        addr: a[0],
        len,
        pin,
        offset: a[5] as u64,
        prot: a[2],
        shared,
        reach: len,
        may_write: flags & 3 == 2 || !shared,
        stored: shared && a[2] & PROT_WRITE != 0,
        lent: false,
        manner: Manner::default(),
    };
    match place(p, range, a[3], fixed) {
        Ok(addr) => Ok(addr as isize),
        Err(stop) => {
            p.client.map_unpin(pin, false)?;
            Err(stop)
        }
    }
}

/// What is no pool file.
fn outside(a: &Args) -> Outcome {
    match mapping::is_on() {
        true => mapping::mmap(a),
        false => Err(Stop::Native),
    }
}

/// Before a file is mapped. `None`: what is mapped is a copy, of which the list of ranges knows
/// nothing.
fn pin(p: &Process, ofd: OfdLink, prot: usize, shared: bool) -> Result<Option<MapPin>, Stop> {
    if maps_pieces(p) {
        return Ok(Some(p.client.map_pin(ofd, prot as u32, shared)?));
    }
    if !shared {
        return Ok(None);
    }
    let pinned = match &p.client {
        Pool::Mapped(client) => client.map_pin_lent(ofd, prot as u32),
        served => served.map_pin(ofd, prot as u32, shared),
    };
    match pinned {
        Err(e) if e.errno() == ENODEV => Err(Stop::Refused(ENODEV, Why::SharedMapping)),
        // Of a snapshot: what never changes is the same in a copy.
        Err(e) if e.errno() == EROFS => Ok(None),
        pin => Ok(Some(pin?)),
    }
}

/// Whether a mapping may consist of pieces of the pool: not in a process that is served, nor where
/// the host maps whole huge pages alone.
fn maps_pieces(p: &Process) -> bool {
    const NO: u8 = 1;
    const YES: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    if KNOWN.load(Relaxed) == 0 {
        // SAFETY: a descriptor of ours, which the program cannot close.
        let data = unsafe { BorrowedFd::borrow_raw(p.data_fd as i32) };
        let no = p.client.is_served() || huge_page(data).is_some();
        KNOWN.store(if no { NO } else { YES }, Relaxed);
    }
    KNOWN.load(Relaxed) == YES
}

/// Collects the pieces of a range of the file.
fn pieces(p: &Process, r: &Range) -> Result<Vec<MapPiece>, Stop> {
    let mut list = Vec::new();
    let mut too_many = false;
    p.client
        .map_plan(r.pin, r.offset, r.len as u64, r.shared, &mut |piece| {
            too_many |= list.len() >= PIECES_MAX;
            if !too_many {
                list.push(piece);
            }
            Ok(())
        })?;
    match too_many {
        true => Err(Stop::Refused(ENOMEM, Why::TooManyPieces)),
        false => Ok(list),
    }
}

/// Maps the range somewhere and remembers it.
fn place(p: &Process, mut r: Range, flags: usize, fixed: bool) -> Result<usize, Stop> {
    let cuts = p.client.mapped_cuts();
    let list = pieces(p, &r)?;
    if fixed && r.addr % PAGE != 0 {
        return Err(EINVAL.into());
    }
    let piece = match list[..] {
        [MapPiece::Data { segment_offset, .. }] if mapping::is_on() => {
            let words = [r.addr, r.len, r.prot, flags, 0, r.offset as usize];
            mapping::piece(&words, segment_offset as usize)
        }
        _ => Piece::Made,
    };
    r.addr = match piece {
        Piece::Idle(addr) => addr,
        Piece::Made => lay(p, &r, &list, flags, fixed)?,
        Piece::Kept(key) => {
            let addr = lay(p, &r, &list, flags, fixed)?;
            mapping::add_piece(addr, key);
            addr
        }
    };
    r.reach = reach(&list);
    r.lent = matches!(list.first(), Some(MapPiece::Lent { .. }));
    // Whatever was known there is not there any more, also if we missed the call that unmapped it.
    forget(p, r.addr, r.len)?;
    ranges::lock().add(p, r);
    if p.client.mapped_cuts() != cuts {
        cut(p);
    }
    Ok(r.addr)
}

/// Maps the pieces of a range, where the program wants it or where there is room.
fn lay(
    p: &Process,
    r: &Range,
    list: &[MapPiece],
    flags: usize,
    fixed: bool,
) -> Result<usize, Stop> {
    let addr = match fixed {
        true => r.addr,
        false => reserve(r, list, flags)?,
    };
    let kept = flags & (MAP_POPULATE | MAP_LOCKED | MAP_NORESERVE);
    if let Err(stop) = put(p, &Range { addr, ..*r }, list, kept) {
        kernel(nr::MUNMAP, [addr, r.len, 0, 0, 0, 0])?;
        return Err(stop);
    }
    Ok(addr)
}

/// Nobody changes the list while the value lives.
pub fn hold_still() -> impl Sized {
    ranges::lock()
}

/// After every caught call: pages that files have lost meanwhile go.
#[inline]
pub fn apply_cuts(p: &Process) {
    if !ranges::is_empty() && p.client.mapped_cuts() != CUTS_SEEN.load(Relaxed) {
        cut(p);
    }
}

/// Takes away the pages of mappings that lie wholly beyond the end of their files.
#[cold]
fn cut(p: &Process) {
    CUTS_SEEN.store(p.client.mapped_cuts(), Relaxed);
    for r in ranges::lock().iter_mut().filter(|r| !r.lent) {
        let Ok(size) = p.client.map_size(r.pin) else {
            continue;
        };
        let end = size.next_multiple_of(PAGE as u64).saturating_sub(r.offset);
        let (end, reach) = (end.min(r.len as u64) as usize, r.reach.min(r.len));
        // Without a descriptor or memory for it the pages stay, and read as zeroes.
        if end < reach && mapping::is_on() {
            mapping::gone(r.addr, r.len);
        }
        if end < reach && put_beyond(r.addr + end, reach - end, r.prot).is_ok() {
            r.reach = end;
        }
    }
}

/// An empty range of addresses, placed so that huge pages of the segment can be mapped whole.
fn reserve(r: &Range, list: &[MapPiece], flags: usize) -> Result<usize, Stop> {
    let how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags & MAP_FIXED_NOREPLACE;
    let want = match list.first() {
        Some(MapPiece::Data { segment_offset, .. }) if r.len >= HUGE && r.addr == 0 => {
            *segment_offset as usize % HUGE
        }
        _ => return kernel(nr::MMAP, [r.addr, r.len, 0, how, usize::MAX, 0]),
    };
    let base = kernel(nr::MMAP, [0, r.len + HUGE, 0, how, usize::MAX, 0])?;
    let addr = base + (want + HUGE - base % HUGE) % HUGE;
    if addr > base {
        kernel(nr::MUNMAP, [base, addr - base, 0, 0, 0, 0])?;
    }
    let (end, reserved) = (addr + r.len, base + r.len + HUGE);
    if end < reserved {
        kernel(nr::MUNMAP, [end, reserved - end, 0, 0, 0, 0])?;
    }
    Ok(addr)
}

/// Bytes up to the end of the last piece that is there.
fn reach(list: &[MapPiece]) -> usize {
    let (mut at, mut reach) = (0, 0);
    for piece in list {
        at += length(piece);
        if !matches!(piece, MapPiece::Beyond { .. }) {
            reach = at;
        }
    }
    reach
}

fn length(piece: &MapPiece) -> usize {
    match *piece {
        MapPiece::Data { len, .. }
        | MapPiece::Zero { len }
        | MapPiece::Lent { len, .. }
        | MapPiece::Beyond { len } => len as usize,
        MapPiece::Inline => PAGE,
    }
}

/// Maps every piece over the range.
fn put(p: &Process, r: &Range, list: &[MapPiece], kept: usize) -> Result<(), Stop> {
    let kind = if r.shared { MAP_SHARED } else { MAP_PRIVATE } | MAP_FIXED | kept;
    let mut addr = r.addr;
    for piece in list {
        let len = length(piece);
        match *piece {
            MapPiece::Data { segment_offset, .. } => {
                let (fd, at) = (p.data_fd as usize, segment_offset as usize);
                kernel(nr::MMAP, [addr, len, r.prot, kind, fd, at])?;
            }
            MapPiece::Lent { offset, .. } => {
                let file = p.client.lent_file(r.pin, r.stored)?;
                let fd = file.as_raw_fd() as usize;
                kernel(nr::MMAP, [addr, len, r.prot, kind, fd, offset as usize])?;
            }
            MapPiece::Zero { .. } => {
                let how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | kept;
                kernel(nr::MMAP, [addr, len, r.prot, how, usize::MAX, 0])?;
            }
            MapPiece::Inline => {
                let mut bytes = [0; PAGE];
                p.client.map_inline(r.pin, &mut bytes)?;
                put_bytes(addr, &bytes, r.prot)?;
            }
            MapPiece::Beyond { .. } => put_beyond(addr, len, r.prot)?,
        }
        addr += len;
    }
    Ok(())
}

/// A page of a program's own that begins with `bytes`.
fn put_bytes(addr: usize, bytes: &[u8], prot: usize) -> Result<(), Stop> {
    let name = c"holdfast-bytes".as_ptr() as usize;
    let fd = kernel(nr::MEMFD_CREATE, [name, 1, 0, 0, 0, 0])?;
    let made = kernel(nr::FTRUNCATE, [fd, PAGE, 0, 0, 0, 0])
        .and_then(|_| {
            kernel(
                nr::PWRITE64,
                [fd, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0],
            )
        })
        .and_then(|_| kernel(nr::MMAP, [addr, PAGE, prot, MAP_PRIVATE | MAP_FIXED, fd, 0]));
    kernel(nr::CLOSE, [fd, 0, 0, 0, 0, 0])?;
    made.map(|_| ())
}

/// Pages of a file without bytes: touching them raises SIGBUS.
fn put_beyond(addr: usize, len: usize, prot: usize) -> Result<(), Stop> {
    let name = c"holdfast-beyond".as_ptr() as usize;
    let fd = kernel(nr::MEMFD_CREATE, [name, 1, 0, 0, 0, 0])?;
    let mapped = kernel(nr::MMAP, [addr, len, prot, MAP_SHARED | MAP_FIXED, fd, 0]);
    kernel(nr::CLOSE, [fd, 0, 0, 0, 0, 0])?;
    mapped.map(|_| ())
}

pub(super) fn any_in(addr: usize, len: usize) -> bool {
    !ranges::is_empty() && ranges::lock().within(addr, len).next().is_some()
}

/// Pages `addr..addr + len` are no longer mappings of pool files.
fn forget(p: &Process, addr: usize, len: usize) -> Result<(), Stop> {
    let end = addr.saturating_add(len.next_multiple_of(PAGE));
    let gone = ranges::lock().take(p, addr, end)?;
    for r in gone {
        p.client.map_unpin(r.pin, r.stored)?;
    }
    Ok(())
}

pub fn munmap(p: &Process, a: &Args) -> Outcome {
    let mapping = mapping::is_on();
    if !any_in(a[0], a[1]) {
        return if mapping {
            mapping::munmap(a)
        } else {
            Err(Stop::Native)
        };
    }
    if !(mapping && mapping::keep(a[0], a[1])) {
        kernel(nr::MUNMAP, *a)?;
    }
    forget(p, a[0], a[1])?;
    Ok(0)
}

/// mremap(old, old_len, new_len, flags, new)
pub fn mremap(p: &Process, a: &Args) -> Outcome {
    if mapping::is_on() {
        mapping::before_mremap(a);
    }
    let (old, new) = (round_up(a[1]).ok_or(EINVAL)?, round_up(a[2]).ok_or(EINVAL)?);
    let fixed = a[3] & MREMAP_FIXED != 0;
    let found = match ranges::is_empty() {
        true => None,
        false => ranges::lock().within(a[0], old.max(1)).next().copied(),
    };
    let Some(r) = found else {
        if fixed && any_in(a[4], new) {
            let addr = kernel(nr::MREMAP, *a)?;
            forget(p, a[4], new)?;
            return Ok(addr as isize);
        }
        return if mapping::is_on() {
            mapping::mremap(a)
        } else {
            Err(Stop::Native)
        };
    };
    is_legal(a, old, new)?;
    let stays = a[3] & (MREMAP_FIXED | MREMAP_DONTUNMAP) == 0 && old > 0;
    if stays && new <= old {
        return shrink(p, a, &r, (old, new));
    }
    if a[0] < r.addr || a[0] + old > r.end() {
        return Err(EFAULT.into());
    }
    if old == 0 && !r.shared {
        return Err(EINVAL.into());
    }
    let part = Range {
        len: old,
        ..r.tail(a[0] - r.addr)
    };
    if stays && let Some(addr) = grow(p, &part, new)? {
        return Ok(addr as isize);
    }
    if a[3] & MREMAP_MAYMOVE == 0 {
        return Err(ENOMEM.into());
    }
    relocate(p, a, &part, new)
}

/// What mremap(2) refuses whatever is mapped there.
fn is_legal(a: &Args, old: usize, new: usize) -> Result<(), Stop> {
    let (flags, to) = (a[3], a[4]);
    let moves = flags & MREMAP_MAYMOVE != 0;
    let (fixed, keeps) = (flags & MREMAP_FIXED != 0, flags & MREMAP_DONTUNMAP != 0);
    let overlaps = to < a[0].saturating_add(old) && a[0] < to.saturating_add(new);
    let wrong = flags & !(MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP) != 0
        || (fixed || keeps) && !moves
        || keeps && old != new
        || fixed && (to % PAGE != 0 || overlaps)
        || a[0] % PAGE != 0
        || a[0].max(old).max(new) > ADDRESSES
        || new == 0;
    match wrong {
        true => Err(EINVAL.into()),
        false => Ok(()),
    }
}

/// Unmaps what is too much, whatever is mapped there; `r` is the first range of ours.
fn shrink(p: &Process, a: &Args, r: &Range, (old, new): (usize, usize)) -> Outcome {
    let addr = a[0];
    if addr < r.addr {
        kernel(nr::MREMAP, *a)?;
    } else if new < old {
        kernel(nr::MUNMAP, [addr + new, old - new, 0, 0, 0, 0])?;
    }
    if new < old {
        forget(p, addr + new, old - new)?;
    }
    Ok(addr as isize)
}

/// Extends a range in place, if the addresses behind it are free.
fn grow(p: &Process, part: &Range, new: usize) -> Result<Option<usize>, Stop> {
    let tail = behind(part, new);
    p.client.map_repin(part.pin)?;
    match place(p, tail, MAP_FIXED_NOREPLACE, false) {
        Ok(addr) if addr == tail.addr => {
            part.manner.say_again(addr, tail.len);
            return Ok(Some(part.addr));
        }
        // A kernel that does not know the flag takes the address for a hint.
        Ok(addr) => {
            kernel(nr::MUNMAP, [addr, tail.len, 0, 0, 0, 0])?;
            forget(p, addr, tail.len)?;
        }
        Err(_) => p.client.map_unpin(part.pin, false)?,
    }
    Ok(None)
}

/// What follows a range when it gets `new` bytes.
fn behind(part: &Range, new: usize) -> Range {
    Range {
        addr: part.end(),
        len: new - part.len,
        reach: new - part.len,
        offset: part.offset + part.len as u64,
        ..*part
    }
}

/// Maps a range at other addresses, with `new` bytes.
fn relocate(p: &Process, a: &Args, part: &Range, new: usize) -> Outcome {
    let (fixed, keeps) = (a[3] & MREMAP_FIXED != 0, a[3] & MREMAP_DONTUNMAP != 0);
    let moved = Range {
        addr: if fixed { a[4] } else { 0 },
        len: new,
        reach: new,
        ..*part
    };
    p.client.map_repin(part.pin)?;
    let flags = if fixed { MAP_FIXED } else { 0 };
    let addr = match place(p, moved, flags, fixed) {
        Ok(addr) => addr,
        Err(stop) => {
            p.client.map_unpin(part.pin, false)?;
            return Err(stop);
        }
    };
    moved.manner.say_again(addr, new);
    let kept = part.len.min(new);
    if !part.shared {
        carry(part.addr, addr, kept, keeps)?;
    }
    if !keeps && part.len > 0 {
        kernel(nr::MUNMAP, [part.addr, part.len, 0, 0, 0, 0])?;
        forget(p, part.addr, part.len)?;
    }
    Ok(addr as isize)
}

/// Moves the pages of a private mapping, some of which may be the program's own: the kernel moves
/// one mapping at a time, and pieces of a file are several.
fn carry(from: usize, to: usize, len: usize, keeps: bool) -> Result<(), Stop> {
    let how = MREMAP_MAYMOVE | MREMAP_FIXED | if keeps { MREMAP_DONTUNMAP } else { 0 };
    for region in crate::maps::read() {
        let (start, end) = (region.start.max(from), region.end.min(from + len));
        if start < end {
            let (len, to) = (end - start, to + (start - from));
            kernel(nr::MREMAP, [start, len, len, how, to, 0])?;
        }
    }
    Ok(())
}

/// mprotect(addr, len, prot), and pkey_mprotect, whose key the kernel sees to.
pub fn mprotect(p: &Process, a: &Args) -> Outcome {
    let [addr, len, prot, ..] = *a;
    if mapping::is_on() {
        mapping::gone(addr, len);
    }
    let legal = addr % PAGE == 0 && prot & !PROT_MASK == 0;
    let Some(len) = round_up(len).filter(|_| legal && any_in(addr, len)) else {
        return Err(Stop::Native);
    };
    let denied = |r: &Range| prot & PROT_WRITE != 0 && !r.may_write;
    if ranges::lock().within(addr, len).any(denied) {
        return Err(EACCES.into());
    }
    if prot & PROT_WRITE != 0 {
        make_storable(p, addr, len)?;
    }
    let mut ranges = ranges::lock();
    ranges.protect(p, addr, addr.saturating_add(len), prot)?;
    Err(Stop::Native)
}

/// Who only reads a lent file has it mapped from a descriptor that is for reading, so that it is
/// known whether somebody may store to it: here it is mapped again.
fn make_storable(p: &Process, addr: usize, len: usize) -> Result<(), Stop> {
    let is_read = |r: &&Range| r.lent && r.shared && !r.stored;
    let list: Vec<Range> = ranges::lock()
        .within(addr, len)
        .filter(is_read)
        .copied()
        .collect();
    for r in list {
        let from = r.addr.max(addr);
        let part = Range {
            len: r.end().min(addr.saturating_add(len)) - from,
            stored: true,
            ..r.tail(from - r.addr)
        };
        let piece = MapPiece::Lent {
            offset: part.offset,
            len: part.len as u64,
        };
        put(p, &part, &[piece], 0)?;
    }
    Ok(())
}

/// msync(addr, len, flags)
pub fn msync(p: &Process, a: &Args) -> Outcome {
    if mapping::is_on() {
        mapping::looked_at(a[0], a[1]);
    }
    if !any_in(a[0], a[1]) {
        return Err(Stop::Native);
    }
    let list: Vec<Range> = ranges::lock().within(a[0], a[1]).copied().collect();
    kernel(nr::MSYNC, *a)?;
    for r in list {
        let from = a[0].max(r.addr);
        let to = a[0].saturating_add(a[1]).min(r.end());
        if r.stored {
            p.client.map_stored(r.pin)?;
        }
        p.client
            .msync(r.pin, r.offset + (from - r.addr) as u64, (to - from) as u64)?;
    }
    Ok(0)
}

/// Before fsync(2): what was stored through mappings changed the file at the latest now. The kernel
/// knows when a page is stored to for the first time; we know only that it may have been.
#[inline]
pub fn note_stores(p: &Process, ofd: OfdLink) -> Result<(), Stop> {
    match ranges::is_empty() {
        true => Ok(()),
        false => note_stores_to(p, p.client.fstat(ofd)?.ino),
    }
}

#[cold]
fn note_stores_to(p: &Process, ino: u64) -> Result<(), Stop> {
    let stored = |r: &&Range| r.stored && r.pin.ino == ino;
    let pin = ranges::lock().iter().find(stored).map(|r| r.pin);
    pin.map_or(Ok(()), |pin| Ok(p.client.map_stored(pin)?))
}

pub fn remap_file_pages(_: &Process, a: &Args) -> Outcome {
    if mapping::is_on() {
        mapping::gone(a[0], a[1]);
    }
    match any_in(a[0], a[1]) {
        true => Err(Stop::Refused(EINVAL, Why::Unsupported)),
        false => Err(Stop::Native),
    }
}

/// A page fault at `addr` that the kernel answered with SIGBUS: true if the file has grown over
/// it meanwhile, and the page is there now.
pub fn on_fault(addr: usize) -> bool {
    let Some(p) = super::process::process().filter(|p| p.client.has_place()) else {
        return false;
    };
    let page = addr & !(PAGE - 1);
    let found = ranges::lock().at(page);
    // Of a lent file the kernel gives what there is.
    let Some(r) = found.filter(|r| !r.lent) else {
        return false;
    };
    // As much as a huge page at once, so that a file filled through a mapping has few pieces; of
    // a private mapping only the page, because others may hold the program's own stores.
    let unit = if r.shared { HUGE } else { PAGE };
    let mut from = r.addr.max(page & !(unit - 1));
    let to = r.end().min((page & !(unit - 1)) + unit);
    // Where the file has grown, what was there before stays, with its page tables.
    let grown = page >= r.addr + r.reach;
    if grown {
        from = from.max(r.addr + r.reach);
    }
    let window = Range {
        len: to - from,
        ..r.tail(from - r.addr)
    };
    let cuts = p.client.mapped_cuts();
    let Ok(mut list) = pieces(p, &window) else {
        return false;
    };
    if grown && matches!(list.last(), Some(MapPiece::Beyond { .. })) {
        list.pop();
    }
    let reach = reach(&list);
    let kept = match r.prot & PROT_WRITE == 0 && reach <= AT_ONCE {
        true => MAP_POPULATE,
        false => 0,
    };
    if !mends(&list, from, page) {
        return false;
    }
    if mapping::is_on() {
        mapping::gone(r.addr, r.len);
    }
    if put(p, &window, &list, kept).is_err() {
        return false;
    }
    r.manner.say_again(from, reach);
    for r in ranges::lock().within_mut(page, 1) {
        let end = (from + reach).saturating_sub(r.addr);
        r.reach = r.reach.max(end).min(r.len);
    }
    if p.client.mapped_cuts() != cuts {
        cut(p);
    }
    true
}

/// A call found no memory at its buffer: true if that lies in a hole of a shared mapping, which
/// is filled where it is touched, and now is.
#[cold]
pub fn fill(p: &Process, call: &Call) -> bool {
    if ranges::is_empty() {
        return false;
    }
    let a = &call.args;
    match call.nr {
        nr::READ | nr::WRITE | nr::PREAD64 | nr::PWRITE64 => fill_from(p, a[1], a[2]),
        nr::READV | nr::WRITEV | nr::PREADV | nr::PWRITEV | nr::PREADV2 | nr::PWRITEV2 => {
            let mut buffers = (0..a[2].min(IOV_MAX)).map_while(|i| args::iovec(a[1], i).ok());
            let first = buffers.find(|(_, len)| *len > 0);
            first.is_some_and(|(base, len)| fill_from(p, base, len))
        }
        _ => false,
    }
}

/// As much as a call moves at a time there; it may move less than it was asked to.
fn fill_from(p: &Process, addr: usize, len: usize) -> bool {
    let is_shared = |addr| ranges::lock().at(addr).is_some_and(|r| r.shared);
    if p.borrowed() || !is_shared(addr) || !on_fault(addr) {
        return false;
    }
    let next = (addr & !(HUGE - 1)) + HUGE;
    if next < addr.saturating_add(len) && is_shared(next) {
        on_fault(next);
    }
    true
}

/// A call wants the pages of a range to be there: whether some of what files have grown by, and of
/// holes of shared mappings, was mapped.
pub(super) fn fill_range(p: &Process, addr: usize, len: usize) -> bool {
    let (start, end) = (addr & !(PAGE - 1), addr.saturating_add(len));
    let own = |r: &&Range| !r.lent;
    let list: Vec<Range> = ranges::lock()
        .within(start, end - start)
        .filter(own)
        .copied()
        .collect();
    let mut some = false;
    for r in list.into_iter().filter(|_| !p.borrowed()) {
        let unit = if r.shared { HUGE } else { PAGE };
        let missing = if r.shared { r.addr } else { r.addr + r.reach };
        let mut at = missing.max(start);
        while at < r.end().min(end) && on_fault(at) {
            some = true;
            at = (at & !(unit - 1)) + unit;
        }
    }
    some
}

/// Whether the page is there once `list` is mapped from `from` on.
fn mends(list: &[MapPiece], from: usize, page: usize) -> bool {
    let mut at = from;
    for piece in list {
        at += length(piece);
        if page < at {
            return !matches!(piece, MapPiece::Beyond { .. });
        }
    }
    false
}

/// The program is about to end: its mappings no longer pin anything.
pub fn leave_all(p: &Process) {
    leave(p, |_| true);
}

/// The program is about to be replaced. A file that is lent may not be afterwards, so those stay
/// pinned until that was done.
pub fn leave_for_exec(p: &Process) {
    leave(p, |r| !r.lent);
}

fn leave(p: &Process, which: impl Fn(&Range) -> bool) {
    for r in ranges::lock().iter().filter(|r| which(r)) {
        // A pin that cannot be dropped is dropped with the session.
        let _ = p.client.map_unpin(r.pin, r.stored);
    }
}

/// The program ends while others may go on storing: what it stored changed the files until now.
pub fn touch_all(p: &Process) {
    for r in ranges::lock().iter().filter(|r| r.stored) {
        if p.client.map_repin(r.pin).is_ok() {
            // As in `leave_all`.
            let _ = p.client.map_unpin(r.pin, true);
        }
    }
}

/// A forked child has all mappings of its parent. A proxy has seen to it already.
pub fn inherit_all(p: &Process) {
    if !p.client.is_served() {
        enter(p, |_| true);
    }
}

/// Undoes `leave_for_exec`: it failed.
pub fn enter_all(p: &Process) {
    enter(p, |r| !r.lent);
}

fn enter(p: &Process, which: impl Fn(&Range) -> bool) {
    for r in ranges::lock().iter().filter(|r| which(r)) {
        // Without a pin the mapping still works; blocks may move at truncation.
        let _ = p.client.map_repin(r.pin);
    }
}
