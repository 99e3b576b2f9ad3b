//! Pipes and sockets that have a name in the pool.
//!
//! Invariants: the pool has the name, the owner and the permissions; the data flows through the
//! kernel, by an object of the same kind in the pool's `special` directory whose name is the inode
//! number. Inode numbers are never reused, so an old object there never belongs to another inode.
//! Beside a socket, a symbolic link leads to the path that it was bound to, as that was given.
//! Where a user bound it whom a proxy serves, the object is a link to the socket (`sockets`).

use super::args::{self, Errno};
use super::outcome::{Outcome, Stop, Why, done};
use super::place::{AT_FDCWD, in_pool};
use super::pool::Pool;
use super::process::Process;
use super::{fds, nr, sockets};
use crate::sys;
use crate::waiting;
use alloc::boxed::Box;
use alloc::vec::Vec;
use holdfast_client::abi::*;
use holdfast_client::{OfdLink, Served};
use rustix::fd::AsRawFd;

type Args = [usize; 6];

const CWD: usize = AT_FDCWD as usize;
const ENOENT: Errno = 2;
const EACCES: Errno = 13;
const EEXIST: Errno = 17;
const EADDRINUSE: Errno = 98;
pub(super) const ECONNREFUSED: Errno = 111;
const EINVAL: Errno = 22;
const AF_UNIX: u16 = 1;
/// Bytes of `sun_path`.
const SUN_PATH: usize = 108;
/// Family and path.
const ADDRESS: usize = 2 + SUN_PATH;

/// Whether the directory of the kernel's objects is another user's: who could lead root from there
/// to anything, and lets nobody else in.
fn is_foreign(p: &Process) -> bool {
    let owner = sys::stat_fd(p.data_fd as usize).map(|stat| stat.uid);
    // SAFETY: touches no memory.
    let user = unsafe { sys::raw(nr::GETEUID, [0; 6]) };
    user == 0 && owner != Some(0)
}

/// Path of the kernel's object for inode `ino`, NUL-terminated; makes the directory if need be.
fn object_path(p: &Process, ino: u64) -> Result<Box<[u8]>, Stop> {
    if is_foreign(p) {
        return Err(Stop::Refused(EACCES, Why::ForeignPool));
    }
    let mut path = Vec::with_capacity(p.special_dir.len() + 24);
    path.extend_from_slice(&p.special_dir);
    path.push(0);
    let args = [path.as_ptr() as usize, 0o700, 0, 0, 0, 0];
    // SAFETY: the path is NUL-terminated; that the directory exists is no error.
    unsafe { sys::raw(nr::MKDIR, args) };
    path.pop();
    path.push(b'/');
    push_decimal(&mut path, ino);
    path.push(0);
    Ok(path.into_boxed_slice())
}

pub(super) fn push_decimal(text: &mut Vec<u8>, number: u64) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    let mut rest = number;
    while first == digits.len() || rest > 0 {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    text.extend_from_slice(&digits[first..]);
}

pub(super) fn kernel(number: usize, args: [usize; 6]) -> Outcome {
    // SAFETY: every caller passes addresses that live until the call returns.
    let ret = unsafe { sys::raw(number, args) };
    if ret < 0 {
        Err(Stop::Errno(-ret as Errno))
    } else {
        Ok(ret)
    }
}

/// Opens the kernel's pipe for the pool's pipe `ofd`, which may wait for the other side.
pub fn open_pipe(p: &Process, ofd: OfdLink, flags: u32) -> Outcome {
    let opened = p.client.ino_of(ofd).map_err(Stop::from);
    match opened.and_then(|ino| open_kernels(&object_path(p, ino)?, flags)) {
        Ok(fd) => {
            fds::bind_new(p, fd as u32, ofd)?;
            Ok(fd)
        }
        Err(stop) => {
            p.client.release(ofd)?;
            Err(stop)
        }
    }
}

/// Makes descriptor `fd` the kernel's pipe for the pool's pipe `handle`, which a proxy opened: it
/// may wait for the other side.
pub fn open_served_pipe(served: &Served, handle: OfdLink, fd: u32, flags: u32) -> Outcome {
    let pipe = served.open_pipe(handle, fd)?;
    let from = pipe.as_raw_fd() as usize;
    let args = [from, fd as usize, (flags & O_CLOEXEC) as usize, 0, 0, 0];
    kernel(nr::DUP3, args).inspect_err(|_| {
        let _ = served.unbind(fd);
    })
}

