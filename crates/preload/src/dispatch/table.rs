//! Which handler serves which call.
//!
//! Invariant: every call that `crate::calls` catches has a handler here or is handled by
//! `crate::hook` itself; a call without one goes to the kernel.

use super::outcome::Outcome;
use super::process::Process;
use super::{
    advice, data, exec, fds, identity, limits, locked, maps, names, nr, open, passing, refuse,
    special, split, stat, transfer,
};

/// A handler of one call.
pub type Handler = fn(&Process, &[usize; 6]) -> Outcome;

type Table = [Option<Handler>; 512];

const fn fill(mut table: Table, list: &[(usize, Handler)]) -> Table {
    let mut i = 0;
    while i < list.len() {
        table[list[i].0] = Some(list[i].1);
        i += 1;
    }
    table
}

/// By number.
pub static HANDLERS: Table = {
    let table = fill([None; 512], DATA);
    let table = fill(table, NAMES);
    let table = fill(table, ATTRIBUTES);
    let table = fill(table, DESCRIPTORS);
    let table = fill(table, PROCESS);
    fill(table, REFUSED)
};

const DATA: &[(usize, Handler)] = &[
    (nr::READ, data::read),
    (nr::WRITE, data::write),
    (nr::PREAD64, data::pread64),
    (nr::PWRITE64, data::pwrite64),
    (nr::READV, data::readv),
    (nr::WRITEV, data::writev),
    (nr::PREADV, data::preadv),
    (nr::PWRITEV, data::pwritev),
    (nr::PREADV2, data::preadv2),
    (nr::PWRITEV2, data::pwritev2),
    (nr::LSEEK, data::lseek),
    (nr::FTRUNCATE, data::ftruncate),
    (nr::FALLOCATE, data::fallocate),
    (nr::FSYNC, data::fsync),
    (nr::FDATASYNC, data::fdatasync),
    (nr::SYNC_FILE_RANGE, data::sync_file_range),
    (nr::SYNCFS, data::syncfs),
    (nr::SYNC, data::sync),
    (nr::FADVISE64, data::fadvise64),
    (nr::READAHEAD, data::readahead),
    (nr::GETDENTS64, data::getdents64),
    (nr::GETDENTS, data::getdents),
    (nr::FLOCK, data::flock),
    (nr::SENDFILE, transfer::sendfile),
    (nr::SPLICE, transfer::splice),
    (nr::TEE, transfer::tee),
    (nr::COPY_FILE_RANGE, transfer::copy_file_range),
];

const NAMES: &[(usize, Handler)] = &[
    (nr::MKDIR, names::mkdir),
    (nr::MKDIRAT, names::mkdirat),
    (nr::MKNOD, names::mknod),
    (nr::MKNODAT, names::mknodat),
    (nr::RMDIR, names::rmdir),
    (nr::UNLINK, names::unlink),
    (nr::UNLINKAT, names::unlinkat),
    (nr::SYMLINK, names::symlink),
    (nr::SYMLINKAT, names::symlinkat),
    (nr::LINK, names::link),
    (nr::LINKAT, names::linkat),
    (nr::RENAME, names::rename),
    (nr::RENAMEAT, names::renameat),
    (nr::RENAMEAT2, names::renameat2),
    (nr::READLINK, names::readlink),
    (nr::READLINKAT, names::readlinkat),
    (nr::TRUNCATE, names::truncate),
    (nr::CHDIR, names::chdir),
    (nr::FCHDIR, names::fchdir),
    (nr::GETCWD, names::getcwd),
    (nr::OPEN, open::open),
    (nr::OPENAT, open::openat),
    (nr::OPENAT2, open::openat2),
    (nr::CREAT, open::creat),
];

const ATTRIBUTES: &[(usize, Handler)] = &[
    (nr::STAT, stat::stat),
    (nr::LSTAT, stat::lstat),
    (nr::FSTAT, stat::fstat),
    (nr::NEWFSTATAT, stat::newfstatat),
    (nr::STATX, stat::statx),
    (nr::STATFS, stat::statfs),
    (nr::FSTATFS, stat::fstatfs),
    (nr::ACCESS, names::access),
    (nr::FACCESSAT, names::faccessat),
    (nr::FACCESSAT2, names::faccessat2),
    (nr::CHMOD, names::chmod),
    (nr::FCHMOD, names::fchmod),
    (nr::FCHMODAT, names::fchmodat),
    (nr::FCHMODAT2, names::fchmodat2),
    (nr::CHOWN, names::chown),
    (nr::LCHOWN, names::lchown),
    (nr::FCHOWN, names::fchown),
    (nr::FCHOWNAT, names::fchownat),
    (nr::UTIME, names::utime),
    (nr::UTIMES, names::utimes),
    (nr::FUTIMESAT, names::futimesat),
    (nr::UTIMENSAT, names::utimensat),
    (nr::GETXATTR, names::getxattr),
    (nr::LGETXATTR, names::lgetxattr),
    (nr::FGETXATTR, names::fgetxattr),
    (nr::SETXATTR, names::setxattr),
    (nr::LSETXATTR, names::lsetxattr),
    (nr::FSETXATTR, names::fsetxattr),
    (nr::LISTXATTR, names::listxattr),
    (nr::LLISTXATTR, names::llistxattr),
    (nr::FLISTXATTR, names::flistxattr),
    (nr::REMOVEXATTR, names::removexattr),
    (nr::LREMOVEXATTR, names::lremovexattr),
    (nr::FREMOVEXATTR, names::fremovexattr),
];

