//! Mappings and where they are placed.
//!
//! What always holds here:
//! - A mapping and its copies own their range until the last is dropped; no other mapping made here
//!   can overlap it.
//! - A range inside a reservation returns to the reservation when its mapping is dropped, so
//!   nothing foreign is ever mapped there.

use crate::medium::Medium;
use crate::persist::{Persistence, Registers};
use crate::protection::Protection;
use crate::scheme::Scheme;
use crate::spin::Spin;
use crate::{Error, PAGE};
use alloc::alloc::{alloc_zeroed, dealloc};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::ptr;
use rustix::fd::BorrowedFd;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Bytes in a huge page.
pub(crate) const HUGE: usize = 2 << 20;

/// What the last but one page table spans. A large reservation begins with one, so that ranges
/// that stand together need no more of them than they must.
const SPAN: usize = 1 << 30;

/// What a mapping may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

/// How a process writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writing {
    /// What keeps it from storing by mistake.
    pub protection: Protection,
    /// How bytes get to the medium.
    pub scheme: Scheme,
}

impl Writing {
    /// The protection, of which a scheme has one of its own.
    pub fn protected(&self) -> Result<Protection, Error> {
        match (self.scheme, self.protection) {
            (Scheme::Descriptor, Protection::None | Protection::Auto) => Ok(Protection::Descriptor),
            (Scheme::Descriptor, other) if other != Protection::Descriptor => Err(Error::NotHere {
                what: "what the kernel writes goes past every protection but fd",
            }),
            (_, protection) => Ok(protection),
        }
    }
}

/// How to map a range of a segment.
#[derive(Clone, Debug)]
pub struct MapOptions {
    pub access: Access,
    pub medium: Medium,
    /// Xmm unless the process is our own.
    pub registers: Registers,
    /// What makes stores durable; `None` asks the platform.
    pub persistence: Option<Persistence>,
    /// How this process writes, where it does.
    pub writing: Writing,
    /// Place the mapping at this offset of a reservation.
    pub place: Option<(Arc<Reservation>, usize)>,
}

impl MapOptions {
    pub fn new(access: Access, medium: Medium) -> MapOptions {
        MapOptions {
            access,
            medium,
            registers: Registers::Xmm,
            persistence: None,
            writing: Writing::default(),
            place: None,
        }
    }

    pub fn registers(mut self, registers: Registers) -> MapOptions {
        self.registers = registers;
        self
    }

    pub fn persistence(mut self, persistence: Persistence) -> MapOptions {
        self.persistence = Some(persistence);
        self
    }

    pub fn scheme(mut self, scheme: Scheme) -> MapOptions {
        self.writing.scheme = scheme;
        self
    }

    /// The same for reading only.
    pub(crate) fn read_only(mut self) -> MapOptions {
        self.access = Access::ReadOnly;
        self
    }

    pub fn writing(mut self, writing: Writing) -> MapOptions {
        self.writing = writing;
        self
    }

    pub fn protection(mut self, protection: Protection) -> MapOptions {
        self.writing.protection = protection;
        self
    }

    pub fn place(mut self, reservation: &Arc<Reservation>, off: usize) -> MapOptions {
        self.place = Some((reservation.clone(), off));
        self
    }
}

/// A range of addresses in which this process places its mappings.
#[derive(Debug)]
pub struct Reservation {
    base: usize,
    len: usize,
    taken: Spin<Vec<(usize, usize)>>,
}

impl core::fmt::Debug for Spin<Vec<(usize, usize)>> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.lock().fmt(f)
    }
}

