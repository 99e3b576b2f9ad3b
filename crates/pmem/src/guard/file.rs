//! The file of a region, to be written and mapped.
//!
//! What always holds here: a descriptor is used only after it was looked whether it still is the
//! file's. A program may close any number, and open another file under it.

use crate::Error;
use crate::flush::SegmentFile;
use core::mem::ManuallyDrop;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Bits of an offset that every file system allows.
const OFFSET: u64 = (1 << 42) - 1;

pub(super) struct RegionFile {
    own: Option<Own>,
    /// Where we have none of our own, what the region was mapped with.
    given: SegmentFile,
}

/// An open description that nobody else has. Nothing moves its offset, which nobody can guess: to
/// ask for it costs a third of asking for the file's number.
struct Own {
    fd: ManuallyDrop<OwnedFd>,
    offset: u64,
}

impl RegionFile {
    /// Of `fd`, which stays open for as long as this is used.
    pub fn new(fd: BorrowedFd<'_>) -> Result<RegionFile, Error> {
        Ok(RegionFile {
            // Without /proc there is none.
            own: Own::new(fd).ok(),
            given: SegmentFile::new(fd)?,
        })
    }

    pub fn borrow(&self) -> Result<BorrowedFd<'_>, Error> {
        match &self.own {
            Some(own) => own.borrow().map_err(Error::os("lseek")),
            None => self.given.borrow(),
        }
    }
}

impl Own {
    fn new(fd: BorrowedFd<'_>) -> Result<Own, Errno> {
        let mut name = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
        write_number(fd.as_raw_fd(), name.get_mut(14..24).unwrap_or_default());
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
        let name = name.get(..end).unwrap_or_default();
        let own = rustix::fs::open(name, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let mut random = [0; 8];
        getrandom(&mut random, GetRandomFlags::empty())?;
        let offset = u64::from_ne_bytes(random) & OFFSET;
        rustix::fs::seek(&own, SeekFrom::Start(offset))?;
        Ok(Own {
            fd: ManuallyDrop::new(own),
            offset,
        })
    }

    fn borrow(&self) -> Result<BorrowedFd<'_>, Errno> {
        match rustix::fs::tell(&*self.fd)? == self.offset {
            true => Ok(self.fd.as_fd()),
            false => Err(Errno::BADF),
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if self.borrow().is_ok() {
            // SAFETY: dropped once, here, and not used any more.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

/// In decimal digits.
fn write_number(number: i32, to: &mut [u8]) {
    let mut digits = [0; 10];
    let (mut at, mut rest) = (digits.len(), number.unsigned_abs());
    while at == digits.len() || rest > 0 {
        at -= 1;
        if let Some(digit) = digits.get_mut(at) {
            *digit = b'0' + (rest % 10) as u8;
        }
        rest /= 10;
    }
    let digits = digits.get(at..).unwrap_or_default();
    for (to, digit) in to.iter_mut().zip(digits) {
        *to = *digit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written() {
        for number in [0, 7, 10, 255, 1_048_575, i32::MAX] {
            let mut text = [0; 10];
            write_number(number, &mut text);
            let text = core::str::from_utf8(&text).unwrap().trim_end_matches('\0');
            assert_eq!(text.parse(), Ok(number));
        }
    }

    #[test]
    fn another_file_under_the_number_is_neither_used_nor_closed() {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let new = || rustix::fs::memfd_create("region-file", flags).unwrap();
        let (fd, stranger) = (new(), new());
        let file = RegionFile::new(fd.as_fd()).unwrap();
        assert!(file.borrow().is_ok());
        let number = file.own.as_ref().unwrap().fd.as_raw_fd();
        // SAFETY: what is closed by this is ours, and it is what the test is about.
        assert_eq!(unsafe { libc::dup2(stranger.as_raw_fd(), number) }, number);
        assert!(file.borrow().is_err());
        drop(file);
        // SAFETY: the number is the stranger's still, and closed once.
        assert_eq!(unsafe { libc::close(number) }, 0);
    }
}
