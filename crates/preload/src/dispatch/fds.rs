//! Descriptors: close, dup, fcntl, ioctl.
//!
//! Invariants: the process's table says "pool file" exactly for the descriptors that the kernel
//! holds as duplicates of the placeholder; an entry leaves the table before its number is free.
//! Holdfast's own descriptors cannot be closed or replaced by the program.

use super::args::{self, EINVAL, Errno};
use super::data::{object, ours};
use super::limits;
use super::outcome::{Outcome, Stop, Why, done};
use super::process::Process;
use super::{nr, parent};
use crate::calls;
use crate::sys;
use holdfast_client::abi::*;
use holdfast_client::{Flock, OfdLink};

type Args = [usize; 6];

const EPERM: Errno = 1;
const EBADF: Errno = 9;
const EBUSY: Errno = 16;
const EISDIR: Errno = 21;
const ENOTTY: Errno = 25;
const EOPNOTSUPP: Errno = 95;

/// Binds a descriptor that the kernel just made; undoes it when the pool cannot hold it.
pub fn bind_new(p: &Process, fd: u32, ofd: OfdLink) -> Result<(), Stop> {
    if let Err(e) = p.client.bind(fd, ofd) {
        kernel_close(fd);
        p.client.release(ofd)?;
        return Err(e.into());
    }
    calls::mark_fd(fd);
    Ok(())
}

pub fn kernel_close(fd: u32) -> isize {
    // SAFETY: closes a descriptor; touches no memory.
    unsafe { sys::raw(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) }
}

pub fn close(p: &Process, a: &Args) -> Outcome {
    let fd = a[0] as u32;
    if p.is_internal(fd) {
        return Err(EBADF.into());
    }
    p.unmark(fd);
    if p.client.lookup(fd).is_none() {
        return Err(Stop::Native);
    }
    p.client.unbind(fd)?;
    Ok(kernel_close(fd))
}

/// A copy of one of our own descriptors would be closed some time, and with session memory's the
/// process would lose its place.
fn not_internal(p: &Process, fd: usize) -> Result<(), Stop> {
    match p.is_internal(fd as u32) {
        true => Err(EBADF.into()),
        false => Ok(()),
    }
}

pub fn dup(p: &Process, a: &Args) -> Outcome {
    match object(p, a[0]) {
        Err(Stop::Native) => return parent::duplicated(p, nr::DUP, a),
        ofd => drop(ofd?),
    }
    // SAFETY: duplicates a descriptor; touches no memory.
    let fd = unsafe { sys::raw(nr::DUP, *a) };
    duplicated(p, a[0] as u32, fd)
}

/// The kernel answered `fd` for a duplicate of the pool file `old`.
fn duplicated(p: &Process, old: u32, fd: isize) -> Outcome {
    if fd < 0 {
        return Err(Stop::Errno(-fd as Errno));
    }
    if let Err(e) = p.client.dup(old, fd as u32) {
        kernel_close(fd as u32);
        return Err(e.into());
    }
    calls::mark_fd(fd as u32);
    Ok(fd)
}

pub fn dup2(p: &Process, a: &Args) -> Outcome {
    if a[0] as u32 == a[1] as u32 {
        object(p, a[0])?;
        return Ok(a[1] as u32 as isize);
    }
    replace(p, nr::DUP2, a)
}

pub fn dup3(p: &Process, a: &Args) -> Outcome {
    replace(p, nr::DUP3, a)
}

/// dup2 and dup3: either side may be a pool file.
fn replace(p: &Process, nr: usize, a: &Args) -> Outcome {
    let (old, new) = (a[0] as u32, a[1] as u32);
    if p.is_internal(new) {
        return Err(match limits::allows(new) {
            true => Stop::Refused(EBUSY, Why::ReservedDescriptor),
            false => EBADF.into(),
        });
    }
    not_internal(p, a[0])?;
    let (from, onto) = (p.client.lookup(old), p.client.lookup(new));
    if from.is_none() && onto.is_none() {
        return Err(Stop::Native);
    }
    // SAFETY: replaces a descriptor of the program; touches no memory.
    let fd = unsafe { sys::raw(nr, *a) };
    if fd < 0 {
        return Err(Stop::Errno(-fd as Errno));
    }
    if from.is_some() {
        return duplicated(p, old, fd);
    }
    p.unmark(new);
    p.client.unbind(new)?;
    Ok(fd)
}

