//! Memory that all processes of a session map and write.
//!
//! What always holds here:
//! - It is only ever seen as structs whose every field is an atomic, so that any bytes another
//!   process stores are a valid value of each field, and no access is a data race.
//! - It cannot shrink under us: [`SharedMem::create_memfd`] seals its size.

use crate::atomic::{
    AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
};
use crate::buf::{ConstBuf, MutBuf};
use crate::map::{Access, HUGE, MapOptions, Mapping};
use crate::medium::Medium;
use crate::{Error, PAGE};
use alloc::alloc::alloc_zeroed;
use alloc::boxed::Box;
use core::alloc::Layout;
use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use core::mem::{align_of, size_of};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};

/// A type that may live in memory which hostile processes write.
///
/// # Safety
/// Every field is an atomic or itself `Shared`, the layout is `repr(C)` or primitive, the type
/// has no drop glue, and every bit pattern is a valid value. Use [`crate::shared!`], which
/// checks all of it.
pub unsafe trait Shared: Sized + Sync {
    /// All bits zero.
    fn zeroed() -> Self {
        // SAFETY: every bit pattern is valid, by the contract of the trait.
        unsafe { core::mem::zeroed() }
    }

    /// All bits zero, on the heap without passing through the stack. Aborts without memory.
    fn boxed_zeroed() -> Box<Self> {
        let layout = Layout::new::<Self>();
        if layout.size() == 0 {
            return Box::new(Self::zeroed());
        }
        // SAFETY: the layout has a size; zero bytes are a valid Self by the contract.
        unsafe {
            let p = alloc_zeroed(layout).cast::<Self>();
            if p.is_null() {
                alloc::alloc::handle_alloc_error(layout);
            }
            Box::from_raw(p)
        }
    }
}

macro_rules! shared_atomics {
    ($($t:ty),*) => { $(
        // SAFETY: an atomic integer: any bits are valid, no drop glue.
        unsafe impl Shared for $t {}
    )* };
}
shared_atomics!(
    AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicI8, AtomicI16, AtomicI32, AtomicI64
);

// SAFETY: an array of values that may hold any bits may hold any bits.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}

#[doc(hidden)]
pub const fn __check_shared<T: Shared>() {}

