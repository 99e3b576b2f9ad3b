//! Flushing a segment through a descriptor of its file.
//!
//! What always holds here:
//! - If the number meanwhile names another file, nothing is flushed and the caller is told.
//! - Only on file systems that overwrite in place is it known what the device has in place of a
//!   page.

use crate::cpu::ticks;
use crate::{Error, sys};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;

const EXT_MAGIC: u64 = 0xef53;
const XFS_MAGIC: u64 = 0x5846_5342;

/// Bytes that are looked through first by `write_gently`, and the most that are at once.
const STEP_MIN: u64 = 64 * 1024;
const STEP_MAX: u64 = 8 << 20;
/// In ticks, some 150 us: as long as a device may be busy with it while others wait.
const STEP_TICKS: u64 = 3 << 17;

/// Writes what is dirty in the first `len` bytes of a file, and nothing is flushed by it. The
/// device gets a little at a time, so that flushes that somebody waits for come in between.
pub fn write_gently(fd: BorrowedFd<'_>, len: u64) -> Result<(), Errno> {
    let (mut at, mut step) = (0, STEP_MIN);
    while at < len {
        let begun = ticks();
        sys::write_range(fd, at, step.min(len - at), true)?;
        at += step;
        step = next_step(step, ticks().wrapping_sub(begun));
    }
    Ok(())
}

/// After `step` bytes that took so long.
fn next_step(step: u64, took: u64) -> u64 {
    let fits = step.saturating_mul(STEP_TICKS) / took.max(1);
    fits.clamp(STEP_MIN, (step * 4).min(STEP_MAX))
}

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
    pub(crate) fn borrow(&self) -> Result<BorrowedFd<'_>, Error> {
        // SAFETY: the number is only handed to system calls, and the first of them looks what it
        // names now; one that is closed between the two makes the next call fail, unless another
        // thread opens a file under it in that instant.
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

/// Begins to write what is dirty in a range of a file, and waits for nothing.
pub fn begin_write_back(fd: BorrowedFd<'_>, off: u64, len: u64) -> Result<(), Error> {
    sys::write_range(fd, off, len, false).map_err(Error::os("sync_file_range"))
}

/// What tells a file from all others. Its times are not asked for: the kernel would make the next
/// change of the file get a time of its own, and each flush write that.
pub(crate) fn id(fd: BorrowedFd<'_>) -> Result<(u64, u64), Error> {
    let stat = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::INO).map_err(Error::os("statx"))?;
    let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    Ok((device, stat.stx_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn steps_grow_where_nothing_is_dirty_and_shrink_where_they_take_long() {
        let grown = (0..9).fold(STEP_MIN, |step, _| next_step(step, 1));
        assert_eq!(grown, STEP_MAX);
        assert_eq!(next_step(1 << 20, 4 * STEP_TICKS), 1 << 18);
        assert_eq!(next_step(1 << 20, u64::MAX), STEP_MIN);
        assert_eq!(next_step(1 << 20, STEP_TICKS), 1 << 20);
    }

    #[test]
    fn whatever_the_length_all_of_it_is_looked_through() {
        let path =
            std::env::temp_dir().join(std::format!("holdfast-gently.{}", std::process::id()));
        let file = std::fs::File::create_new(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for len in [0, 1, STEP_MIN, 3 * STEP_MAX + 1] {
            assert_eq!(write_gently(file.as_fd(), len), Ok(()));
        }
        // It has no pages.
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(write_gently(null.as_fd(), 1), Err(Errno::SPIPE));
    }
}
