//! A file mapped for reading, in the way in which any program maps one. Pools are not reached
//! through it: it is what benchmarks measure.
//!
//! What always holds here: the mapping is the value's own until it is dropped; its bytes, which
//! others may change, are copied out and never borrowed; pages that the file has lost are an error
//! where [`crate::fault::landing_for`] is in use, and SIGBUS elsewhere, as for every program.

use crate::Error;
use crate::copy::holdfast_copy_auto;
use rustix::fd::BorrowedFd;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

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
}

// SAFETY: the value owns its mapping, and the methods that take `&self` only read it.
unsafe impl Send for FileMap {}

impl FileMap {
    /// Maps `len` bytes of a file; with `populate`, all page-table entries are made now.
    pub fn new(file: BorrowedFd<'_>, len: usize, populate: bool) -> Result<FileMap, Error> {
        let mut flags = MapFlags::SHARED;
        flags.set(MapFlags::POPULATE, populate);
        // SAFETY: the kernel chooses addresses that nobody uses.
        let base = unsafe { mm::mmap(core::ptr::null_mut(), len, ProtFlags::READ, flags, file, 0) };
        let base = base.map_err(Error::os("mmap"))?.cast();
        Ok(FileMap { base, len })
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
