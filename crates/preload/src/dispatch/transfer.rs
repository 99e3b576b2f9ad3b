//! Calls that move data between two descriptors.
//!
//! Invariants: between two pool files the data never leaves the pool; between a pool file and a
//! descriptor of the kernel it passes through a bounded buffer, and what was not delivered is not
//! consumed.

use super::args::{self, EINVAL, Errno};
use super::limits;
use super::nr;
use super::outcome::{Outcome, Stop};
use super::process::Process;
use crate::sys;
use alloc::vec;
use holdfast_client::abi::{SEEK_CUR, SEEK_SET};
use holdfast_client::{Error, OfdLink};
use holdfast_pmem::{ConstBuf, MutBuf};

type Args = [usize; 6];

/// EXDEV: copy_file_range(2) answers it between file systems, and programs then copy themselves.
const EXDEV: Errno = 18;
/// Bytes moved through memory at a time.
const BOUNCE: usize = 128 * 1024;

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
    let (from, to) = (p.client.lookup(a[0] as u32), p.client.lookup(a[2] as u32));
    let (from, to) = match (from, to) {
        (None, None) => return Err(Stop::Native),
        (Some(from), Some(to)) => (from, to),
        _ => return Err(EXDEV.into()),
    };
    if a[5] != 0 {
        return Err(EINVAL.into());
    }
    let (mut from_at, mut to_at) = (offset_at(a[1])?, offset_at(a[3])?);
    let n = p
        .client
        .copy_range(from, from_at.as_mut(), to, to_at.as_mut(), a[4])?;
    put_offset(a[1], from_at)?;
    put_offset(a[3], to_at)?;
    Ok(n as isize)
}

/// sendfile(out_fd, in_fd, offset, count)
pub fn sendfile(p: &Process, a: &Args) -> Outcome {
    let (to, from) = (p.client.lookup(a[0] as u32), p.client.lookup(a[1] as u32));
    let mut at = match (to, from) {
        (None, None) => return Err(Stop::Native),
        _ => offset_at(a[2])?,
    };
    let n = match (to, from) {
        (Some(to), Some(from)) => {
            let n = p.client.copy_range(from, at.as_mut(), to, None, a[3])?;
            let next = match at {
                Some(at) => at as u64,
                None => p.client.lseek(from, 0, SEEK_CUR)?,
            };
            stopped_by_limit(p, to, None, n < a[3] && p.client.fstat(from)?.size > next);
            n
        }
        (None, Some(from)) => pool_to_kernel(p, from, at.as_mut(), a[0], a[3])?,
        (Some(to), _) => kernel_to_pool(p, a[1], at.as_mut(), to, a[3])?,
        (None, None) => 0,
    };
    put_offset(a[2], at)?;
    Ok(n as isize)
}

/// splice(fd_in, off_in, fd_out, off_out, len, flags): one side is a pipe.
pub fn splice(p: &Process, a: &Args) -> Outcome {
    let (from, to) = (p.client.lookup(a[0] as u32), p.client.lookup(a[2] as u32));
    match (from, to) {
        (None, None) => Err(Stop::Native),
        (Some(_), Some(_)) => Err(EINVAL.into()),
        (Some(from), None) => {
            let mut at = offset_at(a[1])?;
            let n = pool_to_kernel(p, from, at.as_mut(), a[2], a[4])?;
            put_offset(a[1], at)?;
            Ok(n as isize)
        }
        (None, Some(to)) => {
            let n = pipe_to_pool(p, a[0], offset_at(a[3])?, to, a[4])?;
            if let Some(at) = offset_at(a[3])? {
                put_offset(a[3], Some(at + n as i64))?;
            }
            Ok(n as isize)
        }
    }
}

fn kernel_write(fd: usize, data: &[u8]) -> Result<usize, Errno> {
    let ret = {
        // SAFETY: the kernel reads `data` only.
        unsafe { sys::raw(nr::WRITE, [fd, data.as_ptr() as usize, data.len(), 0, 0, 0]) }
    };
    if ret < 0 {
        Err(-ret as Errno)
    } else {
        Ok(ret as usize)
    }
}

fn kernel_read(fd: usize, at: Option<i64>, out: &mut [u8]) -> Result<usize, Errno> {
    let (addr, len) = (out.as_mut_ptr() as usize, out.len());
    let ret = match at {
        // SAFETY: the kernel writes at most `len` bytes of `out`.
        Some(at) => unsafe { sys::raw(nr::PREAD64, [fd, addr, len, at as usize, 0, 0]) },
        // SAFETY: as above.
        None => unsafe { sys::raw(nr::READ, [fd, addr, len, 0, 0, 0]) },
    };
    if ret < 0 {
        Err(-ret as Errno)
    } else {
        Ok(ret as usize)
    }
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
            .pread(from, MutBuf::from(&mut buf[..want]), local)?;
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

fn kernel_to_pool(
    p: &Process,
    from: usize,
    mut at: Option<&mut i64>,
    to: OfdLink,
    len: usize,
) -> Result<usize, Stop> {
    let mut buf = vec![0; len.min(BOUNCE)];
    let mut moved = 0;
    while moved < len {
        let want = (len - moved).min(buf.len());
        let n = match kernel_read(from, at.as_deref().copied(), &mut buf[..want]) {
            Ok(0) => break,
            Ok(n) => n,
            Err(_) if moved > 0 => break,
            Err(e) => return Err(e.into()),
        };
        let stored = p.client.write(to, ConstBuf::from(&buf[..n]))?;
        if let Some(at) = at.as_deref_mut() {
            *at += stored as i64;
        }
        moved += stored;
        if stored < n {
            stopped_by_limit(p, to, None, true);
            break;
        }
    }
    Ok(moved)
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

/// One read from the pipe, as splice(2) returns what is there.
fn pipe_to_pool(
    p: &Process,
    from: usize,
    at: Option<i64>,
    to: OfdLink,
    len: usize,
) -> Result<usize, Stop> {
    // What cannot be stored stays in the pipe.
    let room = p.client.within_limit(to, at, len)?;
    let mut buf = vec![0; room.min(64 * 1024)];
    let n = kernel_read(from, None, &mut buf)?;
    let mut stored = 0;
    while stored < n {
        let rest = ConstBuf::from(&buf[stored..n]);
        stored += match at {
            Some(at) => p.client.pwrite(to, rest, at + stored as i64)?,
            None => p.client.write(to, rest)?,
        };
    }
    if stored == room && room < len {
        stopped_by_limit(p, to, at.map(|at| at + stored as i64), has_more(from));
    }
    Ok(stored)
}