const CLOSE_RANGE_UNSHARE: usize = 2;
const CLOSE_RANGE_CLOEXEC: usize = 4;

/// close_range(first, last, flags), which must leave our own descriptors alone.
pub fn close_range(p: &Process, a: &Args) -> Outcome {
    let (first, last, flags) = (a[0] as u32, a[1] as u32, a[2]);
    if first > last || flags & !(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC) != 0 {
        return Err(EINVAL.into());
    }
    let flags = match flags & CLOSE_RANGE_UNSHARE {
        0 => flags,
        _ => unshared(p, flags)?,
    };
    if flags & CLOSE_RANGE_CLOEXEC == 0 {
        let mut from = first;
        while let Some(fd) = p.client.next_descriptor(from)
            && fd <= last
        {
            p.unmark(fd);
            p.client.unbind(fd)?;
            from = fd + 1;
        }
    }
    let mut from = first;
    for own in p.internal_sorted() {
        if own < from || own > last {
            continue;
        }
        if own > from {
            kernel_close_range(from, own - 1, flags)?;
        }
        from = own + 1;
    }
    if from <= last {
        kernel_close_range(from, last, flags)?;
    }
    Ok(0)
}

/// Gives the process descriptors of its own first; the flags that are left.
fn unshared(p: &Process, flags: usize) -> Result<usize, Stop> {
    const CLONE_FILES: usize = 0x400;
    match super::split::part(p, nr::UNSHARE, &[CLONE_FILES, 0, 0, 0, 0, 0], true, false) {
        Ok(0) | Err(Stop::Native) => Ok(flags & !CLOSE_RANGE_UNSHARE),
        Ok(errno) => Err(Stop::Errno(-errno as Errno)),
        Err(stop) => Err(stop),
    }
}

fn kernel_close_range(first: u32, last: u32, flags: usize) -> Result<(), Stop> {
    let args = [first as usize, last as usize, flags, 0, 0, 0];
    // SAFETY: closes descriptors of the program; touches no memory.
    match unsafe { sys::raw(nr::CLOSE_RANGE, args) } {
        0 => Ok(()),
        e => Err(Stop::Errno(-e as Errno)),
    }
}

const F_DUPFD: usize = 0;
const F_GETFD: usize = 1;
const F_SETFD: usize = 2;
const F_GETFL: usize = 3;
const F_SETFL: usize = 4;
const F_SETOWN: usize = 8;
const F_GETOWN_UIDS: usize = 17;
const F_SETLEASE: usize = 1024;
const F_GETLEASE: usize = 1025;
const F_NOTIFY: usize = 1026;
const F_DUPFD_CLOEXEC: usize = 1030;
const F_SETPIPE_SZ: usize = 1031;
const F_GETPIPE_SZ: usize = 1032;
const F_ADD_SEALS: usize = 1033;
const F_GET_SEALS: usize = 1034;
const F_SEAL_SEAL: isize = 1;
const ALL_SEALS: usize = 0x3f;
const F_GET_RW_HINT: usize = 1035;
const F_SET_FILE_RW_HINT: usize = 1038;

