//! The process at the other end of a Unix socket.
//!
//! Invariant: the user of a peer is known in any PID namespace. A peer that has no number in ours
//! has no process number here, a case for which rustix has no value.

use crate::sys;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;

const SYS_GETSOCKOPT: usize = 55;
const SOL_SOCKET: usize = 1;
const SO_PEERCRED: usize = 17;

/// The user at the other end, as the caller's user namespace sees it.
pub fn user(socket: BorrowedFd<'_>) -> Result<u32, Errno> {
    Ok(credentials(socket)?[1])
}

/// The process at the other end, of which a listener's counts that listened, by its number in the
/// caller's PID namespace; 0: it has none there.
pub fn process(socket: BorrowedFd<'_>) -> Result<u32, Errno> {
    Ok(credentials(socket)?[0])
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
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(user(fd(file.as_raw_fd())), Err(Errno::NOTSOCK));
    }
}
