//! Calls that move data or the offset of an open file.
//!
//! Invariant: a call on a descriptor that is not a pool file is left to the kernel before anything
//! else is looked at.

use super::args::{self, EFAULT, EINVAL, Errno, RW_MAX};
use super::maps;
use super::outcome::{Outcome, Stop, count, done};
use super::parent;
use super::process::Process;
use alloc::vec::Vec;
use holdfast_client::abi::{O_ACCMODE, O_PATH, O_RDONLY, O_RDWR, O_WRONLY, S_IFMT, S_IFREG};
use holdfast_client::{DirentFormat, OfdLink};

type Args = [usize; 6];

const EBADF: Errno = 9;

/// The pool file behind the descriptor argument, or `Native`: it is the kernel's, or a pipe of the
/// pool, whose data the kernel carries.
#[inline(always)]
pub fn ours(p: &Process, fd: usize) -> Result<OfdLink, Stop> {
    match object(p, fd) {
        Ok(ofd) if p.client.is_kernels(ofd) => Err(Stop::Native),
        ofd => ofd,
    }
}

/// The object of the pool behind the descriptor argument, or `Native`. Our own descriptors are not
/// there for the program.
#[inline(always)]
pub fn object(p: &Process, fd: usize) -> Result<OfdLink, Stop> {
    match p.client.lookup(fd as u32) {
        Some(ofd) => Ok(ofd),
        None if p.hides(fd as u32) => Err(EBADF.into()),
        None => Err(Stop::Native),
    }
}

/// As `ours`, for calls on two descriptors; `None`: the kernel does it.
pub fn either(p: &Process, fd: usize) -> Result<Option<OfdLink>, Stop> {
    match ours(p, fd) {
        Err(Stop::Native) => Ok(None),
        ofd => ofd.map(Some),
    }
}

/// The end of the addresses that a program can have, where pages have five levels.
const ADDRESSES: usize = 1 << 56;

/// A buffer that no program can have is refused whole, also if its beginning is there.
#[inline]
fn is_possible(addr: usize, len: usize) -> Result<(), Errno> {
    match addr.checked_add(len) {
        Some(end) if end <= ADDRESSES => Ok(()),
        _ => Err(EFAULT),
    }
}

/// A place whose bytes have offsets.
#[inline]
fn is_range(at: usize, len: usize) -> Result<(), Errno> {
    match (at as i64) >= 0 && (at.wrapping_add(len) as i64) < 0 {
        true => Err(EINVAL),
        false => Ok(()),
    }
}

/// Buffer, length and offset of pread64 or pwrite64. An offset below 0 is the client's to refuse.
#[inline]
fn is_place(a: &Args) -> Result<(), Errno> {
    if (a[3] as i64) < 0 {
        return Ok(());
    }
    is_possible(a[1], a[2])?;
    is_range(a[3], a[2])
}

/// Why a call that reads, or writes, is refused: before anything else that is wrong with it the
/// kernel says that the file is not open for that.
#[cold]
fn first_wrong(p: &Process, ofd: OfdLink, open: [u32; 2], e: Errno) -> Stop {
    match p.client.getfl(ofd) {
        Ok(flags) if flags & O_PATH == 0 && open.contains(&(flags & O_ACCMODE)) => e.into(),
        _ => EBADF.into(),
    }
}

const READS: [u32; 2] = [O_RDONLY, O_RDWR];
const WRITES: [u32; 2] = [O_WRONLY, O_RDWR];

pub fn read(p: &Process, a: &Args) -> Outcome {
    let ofd = ours(p, a[0])?;
    is_possible(a[1], a[2]).map_err(|e| first_wrong(p, ofd, READS, e))?;
    count(p.client.read(ofd, args::target(a[1], a[2].min(RW_MAX))))
}

pub fn write(p: &Process, a: &Args) -> Outcome {
    let ofd = ours(p, a[0])?;
    is_possible(a[1], a[2]).map_err(|e| first_wrong(p, ofd, WRITES, e))?;
    count(p.client.write(ofd, args::source(a[1], a[2].min(RW_MAX))))
}

pub fn pread64(p: &Process, a: &Args) -> Outcome {
    let ofd = ours(p, a[0])?;
    is_place(a).map_err(|e| first_wrong(p, ofd, READS, e))?;
    count(
        p.client
            .pread(ofd, args::target(a[1], a[2].min(RW_MAX)), a[3] as i64),
    )
}

pub fn pwrite64(p: &Process, a: &Args) -> Outcome {
    let ofd = ours(p, a[0])?;
    is_place(a).map_err(|e| first_wrong(p, ofd, WRITES, e))?;
    count(
        p.client
            .pwrite(ofd, args::source(a[1], a[2].min(RW_MAX)), a[3] as i64),
    )
}

pub fn readv(p: &Process, a: &Args) -> Outcome {
    gather_read(p, a, None, 0)
}

pub fn writev(p: &Process, a: &Args) -> Outcome {
    gather_write(p, a, None, 0)
}

pub fn preadv(p: &Process, a: &Args) -> Outcome {
    gather_read(p, a, Some(a[3] as i64), 0)
}

pub fn pwritev(p: &Process, a: &Args) -> Outcome {
    gather_write(p, a, Some(a[3] as i64), 0)
}

/// Offset -1 means the file offset.
fn offset_of_v2(a: &Args) -> Option<i64> {
    (a[3] as i64 != -1).then_some(a[3] as i64)
}

pub fn preadv2(p: &Process, a: &Args) -> Outcome {
    gather_read(p, a, offset_of_v2(a), a[5] as u32)
}

