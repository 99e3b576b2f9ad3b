//! open(2), openat(2), openat2(2), creat(2).
//!
//! Invariants: a descriptor of a pool file is a real kernel descriptor, a duplicate of one
//! placeholder that can neither be read nor written; it is bound before the program sees it.

use super::args::{self, EINVAL, Errno};
use super::outcome::{Outcome, Stop};
use super::place::{AT_FDCWD, DESCRIPTOR, in_pool};
use super::process::Process;
use super::{fds, nr, parent, special};
use crate::{calls, sys};
use holdfast_client::abi::*;
use holdfast_client::{Base, OfdLink, Served};

type Args = [usize; 6];

const CWD: usize = AT_FDCWD as usize;
const ENOENT: Errno = 2;
const E2BIG: Errno = 7;
const EAGAIN: Errno = 11;
const RESOLVE_CACHED: u64 = 0x20;
const F_DUPFD: usize = 0;
const F_DUPFD_CLOEXEC: usize = 1030;

pub fn open(p: &Process, a: &Args) -> Outcome {
    openat(p, &[CWD, a[0], a[1], a[2], 0, 0])
}

pub fn creat(p: &Process, a: &Args) -> Outcome {
    let flags = (O_CREAT | O_WRONLY | O_TRUNC) as usize;
    openat(p, &[CWD, a[0], flags, a[1], 0, 0])
}

pub fn openat(p: &Process, a: &Args) -> Outcome {
    let (flags, mode) = (a[2] as u32, a[3] as u32);
    let opened = in_pool(p, a[0], a[1], |base, path| {
        open_at(p, base, path, flags, mode, 0)
    });
    match flags & O_DIRECTORY {
        0 => opened,
        _ => parent::opened(p, a, opened),
    }
}

/// Bytes of `struct open_how` that are known.
const OPEN_HOW: usize = 24;
/// Bytes of the longest one: a page.
const OPEN_HOW_MAX: usize = 4096;
/// What openat2(2) takes beside O_PATH.
const PATH_FLAGS: u32 = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
const ELOOP: Errno = 40;

/// openat2(dirfd, path, how, size)
pub fn openat2(p: &Process, a: &Args) -> Outcome {
    let resolve = args::read_u64(a[2].wrapping_add(16)).unwrap_or(0);
    let absolute = |path: &[u8]| Ok(path.first() == Some(&b'/'));
    if resolve & (RESOLVE_IN_ROOT | RESOLVE_BENEATH) != 0
        && let Some(ofd) = p.client.lookup(a[0] as u32)
        && args::with_path(a[1], absolute).unwrap_or(false)
    {
        // The directory is the root of such a path.
        let mut opened = Err(Stop::Native);
        args::with_path(a[1], |path| {
            opened = open_how(p, a, Base::Ofd(ofd), path);
            Ok(())
        })?;
        return opened;
    }
    let magic = |path: &[u8]| Ok(path.starts_with(b"/proc/") || path.starts_with(b"/dev/fd/"));
    in_pool(p, a[0], a[1], |base, path| {
        // Only a magic link leads from there to the pool.
        if resolve & (RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS) != 0
            && args::with_path(a[1], magic)?
        {
            return Err(ELOOP.into());
        }
        open_how(p, a, base, path)
    })
}

/// As openat2(2), which `a` is of, at a place in the pool.
fn open_how(p: &Process, a: &Args, base: Base, path: &[u8]) -> Outcome {
    if a[3] < OPEN_HOW {
        return Err(EINVAL.into());
    }
    let flags = args::read_u64(a[2])?;
    let mode = args::read_u64(a[2] + 8)?;
    let resolve = args::read_u64(a[2] + 16)?;
    if a[3] > OPEN_HOW_MAX {
        return Err(E2BIG.into());
    }
    for at in OPEN_HOW..a[3] {
        if args::read_bytes::<1>(a[2] + at)? != [0] {
            return Err(E2BIG.into());
        }
    }
    let known = O_ACCMODE
        | O_CREAT
        | O_EXCL
        | O_NOCTTY
        | O_TRUNC
        | O_APPEND
        | O_NONBLOCK
        | O_SYNC
        | O_ASYNC
        | O_DIRECT
        | O_LARGEFILE
        | O_DIRECTORY
        | O_NOFOLLOW
        | O_NOATIME
        | O_CLOEXEC
        | O_PATH
        | O_TMPFILE_BIT;
    let makes = flags as u32 & (O_CREAT | O_TMPFILE_BIT) != 0;
    if flags & !u64::from(known) != 0 || mode & !0o7777 != 0 || (mode != 0 && !makes) {
        return Err(EINVAL.into());
    }
    let flags = flags as u32;
    if flags & O_PATH != 0 && flags & !PATH_FLAGS != 0 {
        return Err(EINVAL.into());
    }
    if resolve & RESOLVE_CACHED == 0 {
        return open_at(p, base, path, flags, mode as u32, resolve);
    }
    // Only what needs no look at a disk: as on tmpfs, that is every name that there is.
    if flags & (O_CREAT | O_TRUNC | O_TMPFILE_BIT) != 0 {
        p.client.check_open(flags)?;
        return Err(EAGAIN.into());
    }
    match open_at(p, base, path, flags, mode as u32, resolve & !RESOLVE_CACHED) {
        Err(Stop::Errno(ENOENT)) => Err(EAGAIN.into()),
        opened => opened,
    }
}