impl Reservation {
    /// Reserves `len` bytes of address space, aligned for huge pages, backed by nothing.
    pub fn new(len: usize) -> Result<Arc<Reservation>, Error> {
        let len = round_up(len, HUGE)?;
        let align = if len < SPAN { HUGE } else { SPAN };
        let whole = len.checked_add(align).ok_or(Error::NoRoom { len })?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new inaccessible mapping at an address of the kernel's choice.
        let got = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), whole, ProtFlags::empty(), flags)
        };
        let start = got.map_err(Error::os("mmap"))? as usize;
        let base = start.next_multiple_of(align);
        // What the alignment leaves over would count as the program's, where it locks memory.
        for (from, to) in [(start, base), (base + len, start + whole)] {
            if from < to {
                // SAFETY: part of the mapping just made, which nothing refers to.
                let _ = unsafe { rustix::mm::munmap(from as *mut _, to - from) };
            }
        }
        Ok(Arc::new(Reservation {
            base,
            len,
            taken: Spin::new(Vec::new()),
        }))
    }

    /// One reservation for mappings of all these lengths, and where in it each one goes.
    pub fn for_all<const N: usize>(
        lens: [usize; N],
    ) -> Result<(Arc<Reservation>, [usize; N]), Error> {
        let mut places = [0; N];
        let mut end = 0usize;
        for (place, len) in places.iter_mut().zip(lens) {
            *place = end;
            end = end
                .checked_add(round_up(len, HUGE)?)
                .ok_or(Error::NoRoom { len })?;
        }
        Ok((Reservation::new(end)?, places))
    }

    /// Leaves everything that is mapped here now out of core dumps, where the kernel can.
    pub fn leave_out_of_core_dumps(&self) {
        let all = self.base as *mut _;
        // SAFETY: the range is this reservation's; the advice changes nothing that a program sees.
        let _ = unsafe { rustix::mm::madvise(all, self.len, Advice::LinuxDontDump) };
    }

    pub fn addr(&self) -> usize {
        self.base
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn take(&self, off: usize, len: usize) -> Result<usize, Error> {
        let end = off.checked_add(len).ok_or(Error::NoRoom { len })?;
        let mut taken = self.taken.lock();
        let free = taken.iter().all(|&(o, l)| end <= o || o + l <= off);
        if end > self.len || !off.is_multiple_of(PAGE) || !free {
            return Err(Error::NoRoom { len });
        }
        taken.push((off, len));
        Ok(self.base + off)
    }

    fn give_back(&self, addr: usize, len: usize) {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the range was taken from this reservation and its mapping is being dropped,
        // so nothing refers to it; it becomes inaccessible again.
        let done =
            unsafe { rustix::mm::mmap_anonymous(addr as *mut _, len, ProtFlags::empty(), flags) };
        // When the kernel cannot, the range stays taken: it is still mapped.
        if done.is_ok() {
            self.taken.lock().retain(|&(o, _)| self.base + o != addr);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: every mapping placed here holds a reference to the reservation, so none is
        // left, and the range is ours.
        let _ = unsafe { rustix::mm::munmap(self.base as *mut _, self.len) };
    }
}

/// How a file of this medium is mapped for all who use it.
fn shared_flags(medium: Medium) -> MapFlags {
    match medium {
        Medium::Dax => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
        // On hugetlbfs a mapping would have pages set aside for all of the sparse file.
        Medium::Memory | Medium::File | Medium::DaxTest => MapFlags::SHARED | MapFlags::NORESERVE,
    }
}

/// Maps a range of a file for writing over a part of a reservation that the caller has to itself.
pub(crate) fn map_over(
    (at, len): (*mut u8, usize),
    fd: BorrowedFd<'_>,
    offset: u64,
    medium: Medium,
) -> Result<(), Error> {
    let flags = shared_flags(medium) | MapFlags::FIXED;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the range is the caller's alone, and nothing refers to what was mapped there.
    let got = unsafe { rustix::mm::mmap(at.cast(), len, prot, flags, fd, offset) };
    got.map(|_| ()).map_err(Error::os("mmap"))
}

/// Makes a part of a reservation inaccessible again that the caller has to itself.
pub(crate) fn close_over(at: *mut u8, len: usize) -> Result<(), Error> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the range is the caller's alone, and nothing refers to what was mapped there.
    let got = unsafe { rustix::mm::mmap_anonymous(at.cast(), len, ProtFlags::empty(), flags) };
    got.map(|_| ()).map_err(Error::os("mmap"))
}

pub(crate) fn round_up(len: usize, align: usize) -> Result<usize, Error> {
    match len.checked_next_multiple_of(align) {
        Some(n) if n > 0 => Ok(n),
        _ => Err(Error::OutOfRange { off: 0, len }),
    }
}

enum Source {
    Mapped(Option<Arc<Reservation>>),
    Heap(Layout),
}

/// Memory that goes with it.
struct Owned {
    ptr: *mut u8,
    len: usize,
    source: Source,
}

/// Owned memory: a mapping of a file, or heap for tests. A copy is the same memory once more.
#[derive(Clone)]
pub(crate) struct Mapping {
    ptr: *mut u8,
    owned: Arc<Owned>,
}

