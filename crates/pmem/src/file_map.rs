//! A file mapped for reading, in the way in which any program maps one. Pools are not reached
//! through it: it is what benchmarks measure.
//!
//! What always holds here: the mapping is the value's own until it is dropped; its bytes, which
//! others may change, are copied out and never borrowed; pages that the file has lost are an error
//! where [`crate::fault::landing_for`] is in use, and SIGBUS elsewhere, as for every program.

use crate::copy::holdfast_copy_auto;
use crate::{Error, PAGE};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{self, Advice, MapFlags, ProtFlags, UserfaultfdFlags};

/// Of faults in the kernel it need not tell: what every user may ask for.
const USER_MODE_ONLY: u32 = 1;

/// What a program says that it will do with a mapping (madvise(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    Sequential,
    Random,
}

/// The first bytes of a file, mapped shared.
#[derive(Debug)]
pub struct FileMap {
    base: *mut u8,
    len: usize,
    /// Has each fault map one page.
    single: Option<OwnedFd>,
}

/// What userfaultfd(2) is asked: its version, and what it has.
#[repr(C)]
struct UffdApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// A range of which it is to tell something.
#[repr(C)]
struct UffdRange {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

const UFFDIO_API: Opcode = opcode::read_write::<UffdApi>(0xaa, 0x3f);
const UFFDIO_REGISTER: Opcode = opcode::read_write::<UffdRange>(0xaa, 0);
const UFFD_API: u64 = 0xaa;
/// Write protection, also of shared memory.
const UFFD_FEATURES: u64 = 1 | 1 << 12;
const UFFD_MODE_WP: u64 = 2;

// SAFETY: the value owns its mapping, and the methods that take `&self` only read it.
unsafe impl Send for FileMap {}

impl FileMap {
    /// Maps `len` bytes of a file; with `populate`, all page-table entries are made now.
    // One system call in one place, so that it can be caught in whatever way the compiler lays it
    // out.
    #[inline(never)]
    pub fn new(file: BorrowedFd<'_>, len: usize, populate: bool) -> Result<FileMap, Error> {
        let populate = MapFlags::POPULATE.bits() * u32::from(populate);
        let flags = MapFlags::SHARED | MapFlags::from_bits_retain(populate);
        // SAFETY: the kernel chooses addresses that nobody uses.
        let base = unsafe { mm::mmap(core::ptr::null_mut(), len, ProtFlags::READ, flags, file, 0) };
        let base = base.map_err(Error::os("mmap"))?.cast();
        Ok(FileMap {
            base,
            len,
            single: None,
        })
    }

    /// From now on a fault maps one page, as on a DAX file system, and not those around it, too: so
    /// the kernel does where it might have to tell of write protection, which is never set here.
    pub fn map_single_pages(&mut self) -> Result<(), Error> {
        let (base, len) = (self.base as u64, self.len.next_multiple_of(PAGE) as u64);
        let mut api = UffdApi {
            api: UFFD_API,
            features: UFFD_FEATURES,
            ioctls: 0,
        };
        let mut range = UffdRange {
            start: base,
            len,
            mode: UFFD_MODE_WP,
            ioctls: 0,
        };
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
        // SAFETY: no page of ours is ever protected by it, so no access waits for an answer.
        let fd = unsafe { mm::userfaultfd(flags) }.map_err(Error::os("userfaultfd"))?;
        // SAFETY: both calls fill the structures of their numbers, and the range is ours.
        unsafe {
            ioctl(&fd, Updater::<UFFDIO_API, _>::new(&mut api))
                .and_then(|()| ioctl(&fd, Updater::<UFFDIO_REGISTER, _>::new(&mut range)))
        }
        .map_err(Error::os("userfaultfd"))?;
        self.single = Some(fd);
        Ok(())
    }

    /// Tells the kernel what is to come.
    pub fn advise(&self, hint: Hint) -> Result<(), Error> {
        let advice = match hint {
            Hint::Sequential => Advice::Sequential,
            Hint::Random => Advice::Random,
        };
        // SAFETY: the mapping is ours, and these advices change no contents.
        unsafe { mm::madvise(self.base.cast(), self.len, advice) }.map_err(Error::os("madvise"))
    }

    /// Copies bytes from `off` on.
    pub fn read(&self, off: usize, dst: &mut [u8]) -> Result<(), Error> {
        let fits = off
            .checked_add(dst.len())
            .is_some_and(|end| end <= self.len);
        if !fits {
            let (off, len) = (off as u64, dst.len());
            return Err(Error::OutOfRange { off, len });
        }
        // SAFETY: both ranges were checked; a fault in the source is reported by the routine.
        let out = unsafe { holdfast_copy_auto(dst.as_mut_ptr(), self.base.add(off), dst.len()) };
        match out.left {
            0 => Ok(()),
            left => Err(Error::Media {
                off: (off + dst.len() - left) as u64,
            }),
        }
    }
}

impl Drop for FileMap {
    fn drop(&mut self) {
        // SAFETY: nothing else knows the mapping.
        let unmapped = unsafe { mm::munmap(self.base.cast(), self.len) };
        assert!(unmapped.is_ok(), "the mapping is ours");
    }
}
