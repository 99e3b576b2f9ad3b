//! Calls that move data between two descriptors.
//!
//! Invariants: between two pool files the data never leaves the pool; between a pool file and a
//! descriptor of the kernel it passes through a bounded buffer, and what was not delivered is
//! not consumed, but for what a pipe gave and a full pool cannot keep. What goes to or from a pipe
//! is moved by the kernel's own calls, which say how much goes, when they wait, and what is
//! refused.

use super::args::{self, EINVAL, Errno};
use super::data::either;
use super::limits;
use super::nr;
use super::outcome::{Outcome, Stop};
use super::process::Process;
use crate::sys::Fd;
use crate::{sys, waiting};
use alloc::vec;
use holdfast_client::abi::{
    O_ACCMODE, O_APPEND, O_NONBLOCK, O_PATH, O_RDONLY, O_RDWR, O_WRONLY, SEEK_CUR, SEEK_SET,
};
use holdfast_client::{Error, OfdLink};
use holdfast_pmem::{ConstBuf, MutBuf};

type Args = [usize; 6];

/// copy_file_range(2) answers it where it cannot copy, and programs then copy themselves.
const EXDEV: Errno = 18;
const EBADF: Errno = 9;
const EISDIR: Errno = 21;
const ENOMEM: Errno = 12;
const ESPIPE: Errno = 29;
const EOVERFLOW: Errno = 75;
const SPLICE_F_NONBLOCK: usize = 2;
const F_GETFL: usize = 3;
const F_GETPIPE_SZ: usize = 1032;
/// Bytes moved through memory at a time.
const BOUNCE: usize = 128 * 1024;
const PAGE: usize = 4096;
/// More is not taken from a pipe by one call.
const PIPE_MOST: usize = 1 << 20;

fn offset_at(addr: usize) -> Result<Option<i64>, Errno> {
    match addr {
        0 => Ok(None),
        addr => args::read_u64(addr).map(|v| Some(v as i64)),
    }
}

fn put_offset(addr: usize, value: Option<i64>) -> Result<(), Errno> {
    match value {
        Some(v) if addr != 0 => args::write_bytes(addr, &v.to_le_bytes()),
        _ => Ok(()),
    }
}

/// copy_file_range(fd_in, off_in, fd_out, off_out, len, flags)
pub fn copy_file_range(p: &Process, a: &Args) -> Outcome {
    let (from, to) = (either(p, a[0])?, either(p, a[2])?);
    let (from, to) = match (from, to) {
        (None, None) => return Err(Stop::Native),
        (Some(from), Some(to)) => (from, to),
        (None, Some(to)) => return from_host(p, a, to),
        (Some(from), None) => return to_host(p, a, from),
    };
    if a[5] != 0 {
        let paths = is_path(p, Some(from))? || is_path(p, Some(to))?;
        return Err(if paths { EBADF } else { EINVAL }.into());
    }
    let (mut from_at, mut to_at) = (offset_at(a[1])?, offset_at(a[3])?);
    let n = p
        .client
        .copy_range(from, from_at.as_mut(), to, to_at.as_mut(), a[4])?;
    put_offset(a[1], from_at)?;
    put_offset(a[3], to_at)?;
    Ok(n as isize)
}