pub fn fcntl(p: &Process, a: &Args) -> Outcome {
    let ofd = match (object(p, a[0]), a[1]) {
        (Err(Stop::Native), F_DUPFD | F_DUPFD_CLOEXEC) => {
            return parent::duplicated(p, nr::FCNTL, a);
        }
        (ofd, F_DUPFD | F_DUPFD_CLOEXEC) => ofd?,
        _ => ours(p, a[0])?,
    };
    let flags = p.client.getfl(ofd)?;
    let of_paths = [F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL];
    if flags & O_PATH != 0 && !of_paths.contains(&a[1]) {
        return Err(EBADF.into());
    }
    match a[1] {
        F_DUPFD | F_DUPFD_CLOEXEC => {
            // SAFETY: duplicates a descriptor; touches no memory.
            let fd = unsafe { sys::raw(nr::FCNTL, *a) };
            duplicated(p, a[0] as u32, fd)
        }
        F_GETFD | F_SETFD | F_SETOWN..=F_GETOWN_UIDS => Err(Stop::Native),
        F_GETFL => Ok(flags as isize),
        F_SETFL => done(p.client.setfl(ofd, a[2] as u32)),
        5..=7 | 36..=38 => lock(p, ofd, a),
        F_SETLEASE | F_NOTIFY => Err(Stop::Refused(EINVAL, Why::Lease)),
        F_GETLEASE => Ok(i16::from(F_UNLCK as u8) as isize),
        F_SETPIPE_SZ | F_GETPIPE_SZ => Err(EBADF.into()),
        // As a file of tmpfs that has a name.
        F_GET_SEALS if p.client.fstat(ofd)?.mode & S_IFMT == S_IFREG => Ok(F_SEAL_SEAL),
        F_ADD_SEALS => {
            let writes = matches!(flags & O_ACCMODE, O_WRONLY | O_RDWR);
            let errno = if writes && a[2] & !ALL_SEALS != 0 {
                EINVAL
            } else {
                EPERM
            };
            Err(errno.into())
        }
        F_GET_RW_HINT..=F_SET_FILE_RW_HINT => Err(EINVAL.into()),
        _ => Err(EINVAL.into()),
    }
}

/// `struct flock`: type and whence (i16), start and len (i64), pid (i32).
fn lock(p: &Process, ofd: OfdLink, a: &Args) -> Outcome {
    let bytes: [u8; 32] = args::read_bytes(a[2])?;
    let half = |at: usize| i16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        i64::from_le_bytes(word)
    };
    let mut flock = Flock {
        kind: half(0),
        whence: half(2),
        start: word(8),
        len: word(16),
        pid: word(24) as i32,
    };
    p.client.fcntl_lock(ofd, a[1] as u32, &mut flock)?;
    if matches!(a[1] as u32, F_GETLK | F_OFD_GETLK) {
        let mut out = bytes;
        out[0..2].copy_from_slice(&flock.kind.to_le_bytes());
        out[2..4].copy_from_slice(&flock.whence.to_le_bytes());
        out[8..16].copy_from_slice(&flock.start.to_le_bytes());
        out[16..24].copy_from_slice(&flock.len.to_le_bytes());
        out[24..28].copy_from_slice(&flock.pid.to_le_bytes());
        args::write_bytes(a[2], &out)?;
    }
    Ok(0)
}

/// EXDEV: as between file systems.
const EXDEV: Errno = 18;
const FIONREAD: u32 = 0x541b;
const FIONBIO: u32 = 0x5421;
const FIGETBSZ: u32 = 2;
const BLOCK_SIZE: u32 = 4096;
const FIOCLEX: u32 = 0x5451;
const FIONCLEX: u32 = 0x5450;
const FICLONE: u32 = 0x4004_9409;
const FICLONERANGE: u32 = 0x4020_940d;
const FIDEDUPERANGE: u32 = 0xc018_9436;
const FS_IOC_FIEMAP: u32 = 0xc020_660b;

const LOOP_SET_FD: u32 = 0x4c00;
const LOOP_CHANGE_FD: u32 = 0x4c06;
const LOOP_CONFIGURE: u32 = 0x4c0a;
const EXT4_IOC_MOVE_EXT: u32 = 0xc028_660f;

