//! Where the path of a call leads: the kernel's world or the pool.
//!
//! Invariant: a path is read from the program's memory once.

use super::args::{self, Errno};
use super::at;
use super::outcome::{Outcome, Stop};
use super::process::Process;
use crate::sys;
use holdfast_client::Base;

/// `dirfd` value for the working directory.
pub const AT_FDCWD: i32 = -100;

/// Longest path that a description can report.
const PATH_ROOM: usize = 4096;

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
    match p.client.lookup(dirfd as u32) {
        Some(ofd) => f(Base::Ofd(ofd), b""),
        None => Err(Stop::Native),
    }
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
        return match p.client.lookup(dirfd as u32) {
            Some(ofd) => f(Base::Ofd(ofd), path),
            None => Err(Stop::Native),
        };
    }
    if p.client.cwd_inside() {
        return f(Base::Cwd, path);
    }
    if !at::may_reach(&p.at, path) {
        return Err(Stop::Native);
    }
    relative(p, path, f)
}

fn absolute(p: &Process, path: &[u8], f: impl FnOnce(Base, &[u8]) -> Outcome) -> Outcome {
    if let Some(rest) = at::inside(&p.at, path) {
        return f(Base::Root, if rest.is_empty() { b"." } else { rest });
    }
    if !path.starts_with(b"/proc/") && !path.starts_with(b"/dev/") {
        return Err(Stop::Native);
    }
    let fd = at::descriptor_link(path, p.pid()).ok_or(Stop::Native)?;
    let ofd = p.client.lookup(fd).ok_or(Stop::Native)?;
    let mut room = [0; PATH_ROOM];
    let len = p.client.path_of(ofd, &mut room)?;
    f(Base::Root, room.get(..len).unwrap_or(b""))
}

/// A relative path that may walk into the pool from a working directory of the host.
#[inline(never)]
fn relative(p: &Process, path: &[u8], f: impl FnOnce(Base, &[u8]) -> Outcome) -> Outcome {
    let mut joined = [0; 2 * PATH_ROOM];
    let len = host_cwd(&mut joined[..PATH_ROOM]).map_err(|_| Stop::Native)?;
    joined[len] = b'/';
    let end = len + 1 + path.len();
    joined[len + 1..end].copy_from_slice(path);
    match at::inside(&p.at, &joined[..end]) {
        Some(rest) => f(Base::Root, if rest.is_empty() { b"." } else { rest }),
        None => Err(Stop::Native),
    }
}

fn host_cwd(out: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel writes at most `out.len()` bytes.
    let ret = unsafe {
        sys::raw(super::nr::GETCWD, [out.as_mut_ptr() as usize, out.len(), 0, 0, 0, 0])
    };
    match ret {
        1.. => Ok(ret as usize - 1),
        _ => Err(-ret as Errno),
    }
}
