//! A process that has lost its place in the session: it was left alone for too long when it was
//! born, or was made without our knowledge.
//!
//! Invariants: every call that names something of the pool, by a path or by a descriptor, fails
//! with EIO and never reaches a file of the host; nothing in session memory is read or changed. The
//! kernel serves all other calls.

use super::args;
use super::at::{self, Link};
use super::mapping;
use super::place::{AT_FDCWD, relative_leads_to_pool};
use super::process::Process;
use super::table::Handler;
use super::{nr, table};
use crate::calls::{self, BY_FD};
use crate::hook::{Call, Verdict};
use crate::sys;
use holdfast_client::abi::AT_EMPTY_PATH;

const EIO: isize = 5;
const MAP_ANONYMOUS: usize = 0x20;
const CWD: usize = AT_FDCWD as usize;
const F_DUPFD: usize = 0;
const F_SETFD: usize = 2;
const F_DUPFD_CLOEXEC: usize = 1030;

/// The answer to `call`, whose `handler` must not run unless it looks at descriptors only.
pub fn handle(p: &Process, handler: Handler, call: &Call) -> Verdict {
    let a = &call.args;
    // Duplicates that the kernel makes from now on must not pass unseen.
    calls::mark_all();
    mapping::stop_ahead();
    match call.nr {
        // They keep our own descriptors open, and find no other that is a pool file.
        nr::CLOSE | nr::DUP2 | nr::DUP3 | nr::CLOSE_RANGE => match handler(p, a) {
            Ok(value) => Verdict::Handled(value),
            Err(super::Stop::Errno(errno) | super::Stop::Refused(errno, _)) => {
                Verdict::Handled(-(errno as isize))
            }
            Err(_) => Verdict::Native,
        },
        _ if concerns_pool(p, call) => Verdict::Handled(-EIO),
        _ => Verdict::Native,
    }
}

fn concerns_pool(p: &Process, call: &Call) -> bool {
    let a = &call.args;
    let path = |dirfd: usize, at: usize| is_in_pool(p, dirfd, a[at]);
    match call.nr {
        nr::DUP => false,
        nr::FCNTL if matches!(a[1], F_DUPFD..=F_SETFD | F_DUPFD_CLOEXEC) => false,
        nr::GETCWD => is_parked(p),
        nr::MMAP => a[3] & MAP_ANONYMOUS == 0 && is_placeholder(p, a[4]),
        nr::SENDFILE => is_placeholder(p, a[0]) || is_placeholder(p, a[1]),
        nr::SPLICE | nr::COPY_FILE_RANGE => is_placeholder(p, a[0]) || is_placeholder(p, a[2]),
        nr::FCHDIR | nr::IOCTL => is_placeholder(p, a[0]),
        nr::RENAME | nr::LINK | nr::MOUNT => path(CWD, 0) || path(CWD, 1),
        nr::RENAMEAT | nr::RENAMEAT2 | nr::LINKAT | nr::MOVE_MOUNT => {
            path(a[0], 1) || path(a[2], 3)
        }
        nr::EXECVE | nr::CHROOT | nr::PIVOT_ROOT | nr::UMOUNT2 => path(CWD, 0),
        nr::SWAPON | nr::SWAPOFF | nr::ACCT => path(CWD, 0),
        nr::INOTIFY_ADD_WATCH => path(CWD, 1),
        nr::FANOTIFY_MARK => path(a[3], 4),
        nr::EXECVEAT | nr::NAME_TO_HANDLE_AT | nr::OPEN_TREE | nr::OPEN_TREE_ATTR => path(a[0], 1),
        nr::MOUNT_SETATTR | nr::SETXATTRAT..=nr::REMOVEXATTRAT => path(a[0], 1),
        nr::FILE_GETATTR | nr::FILE_SETATTR => path(a[0], 1),
        nr if calls::class_of(nr) == BY_FD => is_placeholder(p, a[0]),
        nr => match table::path_argument(nr) {
            Some((dirfd, at)) => path(dirfd.map_or(CWD, |dirfd| a[dirfd]), at),
            None => false,
        },
    }
}

/// Whether the path at `addr` names something of the pool.
fn is_in_pool(p: &Process, dirfd: usize, addr: usize) -> bool {
    let by_descriptor = || dirfd as i32 != AT_FDCWD && is_placeholder(p, dirfd);
    if addr == 0 {
        return by_descriptor();
    }
    let mut inside = false;
    let read = args::with_path(addr, |path| {
        inside = match path.first() {
            Some(b'/') => is_absolute_in_pool(p, path),
            _ if dirfd as i32 == AT_FDCWD && is_parked(p) => true,
            _ => by_descriptor() || relative_leads_to_pool(p, dirfd as i32, path),
        };
        Ok(())
    });
    read.is_ok() && inside
}

fn is_absolute_in_pool(p: &Process, path: &[u8]) -> bool {
    let inside = |path: &[u8]| at::inside(&p.at, path).is_some();
    if inside(path) || path.strip_prefix(b"/memfd:").is_some_and(inside) {
        return true;
    }
    let pid = sys::getpid();
    if let Some(fd) = at::descriptor_link(path, pid) {
        return is_placeholder(p, fd as usize);
    }
    match at::behind_link(path, pid) {
        Some((Link::Cwd, _)) => is_parked(p),
        Some((Link::Root, rest)) => inside(rest),
        Some((Link::Descriptor(fd), _)) => is_placeholder(p, fd as usize),
        None => false,
    }
}

/// Whether the kernel holds `fd` as a duplicate of the placeholder.
fn is_placeholder(p: &Process, fd: usize) -> bool {
    let number = |fd: usize| sys::stat_fd(fd).map(|st| (st.dev, st.ino));
    let placeholder = number(p.base_fd as usize);
    placeholder.is_some() && number(fd as u32 as usize) == placeholder
}

/// Whether the kernel's working directory is the one that stands for the pool's.
fn is_parked(p: &Process) -> bool {
    let mut st = core::mem::MaybeUninit::<sys::Stat>::zeroed();
    let (empty, flags) = (c"".as_ptr() as usize, AT_EMPTY_PATH as usize);
    let args = [CWD, empty, st.as_mut_ptr() as usize, flags, 0, 0];
    // SAFETY: the kernel fills a struct stat.
    if unsafe { sys::raw(nr::NEWFSTATAT, args) } != 0 {
        return false;
    }
    // SAFETY: plain integers, zeroed before.
    let here = unsafe { st.assume_init() };
    let parking = sys::stat_fd(p.parking_fd as usize);
    parking.is_some_and(|there| (there.dev, there.ino) == (here.dev, here.ino))
}
