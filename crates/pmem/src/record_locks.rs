//! Record locks on single bytes of a file. A process holds each lock, and the kernel ends it with
//! that process, however that ends.
//!
//! What always holds here:
//! - A lock of `hold` belongs to the descriptor table of the caller. A child of fork(2) does not
//!   inherit it; execve(2) keeps it unless the table is shared with another process (since Linux
//!   5.11 other threads do not matter).
//! - The kernel also ends it when a process of that table closes any descriptor of the file.
//! - The kernel joins adjacent locks of one table, so bytes in use are never adjacent.
//! - If a number meanwhile names another file, nothing is locked and nothing is told.

use crate::flush::id;
use crate::{Error, sys};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use rustix::io::Errno;

const F_SETLK: usize = 6;
const F_OFD_GETLK: usize = 36;
const F_OFD_SETLK: usize = 37;
const F_WRLCK: i16 = 1;
const F_UNLCK: i16 = 2;

/// `struct flock`.
#[repr(C)]
struct Flock {
    kind: i16,
    whence: i16,
    start: i64,
    len: i64,
    pid: i32,
}

/// A file whose bytes are locked, by a descriptor that somebody else keeps open.
#[derive(Clone, Copy, Debug)]
pub struct RecordLocks {
    fd: RawFd,
    id: (u64, u64),
}

/// Who has a byte locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// The process with this number in the PID namespace of the caller; 0: it has none there.
    Process(u32),
    /// An open file description, which has no number.
    Description,
}

impl RecordLocks {
    /// Of `fd`, which stays open for as long as this is used.
    pub fn new(fd: BorrowedFd<'_>) -> Result<RecordLocks, Error> {
        Ok(RecordLocks {
            fd: fd.as_raw_fd(),
            id: id(fd)?,
        })
    }

    /// Number of the file.
    pub fn file(&self) -> u64 {
        self.id.1
    }

    /// Locks the byte for the caller's descriptor table. `AGAIN`: another one has it.
    pub fn hold(&self, byte: u64) -> Result<(), Errno> {
        self.call(F_SETLK, F_WRLCK, byte).map(drop)
    }

    /// Unlocks the byte if the caller's descriptor table has it.
    pub fn leave(&self, byte: u64) {
        // Fails where there is nothing to unlock.
        let _ = self.call(F_SETLK, F_UNLCK, byte);
    }

    /// Who has the byte locked, the caller as well.
    pub fn holder(&self, byte: u64) -> Result<Holder, Errno> {
        // Asked as an open file description, in whose name nobody locks through this descriptor.
        let found = self.call(F_OFD_GETLK, F_WRLCK, byte)?;
        Ok(match (found.kind, found.pid) {
            (F_UNLCK, _) => Holder::Nobody,
            (_, pid @ 0..) => Holder::Process(pid as u32),
            _ => Holder::Description,
        })
    }

    fn call(&self, command: usize, kind: i16, byte: u64) -> Result<Flock, Errno> {
        // SAFETY: the number is only handed to system calls, and the first of them looks what it
        // names now.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        match id(fd) {
            Ok(id) if id == self.id => fcntl(fd, command, kind, byte),
            _ => Err(Errno::BADF),
        }
    }
}

/// Descriptor `fd`, which whoever made it keeps open for as long as this process runs, or as the
/// caller uses it. `None`: it is not open.
pub fn kept_open(fd: RawFd) -> Option<BorrowedFd<'static>> {
    // SAFETY: it is for system calls only, and the first of them says whether it is open.
    let fd = (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })?;
    id(fd).is_ok().then_some(fd)
}

/// Locks the byte for the open file description of `fd`: for as long as any process has it.
/// `AGAIN`: another one has the lock.
pub fn hold_by_description(fd: BorrowedFd<'_>, byte: u64) -> Result<(), Errno> {
    fcntl(fd, F_OFD_SETLK, F_WRLCK, byte).map(drop)
}

