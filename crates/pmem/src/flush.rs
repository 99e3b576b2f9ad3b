//! Flushing a segment through a descriptor of its file.
//!
//! What always holds here:
//! - A number that names another file by now flushes nothing and says so.
//! - What is in place of a page on the device is known to be only on file systems that overwrite.

use crate::{Error, sys};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;

const EXT_MAGIC: u64 = 0xef53;
const XFS_MAGIC: u64 = 0x5846_5342;

/// A descriptor that somebody else keeps open, and what it has to be.
#[derive(Clone, Copy, Debug)]
pub struct SegmentFile {
    fd: RawFd,
    id: (u64, u64),
    in_place: bool,
}

impl SegmentFile {
    /// Of `fd`, which stays open for as long as this is used.
    pub fn new(fd: BorrowedFd<'_>) -> Result<SegmentFile, Error> {
        let fs = rustix::fs::fstatfs(fd).map_err(Error::os("fstatfs"))?;
        let magic = fs.f_type as u64 & 0xffff_ffff;
        Ok(SegmentFile {
            fd: fd.as_raw_fd(),
            id: id(fd)?,
            in_place: [EXT_MAGIC, XFS_MAGIC].contains(&magic),
        })
    }

    /// Whether the file system writes a page where it was, so that its metadata need not change.
    pub(crate) fn overwrites_in_place(&self) -> bool {
        self.in_place
    }

    /// The descriptor, if it still is that of the file.
    fn borrow(&self) -> Result<BorrowedFd<'_>, Error> {
        // SAFETY: the number is only handed to system calls, and the first of them looks what it
        // names now; one that is closed between the two makes the next call fail.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        match id(fd)? == self.id {
            true => Ok(fd),
            false => Err(Error::os("fdatasync")(Errno::BADF)),
        }
    }

    /// Makes all of the file durable.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        rustix::fs::fdatasync(self.borrow()?).map_err(Error::os("fdatasync"))
    }

    /// Writes from memory that may not be there.
    pub(crate) fn write(&self, src: *const u8, len: usize, off: u64) -> Result<usize, Errno> {
        let fd = self.borrow().map_err(|_| Errno::BADF)?;
        sys::pwrite(fd, src, len, off)
    }

    /// Reads to memory that may not be there.
    ///
    /// # Safety
    /// What is mapped of the destination must be the caller's to be written.
    pub(crate) unsafe fn read(&self, dst: *mut u8, len: usize, off: u64) -> Result<usize, Errno> {
        let fd = self.borrow().map_err(|_| Errno::BADF)?;
        // SAFETY: the caller vouches for it.
        unsafe { sys::pread(fd, dst, len, off) }
    }

    /// Writes what is dirty in a range, without a flush of the device, or only begins to.
    pub(crate) fn write_back(&self, off: u64, len: u64, wait: bool) -> Result<(), Error> {
        sys::write_range(self.borrow()?, off, len, wait).map_err(Error::os("sync_file_range"))
    }
}

/// What tells a file from all others. Its times are not asked for: the kernel would make the next
/// change of the file get a time of its own, and each flush write that.
pub(crate) fn id(fd: BorrowedFd<'_>) -> Result<(u64, u64), Error> {
    let stat = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::INO).map_err(Error::os("statx"))?;
    let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    Ok((device, stat.stx_ino))
}
