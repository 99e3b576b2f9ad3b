//! Sockets in a pool's directory, whose path may be too long for an address.
//!
//! Invariant: no call waits for the other end.

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::path::Path;

/// Connections that wait to be answered; more are refused.
const BACKLOG: i32 = 16;

/// A pool's directory.
pub struct Directory(OwnedFd);

impl Directory {
    pub fn open(path: &Path) -> io::Result<Directory> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Directory(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// Where a name in it is, in few bytes.
    fn address(&self, name: &str) -> io::Result<SocketAddrUnix> {
        let path = format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd());
        Ok(SocketAddrUnix::new(path)?)
    }

    /// Listens at a name that nothing has.
    pub fn listen(&self, name: &str) -> io::Result<OwnedFd> {
        let socket = stream(SocketFlags::CLOEXEC)?;
        rustix::net::bind(&socket, &self.address(name)?)?;
        let listens = rustix::net::listen(&socket, BACKLOG);
        if let Err(e) = listens {
            self.remove(name);
            return Err(e.into());
        }
        Ok(socket)
    }

    pub fn connect(&self, name: &str) -> io::Result<OwnedFd> {
        let socket = stream(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        rustix::net::connect(&socket, &self.address(name)?)?;
        Ok(socket)
    }

    pub fn remove(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.0, name, rustix::fs::AtFlags::empty());
    }

    /// Makes the file `name` somebody's, who alone can use it.
    pub fn give(&self, name: &str, owner: u32) -> io::Result<()> {
        let owner = rustix::fs::Uid::from_raw(owner);
        let nofollow = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, name, flags, Mode::empty())?;
        let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::chmod(itself, Mode::RUSR | Mode::WUSR)?;
        if rustix::process::geteuid() != owner {
            rustix::fs::chownat(&self.0, name, Some(owner), None, nofollow)?;
        }
        Ok(())
    }
}

fn stream(flags: SocketFlags) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(socket)
}

/// Ends the waiting of whoever accepts connections at `socket`.
pub fn shut(socket: &impl AsFd) {
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}
