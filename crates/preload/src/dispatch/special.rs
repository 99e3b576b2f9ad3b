//! Pipes and sockets that have a name in the pool.
//!
//! Invariants: the pool has the name, the owner and the permissions; the data flows through the
//! kernel, by an object of the same kind in the pool's `special` directory whose name is the inode
//! number. Inode numbers are never reused, so an old object there never belongs to another inode.

use super::args::{self, Errno};
use super::nr;
use super::outcome::{Outcome, Stop, Why, done};
use super::place::{AT_FDCWD, at_flags, in_pool};
use super::process::Process;
use crate::sys;
use alloc::boxed::Box;
use alloc::vec::Vec;
use holdfast_client::Base;
use holdfast_client::abi::*;

type Args = [usize; 6];

const CWD: usize = AT_FDCWD as usize;
const ENOENT: Errno = 2;
const EACCES: Errno = 13;
const EEXIST: Errno = 17;
const EADDRINUSE: Errno = 98;
const ECONNREFUSED: Errno = 111;
const ENOTSOCK: Errno = 88;
const EINVAL: Errno = 22;
const AF_UNIX: u16 = 1;
/// Bytes of `sun_path`.
const SUN_PATH: usize = 108;
/// Family and path.
const ADDRESS: usize = 2 + SUN_PATH;

/// Path of the kernel's object for inode `ino`, NUL-terminated; makes the directory if need be.
fn object_path(p: &Process, ino: u64) -> Box<[u8]> {
    let mut path = Vec::with_capacity(p.special_dir.len() + 24);
    path.extend_from_slice(&p.special_dir);
    path.push(0);
    let args = [path.as_ptr() as usize, 0o700, 0, 0, 0, 0];
    // SAFETY: the path is NUL-terminated; that the directory exists is no error.
    unsafe { sys::raw(nr::MKDIR, args) };
    path.pop();
    path.push(b'/');
    let mut digits = [0; 20];
    let mut first = digits.len();
    let mut rest = ino;
    while first == digits.len() || rest > 0 {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    path.extend_from_slice(&digits[first..]);
    path.push(0);
    path.into_boxed_slice()
}

fn kernel(number: usize, args: [usize; 6]) -> Outcome {
    // SAFETY: every caller passes addresses that live until the call returns.
    let ret = unsafe { sys::raw(number, args) };
    if ret < 0 {
        Err(Stop::Errno(-ret as Errno))
    } else {
        Ok(ret)
    }
}

/// open(2) of a named pipe: the kernel's pipe, with the rights of the pool's.
pub fn open_pipe(p: &Process, base: Base, path: &[u8], flags: u32) -> Outcome {
    let (path, follow) = at_flags(path, 0);
    let stat = p.with_caller(|c| p.client.stat(c, base, path, follow))?;
    if stat.mode & S_IFMT != S_IFIFO {
        return Err(Stop::Refused(95, Why::Unsupported));
    }
    let wanted = match flags & O_ACCMODE {
        O_RDONLY => R_OK,
        O_WRONLY => W_OK,
        _ => R_OK | W_OK,
    };
    p.with_caller(|c| p.client.access(c, base, path, wanted, follow | AT_EACCESS))?;
    let pipe = object_path(p, stat.ino);
    let made = kernel(
        nr::MKNOD,
        [
            pipe.as_ptr() as usize,
            (S_IFIFO | 0o600) as usize,
            0,
            0,
            0,
            0,
        ],
    );
    if let Err(Stop::Errno(e)) = made
        && e != EEXIST
    {
        return Err(e.into());
    }
    let flags = flags & !(O_CREAT | O_EXCL | O_TRUNC);
    kernel(
        nr::OPEN,
        [pipe.as_ptr() as usize, flags as usize, 0, 0, 0, 0],
    )
}

/// Calls `f` with the pool's place of the path in a Unix socket address; `Native` if it has none.
fn in_address(
    p: &Process,
    addr: usize,
    len: usize,
    f: impl FnOnce(Base, &[u8]) -> Outcome,
) -> Outcome {
    let len = len.min(ADDRESS);
    let mut bytes = [0; ADDRESS + 1];
    if len <= 3 || args::source(addr, len).read(&mut bytes[..len]).is_err() {
        return Err(Stop::Native);
    }
    if u16::from_le_bytes([bytes[0], bytes[1]]) != AF_UNIX || bytes[2] == 0 {
        return Err(Stop::Native);
    }
    in_pool(p, CWD, bytes[2..].as_ptr() as usize, f)
}

/// The address of the kernel's socket for inode `ino`.
fn address_of(p: &Process, ino: u64) -> Result<([u8; ADDRESS], usize), Stop> {
    let path = object_path(p, ino);
    let mut address = [0; ADDRESS];
    address[..2].copy_from_slice(&AF_UNIX.to_le_bytes());
    let room = address.get_mut(2..2 + path.len());
    room.ok_or(Stop::Refused(EINVAL, Why::SocketPath))?
        .copy_from_slice(&path);
    Ok((address, 2 + path.len()))
}

/// bind(fd, addr, len): the name in the pool, the socket in the kernel.
pub fn bind(p: &Process, a: &Args) -> Outcome {
    in_address(p, a[1], a[2], |base, path| {
        let mode = S_IFSOCK | 0o777;
        match p.with_caller(|c| done(p.client.mknod(c, base, path, mode, 0))) {
            Err(Stop::Errno(EEXIST)) => return Err(EADDRINUSE.into()),
            made => made?,
        };
        let bound = p
            .with_caller(|c| p.client.stat(c, base, path, AT_SYMLINK_NOFOLLOW))
            .map_err(Stop::from)
            .and_then(|stat| address_of(p, stat.ino))
            .and_then(|(address, len)| {
                kernel(nr::BIND, [a[0], address.as_ptr() as usize, len, 0, 0, 0])
            });
        if bound.is_err() {
            p.with_caller(|c| done(p.client.unlink(c, base, path)))?;
        }
        bound
    })
}

/// connect(fd, addr, len)
pub fn connect(p: &Process, a: &Args) -> Outcome {
    in_address(p, a[1], a[2], |base, path| {
        let stat = p.with_caller(|c| p.client.stat(c, base, path, 0))?;
        if stat.mode & S_IFMT != S_IFSOCK {
            return Err(if stat.mode & S_IFMT == 0 {
                ENOTSOCK
            } else {
                ECONNREFUSED
            }
            .into());
        }
        p.with_caller(|c| p.client.access(c, base, path, W_OK, AT_EACCESS))
            .map_err(|_| Stop::Errno(EACCES))?;
        let (address, len) = address_of(p, stat.ino)?;
        match kernel(nr::CONNECT, [a[0], address.as_ptr() as usize, len, 0, 0, 0]) {
            Err(Stop::Errno(ENOENT)) => Err(ECONNREFUSED.into()),
            other => other,
        }
    })
}
