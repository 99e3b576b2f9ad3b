//! Calls that the pool cannot serve: each fails loudly and is counted.
//!
//! Invariant: a call that does not concern the pool is never refused, except setting up
//! asynchronous rings, whose later operations could not be seen.

use super::args::Errno;
use super::outcome::{Outcome, Stop, Why};
use super::place::{AT_FDCWD, at_flags, in_pool};
use super::process::Process;
use holdfast_client::Error;
use holdfast_client::abi::AT_EMPTY_PATH;

type Args = [usize; 6];

const CWD: usize = AT_FDCWD as usize;
const ENOSYS: Errno = 38;
const EOPNOTSUPP: Errno = 95;

/// io_uring_setup, io_setup: programs fall back to ordinary calls.
pub fn async_rings(_: &Process, _: &Args) -> Outcome {
    Err(Stop::Refused(ENOSYS, Why::AsyncIo))
}

fn path(p: &Process, dirfd: usize, addr: usize, errno: Errno, why: Why) -> Outcome {
    in_pool(p, dirfd, addr, |base, path| {
        // What is not there is not refused for what it is.
        let (path, flags) = at_flags(path, AT_EMPTY_PATH);
        match p.with_caller(|c| p.client.stat(c, base, path, flags)) {
            Ok(_) | Err(Error::Outside(_)) => Err(Stop::Refused(errno, why)),
            Err(e) => Err(e.into()),
        }
    })
}

pub fn name_to_handle_at(p: &Process, a: &Args) -> Outcome {
    path(p, a[0], a[1], EOPNOTSUPP, Why::FileHandle)
}

/// inotify_add_watch(fd, path, mask)
pub fn inotify_add_watch(p: &Process, a: &Args) -> Outcome {
    path(p, CWD, a[1], EOPNOTSUPP, Why::Watch)
}

/// fanotify_mark(fd, flags, mask, dirfd, path)
pub fn fanotify_mark(p: &Process, a: &Args) -> Outcome {
    path(p, a[3], a[4], EOPNOTSUPP, Why::Watch)
}

/// Calls whose first argument is a path: chroot, umount2, swapon, acct, pivot_root.
pub fn first_path(p: &Process, a: &Args) -> Outcome {
    path(p, CWD, a[0], EOPNOTSUPP, Why::MountPath)
}

const MS_BIND: usize = 4096;
const MS_MOVE: usize = 8192;

/// mount(source, target, type, flags, data): the source is a path only of what is mounted already.
pub fn mount(p: &Process, a: &Args) -> Outcome {
    let source = (a[3] & (MS_BIND | MS_MOVE) != 0).then_some(a[0]);
    for addr in source.into_iter().chain([a[1]]) {
        match path(p, CWD, addr, EOPNOTSUPP, Why::MountPath) {
            Err(Stop::Native) => {}
            refused => return refused,
        }
    }
    Err(Stop::Native)
}

/// Calls of the new mount interface and attribute calls on (dirfd, path).
pub fn at_path(p: &Process, a: &Args) -> Outcome {
    path(p, a[0], a[1], EOPNOTSUPP, Why::Unsupported)
}
