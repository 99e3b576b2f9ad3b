//! The process at the other end of a Unix socket.
//!
//! Invariant: the user of a peer is known in any PID namespace. A peer that has no number in ours
//! has no process number here, a case for which rustix has no value.

use crate::sys;
use alloc::vec;
use alloc::vec::Vec;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;

const SYS_IOCTL: usize = 16;
const SIOCOUTQ: usize = 0x5411;
const SYS_GETSOCKOPT: usize = 55;
const SOL_SOCKET: usize = 1;
const SO_PEERCRED: usize = 17;
const SO_PEERGROUPS: usize = 59;
/// More groups than a process can be in.
const GROUPS_MAX: usize = 65536;

/// The user at the other end, as the caller's user namespace sees it.
pub fn user(socket: BorrowedFd<'_>) -> Result<u32, Errno> {
    Ok(credentials(socket)?[1])
}

/// The process at the other end, of which a listener's counts that listened, by its number in the
/// caller's PID namespace; 0: it has none there.
pub fn process(socket: BorrowedFd<'_>) -> Result<u32, Errno> {
    Ok(credentials(socket)?[0])
}

/// The group at the other end, likewise.
pub fn group(socket: BorrowedFd<'_>) -> Result<u32, Errno> {
    Ok(credentials(socket)?[2])
}

/// The supplementary groups at the other end.
pub fn groups(socket: BorrowedFd<'_>) -> Result<Vec<u32>, Errno> {
    let mut groups = vec![0u32; 32];
    loop {
        let mut len = (groups.len() * 4) as u32;
        let fd = socket.as_raw_fd() as usize;
        let (at, len_at) = (groups.as_mut_ptr() as usize, &raw mut len as usize);
        let args = [fd, SOL_SOCKET, SO_PEERGROUPS, at, len_at];
        // SAFETY: the kernel writes at most `len` bytes.
        match sys::count(unsafe { sys::syscall5(SYS_GETSOCKOPT, args) }) {
            Ok(_) => {
                groups.truncate(len as usize / 4);
                return Ok(groups);
            }
            Err(Errno::RANGE) if groups.len() < GROUPS_MAX => {
                groups.resize(GROUPS_MAX.min(len as usize / 4), 0);
            }
            Err(e) => return Err(e),
        }
    }
}

/// Whether the other end has received all that was sent to it.
pub fn has_received_all(socket: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut unread = 0u32;
    let args = [
        socket.as_raw_fd() as usize,
        SIOCOUTQ,
        &raw mut unread as usize,
        0,
    ];
    // SAFETY: the kernel writes one word.
    sys::count(unsafe { sys::syscall(SYS_IOCTL, args) })?;
    Ok(unread == 0)
}

/// Process, user and group.
fn credentials(socket: BorrowedFd<'_>) -> Result<[u32; 3], Errno> {
    let (mut credentials, mut len) = ([0u32; 3], 12u32);
    let fd = socket.as_raw_fd() as usize;
    let (at, len_at) = (credentials.as_mut_ptr() as usize, &raw mut len as usize);
    // SAFETY: the kernel writes at most `len` bytes.
    let ret = unsafe { sys::syscall5(SYS_GETSOCKOPT, [fd, SOL_SOCKET, SO_PEERCRED, at, len_at]) };
    sys::count(ret)?;
    Ok(credentials)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn the_user_is_told() {
        use std::os::fd::AsRawFd;
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        // SAFETY: the callers' files are open.
        let fd = |fd| unsafe { BorrowedFd::borrow_raw(fd) };
        // SAFETY: touches no memory.
        let me = unsafe { libc::geteuid() };
        assert_eq!(user(fd(one.as_raw_fd())), Ok(me));
        assert_eq!(process(fd(one.as_raw_fd())), Ok(std::process::id()));
        let mut mine = vec![0; GROUPS_MAX];
        // SAFETY: the kernel writes at most as many as there is room for.
        let count = unsafe { libc::getgroups(GROUPS_MAX as i32, mine.as_mut_ptr()) };
        mine.truncate(count as usize);
        assert_eq!(groups(fd(one.as_raw_fd())), Ok(mine));
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(user(fd(file.as_raw_fd())), Err(Errno::NOTSOCK));
    }

    #[test]
    fn what_was_not_received_is_known() {
        use std::io::{Read, Write};
        use std::os::fd::AsRawFd;
        let (mut one, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
        // SAFETY: the socket stays open.
        let socket = unsafe { BorrowedFd::borrow_raw(one.as_raw_fd()) };
        assert_eq!(has_received_all(socket), Ok(true));
        one.write_all(b"x").unwrap();
        assert_eq!(has_received_all(socket), Ok(false));
        other.read_exact(&mut [0]).unwrap();
        assert_eq!(has_received_all(socket), Ok(true));
    }
}
