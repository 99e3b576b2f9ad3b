//! This process's descriptors of session memory.
//!
//! Invariants:
//!  * When a process closes any descriptor of a session's memory, the kernel releases the lock that
//!    shows that the process is alive in that session. So there is one descriptor of each memory,
//!    however many handles there are, and it is closed when no part of this process has a place in
//!    the session any more.
//!  * In a program of `holdfast run` the descriptor of the program's own session belongs to the
//!    preloaded library.

use holdfast_client::env::{SessionEnv, VARIABLE};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What this process has of one session's memory.
struct Known {
    pool: PathBuf,
    number: u64,
    fd: BorrowedFd<'static>,
    /// The descriptors to close in the end: several if handles were opened at the same time.
    fds: Vec<OwnedFd>,
    users: usize,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

fn known() -> MutexGuard<'static, Vec<Known>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to use a descriptor of session memory.
pub(crate) struct SessionMemory {
    fd: BorrowedFd<'static>,
    number: u64,
}

impl AsFd for SessionMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd
    }
}

/// The memory of this process's session on the pool in directory `pool`, if it has one.
pub(crate) fn of(pool: &Path) -> Option<SessionMemory> {
    let mut known = known();
    if !known.iter().any(|k| k.pool == pool) {
        known.extend(of_this_run(pool));
    }
    let found = known.iter_mut().find(|k| k.pool == pool)?;
    found.users += 1;
    let (fd, number) = (found.fd, found.number);
    Some(SessionMemory { fd, number })
}

/// The memory of the run to which this process belongs: the preloaded library keeps it open.
fn of_this_run(pool: &Path) -> Option<Known> {
    let value = std::env::var_os(VARIABLE)?;
    let env = SessionEnv::parse(value.as_bytes())?;
    if env.pool != pool.canonicalize().ok()?.as_os_str().as_bytes() {
        return None;
    }
    let fd = holdfast_pmem::record_locks::kept_open(env.session.fd)?;
    Some(Known {
        pool: pool.into(),
        number: number(fd),
        fd,
        fds: Vec::new(),
        users: 0,
    })
}

fn number(fd: BorrowedFd<'_>) -> u64 {
    rustix::fs::fstat(fd).map_or(0, |stat| stat.st_ino)
}

/// Takes a descriptor that the service of the pool in `pool` sent.
pub(crate) fn received(pool: &Path, fd: OwnedFd) -> Option<SessionMemory> {
    let (number, own) = (number(fd.as_fd()), fd);
    let fd = holdfast_pmem::record_locks::kept_open(own.as_raw_fd())?;
    let mut known = known();
    match known.iter_mut().find(|k| k.number == number) {
        Some(found) => {
            found.users += 1;
            found.fds.push(own);
        }
        None => known.push(Known {
            pool: pool.into(),
            number,
            fd,
            fds: vec![own],
            users: 1,
        }),
    }
    Some(SessionMemory { fd, number })
}

impl SessionMemory {
    /// Never closes anything of it: another library in this process has a place in the session.
    pub fn keep(&self) {
        let mut known = known();
        if let Some(found) = known.iter_mut().find(|k| k.number == self.number) {
            found.fds.drain(..).for_each(std::mem::forget);
        }
    }
}

impl Drop for SessionMemory {
    fn drop(&mut self) {
        let mut known = known();
        if let Some(at) = known.iter().position(|k| k.number == self.number) {
            known[at].users -= 1;
            if known[at].users == 0 {
                known.swap_remove(at);
            }
        }
    }
}
