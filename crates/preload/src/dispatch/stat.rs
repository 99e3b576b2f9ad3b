//! stat(2), statx(2) and statfs(2) in the kernel's formats.
//!
//! Invariant: all objects of a pool carry one device number that no host file system has.

use super::args::{self, EINVAL};
use super::data::object;
use super::outcome::Outcome;
use super::place::{AT_FDCWD, at_flags, in_pool};
use super::process::Process;
use holdfast_client::abi::{AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW};
use holdfast_client::{Base, Stat, StatFs};

type Args = [usize; 6];

const CWD: usize = AT_FDCWD as usize;
const NANOS: i64 = 1_000_000_000;
/// Major and minor device number.
const DEVICE: (u32, u32) = (0x48, 0x46);
/// `f_type` of statfs(2): "HF" and the major number.
const FS_MAGIC: u64 = 0x4846_0048;
const AT_NO_AUTOMOUNT: u32 = 0x800;
/// AT_STATX_FORCE_SYNC | AT_STATX_DONT_SYNC
const AT_STATX_SYNC: u32 = 0x6000;

/// Fills fixed offsets of a kernel struct.
struct Layout<const N: usize>([u8; N]);

impl<const N: usize> Layout<N> {
    fn u16(mut self, at: usize, v: u16) -> Self {
        self.0[at..at + 2].copy_from_slice(&v.to_le_bytes());
        self
    }

    fn u32(mut self, at: usize, v: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&v.to_le_bytes());
        self
    }

    fn u64(mut self, at: usize, v: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&v.to_le_bytes());
        self
    }

    /// Seconds as i64 and nanoseconds behind them.
    fn time(self, at: usize, ns: i64) -> Self {
        self.u64(at, ns.div_euclid(NANOS) as u64)
            .u64(at + 8, ns.rem_euclid(NANOS) as u64)
    }

    /// Seconds as i64 and nanoseconds as u32.
    fn timestamp(self, at: usize, ns: i64) -> Self {
        self.u64(at, ns.div_euclid(NANOS) as u64)
            .u32(at + 8, ns.rem_euclid(NANOS) as u32)
    }
}

fn device() -> u64 {
    let (major, minor) = (u64::from(DEVICE.0), u64::from(DEVICE.1));
    (minor & 0xff) | (major & 0xfff) << 8
}

/// `struct stat` of x86-64.
fn put_stat(addr: usize, s: &Stat) -> Outcome {
    let bytes = Layout([0u8; 144])
        .u64(0, device())
        .u64(8, s.ino)
        .u64(16, s.nlink.into())
        .u32(24, s.mode)
        .u32(28, s.uid)
        .u32(32, s.gid)
        .u64(40, s.rdev)
        .u64(48, s.size)
        .u64(56, s.block_size.into())
        .u64(64, s.blocks)
        .time(72, s.atime)
        .time(88, s.mtime)
        .time(104, s.ctime);
    args::write_bytes(addr, &bytes.0)?;
    Ok(0)
}

/// STATX_BASIC_STATS | STATX_BTIME
const STATX_GIVEN: u32 = 0xfff;

/// `struct statx`.
fn put_statx(addr: usize, s: &Stat) -> Outcome {
    let major = |dev: u64| ((dev >> 8) & 0xfff) as u32 | ((dev >> 32) as u32 & !0xfff);
    let minor = |dev: u64| (dev & 0xff) as u32 | ((dev >> 12) as u32 & !0xff);
    let bytes = Layout([0u8; 256])
        .u32(0, STATX_GIVEN)
        .u32(4, s.block_size)
        .u32(16, s.nlink)
        .u32(20, s.uid)
        .u32(24, s.gid)
        .u16(28, s.mode as u16)
        .u64(32, s.ino)
        .u64(40, s.size)
        .u64(48, s.blocks)
        .timestamp(64, s.atime)
        .timestamp(80, s.btime)
        .timestamp(96, s.ctime)
        .timestamp(112, s.mtime)
        .u32(128, major(s.rdev))
        .u32(132, minor(s.rdev))
        .u32(136, DEVICE.0)
        .u32(140, DEVICE.1);
    args::write_bytes(addr, &bytes.0)?;
    Ok(0)
}

fn by_path(
    p: &Process,
    dirfd: usize,
    path: usize,
    flags: u32,
    put: impl FnOnce(&Stat) -> Outcome,
) -> Outcome {
    in_pool(p, dirfd, path, |base, path| {
        let allowed = AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH | AT_NO_AUTOMOUNT | AT_STATX_SYNC;
        if flags & !allowed != 0 {
            return Err(EINVAL.into());
        }
        let (path, flags) = at_flags(path, flags & (AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH));
        let stat = p.with_caller(|c| p.client.stat(c, base, path, flags))?;
        put(&p.shown(stat))
    })
}

pub fn stat(p: &Process, a: &Args) -> Outcome {
    by_path(p, CWD, a[0], 0, |s| put_stat(a[1], s))
}

pub fn lstat(p: &Process, a: &Args) -> Outcome {
    by_path(p, CWD, a[0], AT_SYMLINK_NOFOLLOW, |s| put_stat(a[1], s))
}

pub fn fstat(p: &Process, a: &Args) -> Outcome {
    let ofd = object(p, a[0])?;
    put_stat(a[1], &p.shown(p.client.fstat(ofd)?))
}

/// newfstatat(dirfd, path, buf, flags)
pub fn newfstatat(p: &Process, a: &Args) -> Outcome {
    by_path(p, a[0], a[1], a[3] as u32, |s| put_stat(a[2], s))
}

const STATX_RESERVED: u32 = 0x8000_0000;

/// statx(dirfd, path, flags, mask, buf)
pub fn statx(p: &Process, a: &Args) -> Outcome {
    let sync = a[2] as u32 & AT_STATX_SYNC;
    if a[3] as u32 & STATX_RESERVED != 0 || sync == AT_STATX_SYNC {
        return Err(EINVAL.into());
    }
    by_path(p, a[0], a[1], a[2] as u32, |s| put_statx(a[4], s))
}

/// `struct statfs` of x86-64.
fn put_statfs(addr: usize, s: &StatFs) -> Outcome {
    let bytes = Layout([0u8; 120])
        .u64(0, FS_MAGIC)
        .u64(8, s.block_size.into())
        .u64(16, s.blocks)
        .u64(24, s.free)
        .u64(32, s.available)
        .u64(40, s.files)
        .u64(48, s.files_free)
        .u32(56, DEVICE.0)
        .u32(60, DEVICE.1)
        .u64(64, s.name_max.into())
        .u64(72, s.block_size.into());
    args::write_bytes(addr, &bytes.0)?;
    Ok(0)
}

pub fn statfs(p: &Process, a: &Args) -> Outcome {
    in_pool(p, CWD, a[0], |base, path| {
        let (path, flags) = at_flags(path, 0);
        let shown = p.with_caller(|c| p.client.statfs_at(c, base, path, flags))?;
        put_statfs(a[1], &shown)
    })
}

pub fn fstatfs(p: &Process, a: &Args) -> Outcome {
    let base = Base::Ofd(object(p, a[0])?);
    let shown = p.with_caller(|c| p.client.statfs_at(c, base, b"", AT_EMPTY_PATH))?;
    put_statfs(a[1], &shown)
}