// SAFETY: the mapping is plain memory that is reached only through atomics and through copy
// routines that the compiler does not see into; which thread does it, or drops the last copy, does
// not matter.
unsafe impl Send for Mapping {}
// SAFETY: as above; the fields never change while the mapping is shared.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Leaves the mapping out of core dumps, where the kernel can.
    pub(crate) fn not_in_core_dumps(&self) {
        if let Source::Mapped(_) = self.owned.source {
            let (at, len) = (self.ptr.cast(), self.owned.len);
            // SAFETY: the range is this mapping's; the advice changes nothing that a program sees.
            let _ = unsafe { rustix::mm::madvise(at, len, Advice::LinuxDontDump) };
        }
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Bytes that are mapped.
    pub(crate) fn len(&self) -> usize {
        self.owned.len
    }

    fn of(ptr: *mut u8, len: usize, source: Source) -> Mapping {
        let owned = Arc::new(Owned { ptr, len, source });
        Mapping { ptr, owned }
    }

    /// Zeros to be read, in whose place something is mapped later.
    pub(crate) fn blank(len: usize) -> Result<Mapping, Error> {
        let len = round_up(len, PAGE)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let at = core::ptr::null_mut();
        // SAFETY: at an address of the kernel's choice.
        let got = unsafe { rustix::mm::mmap_anonymous(at, len, ProtFlags::READ, flags) };
        let ptr = got.map_err(Error::os("mmap"))?;
        Ok(Mapping::of(ptr.cast(), len, Source::Mapped(None)))
    }

    /// Maps the beginning of another file in the place of this one. Both are memory that is only
    /// ever seen as atomics and copied.
    pub(crate) fn replace(&self, fd: BorrowedFd<'_>, access: Access) -> Result<(), Error> {
        let len = self.owned.len;
        let Source::Mapped(_) = self.owned.source else {
            return Err(Error::NoRoom { len });
        };
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let prot = protection(access);
        // SAFETY: over the range of this mapping alone. Who refers to it finds other bytes there,
        // as if another process had stored them.
        let got = unsafe { rustix::mm::mmap(self.ptr.cast(), len, prot, flags, fd, 0) };
        got.map(|_| ()).map_err(Error::os("mmap"))
    }

    pub(crate) fn is_heap(&self) -> bool {
        matches!(self.owned.source, Source::Heap(_))
    }

    pub(crate) fn shared(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        options: &MapOptions,
    ) -> Result<Mapping, Error> {
        let len = round_up(len, PAGE)?;
        let prot = protection(options.access);
        let mut flags = shared_flags(options.medium);
        // Where huge pages may come, addresses are aligned as offsets are.
        let place = match &options.place {
            None if len >= HUGE => Some((Reservation::new(len)?, 0)),
            place => place.clone(),
        };
        let want = match &place {
            Some((r, off)) => {
                flags |= MapFlags::FIXED;
                r.take(*off, len)?
            }
            None => 0,
        };
        // SAFETY: either at an address of the kernel's choice, or over a range that `take` just
        // made ours alone; nothing refers to it.
        let got = unsafe { rustix::mm::mmap(want as *mut _, len, prot, flags, fd, offset) };
        match got {
            Ok(p) => {
                let source = Source::Mapped(place.map(|(r, _)| r));
                Ok(Mapping::of(p.cast(), len, source))
            }
            Err(e) => {
                if let Some((r, _)) = place {
                    r.give_back(want, len);
                }
                Err(Error::os("mmap")(e))
            }
        }
    }

    pub(crate) fn heap(len: usize) -> Result<Mapping, Error> {
        let len = round_up(len, PAGE)?;
        let bad = Error::NoRoom { len };
        let layout = Layout::from_size_align(len, PAGE).map_err(|_| bad)?;
        // SAFETY: round_up refuses zero, so the layout has a size.
        let ptr = unsafe { alloc_zeroed(layout) };
        if ptr.is_null() {
            return Err(bad);
        }
        Ok(Mapping::of(ptr, len, Source::Heap(layout)))
    }
}

fn protection(access: Access) -> ProtFlags {
    match access {
        Access::ReadOnly => ProtFlags::READ,
        Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        match &self.source {
            Source::Mapped(Some(r)) => r.give_back(self.ptr as usize, self.len),
            Source::Mapped(None) => {
                // SAFETY: the range was mapped by `shared` and nothing outlives its owner.
                let _ = unsafe { rustix::mm::munmap(self.ptr.cast(), self.len) };
            }
            // SAFETY: allocated by `heap` with this layout, freed once.
            Source::Heap(layout) => unsafe { dealloc(self.ptr, *layout) },
        }
    }
}
