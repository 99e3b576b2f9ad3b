//! The system calls that Holdfast catches, as strace(1) shows them: names, and what their arguments
//! are.
//!
//! Invariants: sorted by number, each once; an argument that tells another's length names one that
//! the call has.

/// What an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arg {
    /// A descriptor, and one that relative paths begin at.
    Fd,
    DirFd,
    /// A string that ends with a zero byte: one that names a file, which is shown whole, and one
    /// that does not.
    Path,
    Text,
    /// Bytes that the call reads; the argument that tells how many.
    In(usize),
    /// Bytes that the call fills: as many as its result says; or a path with its zero byte.
    Out,
    OutPath,
    /// An array of buffers, which the call reads or fills; the argument behind it is their number.
    InVec,
    OutVec,
    /// A number: with a sign, of 32 or 64 bits; without one; in octal; in hexadecimal.
    Int,
    Long,
    Size,
    Octal,
    Hex,
    /// The higher half of the number before it, which is not shown.
    Hidden,
    /// An address, of which no more is shown.
    Address,
    /// `struct stat`, `struct statx`, and what getdents(2) fills, by the calls that fill them.
    Stat,
    Statx,
    Entries,
    /// Two of `struct timespec`; `struct rlimit64`, as the call finds it or fills it; `struct
    /// open_how`.
    Times,
    LimitIn,
    LimitOut,
    How,
    /// Where an offset is, as the call finds it, and with what it leaves there.
    Offset,
    OffsetMoved,
    /// The list of arguments of a program, and that of its environment.
    Argv,
    Envp,
    /// Flags, or one of several words.
    Flags(Set),
    Word(Set),
    /// The mode of open(2), which is there if a file may be made; that of mknod(2), and what it
    /// makes a device of.
    OpenMode,
    NodeMode,
    Device,
    /// The argument of fcntl(2), by its command.
    Control,
}

/// Which names flags and words have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    Access,
    Advice,
    At,
    Clone,
    CloseRange,
    Control,
    Dup,
    Fadvise,
    Falloc,
    Flock,
    Lock,
    Map,
    Message,
    Msync,
    Open,
    Prot,
    Pwrite,
    Remap,
    Rename,
    Resolve,
    Resource,
    Splice,
    StatxAt,
    StatxMask,
    SyncRange,
    Type,
    Unlink,
    Whence,
    Xattr,
}

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub nr: u16,
    pub name: &'static str,
    pub args: &'static [Arg],
}

impl Kind {
    /// Whether the call names a file (`%file` of strace).
    pub fn is_of_file(&self) -> bool {
        self.args.contains(&Arg::Path)
    }

    /// Whether the call is about a descriptor (`%desc` of strace).
    pub fn is_of_descriptor(&self) -> bool {
        self.args
            .iter()
            .any(|arg| matches!(arg, Arg::Fd | Arg::DirFd))
    }
}

/// No call has a higher number.
pub const NUMBERS: usize = 512;

/// The call with this number.
pub fn kind(nr: usize) -> Option<&'static Kind> {
    let at = KINDS.binary_search_by_key(&nr, |kind| usize::from(kind.nr));
    at.ok().map(|at| &KINDS[at])
}

macro_rules! kinds {
    ($($nr:literal $name:literal ($($arg:expr),*);)*) => {
        &[$(Kind { nr: $nr, name: $name, args: &[$($arg),*] }),*]
    };
}

use Arg::*;