/// copy_file_range(2) from a file of the host, which programs need not do themselves then.
fn from_host(p: &Process, a: &Args, to: OfdLink) -> Outcome {
    let (mut from_at, mut to_at) = (offset_at(a[1])?, offset_at(a[3])?);
    if p.client.getfl(to)? & O_APPEND != 0 {
        return Err(EBADF.into());
    }
    // The files of /proc and the like say that they are empty: programs read those themselves.
    if check_host_file(a[0], a[5])?.size == 0 {
        return Err(EXDEV.into());
    }
    check_ends([place_in(a[0], from_at)?, to_at.unwrap_or(0)], a[4])?;
    let read = |room: &mut [u8], at: [Option<i64>; 2]| {
        let want = p.client.within_limit(to, at[1], room.len())?;
        Ok(match at[0] {
            Some(at) => kernel_pread(a[0], &mut room[..want], at)?,
            None => kernel_read(a[0], &mut room[..want])?,
        })
    };
    let store = |data: &[u8], at| match at {
        Some(at) => Ok(p.client.pwrite(to, ConstBuf::from(data), at)?),
        None => Ok(p.client.write(to, ConstBuf::from(data))?),
    };
    let back = |n| step_back(a[0], None, n);
    let copied = copy_through(a[4], [&mut from_at, &mut to_at], read, store, back)?;
    put_offset(a[1], from_at)?;
    put_offset(a[3], to_at)?;
    Ok(copied as isize)
}

/// copy_file_range(2) to a file of the host.
fn to_host(p: &Process, a: &Args, from: OfdLink) -> Outcome {
    let (mut from_at, mut to_at) = (offset_at(a[1])?, offset_at(a[3])?);
    if fcntl(a[2], F_GETFL)? as u32 & O_APPEND != 0 {
        return Err(EBADF.into());
    }
    check_host_file(a[2], a[5])?;
    let read_at = match from_at {
        Some(at) => at,
        None => p.client.lseek(from, 0, SEEK_CUR)? as i64,
    };
    check_ends([read_at, place_in(a[2], to_at)?], a[4])?;
    let read = |room: &mut [u8], at: [Option<i64>; 2]| match at[0] {
        Some(at) => Ok(p.client.pread(from, MutBuf::from(room), at)?),
        None => Ok(p.client.read(from, MutBuf::from(room))?),
    };
    let store = |data: &[u8], at| match at {
        Some(at) => Ok(kernel_pwrite(a[2], data, at)?),
        None => Ok(kernel_write(a[2], data)?),
    };
    let back = |n| drop(p.client.lseek(from, -(n as i64), SEEK_CUR));
    let copied = copy_through(a[4], [&mut from_at, &mut to_at], read, store, back)?;
    put_offset(a[1], from_at)?;
    put_offset(a[3], to_at)?;
    Ok(copied as isize)
}

/// Copies up to `len` bytes and moves the offsets that were given. The files' own offsets, which
/// other processes may share, move as `read` and `store` move them; `back` takes back what was read
/// and not stored.
fn copy_through(
    len: usize,
    [from_at, to_at]: [&mut Option<i64>; 2],
    read: impl Fn(&mut [u8], [Option<i64>; 2]) -> Result<usize, Stop>,
    store: impl Fn(&[u8], Option<i64>) -> Result<usize, Stop>,
    back: impl Fn(usize),
) -> Result<usize, Stop> {
    let mut buf = vec![0; len.min(BOUNCE)];
    let mut copied = 0;
    while copied < len {
        let want = (len - copied).min(buf.len());
        let n = match read(&mut buf[..want], [*from_at, *to_at]) {
            Err(_) if copied > 0 => break,
            read => read?,
        };
        let stored = store(&buf[..n], *to_at);
        let kept = *stored.as_ref().unwrap_or(&0);
        if from_at.is_none() && kept < n {
            back(n - kept);
        }
        copied += kept;
        for at in [&mut *from_at, &mut *to_at].into_iter().flatten() {
            *at += kept as i64;
        }
        match stored {
            Err(e) if copied == 0 => return Err(e),
            _ if n == 0 || kept < n => break,
            _ => {}
        }
    }
    Ok(copied)
}

/// Whether copy_file_range(2) can use the host's file.
fn check_host_file(fd: usize, flags: usize) -> Result<sys::Stat, Errno> {
    const S_IFMT: u32 = 0o170_000;
    const S_IFREG: u32 = 0o100_000;
    const S_IFDIR: u32 = 0o040_000;
    let stat = sys::stat_fd(fd).ok_or(EBADF)?;
    if flags != 0 {
        return Err(EINVAL);
    }
    match stat.mode & S_IFMT {
        S_IFREG => Ok(stat),
        S_IFDIR => Err(EISDIR),
        _ => Err(EINVAL),
    }
}

