//! Which file of the host a descriptor is, as far as the mapping cache must know.
//!
//! Invariants: the numbers of a file are those that fstat(2) says of the descriptor that is mapped,
//! never a path; only file systems are known here where these numbers are those of the inode whose
//! pages are mapped, and are not given to another inode while that one is mapped. A descriptor that
//! mmap(2) would refuse to read from is no file.

use super::cache::Key;
use crate::dispatch::nr;
use crate::sys::{self, Fd};

type Args = [usize; 6];

const F_GETFL: usize = 3;
const O_ACCMODE: usize = 3;
const O_NOATIME: usize = 0o1_000_000;
const O_PATH: usize = 0o10_000_000;
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;

/// ext2 to ext4, XFS and tmpfs. Elsewhere the numbers may be those of another inode than the one
/// whose pages are mapped (overlayfs, where a file keeps its numbers when it is copied up), or may
/// be what a server says (NFS, FUSE).
const KNOWN: [u64; 3] = [0xef53, 0x5846_5342, TMPFS];
/// The kind of tmpfs and of files in memory without a name.
pub const TMPFS: u64 = 0x0102_1994;

/// A regular file, open for reading only.
#[derive(Clone, Copy)]
pub struct File {
    pub dev: u64,
    pub ino: u64,
    flags: usize,
}

/// `None`: what is mapped from there cannot be kept. A descriptor that may write counts as one that
/// does, for seals, leases and execve(2), and the mapping holds it.
pub fn of(fd: usize) -> Option<File> {
    // SAFETY: asks for flags; touches no memory.
    let flags = unsafe { sys::raw(nr::FCNTL, [fd, F_GETFL, 0, 0, 0, 0]) };
    let flags = usize::try_from(flags).ok()?;
    if flags & (O_ACCMODE | O_PATH) != 0 {
        return None;
    }
    let stat = sys::stat_fd(fd)?;
    // Without a name, nobody opens it again.
    if stat.mode & S_IFMT != S_IFREG
        || stat.nlink == 0
        || !kind_of_system(fd).is_some_and(|kind| KNOWN.contains(&kind))
    {
        return None;
    }
    Some(File {
        dev: stat.dev,
        ino: stat.ino,
        flags,
    })
}

/// What kind of file system the file is on. Asked each time: a device number is given to another
/// one when its own is unmounted.
pub fn kind_of_system(fd: usize) -> Option<u64> {
    // struct statfs has 120 bytes and begins with the type.
    let mut statfs = [0u64; 15];
    let args = [fd, statfs.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel fills a struct statfs, which is as long.
    let ret = unsafe { sys::raw(nr::FSTATFS, args) };
    (ret == 0).then_some(statfs[0])
}

impl File {
    /// A description of the file of its own. A mapping holds the description that it was made from,
    /// and with it flock(2)s, which have to go when the program closes its last descriptor.
    pub fn reopened(&self, fd: usize) -> Option<Fd> {
        Fd::open(&path(b"/proc/self/fd/", fd)?, self.flags & O_NOATIME, 0)
    }

    /// Whether a descriptor is of this file. Another thread may have closed the number meanwhile
    /// (close_range(2)) and opened something else there.
    pub fn is_of(&self, fd: &Fd) -> bool {
        fd.stat().map(|s| (s.dev, s.ino)) == Some((self.dev, self.ino))
    }

    /// What mmap(2) of it with these arguments maps.
    pub fn key(&self, a: &Args, len: usize) -> Key {
        Key {
            dev: self.dev,
            ino: self.ino,
            offset: a[5],
            len,
            flags: a[3],
        }
    }
}

/// The name of a descriptor in a directory of /proc, with NUL.
fn path(directory: &[u8], fd: usize) -> Option<[u8; PATH]> {
    let mut path = [0; PATH];
    path.get_mut(..directory.len())?.copy_from_slice(directory);
    let mut left = u32::try_from(fd).ok()?;
    let digits = left.checked_ilog10().unwrap_or(0) as usize + 1;
    let number = path.get_mut(directory.len()..directory.len() + digits)?;
    for digit in number.iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    Some(path)
}

const PATH: usize = 32;

/// The file that a name leads to, if it is the last name of a regular file.
pub fn by_last_name(dirfd: usize, path: usize) -> Option<(u64, u64)> {
    const AT_SYMLINK_NOFOLLOW: usize = 0x100;
    let mut stat = core::mem::MaybeUninit::<sys::Stat>::zeroed();
    let at = stat.as_mut_ptr() as usize;
    let args = [dirfd, path, at, AT_SYMLINK_NOFOLLOW, 0, 0];
    // SAFETY: the kernel reads the program's path and fills a struct stat.
    if unsafe { sys::raw(nr::NEWFSTATAT, args) } != 0 {
        return None;
    }
    // SAFETY: plain integers, zeroed before.
    let stat = unsafe { stat.assume_init() };
    let last = stat.mode & S_IFMT == S_IFREG && stat.nlink <= 1;
    last.then_some((stat.dev, stat.ino))
}
