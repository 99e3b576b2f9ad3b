//! Sockets with a name in the pool that a user bound whom a proxy serves.
//!
//! Invariants: the user has no right to the pool's directory of the kernel's objects, so the socket
//! lies in a directory of the user's own, and the proxy puts a link to it there. Where such a link
//! leads to counts only if it is a socket of the user who owns the name: a link is as trustworthy
//! as that user.

use super::args::Errno;
use super::handover::secret;
use super::nr;
use super::outcome::{Outcome, Stop};
use super::process::Process;
use super::special::{ECONNREFUSED, address_at, bind_at, kernel, push_decimal};
use crate::sys::{self, Fd};
use alloc::vec::Vec;
use holdfast_client::abi::{O_DIRECTORY, O_NOFOLLOW, O_PATH, S_IFDIR, S_IFMT, S_IFSOCK};
use holdfast_client::{Base, Served};
use rustix::fd::AsRawFd;

const EACCES: Errno = 13;
/// Directories of users begin with this; the user follows.
pub const PLACES: &[u8] = b"/tmp/.holdfast-";

/// Binds socket `fd`, whose name in the pool was just made.
pub fn bind(p: &Process, served: &Served, (base, path): (Base, &[u8]), fd: usize) -> Outcome {
    let host = new_path()?;
    let bound = bind_at(fd, &host)?;
    let text = host.strip_suffix(b"\0").unwrap_or(&host);
    p.with_caller(|c| served.place_socket(c, base, path, text))?;
    Ok(bound)
}

/// A path where nothing is, in the directory of the effective user; a NUL follows.
fn new_path() -> Result<Vec<u8>, Stop> {
    // SAFETY: touches no memory.
    let user = unsafe { sys::raw(nr::GETEUID, [0; 6]) } as u32;
    let mut path = PLACES.to_vec();
    push_decimal(&mut path, user.into());
    path.push(0);
    let at = path.as_ptr() as usize;
    // Others go through to a socket that they are led to, and see no names.
    if kernel(nr::MKDIR, [at, 0o711, 0, 0, 0, 0]).is_ok() {
        kernel(nr::CHMOD, [at, 0o711, 0, 0, 0, 0])?;
    }
    let flags = O_PATH | O_NOFOLLOW | O_DIRECTORY;
    let place = Fd::open(&path, flags as usize, 0).and_then(|dir| sys::stat_fd(dir.0));
    let is_ours = |stat: sys::Stat| {
        stat.mode & S_IFMT == S_IFDIR && stat.uid == user && stat.mode & 0o022 == 0
    };
    if !place.is_some_and(is_ours) {
        return Err(EACCES.into());
    }
    path.pop();
    path.push(b'/');
    push_decimal(&mut path, secret().ok_or(EACCES)?);
    path.push(0);
    Ok(path)
}

/// Calls `f` with an address of the socket behind a name of the pool.
pub fn reach(
    p: &Process,
    served: &Served,
    (base, path): (Base, &[u8]),
    f: impl FnOnce(usize, usize) -> Outcome,
) -> Outcome {
    let socket = p.with_caller(|c| served.socket_at(c, base, path))?;
    reach_open(socket.as_raw_fd() as usize, f)
}

/// The same of a socket that is open with O_PATH.
pub fn reach_open(fd: usize, f: impl FnOnce(usize, usize) -> Outcome) -> Outcome {
    let mut path = b"/proc/thread-self/fd/".to_vec();
    push_decimal(&mut path, fd as u64);
    path.push(0);
    let (address, len) = address_at(&path)?;
    f(address.as_ptr() as usize, len)
}

/// If the kernel's object at `path` is a link, the socket of `user` that it leads to.
pub fn linked(path: &[u8], user: u32) -> Option<Result<Fd, Stop>> {
    let mut first = [0u8; 1];
    let (from, to) = (path.as_ptr() as usize, first.as_mut_ptr() as usize);
    kernel(nr::READLINK, [from, to, first.len(), 0, 0, 0]).ok()?;
    let is_users = |fd: &Fd| {
        let stat = sys::stat_fd(fd.0);
        stat.is_some_and(|stat| stat.mode & S_IFMT == S_IFSOCK && stat.uid == user)
    };
    let socket = Fd::open(path, O_PATH as usize, 0).filter(is_users);
    Some(socket.ok_or(ECONNREFUSED.into()))
}