/// As the kernel: a range does not end behind what an offset can say.
fn check_ends(places: [i64; 2], len: usize) -> Result<(), Errno> {
    let ends = |at: i64| (at as u64).checked_add(len as u64).is_some();
    match places.into_iter().all(ends) {
        true => Ok(()),
        false => Err(EOVERFLOW),
    }
}

/// Where a call on a host's file begins: at `at`, or at the file's own offset.
fn place_in(fd: usize, at: Option<i64>) -> Result<i64, Errno> {
    match at {
        Some(at) => Ok(at),
        // SAFETY: touches no memory.
        None => args::result(unsafe { sys::raw(nr::LSEEK, [fd, 0, SEEK_CUR as usize, 0, 0, 0]) })
            .map(|at| at as i64),
    }
}

fn kernel_read(fd: usize, out: &mut [u8]) -> Result<usize, Errno> {
    let (addr, len) = (out.as_mut_ptr() as usize, out.len());
    // SAFETY: the kernel writes at most `len` bytes of `out`.
    args::result(unsafe { waiting::call(nr::READ, [fd, addr, len, 0, 0, 0]) })
}

fn kernel_pread(fd: usize, out: &mut [u8], at: i64) -> Result<usize, Errno> {
    let (addr, len) = (out.as_mut_ptr() as usize, out.len());
    // SAFETY: the kernel writes at most `len` bytes of `out`.
    args::result(unsafe { waiting::call(nr::PREAD64, [fd, addr, len, at as usize, 0, 0]) })
}

fn kernel_pwrite(fd: usize, data: &[u8], at: i64) -> Result<usize, Errno> {
    let (addr, len) = (data.as_ptr() as usize, data.len());
    // SAFETY: the kernel reads `data` only.
    args::result(unsafe { waiting::call(nr::PWRITE64, [fd, addr, len, at as usize, 0, 0]) })
}

/// sendfile(out_fd, in_fd, offset, count)
pub fn sendfile(p: &Process, a: &Args) -> Outcome {
    let (to, from) = (either(p, a[0])?, either(p, a[1])?);
    let mut at = match (to, from) {
        (None, None) => return Err(Stop::Native),
        _ => offset_at(a[2])?,
    };
    let mode_in = mode_of(p, from, a[1])?;
    if !reads(mode_in) {
        return Err(EBADF.into());
    }
    is_range(0, a[3])?;
    let mode_out = mode_of(p, to, a[0])?;
    if !writes(mode_out) {
        return Err(EBADF.into());
    }
    if to.is_some() {
        does_not_append(mode_out)?;
    }
    if a[3] == 0 {
        return Ok(0);
    }
    let n = match (to, from) {
        (Some(to), Some(from)) => {
            let n = p
                .client
                .copy_range(from, at.as_mut(), to, None, a[3])
                .map_err(no_directory)?;
            let next = match at {
                Some(at) => at as u64,
                None => p.client.lseek(from, 0, SEEK_CUR)?,
            };
            if n == 0 {
                // The kernel reads all the same, which is a use of the file.
                let _ = p.client.pread(from, args::target(PAGE, 0), 0);
            }
            stopped_by_limit(p, to, None, n < a[3] && p.client.fstat(from)?.size > next);
            n
        }
        (None, Some(from)) => match pipe_room(a[0]) {
            Some(_) => to_pipe(p, from, at.as_mut(), [a[0], 0, a[3], 0])?,
            None => {
                takes_data(a[0])?;
                pool_to_kernel(p, from, at.as_mut(), a[0], a[3])?
            }
        },
        (Some(to), _) => kernel_to_pool(p, a[1], at.as_mut(), to, a[3])?,
        (None, None) => 0,
    };
    put_offset(a[2], at)?;
    Ok(n as isize)
}

