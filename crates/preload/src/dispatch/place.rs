//! Where the path of a call leads: to the kernel's files or to the pool.
//!
//! Invariant: a path is read from the program's memory once.

use super::args::{self, Errno};
use super::at::{self, Link};
use super::data::object;
use super::outcome::{Outcome, Stop};
use super::process::Process;
use crate::sys;
use holdfast_client::abi::{AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW};
use holdfast_client::{Base, OfdLink};

/// `dirfd` value for the working directory.
pub const AT_FDCWD: i32 = -100;

const PATH_ROOM: usize = 4096;
const ENOENT: Errno = 2;
const EBADF: Errno = 9;

/// Stands for "the open object itself" behind /proc/self/fd/N; no program can pass a NUL.
pub const DESCRIPTOR: &[u8] = b"\0";

/// Path and flags as the client takes them, with `DESCRIPTOR` as an empty path.
pub fn at_flags(path: &[u8], flags: u32) -> (&[u8], u32) {
    match path {
        DESCRIPTOR => (b"", (flags | AT_EMPTY_PATH) & !AT_SYMLINK_NOFOLLOW),
        path => (path, flags),
    }
}

/// Reads the path at `addr` and calls `f` with its place in the pool; `Native` if it has none.
pub fn in_pool(
    p: &Process,
    dirfd: usize,
    addr: usize,
    f: impl FnOnce(Base, &[u8]) -> Outcome,
) -> Outcome {
    if addr == 0 {
        return null_path(p, dirfd, f);
    }
    let mut found = None;
    let located = args::with_path(addr, |path| {
        found = Some(locate(p, dirfd as i32, path, f));
        Ok(())
    });
    match (located, found) {
        (Ok(()), Some(outcome)) => outcome,
        // What the kernel would say to a bad or overlong path does not depend on the place.
        (Err(_), _) | (_, None) => Err(Stop::Native),
    }
}

/// NULL as a path is an empty path since Linux 6.11 where AT_EMPTY_PATH is given.
fn null_path(p: &Process, dirfd: usize, f: impl FnOnce(Base, &[u8]) -> Outcome) -> Outcome {
    f(Base::Ofd(object(p, dirfd)?), b"")
}

/// Calls `f` with the place of `path` in the pool; `Native` if it has none.
pub fn locate(
    p: &Process,
    dirfd: i32,
    path: &[u8],
    f: impl FnOnce(Base, &[u8]) -> Outcome,
) -> Outcome {
    if path.first() == Some(&b'/') {
        return absolute(p, path, f);
    }
    if dirfd != AT_FDCWD {
        match object(p, dirfd as usize) {
            Err(Stop::Native) => {}
            ofd => return f(Base::Ofd(ofd?), path),
        }
    } else if p.client.cwd_inside() {
        return f(Base::Cwd, path);
    }
    if !at::may_reach(&p.at, path) {
        return Err(Stop::Native);
    }
    relative(p, dirfd, path, f)
}

fn absolute(p: &Process, path: &[u8], f: impl FnOnce(Base, &[u8]) -> Outcome) -> Outcome {
    if let Some(rest) = at::inside(&p.at, path) {
        return f(Base::Root, if rest.is_empty() { b"." } else { rest });
    }
    // What the loader makes of $ORIGIN in a program that runs from a copy (`exec::copy_of`).
    if let Some(named) = path.strip_prefix(b"/memfd:")
        && let Some(rest) = at::inside(&p.at, named)
    {
        return f(Base::Root, if rest.is_empty() { b"." } else { rest });
    }
    if !path.starts_with(b"/proc/") && !path.starts_with(b"/dev/") {
        return Err(Stop::Native);
    }
    if let Some(fd) = at::descriptor_link(path, p.pid()) {
        return f(Base::Ofd(linked(p, fd)?), DESCRIPTOR);
    }
    match at::behind_link(path, p.pid()).ok_or(Stop::Native)? {
        (Link::Cwd, rest) if p.client.cwd_inside() => f(Base::Cwd, rest),
        (Link::Root, rest) => match at::inside(&p.at, rest) {
            Some(rest) => f(Base::Root, if rest.is_empty() { b"." } else { rest }),
            None => Err(Stop::Native),
        },
        (Link::Descriptor(fd), rest) => f(Base::Ofd(linked(p, fd)?), rest),
        _ => Err(Stop::Native),
    }
}

/// The pool file behind a link in /proc/self/fd, or `Native`.
fn linked(p: &Process, fd: u32) -> Result<OfdLink, Stop> {
    match p.is_internal(fd) {
        true => Err(ENOENT.into()),
        false => p.client.lookup(fd).ok_or(Stop::Native),
    }
}

/// Whether a relative path walks into the pool from a directory of the host.
pub fn relative_leads_to_pool(p: &Process, dirfd: i32, path: &[u8]) -> bool {
    at::may_reach(&p.at, path) && relative(p, dirfd, path, |_, _| Ok(0)).is_ok()
}

/// A relative path that may walk into the pool from a directory of the host.
#[inline(never)]
fn relative(
    p: &Process,
    dirfd: i32,
    path: &[u8],
    f: impl FnOnce(Base, &[u8]) -> Outcome,
) -> Outcome {
    let mut joined = [0; 2 * PATH_ROOM];
    let room = &mut joined[..PATH_ROOM];
    let found = match dirfd {
        AT_FDCWD => host_cwd(room),
        dirfd => host_directory(dirfd, room),
    };
    let len = found.map_err(|_| Stop::Native)?;
    joined[len] = b'/';
    let end = len + 1 + path.len();
    joined[len + 1..end].copy_from_slice(path);
    match at::inside(&p.at, &joined[..end]) {
        Some(rest) => f(Base::Root, if rest.is_empty() { b"." } else { rest }),
        None => Err(Stop::Native),
    }
}

/// The path of an open directory of the host.
fn host_directory(dirfd: i32, out: &mut [u8]) -> Result<usize, Errno> {
    let mut link = *b"/proc/self/fd/0000000000\0";
    let mut rest = u32::try_from(dirfd).map_err(|_| EBADF)?;
    for digit in link[14..24].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    // The kernel takes no leading zeroes.
    let first = (14..23).find(|i| link[*i] != b'0').unwrap_or(23);
    link.copy_within(first..25, 14);
    let (from, to) = (link.as_ptr() as usize, out.as_mut_ptr() as usize);
    // SAFETY: the link is NUL-terminated; the kernel writes at most `out.len()` bytes.
    let ret = unsafe { sys::raw(super::nr::READLINK, [from, to, out.len(), 0, 0, 0]) };
    match ret {
        1.. if out[0] == b'/' => Ok(ret as usize),
        _ => Err(EBADF),
    }
}

fn host_cwd(out: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel writes at most `out.len()` bytes.
    let ret = unsafe {
        sys::raw(
            super::nr::GETCWD,
            [out.as_mut_ptr() as usize, out.len(), 0, 0, 0, 0],
        )
    };
    match ret {
        1.. => Ok(ret as usize - 1),
        _ => Err(-ret as Errno),
    }
}