fn open_at(p: &Process, base: Base, path: &[u8], flags: u32, mode: u32, resolve: u64) -> Outcome {
    // No program can ask for that: the kernel knows no such flag.
    let flags = flags & !O_KERNELS;
    if let (Base::Ofd(ofd), DESCRIPTOR) = (base, path) {
        return reopen(p, ofd, flags);
    }
    if let Some(served) = p.client.served() {
        return open_served((p, served), base, path, flags, mode, resolve);
    }
    let pipes = flags | O_KERNELS;
    let ofd = p.with_caller(|c| p.client.open(c, base, path, pipes, mode, resolve))?;
    match p.client.is_kernels(ofd) {
        true => special::open_pipe(p, ofd, flags),
        false => install(p, ofd, flags & O_CLOEXEC != 0),
    }
}

/// Where every question costs a call of the proxy: one opens the file and binds the descriptor.
#[cold]
fn open_served(
    (p, served): (&Process, &Served),
    base: Base,
    path: &[u8],
    flags: u32,
    mode: u32,
    resolve: u64,
) -> Outcome {
    if p.with_caller(|c| served.finds_nothing(c, base, path, (flags, resolve))) {
        return Err(Stop::Errno(ENOENT));
    }
    let fd = new_descriptor(p, flags & O_CLOEXEC != 0);
    if fd < 0 {
        return Err(Stop::Errno(-fd as Errno));
    }
    let own = fd as u32;
    let opened = p
        .with_caller(|c| served.open_as((own, c), base, path, flags, mode, resolve))
        .map_err(Stop::from)
        .and_then(|pipe| match pipe {
            Some(pipe) => special::open_served_pipe(served, pipe, own, flags),
            None => Ok(0),
        });
    if let Err(stop) = opened {
        fds::kernel_close(own);
        return Err(stop);
    }
    calls::mark_fd(own);
    Ok(fd)
}

/// Opens what an open descriptor refers to once more, as /proc/self/fd/N does. An object that
/// has no name any more gives its own description: the offset is shared then.
fn reopen(p: &Process, ofd: OfdLink, flags: u32) -> Outcome {
    let mut room = alloc::vec![0; PATH_MAX];
    let len = p.client.path_of(ofd, &mut room)?;
    if p.client.is_kernels(ofd) {
        let path = room.get(..len).unwrap_or_default();
        return match open_at(p, Base::Root, path, flags & !O_NOFOLLOW, 0, 0) {
            // Only the kernel's own pipe is left.
            Err(Stop::Errno(ENOENT)) => Err(Stop::Native),
            opened => opened,
        };
    }
    let again = p.with_caller(|c| {
        let ino = p.client.ino_of(ofd)?;
        let path = room.get(..len).unwrap_or_default();
        match p
            .client
            .open(c, Base::Root, path, flags & !O_NOFOLLOW, 0, 0)
        {
            Ok(new) if p.client.ino_of(new)? == ino => Ok(new),
            Ok(new) => p
                .client
                .release(new)
                .and_then(|()| p.client.retain(ofd))
                .map(|()| ofd),
            Err(e) if e.errno() == ENOENT => p.client.retain(ofd).map(|()| ofd),
            Err(e) => Err(e),
        }
    })?;
    install(p, again, flags & O_CLOEXEC != 0)
}

/// Gives `ofd` the lowest free descriptor.
#[inline(always)]
fn install(p: &Process, ofd: OfdLink, cloexec: bool) -> Outcome {
    let fd = new_descriptor(p, cloexec);
    if fd < 0 {
        p.client.release(ofd)?;
        return Err(Stop::Errno(-fd as Errno));
    }
    fds::bind_new(p, fd as u32, ofd)?;
    Ok(fd)
}

/// The lowest free descriptor, as a duplicate of the placeholder.
#[inline(always)]
fn new_descriptor(p: &Process, cloexec: bool) -> isize {
    let how = if cloexec { F_DUPFD_CLOEXEC } else { F_DUPFD };
    // SAFETY: duplicates a descriptor of ours; touches no memory.
    unsafe { sys::raw(nr::FCNTL, [p.base_fd as usize, how, 0, 0, 0, 0]) }
}