/// splice(fd_in, off_in, fd_out, off_out, len, flags): one side is a pipe.
pub fn splice(p: &Process, a: &Args) -> Outcome {
    let (from, to) = (either(p, a[0])?, either(p, a[2])?);
    match (from, to) {
        (None, None) => Err(Stop::Native),
        _ if a[4] == 0 => Ok(0),
        _ if is_path(p, from)? || is_path(p, to)? => Err(EBADF.into()),
        (Some(from), Some(to)) => {
            let (from, to) = (p.client.getfl(from)?, p.client.getfl(to)?);
            // Neither is a pipe.
            Err(if is_closed(from, to) { EBADF } else { EINVAL }.into())
        }
        (Some(from), None) => {
            let mut at = offset_at(a[1])?;
            let n = to_pipe(p, from, at.as_mut(), [a[2], a[3], a[4], a[5]])?;
            put_offset(a[1], at)?;
            Ok(n as isize)
        }
        (None, Some(to)) => {
            let n = pipe_to_pool(p, a, offset_at(a[3])?, to)?;
            if let Some(at) = offset_at(a[3])? {
                put_offset(a[3], Some(at + n as i64))?;
            }
            Ok(n as isize)
        }
    }
}

/// tee(fd_in, fd_out, len, flags): both are pipes.
pub fn tee(p: &Process, a: &Args) -> Outcome {
    let (from, to) = (either(p, a[0])?, either(p, a[1])?);
    if (from, to) == (None, None) {
        return Err(Stop::Native);
    }
    if a[2] == 0 {
        return Ok(0);
    }
    let (from, to) = (mode_of(p, from, a[0])?, mode_of(p, to, a[1])?);
    Err(if is_closed(from, to) { EBADF } else { EINVAL }.into())
}

fn is_path(p: &Process, ofd: Option<OfdLink>) -> Result<bool, Stop> {
    let flags = ofd.map_or(Ok(0), |ofd| p.client.getfl(ofd))?;
    Ok(flags & O_PATH != 0)
}

/// Whether all bytes of a range have offsets.
fn is_range(start: i64, len: usize) -> Result<(), Errno> {
    let end = i64::try_from(len)
        .ok()
        .and_then(|len| start.checked_add(len));
    match start >= 0 && end.is_some() {
        true => Ok(()),
        false => Err(EINVAL),
    }
}

/// The flags of open(2) of a descriptor, which may be a pool file.
fn mode_of(p: &Process, ofd: Option<OfdLink>, fd: usize) -> Result<u32, Stop> {
    match ofd {
        Some(ofd) => Ok(p.client.getfl(ofd)?),
        None => Ok(fcntl(fd, F_GETFL)? as u32),
    }
}

/// Whether what has these flags cannot be read from, and to.
fn is_closed(from: u32, to: u32) -> bool {
    !reads(from) || !writes(to)
}

fn reads(flags: u32) -> bool {
    matches!(flags & (O_ACCMODE | O_PATH), O_RDONLY | O_RDWR)
}

fn writes(flags: u32) -> bool {
    matches!(flags & (O_ACCMODE | O_PATH), O_WRONLY | O_RDWR)
}

fn fcntl(fd: usize, cmd: usize) -> Result<usize, Errno> {
    // SAFETY: both commands that are used only read the descriptor.
    args::result(unsafe { sys::raw(nr::FCNTL, [fd, cmd, 0, 0, 0, 0]) })
}

/// How many bytes a pipe holds at most; `None`: it is no pipe.
fn pipe_room(fd: usize) -> Option<usize> {
    fcntl(fd, F_GETPIPE_SZ).ok()
}

/// What is spliced or sent to a file goes to a place in it, not to its end.
fn does_not_append(flags: u32) -> Result<(), Errno> {
    match flags & O_APPEND {
        0 => Ok(()),
        _ => Err(EINVAL),
    }
}