fn fcntl(fd: BorrowedFd<'_>, command: usize, kind: i16, byte: u64) -> Result<Flock, Errno> {
    let (whence, start, len, pid) = (0, byte as i64, 1, 0);
    let mut lock = Flock {
        kind,
        whence,
        start,
        len,
        pid,
    };
    let at = core::ptr::from_mut(&mut lock) as usize;
    // SAFETY: these commands read and write one `struct flock`.
    sys::count(unsafe { sys::syscall(sys::SYS_FCNTL, [fd.as_raw_fd() as usize, command, at, 0]) })?;
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::{AsFd, OwnedFd};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    fn memory() -> OwnedFd {
        rustix::fs::memfd_create("record-locks", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }

    /// A process that holds the byte, through exec, until it is killed.
    fn holding(fd: &OwnedFd, byte: u64) -> Child {
        let locks = RecordLocks::new(fd.as_fd()).unwrap();
        let mut command = Command::new("sleep");
        command.arg("60");
        // SAFETY: makes system calls only.
        unsafe {
            command.pre_exec(move || {
                let fd = BorrowedFd::borrow_raw(locks.fd);
                let kept = rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty());
                let done = kept.and_then(|()| locks.hold(byte));
                done.map_err(|e| std::io::Error::from_raw_os_error(e.raw_os_error()))
            });
        }
        command.spawn().unwrap()
    }

    #[test]
    fn a_lock_ends_with_its_process() {
        let fd = memory();
        let locks = RecordLocks::new(fd.as_fd()).unwrap();
        assert_eq!(locks.holder(7), Ok(Holder::Nobody));
        let mut child = holding(&fd, 7);
        assert_eq!(locks.holder(7), Ok(Holder::Process(child.id())));
        assert_eq!(locks.hold(7), Err(Errno::AGAIN));
        assert_eq!(locks.holder(5), Ok(Holder::Nobody));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(locks.holder(7), Ok(Holder::Nobody));
    }

    #[test]
    fn ones_own_is_seen_and_can_be_left() {
        let fd = memory();
        let locks = RecordLocks::new(fd.as_fd()).unwrap();
        let me = Holder::Process(std::process::id());
        locks.hold(2).unwrap();
        locks.hold(4).unwrap();
        locks.hold(4).unwrap();
        assert_eq!((locks.holder(2), locks.holder(4)), (Ok(me), Ok(me)));
        locks.leave(2);
        assert_eq!(
            (locks.holder(2), locks.holder(4)),
            (Ok(Holder::Nobody), Ok(me))
        );
        // What this module warns of.
        drop(fd.try_clone().unwrap());
        assert_eq!(locks.holder(4), Ok(Holder::Nobody));
    }

    #[test]
    fn a_description_keeps_its_lock_whatever_else_is_closed() {
        let fd = memory();
        let locks = RecordLocks::new(fd.as_fd()).unwrap();
        let path = std::format!("/proc/self/fd/{}", fd.as_raw_fd());
        let open = || {
            let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
            rustix::fs::open(path.as_str(), flags, rustix::fs::Mode::empty()).unwrap()
        };
        let own = open();
        hold_by_description(own.as_fd(), 9).unwrap();
        drop((fd.try_clone().unwrap(), open()));
        assert_eq!(locks.holder(9), Ok(Holder::Description));
        assert_eq!(hold_by_description(open().as_fd(), 9), Err(Errno::AGAIN));
        drop(own);
        // A child that another test has just forked has the description until its exec.
        let start = std::time::Instant::now();
        while locks.holder(9) != Ok(Holder::Nobody) {
            assert!(start.elapsed().as_secs() < 20, "{:?}", locks.holder(9));
            std::thread::yield_now();
        }
    }

    #[test]
    fn another_file_by_that_number_tells_nothing() {
        let fd = memory();
        let locks = RecordLocks::new(fd.as_fd()).unwrap();
        locks.hold(3).unwrap();
        let mut fd = fd;
        rustix::io::dup2(memory(), &mut fd).unwrap();
        assert_eq!(locks.holder(3), Err(Errno::BADF));
        assert_eq!(locks.hold(3), Err(Errno::BADF));
    }
}