fn open_kernels(path: &[u8], flags: u32) -> Outcome {
    let path = path.as_ptr() as usize;
    match kernel(nr::MKNOD, [path, (S_IFIFO | 0o600) as usize, 0, 0, 0, 0]) {
        Err(Stop::Errno(EEXIST)) | Ok(_) => {}
        failed => return failed,
    }
    let flags = flags & !(O_CREAT | O_EXCL | O_TRUNC);
    // SAFETY: the path is NUL-terminated and lives until here.
    let fd = unsafe { waiting::call(nr::OPEN, [path, flags as usize, 0, 0, 0, 0]) };
    Ok(args::result(fd)? as isize)
}

/// A Unix socket address with a path, copied from the program's memory; a NUL follows the path.
struct Address([u8; ADDRESS + 1]);

impl Address {
    /// `Native`: it is none.
    fn read(addr: usize, len: usize) -> Result<Address, Stop> {
        let (mut bytes, len) = ([0; ADDRESS + 1], len.min(ADDRESS));
        let is_read = len > 3 && args::source(addr, len).read(&mut bytes[..len]).is_ok();
        match is_read && bytes[..2] == AF_UNIX.to_le_bytes() && bytes[2] != 0 {
            true => Ok(Address(bytes)),
            false => Err(Stop::Native),
        }
    }

    fn path_at(&self) -> usize {
        self.0[2..].as_ptr() as usize
    }
}

/// The address of a socket of the kernel at a path that ends with a NUL, and its length.
pub(super) fn address_at(path: &[u8]) -> Result<([u8; ADDRESS], usize), Stop> {
    let mut address = [0; ADDRESS];
    address[..2].copy_from_slice(&AF_UNIX.to_le_bytes());
    let room = address.get_mut(2..2 + path.len());
    room.ok_or(Stop::Refused(EINVAL, Why::SocketPath))?
        .copy_from_slice(path);
    Ok((address, 2 + path.len()))
}

/// bind(fd, addr, len): the name in the pool, the socket in the kernel.
pub fn bind(p: &Process, a: &Args) -> Outcome {
    let given = Address::read(a[1], a[2])?;
    in_pool(p, CWD, given.path_at(), |base, path| {
        let mode = S_IFSOCK | 0o777;
        match p.with_caller(|c| done(p.client.mknod(c, base, path, mode, 0))) {
            Err(Stop::Errno(EEXIST)) => return Err(EADDRINUSE.into()),
            made => made?,
        };
        let bound = match &p.client {
            Pool::Served(served) => sockets::bind(p, served, (base, path), a[0]),
            Pool::Mapped(client) => p
                .with_caller(|c| client.stat(c, base, path, AT_SYMLINK_NOFOLLOW))
                .map_err(Stop::from)
                .and_then(|stat| bind_at(a[0], &object_path(p, stat.ino)?)),
        };
        match bound {
            Ok(_) => note_path(p, a[0], &given),
            Err(_) => p.with_caller(|c| p.client.unlink(c, base, path))?,
        }
        bound
    })
}

/// Binds a socket to a path of the host, where everybody who gets there may reach it.
pub(super) fn bind_at(fd: usize, path: &[u8]) -> Outcome {
    let (address, len) = address_at(path)?;
    kernel(nr::BIND, [fd, address.as_ptr() as usize, len, 0, 0, 0])?;
    kernel(nr::CHMOD, [path.as_ptr() as usize, 0o777, 0, 0, 0, 0])
}

/// What a socket's name in the special directory ends with, beside which its path is.
const PATH_LINK: &[u8] = b".path";

/// Keeps the path that socket `fd` was bound to.
fn note_path(p: &Process, fd: usize, address: &Address) {
    if let Some(link) = link_of(p, nr::GETSOCKNAME, fd) {
        let args = [address.path_at(), link.as_ptr() as usize, 0, 0, 0, 0];
        // Where it fails, the kernel's own path is shown.
        let _ = kernel(nr::SYMLINK, args);
    }
}

/// If the address that `number` tells of socket `fd` is that of a name in a pool, the link beside.
fn link_of(p: &Process, number: usize, fd: usize) -> Option<Vec<u8>> {
    let (mut bytes, mut len) = ([0u8; ADDRESS + 1], ADDRESS as u32);
    let [at, len_at] = [bytes.as_mut_ptr() as usize, (&raw mut len) as usize];
    // SAFETY: the kernel writes at most `ADDRESS` bytes, and the length.
    let ret = unsafe { sys::raw(number, [fd, at, len_at, 0, 0, 0]) };
    let path = bytes.get(2..)?.split(|b| *b == 0).next()?;
    let is_ours = ret == 0 && bytes[..2] == AF_UNIX.to_le_bytes();
    let name = path.strip_prefix(&*p.special_dir);
    let is_object = name.is_some_and(|name| name.first() == Some(&b'/'));
    let is_ours = is_ours && (is_object || path.starts_with(sockets::PLACES));
    is_ours.then(|| [path, PATH_LINK, b"\0"].concat())
}