/// Whether sendfile(2) may write to a descriptor of the kernel.
fn takes_data(fd: usize) -> Result<(), Errno> {
    let flags = fcntl(fd, F_GETFL)? as u32;
    match flags & O_ACCMODE {
        O_RDONLY => Err(EBADF),
        _ => does_not_append(flags),
    }
}

/// An empty file of the kernel's.
fn transit() -> Result<Fd, Errno> {
    let name = c"holdfast-transit".as_ptr() as usize;
    // SAFETY: the kernel reads the name.
    args::result(unsafe { sys::raw(nr::MEMFD_CREATE, [name, 1, 0, 0, 0, 0]) }).map(Fd)
}

/// Splices from a pool file: `to, off_out, len, flags` as in splice(2). The offset moves by what
/// the pipe took.
fn to_pipe(
    p: &Process,
    from: OfdLink,
    at: Option<&mut i64>,
    [to, off_out, len, flags]: [usize; 4],
) -> Result<usize, Stop> {
    let room = pipe_room(to);
    if room.is_some() && off_out != 0 {
        return Err(ESPIPE.into());
    }
    if is_closed(p.client.getfl(from)?, fcntl(to, F_GETFL)? as u32) {
        return Err(EBADF.into());
    }
    let start = match &at {
        Some(at) => **at,
        None => p.client.lseek(from, 0, SEEK_CUR)? as i64,
    };
    is_range(start, len)?;
    // Whether it may be read is told before what the other one is.
    p.client
        .pread(from, args::target(PAGE, 0), start)
        .map_err(no_directory)?;
    let Some(room) = room else {
        return Err(not_spliced(to, off_out, len, flags).into());
    };
    let mode = fcntl(to, F_GETFL)? as u32;
    if mode & O_ACCMODE == O_RDONLY {
        return Err(EBADF.into());
    }
    let flags = match mode & O_NONBLOCK {
        0 => flags,
        _ => flags | SPLICE_F_NONBLOCK,
    };
    let pages = Pages::of(p, from, start, len.min(room))?;
    let n = pages.give(to, flags)?;
    match at {
        Some(at) => *at = start + n as i64,
        None => {
            p.client.lseek(from, start + n as i64, SEEK_SET)?;
        }
    }
    Ok(n)
}

/// Why the kernel refuses to splice a file to what is no pipe.
fn not_spliced(to: usize, off_out: usize, len: usize, flags: usize) -> Errno {
    let copy = match transit() {
        Ok(copy) => copy,
        Err(e) => return e,
    };
    // SAFETY: nothing is moved; the kernel may read the program's offset.
    let ret = unsafe { sys::raw(nr::SPLICE, [copy.0, 0, to, off_out, len, flags]) };
    -ret as Errno
}

/// A part of a file in pages that nobody stores to after they are given to a pipe.
struct Pages {
    addr: usize,
    /// Where the bytes begin: at the same place in a page as in the file, for a pipe counts pages.
    skip: usize,
    len: usize,
    mapped: usize,
}

impl Pages {
    /// What there is of `most` bytes at `start`.
    fn of(p: &Process, from: OfdLink, start: i64, most: usize) -> Result<Pages, Stop> {
        let skip = start as usize % PAGE;
        let mapped = (skip + most).next_multiple_of(PAGE).max(PAGE);
        let prot = sys::PROT_READ | sys::PROT_WRITE;
        let addr = sys::map_anon(0, mapped, prot, 0).ok_or(ENOMEM)?;
        let mut pages = Pages {
            addr,
            skip,
            len: 0,
            mapped,
        };
        let out = args::target(addr + skip, most);
        pages.len = p.client.pread(from, out, start).map_err(no_directory)?;
        Ok(pages)
    }