/// All of them.
pub const KINDS: &[Kind] = kinds! {
    0 "read" (Fd, Out, Size);
    1 "write" (Fd, In(2), Size);
    2 "open" (Path, Flags(Set::Open), OpenMode);
    3 "close" (Fd);
    4 "stat" (Path, Stat);
    5 "fstat" (Fd, Stat);
    6 "lstat" (Path, Stat);
    8 "lseek" (Fd, Long, Word(Set::Whence));
    9 "mmap" (Address, Size, Flags(Set::Prot), Flags(Set::Map), Fd, Hex);
    10 "mprotect" (Address, Size, Flags(Set::Prot));
    11 "munmap" (Address, Size);
    16 "ioctl" (Fd, Address, Address);
    17 "pread64" (Fd, Out, Size, Long);
    18 "pwrite64" (Fd, In(2), Size, Long);
    19 "readv" (Fd, OutVec, Size);
    20 "writev" (Fd, InVec, Size);
    21 "access" (Path, Flags(Set::Access));
    25 "mremap" (Address, Size, Size, Flags(Set::Remap), Address);
    26 "msync" (Address, Size, Flags(Set::Msync));
    28 "madvise" (Address, Size, Word(Set::Advice));
    32 "dup" (Fd);
    33 "dup2" (Fd, Fd);
    40 "sendfile" (Fd, Fd, OffsetMoved, Size);
    42 "connect" (Fd, Address, Size);
    44 "sendto" (Fd, In(2), Size, Flags(Set::Message), Address, Size);
    46 "sendmsg" (Fd, Address, Flags(Set::Message));
    47 "recvmsg" (Fd, Address, Flags(Set::Message));
    49 "bind" (Fd, Address, Size);
    51 "getsockname" (Fd, Address, Address);
    52 "getpeername" (Fd, Address, Address);
    59 "execve" (Path, Argv, Envp);
    60 "exit" (Int);
    72 "fcntl" (Fd, Word(Set::Control), Control);
    73 "flock" (Fd, Flags(Set::Flock));
    74 "fsync" (Fd);
    75 "fdatasync" (Fd);
    76 "truncate" (Path, Size);
    77 "ftruncate" (Fd, Size);
    78 "getdents" (Fd, Entries, Size);
    79 "getcwd" (OutPath, Size);
    80 "chdir" (Path);
    81 "fchdir" (Fd);
    82 "rename" (Path, Path);
    83 "mkdir" (Path, Octal);
    84 "rmdir" (Path);
    85 "creat" (Path, Octal);
    86 "link" (Path, Path);
    87 "unlink" (Path);
    88 "symlink" (Path, Path);
    89 "readlink" (Path, Out, Size);
    90 "chmod" (Path, Octal);
    91 "fchmod" (Fd, Octal);
    92 "chown" (Path, Int, Int);
    93 "fchown" (Fd, Int, Int);
    94 "lchown" (Path, Int, Int);
    95 "umask" (Octal);
    105 "setuid" (Int);
    106 "setgid" (Int);
    113 "setreuid" (Int, Int);
    114 "setregid" (Int, Int);
    116 "setgroups" (Size, Address);
    117 "setresuid" (Int, Int, Int);
    119 "setresgid" (Int, Int, Int);
    122 "setfsuid" (Int);
    123 "setfsgid" (Int);
    126 "capset" (Address, Address);
    132 "utime" (Path, Address);
    133 "mknod" (Path, NodeMode, Device);
    137 "statfs" (Path, Address);
    138 "fstatfs" (Fd, Address);
    149 "mlock" (Address, Size);
    150 "munlock" (Address, Size);
    151 "mlockall" (Address);
    155 "pivot_root" (Path, Path);
    157 "prctl" (Int, Address, Address, Address, Address);
    160 "setrlimit" (Word(Set::Resource), LimitIn);
    161 "chroot" (Path);
    162 "sync" ();
    163 "acct" (Path);
    165 "mount" (Path, Path, Text, Address, Address);
    166 "umount2" (Path, Address);
    167 "swapon" (Path, Address);
    168 "swapoff" (Path);
    187 "readahead" (Fd, Long, Size);
    188 "setxattr" (Path, Text, In(3), Size, Flags(Set::Xattr));
    189 "lsetxattr" (Path, Text, In(3), Size, Flags(Set::Xattr));
    190 "fsetxattr" (Fd, Text, In(3), Size, Flags(Set::Xattr));
    191 "getxattr" (Path, Text, Out, Size);
    192 "lgetxattr" (Path, Text, Out, Size);
    193 "fgetxattr" (Fd, Text, Out, Size);
    194 "listxattr" (Path, Out, Size);
    195 "llistxattr" (Path, Out, Size);
    196 "flistxattr" (Fd, Out, Size);
    197 "removexattr" (Path, Text);
    198 "lremovexattr" (Path, Text);
    199 "fremovexattr" (Fd, Text);
    206 "io_setup" (Size, Address);
    216 "remap_file_pages" (Address, Size, Flags(Set::Prot), Size, Flags(Set::Map));
    217 "getdents64" (Fd, Entries, Size);
    221 "fadvise64" (Fd, Long, Size, Word(Set::Fadvise));
    231 "exit_group" (Int);
    235 "utimes" (Path, Address);
    254 "inotify_add_watch" (Fd, Path, Address);
    257 "openat" (DirFd, Path, Flags(Set::Open), OpenMode);
    258 "mkdirat" (DirFd, Path, Octal);
    259 "mknodat" (DirFd, Path, NodeMode, Device);
    260 "fchownat" (DirFd, Path, Int, Int, Flags(Set::At));
    261 "futimesat" (DirFd, Path, Address);
    262 "newfstatat" (DirFd, Path, Stat, Flags(Set::At));
    263 "unlinkat" (DirFd, Path, Flags(Set::Unlink));
    264 "renameat" (DirFd, Path, DirFd, Path);
    265 "linkat" (DirFd, Path, DirFd, Path, Flags(Set::At));
    266 "symlinkat" (Path, DirFd, Path);
    267 "readlinkat" (DirFd, Path, Out, Size);
    268 "fchmodat" (DirFd, Path, Octal);
    269 "faccessat" (DirFd, Path, Flags(Set::Access));
    272 "unshare" (Flags(Set::Clone));
    275 "splice" (Fd, Offset, Fd, Offset, Size, Flags(Set::Splice));
    276 "tee" (Fd, Fd, Size, Flags(Set::Splice));
    277 "sync_file_range" (Fd, Long, Long, Flags(Set::SyncRange));
    280 "utimensat" (DirFd, Path, Times, Flags(Set::At));
    285 "fallocate" (Fd, Flags(Set::Falloc), Long, Long);
    292 "dup3" (Fd, Fd, Flags(Set::Dup));
    295 "preadv" (Fd, OutVec, Size, Long);
    296 "pwritev" (Fd, InVec, Size, Long);
    299 "recvmmsg" (Fd, Address, Size, Flags(Set::Message), Address);
    301 "fanotify_mark" (Fd, Address, Address, DirFd, Path);
    302 "prlimit64" (Int, Word(Set::Resource), LimitIn, LimitOut);
    303 "name_to_handle_at" (DirFd, Path, Address, Address, Flags(Set::At));
    306 "syncfs" (Fd);
    307 "sendmmsg" (Fd, Address, Size, Flags(Set::Message));
    308 "setns" (Fd, Flags(Set::Clone));
    316 "renameat2" (DirFd, Path, DirFd, Path, Flags(Set::Rename));
    317 "seccomp" (Address, Address, Address);
    322 "execveat" (DirFd, Path, Argv, Envp, Flags(Set::At));
    325 "mlock2" (Address, Size, Address);
    326 "copy_file_range" (Fd, Offset, Fd, Offset, Size, Size);
    327 "preadv2" (Fd, OutVec, Size, Long, Hidden, Flags(Set::Pwrite));
    328 "pwritev2" (Fd, InVec, Size, Long, Hidden, Flags(Set::Pwrite));
    329 "pkey_mprotect" (Address, Size, Flags(Set::Prot), Int);
    332 "statx" (DirFd, Path, Flags(Set::StatxAt), Flags(Set::StatxMask), Statx);
    425 "io_uring_setup" (Size, Address);
    428 "open_tree" (DirFd, Path, Address);
    429 "move_mount" (DirFd, Path, DirFd, Path, Address);
    436 "close_range" (Size, Size, Flags(Set::CloseRange));
    437 "openat2" (DirFd, Path, How, Size);
    438 "pidfd_getfd" (Fd, Fd, Address);
    439 "faccessat2" (DirFd, Path, Flags(Set::Access), Flags(Set::At));
    442 "mount_setattr" (DirFd, Path, Flags(Set::At), Address, Size);
    452 "fchmodat2" (DirFd, Path, Octal, Flags(Set::At));
    463 "setxattrat" (DirFd, Path, Flags(Set::At), Text, Address, Size);
    464 "getxattrat" (DirFd, Path, Flags(Set::At), Text, Address, Size);
    465 "listxattrat" (DirFd, Path, Flags(Set::At), Address, Size);
    466 "removexattrat" (DirFd, Path, Flags(Set::At), Text);
    467 "open_tree_attr" (DirFd, Path, Address, Address, Size);
    468 "file_getattr" (DirFd, Path, Address, Size, Flags(Set::At));
    469 "file_setattr" (DirFd, Path, Address, Size, Flags(Set::At));
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_by_number() {
        assert!(KINDS.windows(2).all(|pair| pair[0].nr < pair[1].nr));
        for wanted in KINDS {
            assert!(usize::from(wanted.nr) < NUMBERS);
            assert_eq!(kind(wanted.nr.into()).map(|k| k.name), Some(wanted.name));
            assert!(wanted.args.len() <= 6, "{}", wanted.name);
            for (at, arg) in wanted.args.iter().enumerate() {
                match arg {
                    In(count) => assert_eq!(wanted.args[*count], Size, "{}", wanted.name),
                    InVec | OutVec => assert_eq!(wanted.args[at + 1], Size, "{}", wanted.name),
                    _ => {}
                }
            }
        }
        assert!(kind(7).is_none());
    }
}