/// A driver that is handed a descriptor of the pool would take the file of ours behind it for the
/// program's.
fn hand_over(p: &Process, a: &Args) -> Outcome {
    // The driver says what is wrong with an address.
    let word = |at: usize| match args::read_bytes(at) {
        Ok(bytes) => Ok(u32::from_le_bytes(bytes)),
        Err(_) => Err(Stop::Native),
    };
    let (fd, errno) = match a[1] as u32 {
        LOOP_SET_FD | LOOP_CHANGE_FD => (a[2] as u32, EINVAL),
        LOOP_CONFIGURE => (word(a[2])?, EINVAL),
        FICLONE => (a[2] as u32, EXDEV),
        FICLONERANGE => (word(a[2])?, EXDEV),
        EXT4_IOC_MOVE_EXT => (word(a[2].wrapping_add(4))?, EXDEV),
        _ => return Err(Stop::Native),
    };
    match ours(p, fd as usize) {
        Ok(_) if is_open(a[0]) => Err(Stop::Refused(errno, Why::Unsupported)),
        _ => Err(Stop::Native),
    }
}

fn is_open(fd: usize) -> bool {
    // SAFETY: only asks for flags.
    unsafe { sys::raw(nr::FCNTL, [fd, F_GETFD, 0, 0, 0, 0]) >= 0 }
}

/// Why FICLONE does not make the pool file `to`, open with `flags`, a clone of the file `from`.
fn not_cloned(p: &Process, to: usize, from: usize, flags: u32) -> Errno {
    let Ok(source) = ours(p, from) else {
        return if is_open(from) { EXDEV } else { EBADF };
    };
    if p.client.getfl(source).map_or(O_PATH, |flags| flags) & O_PATH != 0 {
        return EBADF;
    }
    let kind = |ofd| p.client.fstat(ofd).map_or(0, |stat| stat.mode & S_IFMT);
    for ofd in [Some(source), p.client.lookup(to as u32)]
        .into_iter()
        .flatten()
    {
        match kind(ofd) {
            S_IFREG => {}
            S_IFDIR => return EISDIR,
            _ => return EINVAL,
        }
    }
    let reads = |flags: u32| matches!(flags & (O_ACCMODE | O_PATH), O_RDONLY | O_RDWR);
    let writes = matches!(flags & (O_ACCMODE | O_APPEND), O_WRONLY | O_RDWR);
    match p.client.getfl(source).is_ok_and(reads) && writes {
        true => EOPNOTSUPP,
        false => EBADF,
    }
}

pub fn ioctl(p: &Process, a: &Args) -> Outcome {
    let ofd = match ours(p, a[0]) {
        Err(Stop::Native) => return hand_over(p, a),
        ofd => ofd?,
    };
    let flags = p.client.getfl(ofd)?;
    if flags & O_PATH != 0 {
        return Err(EBADF.into());
    }
    match a[1] as u32 {
        FIOCLEX | FIONCLEX => Err(Stop::Native),
        FIONBIO => {
            let on = args::read_bytes::<4>(a[2])? != [0; 4];
            let others = flags & !O_NONBLOCK;
            done(
                p.client
                    .setfl(ofd, if on { others | O_NONBLOCK } else { others }),
            )
        }
        FIONREAD if p.client.fstat(ofd)?.mode & S_IFMT == S_IFREG => {
            let size = p.client.fstat(ofd)?.size;
            let at = p.client.lseek(ofd, 0, SEEK_CUR)?;
            let left = size.saturating_sub(at).min(i32::MAX as u64) as i32;
            args::write_bytes(a[2], &left.to_le_bytes())?;
            Ok(0)
        }
        FIGETBSZ => {
            args::write_bytes(a[2], &BLOCK_SIZE.to_le_bytes())?;
            Ok(0)
        }
        FICLONE => Err(not_cloned(p, a[0], a[2], flags).into()),
        FICLONERANGE | FIDEDUPERANGE | FS_IOC_FIEMAP => Err(EOPNOTSUPP.into()),
        _ => Err(ENOTTY.into()),
    }
}