/// getsockname(fd, addr, len), getpeername(fd, addr, len)
pub fn getsockname(p: &Process, a: &Args) -> Outcome {
    told(p, nr::GETSOCKNAME, a)
}

pub fn getpeername(p: &Process, a: &Args) -> Outcome {
    told(p, nr::GETPEERNAME, a)
}

fn told(p: &Process, number: usize, a: &Args) -> Outcome {
    let link = link_of(p, number, a[0]).ok_or(Stop::Native)?;
    let mut address = [0; ADDRESS + 1];
    let (from, to) = (link.as_ptr() as usize, address[2..].as_mut_ptr() as usize);
    address[..2].copy_from_slice(&AF_UNIX.to_le_bytes());
    // SAFETY: the link ends with a NUL; the kernel writes at most `SUN_PATH` bytes.
    let path = unsafe { sys::raw(nr::READLINK, [from, to, SUN_PATH, 0, 0, 0]) };
    let path = usize::try_from(path).map_err(|_| Stop::Native)?;
    let room = i32::from_le_bytes(args::read_bytes(a[2])?);
    let room = usize::try_from(room).map_err(|_| Stop::Errno(EINVAL))?;
    let len = 2 + path + 1;
    args::write_bytes(a[1], &address[..len.min(room)])?;
    args::write_bytes(a[2], &(len as u32).to_le_bytes())?;
    Ok(0)
}

/// Calls `f` with where the kernel's socket is for an address in the pool; `Native` if it is not.
fn at_socket(
    p: &Process,
    addr: usize,
    len: usize,
    f: impl FnOnce(usize, usize) -> Outcome,
) -> Outcome {
    let given = Address::read(addr, len)?;
    in_pool(p, CWD, given.path_at(), |base, path| {
        let client = match &p.client {
            Pool::Served(served) => return sockets::reach(p, served, (base, path), f),
            Pool::Mapped(client) => client,
        };
        let stat = p.with_caller(|c| client.stat(c, base, path, 0))?;
        if stat.mode & S_IFMT != S_IFSOCK {
            return Err(ECONNREFUSED.into());
        }
        p.with_caller(|c| client.access(c, base, path, W_OK, AT_EACCESS))
            .map_err(|_| Stop::Errno(EACCES))?;
        let object = object_path(p, stat.ino)?;
        if let Some(socket) = sockets::linked(&object, stat.uid) {
            return sockets::reach_open(socket?.0, f);
        }
        let (address, len) = address_at(&object)?;
        match f(address.as_ptr() as usize, len) {
            Err(Stop::Errno(ENOENT)) => Err(ECONNREFUSED.into()),
            other => other,
        }
    })
}

/// A call that may wait for the other side.
fn waiting(number: usize, args: [usize; 6]) -> Outcome {
    // SAFETY: every caller passes addresses that live until the call returns.
    Ok(args::result(unsafe { waiting::call(number, args) })? as isize)
}

/// connect(fd, addr, len)
pub fn connect(p: &Process, a: &Args) -> Outcome {
    at_socket(p, a[1], a[2], |addr, len| {
        waiting(nr::CONNECT, [a[0], addr, len, 0, 0, 0])
    })
}

/// sendto(fd, buf, len, flags, addr, addrlen)
pub fn sendto(p: &Process, a: &Args) -> Outcome {
    if a[4] == 0 {
        return Err(Stop::Native);
    }
    at_socket(p, a[4], a[5], |addr, len| {
        waiting(nr::SENDTO, [a[0], a[1], a[2], a[3], addr, len])
    })
}

/// Whether the message with this header has an address with a path.
pub fn has_path(header: usize) -> bool {
    let family = |at: u64| args::read_bytes::<3>(at as usize).ok();
    let name = args::read_u64(header).ok().filter(|at| *at != 0);
    let is_path = |[low, high, first]: [u8; 3]| [low, high] == AF_UNIX.to_le_bytes() && first != 0;
    name.and_then(family).is_some_and(is_path)
}

/// sendmsg(2) of socket `fd`, with the address where the kernel has it.
pub fn sendmsg(p: &Process, fd: usize, header: &mut [u8; 56], flags: usize) -> Outcome {
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&header[at..at + 8]);
        u64::from_le_bytes(word) as usize
    };
    let (name, name_len) = (word(0), word(8) as u32 as usize);
    at_socket(p, name, name_len, |addr, len| {
        header[..8].copy_from_slice(&addr.to_le_bytes());
        header[8..12].copy_from_slice(&(len as u32).to_le_bytes());
        waiting(nr::SENDMSG, [fd, header.as_ptr() as usize, flags, 0, 0, 0])
    })
}