const DESCRIPTORS: &[(usize, Handler)] = &[
    (nr::CLOSE, fds::close),
    (nr::CLOSE_RANGE, fds::close_range),
    (nr::DUP, fds::dup),
    (nr::DUP2, fds::dup2),
    (nr::DUP3, fds::dup3),
    (nr::FCNTL, fds::fcntl),
    (nr::IOCTL, fds::ioctl),
    (nr::MMAP, maps::mmap),
    (nr::MUNMAP, maps::munmap),
    (nr::MREMAP, maps::mremap),
    (nr::MADVISE, advice::madvise),
    (nr::MLOCK, advice::mlock),
    (nr::MLOCK2, advice::mlock2),
    (nr::MUNLOCK, advice::munlock),
    (nr::PKEY_MPROTECT, maps::mprotect),
    (nr::MPROTECT, maps::mprotect),
    (nr::MSYNC, maps::msync),
    (nr::REMAP_FILE_PAGES, maps::remap_file_pages),
    (nr::MLOCKALL, locked::mlockall),
];

const PROCESS: &[(usize, Handler)] = &[
    (nr::EXECVE, exec::execve),
    (nr::EXECVEAT, exec::execveat),
    (nr::EXIT, split::exit),
    (nr::EXIT_GROUP, split::exit_group),
    (nr::UNSHARE, split::unshare),
    (nr::SETNS, split::setns),
    (nr::SETRLIMIT, limits::setrlimit),
    (nr::PRLIMIT64, limits::prlimit64),
    (nr::UMASK, identity::umask),
    (nr::SETUID, identity::setuid),
    (nr::SETGID, identity::setgid),
    (nr::SETREUID, identity::setreuid),
    (nr::SETREGID, identity::setregid),
    (nr::SETRESUID, identity::setresuid),
    (nr::SETRESGID, identity::setresgid),
    (nr::SETFSUID, identity::setfsuid),
    (nr::SETFSGID, identity::setfsgid),
    (nr::SETGROUPS, identity::setgroups),
    (nr::CAPSET, identity::capset),
    (nr::PRCTL, identity::prctl),
    (nr::SECCOMP, identity::restrict),
];

const REFUSED: &[(usize, Handler)] = &[
    (nr::IO_URING_SETUP, refuse::async_rings),
    (nr::IO_SETUP, refuse::async_rings),
    (nr::NAME_TO_HANDLE_AT, refuse::name_to_handle_at),
    (nr::INOTIFY_ADD_WATCH, refuse::inotify_add_watch),
    (nr::FANOTIFY_MARK, refuse::fanotify_mark),
    (nr::CHROOT, refuse::first_path),
    (nr::PIVOT_ROOT, refuse::first_path),
    (nr::UMOUNT2, refuse::first_path),
    (nr::SWAPON, refuse::first_path),
    (nr::SWAPOFF, refuse::first_path),
    (nr::ACCT, refuse::first_path),
    (nr::MOUNT, refuse::mount),
    (nr::MOVE_MOUNT, refuse::at_path),
    (nr::OPEN_TREE, refuse::at_path),
    (nr::OPEN_TREE_ATTR, refuse::at_path),
    (nr::MOUNT_SETATTR, refuse::at_path),
    (nr::SETXATTRAT, refuse::at_path),
    (nr::GETXATTRAT, refuse::at_path),
    (nr::LISTXATTRAT, refuse::at_path),
    (nr::REMOVEXATTRAT, refuse::at_path),
    (nr::FILE_GETATTR, refuse::at_path),
    (nr::FILE_SETATTR, refuse::at_path),
    (nr::BIND, special::bind),
    (nr::CONNECT, special::connect),
    (nr::SENDTO, special::sendto),
    (nr::GETSOCKNAME, special::getsockname),
    (nr::GETPEERNAME, special::getpeername),
    (nr::SENDMSG, passing::sendmsg),
    (nr::SENDMMSG, passing::sendmmsg),
    (nr::RECVMSG, passing::recvmsg),
    (nr::RECVMMSG, passing::recvmmsg),
    (nr::PIDFD_GETFD, passing::pidfd_getfd),
];

/// Positions of the directory descriptor (if any) and the path among the arguments of calls that
/// name one object.
pub fn path_argument(number: usize) -> Option<(Option<usize>, usize)> {
    Some(match number {
        nr::OPEN
        | nr::STAT
        | nr::LSTAT
        | nr::ACCESS
        | nr::TRUNCATE
        | nr::CHDIR
        | nr::MKDIR
        | nr::RMDIR
        | nr::CREAT
        | nr::UNLINK
        | nr::READLINK
        | nr::CHMOD
        | nr::CHOWN
        | nr::LCHOWN
        | nr::UTIME
        | nr::MKNOD
        | nr::STATFS
        | nr::UTIMES
        | nr::SETXATTR
        | nr::LSETXATTR
        | nr::GETXATTR
        | nr::LGETXATTR
        | nr::LISTXATTR
        | nr::LLISTXATTR
        | nr::REMOVEXATTR
        | nr::LREMOVEXATTR => (None, 0),
        nr::SYMLINK => (None, 1),
        nr::SYMLINKAT => (Some(1), 2),
        nr::OPENAT
        | nr::OPENAT2
        | nr::MKDIRAT
        | nr::MKNODAT
        | nr::FCHOWNAT
        | nr::FUTIMESAT
        | nr::NEWFSTATAT
        | nr::UNLINKAT
        | nr::READLINKAT
        | nr::FCHMODAT
        | nr::FCHMODAT2
        | nr::FACCESSAT
        | nr::FACCESSAT2
        | nr::UTIMENSAT
        | nr::STATX => (Some(0), 1),
        _ => return None,
    })
}