pub fn pwritev2(p: &Process, a: &Args) -> Outcome {
    gather_write(p, a, offset_of_v2(a), a[5] as u32)
}

/// Iovecs that need no allocation.
const FEW: usize = 8;

fn gather_read(p: &Process, a: &Args, offset: Option<i64>, rwf: u32) -> Outcome {
    let ofd = ours(p, a[0])?;
    if offset.is_none_or(|at| at >= 0) {
        args::check_iovecs(a[1], a[2]).map_err(|e| first_wrong(p, ofd, READS, e))?;
    }
    let entry = |i| args::iovec(a[1], i).map(|(base, len)| args::target(base, len));
    if a[2] <= FEW {
        let mut few: [_; FEW] = core::array::from_fn(|_| args::target(0, 0));
        for (i, slot) in few.iter_mut().enumerate().take(a[2]) {
            *slot = entry(i)?;
        }
        return count(p.client.readv(ofd, &mut few[..a[2]], offset, rwf));
    }
    let mut many = (0..a[2]).map(entry).collect::<Result<Vec<_>, _>>()?;
    count(p.client.readv(ofd, &mut many, offset, rwf))
}

fn gather_write(p: &Process, a: &Args, offset: Option<i64>, rwf: u32) -> Outcome {
    let ofd = ours(p, a[0])?;
    if offset.is_none_or(|at| at >= 0) {
        args::check_iovecs(a[1], a[2]).map_err(|e| first_wrong(p, ofd, WRITES, e))?;
    }
    let entry = |i| args::iovec(a[1], i).map(|(base, len)| args::source(base, len));
    if a[2] <= FEW {
        let mut few = [args::source(0, 0); FEW];
        for (i, slot) in few.iter_mut().enumerate().take(a[2]) {
            *slot = entry(i)?;
        }
        return count(p.client.writev(ofd, &few[..a[2]], offset, rwf));
    }
    let many = (0..a[2]).map(entry).collect::<Result<Vec<_>, _>>()?;
    count(p.client.writev(ofd, &many, offset, rwf))
}

pub fn lseek(p: &Process, a: &Args) -> Outcome {
    let ofd = ours(p, a[0])?;
    Ok(p.client.lseek(ofd, a[1] as i64, a[2] as u32)? as isize)
}

pub fn ftruncate(p: &Process, a: &Args) -> Outcome {
    let ofd = ours(p, a[0])?;
    done(p.client.ftruncate(ofd, a[1] as i64))
}

pub fn fallocate(p: &Process, a: &Args) -> Outcome {
    let ofd = ours(p, a[0])?;
    done(
        p.client
            .fallocate(ofd, a[1] as u32, a[2] as i64, a[3] as i64),
    )
}

pub fn fsync(p: &Process, a: &Args) -> Outcome {
    let ofd = ours(p, a[0])?;
    maps::note_stores(p, ofd)?;
    done(p.client.fsync(ofd))
}

pub fn fdatasync(p: &Process, a: &Args) -> Outcome {
    let ofd = ours(p, a[0])?;
    maps::note_stores(p, ofd)?;
    done(p.client.fdatasync(ofd))
}

pub fn sync_file_range(p: &Process, a: &Args) -> Outcome {
    let ofd = ours(p, a[0])?;
    let (offset, len) = (a[1] as i64, a[2] as i64);
    done(p.client.sync_file_range(ofd, offset, len, a[3] as u32))
}

pub fn syncfs(p: &Process, a: &Args) -> Outcome {
    not_a_path(p, ours(p, a[0])?)?;
    done(p.client.sync())
}

/// sync(2) is about every file system: the pool's part here, then the kernel's.
pub fn sync(p: &Process, _: &Args) -> Outcome {
    p.client.sync()?;
    Err(Stop::Native)
}

/// Advice has nothing to improve: the file is in memory. Arguments are checked as documented.
pub fn fadvise64(p: &Process, a: &Args) -> Outcome {
    not_a_path(p, ours(p, a[0])?)?;
    if a[3] > 5 || (a[2] as i64) < 0 {
        return Err(EINVAL.into());
    }
    Ok(0)
}

pub fn readahead(p: &Process, a: &Args) -> Outcome {
    let ofd = ours(p, a[0])?;
    if !READS.contains(&(not_a_path(p, ofd)? & O_ACCMODE)) {
        return Err(EBADF.into());
    }
    match p.client.fstat(ofd)?.mode & S_IFMT {
        S_IFREG => Ok(0),
        _ => Err(EINVAL.into()),
    }
}

/// The flags of a description that is more than a path.
pub fn not_a_path(p: &Process, ofd: OfdLink) -> Result<u32, Stop> {
    match p.client.getfl(ofd)? {
        flags if flags & O_PATH != 0 => Err(EBADF.into()),
        flags => Ok(flags),
    }
}

pub fn getdents64(p: &Process, a: &Args) -> Outcome {
    let ofd = match ours(p, a[0]) {
        Err(Stop::Native) => return parent::getdents64(p, a),
        ofd => ofd?,
    };
    count(p.client.getdents(
        ofd,
        args::target(a[1], a[2] as u32 as usize),
        DirentFormat::Linux64,
    ))
}

pub fn getdents(p: &Process, a: &Args) -> Outcome {
    let ofd = ours(p, a[0])?;
    count(p.client.getdents(
        ofd,
        args::target(a[1], a[2] as u32 as usize),
        DirentFormat::Legacy,
    ))
}

pub fn flock(p: &Process, a: &Args) -> Outcome {
    let ofd = ours(p, a[0])?;
    done(p.client.flock(ofd, a[1] as u32))
}