    /// Puts them into a pipe with the flags of splice(2); how many bytes it took.
    fn give(&self, pipe: usize, flags: usize) -> Result<usize, Errno> {
        let piece = [self.addr + self.skip, self.len];
        let at = piece.as_ptr() as usize;
        // SAFETY: the kernel reads the description of our pages, and keeps those that it takes.
        args::result(unsafe { waiting::call(nr::VMSPLICE, [pipe, at, 1, flags, 0, 0]) })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`, and known to nobody else.
        unsafe { sys::unmap(self.addr, self.mapped) };
    }
}

/// A directory has nothing to splice or to send.
fn no_directory(e: Error) -> Stop {
    match e {
        Error::IsDirectory => EINVAL.into(),
        e => e.into(),
    }
}

fn kernel_write(fd: usize, data: &[u8]) -> Result<usize, Errno> {
    let (addr, len) = (data.as_ptr() as usize, data.len());
    // SAFETY: the kernel reads `data` only.
    args::result(unsafe { waiting::call(nr::WRITE, [fd, addr, len, 0, 0, 0]) })
}

/// Reads a transit file.
fn read_back(copy: &Fd, at: usize, out: &mut [u8]) -> Result<usize, Errno> {
    let (addr, len) = (out.as_mut_ptr() as usize, out.len());
    // SAFETY: the kernel writes at most `len` bytes of `out`.
    args::result(unsafe { sys::raw(nr::PREAD64, [copy.0, addr, len, at, 0, 0]) })
}

/// Sends up to `len` bytes; the offset moves by what the kernel took.
fn pool_to_kernel(
    p: &Process,
    from: OfdLink,
    at: Option<&mut i64>,
    to: usize,
    len: usize,
) -> Result<usize, Stop> {
    let explicit = at.is_some();
    let mut local = match &at {
        Some(at) => **at,
        None => p.client.lseek(from, 0, SEEK_CUR)? as i64,
    };
    let mut buf = vec![0; len.min(BOUNCE)];
    let mut sent = 0;
    while sent < len {
        let want = (len - sent).min(buf.len());
        let n = p
            .client
            .pread(from, MutBuf::from(&mut buf[..want]), local)
            .map_err(no_directory)?;
        if n == 0 {
            break;
        }
        match kernel_write(to, &buf[..n]) {
            Ok(took) => {
                sent += took;
                local += took as i64;
                if took < n {
                    break;
                }
            }
            Err(_) if sent > 0 => break,
            Err(e) => return Err(e.into()),
        }
    }
    match at {
        Some(at) => *at = local,
        None if !explicit => {
            p.client.lseek(from, local, SEEK_SET)?;
        }
        None => {}
    }
    Ok(sent)
}

/// Takes up to `len` bytes from a descriptor of the kernel, as its own sendfile(2) does.
fn kernel_to_pool(
    p: &Process,
    from: usize,
    mut at: Option<&mut i64>,
    to: OfdLink,
    len: usize,
) -> Result<usize, Stop> {
    let copy = transit()?;
    let mut buf = vec![0; len.min(BOUNCE)];
    let mut moved = 0;
    loop {
        let want = (len - moved).min(BOUNCE);
        let want = match p.client.within_limit(to, None, want) {
            Err(_) if moved > 0 => {
                stopped_by_limit(p, to, None, true);
                break;
            }
            want => want?,
        };
        let offset = at
            .as_deref_mut()
            .map_or(0, |at| core::ptr::from_mut(at) as usize);
        // SAFETY: the kernel reads and writes the offset, which is ours, and writes to our file,
        // at its beginning.
        let ret = unsafe {
            sys::raw(nr::LSEEK, [copy.0, 0, SEEK_SET as usize, 0, 0, 0]);
            waiting::call(nr::SENDFILE, [copy.0, from, offset, want, 0, 0])
        };
        let n = match args::result(ret) {
            Ok(0) => break,
            Ok(n) => n,
            Err(_) if moved > 0 => break,
            Err(e) => return Err(e.into()),
        };
        let n = read_back(&copy, 0, &mut buf[..n])?;
        let stored = p.client.write(to, ConstBuf::from(&buf[..n]));
        let kept = *stored.as_ref().unwrap_or(&0);
        moved += kept;
        if kept < n {
            step_back(from, at, n - kept);
            match stored {
                Err(e) if moved == 0 => return Err(e.into()),
                _ => stopped_by_limit(p, to, None, true),
            }
            break;
        }
        if moved == len {
            break;
        }
    }
    Ok(moved)
}

/// The last `n` bytes of what was read were not delivered: they are read again.
fn step_back(from: usize, at: Option<&mut i64>, n: usize) {
    match at {
        Some(at) => *at -= n as i64,
        None => {
            let back = (n as i64).wrapping_neg() as usize;
            // SAFETY: moves an offset, of what sendfile(2) has just read.
            unsafe { sys::raw(nr::LSEEK, [from, back, SEEK_CUR as usize, 0, 0, 0]) };
        }
    }
}

/// As the kernel: what a file may not take for its limit is a signal, although something was
/// moved before.
fn stopped_by_limit(p: &Process, to: OfdLink, at: Option<i64>, more: bool) {
    if more && matches!(p.client.within_limit(to, at, 1), Err(Error::OverLimit)) {
        limits::exceeded();
    }
}

/// Whether a pipe has something to read.
fn has_more(pipe: usize) -> bool {
    const FIONREAD: usize = 0x541b;
    let mut left = 0u32;
    let at = core::ptr::from_mut(&mut left) as usize;
    // SAFETY: the kernel writes one word.
    unsafe { sys::raw(nr::IOCTL, [pipe, FIONREAD, at, 0, 0, 0]) };
    left > 0
}

/// Splices to a pool file what is in the pipe, `a` as in splice(2).
fn pipe_to_pool(p: &Process, a: &Args, at: Option<i64>, to: OfdLink) -> Result<usize, Stop> {
    let [from, off_in, _, _, len, flags] = *a;
    if off_in != 0 && pipe_room(from).is_some() {
        return Err(ESPIPE.into());
    }
    let mode = p.client.getfl(to)?;
    if is_closed(fcntl(from, F_GETFL)? as u32, mode) {
        return Err(EBADF.into());
    }
    does_not_append(mode)?;
    let start = match at {
        Some(at) => at,
        None => p.client.lseek(to, 0, SEEK_CUR)? as i64,
    };
    if start < 0
        || i64::try_from(len)
            .ok()
            .and_then(|len| start.checked_add(len))
            .is_none()
    {
        return Err(EINVAL.into());
    }
    // What cannot be stored stays in the pipe.
    let room = p.client.within_limit(to, at, len)?.min(PIPE_MOST);
    let copy = transit()?;
    let mut begin = 0u64;
    let begin = core::ptr::from_mut(&mut begin) as usize;
    // SAFETY: the kernel reads the program's offset, and reads and writes ours.
    let ret = unsafe { waiting::call(nr::SPLICE, [from, off_in, copy.0, begin, room, flags]) };
    let (n, mut stored) = (args::result(ret)?, 0);
    let mut buf = vec![0; n.min(BOUNCE)];
    while stored < n {
        let want = (n - stored).min(buf.len());
        let got = read_back(&copy, stored, &mut buf[..want])?;
        let rest = ConstBuf::from(&buf[..got]);
        let written = match at {
            Some(at) => p.client.pwrite(to, rest, at + stored as i64),
            None => p.client.write(to, rest),
        };
        match written {
            Ok(more) => stored += more,
            // What did not fit is lost: a pipe takes nothing back.
            Err(_) if stored > 0 => break,
            Err(e) => return Err(e.into()),
        }
    }
    if stored == room && room < len {
        stopped_by_limit(p, to, at.map(|at| at + stored as i64), has_more(from));
    }
    Ok(stored)
}
