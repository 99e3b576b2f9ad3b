//! Private mappings in a process that is served: no page of the pool may be in its memory, so what
//! it maps is a copy.
//!
//! Invariant: a copy is as long as the rest of the file was when it was mapped, and touching what
//! lies behind raises SIGBUS, as for a file. From then on the mapping is the kernel's alone.

use super::args::{self, Errno};
use super::nr;
use super::outcome::{Outcome, Stop};
use super::process::Process;
use crate::sys::{self, Fd};
use holdfast_client::OfdLink;
use holdfast_client::abi::{O_ACCMODE, O_RDONLY, O_RDWR, S_IFMT, S_IFREG};
use holdfast_pmem::MutBuf;

const EACCES: Errno = 13;
const ENODEV: Errno = 19;
const ENOSPC: Errno = 28;
const MFD_CLOEXEC: usize = 1;
/// Bytes that are copied at a time.
const PART: usize = 1 << 20;

/// mmap(2), with the arguments of the call `a`, of `len` bytes of a pool file with these `flags`.
pub fn map(p: &Process, ofd: OfdLink, a: &[usize; 6], len: usize) -> Outcome {
    if !matches!(p.client.getfl(ofd)? & O_ACCMODE, O_RDONLY | O_RDWR) {
        return Err(EACCES.into());
    }
    let stat = p.client.fstat(ofd)?;
    if stat.mode & S_IFMT != S_IFREG {
        return Err(ENODEV.into());
    }
    let rest = (stat.size as usize).saturating_sub(a[5]).min(len);
    let copy = copy(p, ofd, a[5], rest)?;
    let words = [a[0], a[1], a[2], a[3], copy.0, 0];
    // SAFETY: the program asked for this change of its own address space.
    let addr = unsafe { sys::raw(nr::MMAP, words) };
    Ok(args::result(addr)? as isize)
}

/// `len` bytes of the file, in memory of the kernel's.
fn copy(p: &Process, ofd: OfdLink, offset: usize, len: usize) -> Result<Fd, Stop> {
    let name = c"holdfast-copy".as_ptr() as usize;
    // SAFETY: the name is NUL-terminated.
    let fd = unsafe { sys::raw(nr::MEMFD_CREATE, [name, MFD_CLOEXEC, 0, 0, 0, 0]) };
    let fd = Fd(args::result(fd)?);
    if len == 0 {
        // Mapping a file is access to it, also where there is nothing to read.
        let mut byte = [0];
        p.client
            .pread(ofd, MutBuf::from(&mut byte[..]), offset as i64)?;
    }
    let mut done = 0;
    while done < len {
        let part = (len - done).min(PART);
        let bytes = p.client.read_whole(ofd, (offset + done) as i64, part)?;
        if bytes.is_empty() {
            // It became shorter meanwhile.
            break;
        }
        let from = [fd.0, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
        // SAFETY: the kernel reads the bytes.
        if unsafe { sys::raw(nr::WRITE, from) } != bytes.len() as isize {
            return Err(ENOSPC.into());
        }
        done += bytes.len();
    }
    Ok(fd)
}