/// Defines `repr(C)` structs of atomics that may live in memory which other processes write.
///
/// Every field's type must be [`Shared`]; the crate that uses this needs no `unsafe`:
/// ```
/// #![forbid(unsafe_code)]
/// use holdfast_pmem::atomic::{AtomicU8, AtomicU32, AtomicU64};
/// holdfast_pmem::shared! {
///     /// A slot.
///     pub struct Slot { pub owner: AtomicU32, pub state: AtomicU32, name: [AtomicU8; 32] }
///     /// Slots.
///     #[repr(align(64))]
///     pub struct Table { pub count: AtomicU64, pub slots: [Slot; 8] }
/// }
/// use holdfast_pmem::Shared;
/// assert_eq!(Table::zeroed().slots.len(), 8);
/// ```
/// A field that is not shared does not compile:
/// ```compile_fail
/// holdfast_pmem::shared! { pub struct Bad { flag: bool } }
/// ```
#[macro_export]
macro_rules! shared {
    ($(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[$fmeta:meta])* $fvis:vis $field:ident : $ty:ty),* $(,)?
        }
    )+) => { $(
        $(#[$meta])*
        #[repr(C)]
        $vis struct $name { $($(#[$fmeta])* $fvis $field: $ty),* }
        const _: () = {
            $( $crate::__check_shared::<$ty>(); )*
            assert!(!::core::mem::needs_drop::<$name>());
        };
        // SAFETY: repr(C); every field was checked to be Shared above.
        unsafe impl $crate::Shared for $name {}
    )+ };
}

/// A read-write mapping of memory that other processes write too. A copy is the same memory once
/// more.
#[derive(Clone)]
pub struct SharedMem {
    mapping: Mapping,
    len: usize,
}

impl SharedMem {
    /// Maps the first `len` bytes of `fd`. The file must be sealed against shrinking, or owned
    /// by a process that we trust not to shrink it.
    pub fn map(fd: BorrowedFd<'_>, len: usize) -> Result<SharedMem, Error> {
        SharedMem::map_with(fd, len, &MapOptions::new(Access::ReadWrite, Medium::Memory))
    }

    /// As [`SharedMem::map`], placed as `options` say; what is placed in a reservation is left out
    /// of core dumps by whoever made that.
    pub fn map_with(
        fd: BorrowedFd<'_>,
        len: usize,
        options: &MapOptions,
    ) -> Result<SharedMem, Error> {
        let options = MapOptions {
            access: Access::ReadWrite,
            ..options.clone()
        };
        let size = rustix::fs::fstat(fd).map_err(Error::os("fstat"))?.st_size as u64;
        if size < len as u64 {
            return Err(Error::OutOfRange { off: 0, len });
        }
        let mapping = Mapping::shared(fd, 0, len, &options)?;
        if options.place.is_none() {
            // A core dump would touch each page of it, and so make memory of what is not used.
            mapping.not_in_core_dumps();
        }
        Ok(SharedMem { mapping, len })
    }

    /// Zeroed heap memory, for tests within one process.
    pub fn in_memory(len: usize) -> Result<SharedMem, Error> {
        Ok(SharedMem {
            mapping: Mapping::heap(len)?,
            len,
        })
    }

    /// Makes zeroed shared memory whose size nobody can change, and maps it.
    pub fn create_memfd(name: &str, len: usize) -> Result<(OwnedFd, SharedMem), Error> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags).map_err(Error::os("memfd_create"))?;
        let size = crate::map::round_up(len, PAGE)? as u64;
        rustix::fs::ftruncate(&fd, size).map_err(Error::os("ftruncate"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(Error::os("fcntl"))?;
        let mem = SharedMem::map(fd.as_fd(), len)?;
        Ok((fd, mem))
    }

    /// As `create_memfd`; who gets the descriptor can only read what is there.
    pub fn create_for_readers(name: &str, len: usize) -> Result<(OwnedFd, SharedMem), Error> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags).map_err(Error::os("memfd_create"))?;
        let size = crate::map::round_up(len, PAGE)? as u64;
        rustix::fs::ftruncate(&fd, size).map_err(Error::os("ftruncate"))?;
        let mem = SharedMem::map(fd.as_fd(), len)?;
        // After this mapping nobody makes another one to store to, nor writes.
        let fixed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
        let seals = fixed | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(Error::os("fcntl"))?;
        Ok((fd, mem))
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn addr(&self) -> usize {
        self.mapping.ptr() as usize
    }

    /// The `T` at `off`, or `None` when it is not inside or not aligned.
    #[inline]
    pub fn at<T: Shared>(&self, off: u64) -> Option<&T> {
        let p = self.check::<T>(off, size_of::<T>())?;
        // SAFETY: in range and aligned; any bytes are a valid T, and all its fields are atomic.
        Some(unsafe { &*p })
    }

    /// Starts loading the line at `off`; a hint that never fails.
    #[inline]
    pub fn prefetch(&self, off: u64) {
        if let Some(line) = self.check::<u8>(off, 1) {
            // SAFETY: inside of the mapping; a prefetch changes and faults nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
        }
    }

    /// As [`crate::Region::prefault`].
    pub fn prefault(&self, off: u64, len: usize) -> Result<(), Error> {
        let Some(at) = self.check::<u8>(off, len).filter(|_| len > 0) else {
            return Err(Error::OutOfRange { off, len });
        };
        let start = at as usize / PAGE * PAGE;
        let end = (at as usize + len).next_multiple_of(PAGE);
        // SAFETY: whole pages of the mapping, which is always writable.
        unsafe { crate::sys::populate(start as *mut u8, end - start, true) }
            .map_err(Error::os("madvise"))
    }

    /// As [`crate::Region::make_huge`].
    pub fn make_huge(&self, off: u64, len: usize) -> Result<bool, Error> {
        let first = self.check::<u8>(off, len);
        let first = first.ok_or(Error::OutOfRange { off, len })? as usize;
        let (start, end) = (first.next_multiple_of(HUGE), (first + len) / HUGE * HUGE);
        if start >= end {
            return Ok(false);
        }
        // SAFETY: start and end lie inside the checked range of the mapping.
        Ok(unsafe { crate::sys::madvise_collapse(start, end - start) }.is_ok())
    }

    /// `n` of `T` from `off`, or `None` when they are not inside or not aligned.
    #[inline]
    pub fn slice<T: Shared>(&self, off: u64, n: usize) -> Option<&[T]> {
        let p = self.check::<T>(off, n.checked_mul(size_of::<T>())?)?;
        // SAFETY: as in `at`, for n values in a row.
        Some(unsafe { core::slice::from_raw_parts(p, n) })
    }

    /// `len` bytes from `off` to copy from, which others may be changing meanwhile. `None`: they
    /// are not inside.
    pub fn source(&self, off: u64, len: usize) -> Option<ConstBuf<'_>> {
        let p = self.check::<u8>(off, len)?;
        // SAFETY: mapped for as long as the value is borrowed, and only copied from.
        Some(unsafe { ConstBuf::from_raw(p, len) })
    }

    /// The same to copy to, by whoever the bytes belong to at the moment.
    pub fn target(&self, off: u64, len: usize) -> Option<MutBuf<'_>> {
        let p = self.check::<u8>(off, len)?;
        // SAFETY: mapped and writable for as long as the value is borrowed; nothing refers to these
        // bytes but atomics and copies.
        Some(unsafe { MutBuf::from_raw(p.cast_mut(), len) })
    }

    /// Room for memory that is mapped there later, by [`SharedMem::replace`]; until then all of it
    /// reads as zero, and nothing may be stored there.
    pub fn blank(len: usize) -> Result<SharedMem, Error> {
        let mapping = Mapping::blank(len)?;
        Ok(SharedMem { mapping, len })
    }

    /// From now on this is the memory of `fd`, which is at least as long, at the same addresses.
    /// Where access is for reading, a store there is a fault.
    pub fn replace(&self, fd: BorrowedFd<'_>, access: Access) -> Result<(), Error> {
        let size = rustix::fs::fstat(fd).map_err(Error::os("fstat"))?.st_size as u64;
        if size < self.len as u64 {
            return Err(Error::OutOfRange {
                off: 0,
                len: self.len,
            });
        }
        self.mapping.replace(fd, access)?;
        self.mapping.not_in_core_dumps();
        Ok(())
    }

    #[inline]
    fn check<T>(&self, off: u64, len: usize) -> Option<*const T> {
        let off = usize::try_from(off).ok()?;
        let end = off.checked_add(len)?;
        // Mappings start on a page, so alignment of the offset is alignment of the address.
        if end > self.len || off % align_of::<T>() != 0 || align_of::<T>() > PAGE {
            return None;
        }
        // SAFETY: off <= self.len.
        Some(
            unsafe { self.mapping.ptr().add(off) }
                .cast::<T>()
                .cast_const(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;

    shared! {
        /// Two words and bytes.
        #[repr(align(64))]
        struct Slot { owner: AtomicU32, seen: AtomicU64, name: [AtomicU8; 5] }
    }

    #[test]
    fn two_mappings_see_one_memory() {
        let (fd, a) = SharedMem::create_memfd("shared", 10_000).unwrap();
        let b = SharedMem::map(fd.as_fd(), 10_000).unwrap();
        a.at::<Slot>(128).unwrap().seen.store(9, Relaxed);
        assert_eq!(b.at::<Slot>(128).unwrap().seen.load(Relaxed), 9);
        b.slice::<AtomicU8>(0, 10_000).unwrap()[9_999].store(3, Relaxed);
        assert_eq!(a.at::<AtomicU8>(9_999).unwrap().load(Relaxed), 3);
        assert_eq!(a.at::<Slot>(0).unwrap().name.len(), 5);
        assert_eq!(a.at::<Slot>(0).unwrap().owner.load(Relaxed), 0);
    }

    #[test]
    fn core_dumps_leave_it_out() {
        let (_fd, m) = SharedMem::create_memfd("not-dumped", 1 << 20).unwrap();
        m.at::<AtomicU64>(0).unwrap().store(1, Relaxed);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let ours = maps.split_once("not-dumped").unwrap().1;
        let flags = ours
            .lines()
            .find(|line| line.starts_with("VmFlags"))
            .unwrap();
        assert!(flags.split(' ').any(|flag| flag == "dd"), "{flags}");
    }

    #[test]
    fn what_is_outside_or_misaligned_is_not_there() {
        let m = SharedMem::in_memory(4096).unwrap();
        assert!(m.at::<AtomicU64>(4088).is_some());
        assert!(m.at::<AtomicU64>(4092).is_none());
        assert!(m.at::<AtomicU64>(4096).is_none());
        assert!(m.at::<AtomicU64>(u64::MAX - 7).is_none());
        assert!(m.at::<Slot>(32).is_none(), "the struct asks for 64 bytes");
        assert!(m.slice::<AtomicU64>(0, 512).is_some());
        assert!(m.slice::<AtomicU64>(0, 513).is_none());
        assert!(m.slice::<AtomicU64>(8, usize::MAX).is_none());
        assert_eq!(m.slice::<AtomicU64>(4096, 0).map(<[_]>::len), Some(0));
    }

    #[test]
    fn bytes_are_copied_in_and_out() {
        let (_fd, m) = SharedMem::create_memfd("bytes", 8192).unwrap();
        let mut to = m.target(4090, 12).unwrap();
        assert_eq!(to.copy_from(ConstBuf::from(&b"hello"[..])), Ok(5));
        let mut out = [0; 8];
        assert_eq!(m.source(4090, 5).unwrap().read(&mut out), Ok(5));
        assert_eq!(&out, b"hello\0\0\0");
        assert!(m.source(8190, 3).is_none() && m.target(u64::MAX, 1).is_none());
    }

    #[test]
    fn other_memory_takes_its_place() {
        let (_one, m) = SharedMem::create_memfd("one", 8192).unwrap();
        let (two, other) = SharedMem::create_memfd("two", 8192).unwrap();
        let (short, _) = SharedMem::create_memfd("short", 4096).unwrap();
        let word = m.at::<AtomicU64>(4096).unwrap();
        word.store(1, Relaxed);
        assert!(m.replace(short.as_fd(), Access::ReadWrite).is_err());
        assert_eq!(word.load(Relaxed), 1);
        m.replace(two.as_fd(), Access::ReadWrite).unwrap();
        assert_eq!(word.load(Relaxed), 0);
        word.store(2, Relaxed);
        assert_eq!(other.at::<AtomicU64>(4096).unwrap().load(Relaxed), 2);
    }

    #[test]
    fn nobody_can_change_the_size() {
        let (fd, _mem) = SharedMem::create_memfd("sealed", 8192).unwrap();
        assert!(rustix::fs::ftruncate(&fd, 0).is_err());
        assert!(rustix::fs::ftruncate(&fd, 1 << 20).is_err());
        assert!(rustix::fs::fcntl_add_seals(&fd, SealFlags::WRITE).is_err());
        assert!(SharedMem::map(fd.as_fd(), 8193).is_err());
    }

    #[test]
    fn the_zero_state_is_all_zero() {
        assert_eq!(Slot::zeroed().seen.load(Relaxed), 0);
        assert_eq!(Slot::boxed_zeroed().owner.load(Relaxed), 0);
    }
}
