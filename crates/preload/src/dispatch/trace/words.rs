//! Names of flags, words and errnos, as strace(1) writes them.
//!
//! Invariant: where one value is part of another, the larger one comes first.

use holdfast_client::calls::Set;

/// What a set's values are called.
pub struct Names {
    /// These bits are one number, which has a name of its own (`O_ACCMODE`); 0: all are flags.
    pub mask: u64,
    pub words: &'static [(u64, &'static str)],
    /// Each alone.
    pub flags: &'static [(u64, &'static str)],
    /// What 0 is called.
    pub zero: &'static str,
    /// What is said of a number that has no name.
    pub unknown: &'static str,
}

type List = &'static [(u64, &'static str)];

const fn words(unknown: &'static str, words: List) -> Names {
    Names {
        mask: u64::MAX,
        words,
        flags: &[],
        zero: "0",
        unknown,
    }
}

const fn flags(unknown: &'static str, flags: List) -> Names {
    Names {
        mask: 0,
        words: &[],
        flags,
        zero: "0",
        unknown,
    }
}

/// Of this set.
pub fn names(set: Set) -> &'static Names {
    match set {
        Set::Access => &ACCESS,
        Set::Advice => &ADVICE,
        Set::At => &AT,
        Set::Clone => &CLONE,
        Set::CloseRange => &CLOSE_RANGE,
        Set::Control => &CONTROL,
        Set::Dup => &DUP,
        Set::Fadvise => &FADVISE,
        Set::Falloc => &FALLOC,
        Set::Flock => &FLOCK,
        Set::Lock => &LOCK,
        Set::Map => &MAP,
        Set::Message => &MESSAGE,
        Set::Msync => &MSYNC,
        Set::Open => &OPEN,
        Set::Prot => &PROT,
        Set::Pwrite => &PWRITE,
        Set::Remap => &REMAP,
        Set::Rename => &RENAME,
        Set::Resolve => &RESOLVE,
        Set::Resource => &RESOURCE,
        Set::Splice => &SPLICE,
        Set::StatxAt => &STATX_AT,
        Set::StatxMask => &STATX_MASK,
        Set::SyncRange => &SYNC_RANGE,
        Set::Type => &TYPE,
        Set::Unlink => &UNLINK,
        Set::Whence => &WHENCE,
        Set::Xattr => &XATTR,
    }
}

static ACCESS: Names = Names {
    zero: "F_OK",
    ..flags("?_OK", &[(4, "R_OK"), (2, "W_OK"), (1, "X_OK")])
};
static ADVICE: Names = words(
    "MADV_???",
    &[
        (0, "MADV_NORMAL"),
        (1, "MADV_RANDOM"),
        (2, "MADV_SEQUENTIAL"),
        (3, "MADV_WILLNEED"),
        (4, "MADV_DONTNEED"),
        (8, "MADV_FREE"),
        (9, "MADV_REMOVE"),
        (10, "MADV_DONTFORK"),
        (11, "MADV_DOFORK"),
        (12, "MADV_MERGEABLE"),
        (13, "MADV_UNMERGEABLE"),
        (14, "MADV_HUGEPAGE"),
        (15, "MADV_NOHUGEPAGE"),
        (16, "MADV_DONTDUMP"),
        (17, "MADV_DODUMP"),
        (18, "MADV_WIPEONFORK"),
        (19, "MADV_KEEPONFORK"),
        (20, "MADV_COLD"),
        (21, "MADV_PAGEOUT"),
        (22, "MADV_POPULATE_READ"),
        (23, "MADV_POPULATE_WRITE"),
        (25, "MADV_COLLAPSE"),
    ],
);
static AT: Names = flags(
    "AT_???",
    &[
        (0x100, "AT_SYMLINK_NOFOLLOW"),
        (0x200, "AT_EACCESS"),
        (0x400, "AT_SYMLINK_FOLLOW"),
        (0x800, "AT_NO_AUTOMOUNT"),
        (0x1000, "AT_EMPTY_PATH"),
    ],
);
static CLONE: Names = flags(
    "CLONE_???",
    &[
        (0x200, "CLONE_FS"),
        (0x400, "CLONE_FILES"),
        (0x2_0000, "CLONE_NEWNS"),
        (0x4_0000, "CLONE_SYSVSEM"),
        (0x200_0000, "CLONE_NEWCGROUP"),
        (0x400_0000, "CLONE_NEWUTS"),
        (0x800_0000, "CLONE_NEWIPC"),
        (0x1000_0000, "CLONE_NEWUSER"),
        (0x2000_0000, "CLONE_NEWPID"),
        (0x4000_0000, "CLONE_NEWNET"),
    ],
);
static CLOSE_RANGE: Names = flags(
    "CLOSE_RANGE_???",
    &[(2, "CLOSE_RANGE_UNSHARE"), (4, "CLOSE_RANGE_CLOEXEC")],
);
static CONTROL: Names = words(
    "F_???",
    &[
        (0, "F_DUPFD"),
        (1, "F_GETFD"),
        (2, "F_SETFD"),
        (3, "F_GETFL"),
        (4, "F_SETFL"),
        (5, "F_GETLK"),
        (6, "F_SETLK"),
        (7, "F_SETLKW"),
        (8, "F_SETOWN"),
        (9, "F_GETOWN"),
        (10, "F_SETSIG"),
        (11, "F_GETSIG"),
        (36, "F_OFD_GETLK"),
        (37, "F_OFD_SETLK"),
        (38, "F_OFD_SETLKW"),
        (1024, "F_SETLEASE"),
        (1025, "F_GETLEASE"),
        (1026, "F_NOTIFY"),
        (1030, "F_DUPFD_CLOEXEC"),
        (1031, "F_SETPIPE_SZ"),
        (1032, "F_GETPIPE_SZ"),
        (1033, "F_ADD_SEALS"),
        (1034, "F_GET_SEALS"),
        (1036, "F_SET_RW_HINT"),
        (1035, "F_GET_RW_HINT"),
    ],
);
/// Without an access mode.
static DUP: Names = flags("O_???", OPEN.flags);
static FADVISE: Names = words(
    "POSIX_FADV_???",
    &[
        (0, "POSIX_FADV_NORMAL"),
        (1, "POSIX_FADV_RANDOM"),
        (2, "POSIX_FADV_SEQUENTIAL"),
        (3, "POSIX_FADV_WILLNEED"),
        (4, "POSIX_FADV_DONTNEED"),
        (5, "POSIX_FADV_NOREUSE"),
    ],
);
static FALLOC: Names = flags(
    "FALLOC_FL_???",
    &[
        (1, "FALLOC_FL_KEEP_SIZE"),
        (2, "FALLOC_FL_PUNCH_HOLE"),
        (4, "FALLOC_FL_NO_HIDE_STALE"),
        (8, "FALLOC_FL_COLLAPSE_RANGE"),
        (0x10, "FALLOC_FL_ZERO_RANGE"),
        (0x20, "FALLOC_FL_INSERT_RANGE"),
        (0x40, "FALLOC_FL_UNSHARE_RANGE"),
    ],
);
static FLOCK: Names = flags(
    "LOCK_???",
    &[
        (1, "LOCK_SH"),
        (2, "LOCK_EX"),
        (4, "LOCK_NB"),
        (8, "LOCK_UN"),
        (32, "LOCK_MAND"),
        (64, "LOCK_READ"),
        (128, "LOCK_WRITE"),
    ],
);
static LOCK: Names = words(
    "F_???",
    &[
        (0, "F_RDLCK"),
        (1, "F_WRLCK"),
        (2, "F_UNLCK"),
        (4, "F_EXLCK"),
        (8, "F_SHLCK"),
    ],
);
static MAP: Names = Names {
    mask: 0xf,
    words: &[
        (0, "MAP_FILE"),
        (1, "MAP_SHARED"),
        (2, "MAP_PRIVATE"),
        (3, "MAP_SHARED_VALIDATE"),
    ],
    ..flags(
        "MAP_???",
        &[
            (0x10, "MAP_FIXED"),
            (0x20, "MAP_ANONYMOUS"),
            (0x40, "MAP_32BIT"),
            (0x4000, "MAP_NORESERVE"),
            (0x8000, "MAP_POPULATE"),
            (0x1_0000, "MAP_NONBLOCK"),
            (0x100, "MAP_GROWSDOWN"),
            (0x800, "MAP_DENYWRITE"),
            (0x1000, "MAP_EXECUTABLE"),
            (0x2000, "MAP_LOCKED"),
            (0x2_0000, "MAP_STACK"),
            (0x4_0000, "MAP_HUGETLB"),
            (0x8_0000, "MAP_SYNC"),
            (0x10_0000, "MAP_FIXED_NOREPLACE"),
        ],
    )
};
static MESSAGE: Names = flags(
    "MSG_???",
    &[
        (1, "MSG_OOB"),
        (2, "MSG_PEEK"),
        (4, "MSG_DONTROUTE"),
        (0x20, "MSG_TRUNC"),
        (0x40, "MSG_DONTWAIT"),
        (0x80, "MSG_EOR"),
        (0x100, "MSG_WAITALL"),
        (0x4000, "MSG_NOSIGNAL"),
        (0x8000, "MSG_MORE"),
        (0x4000_0000, "MSG_CMSG_CLOEXEC"),
    ],
);
static MSYNC: Names = flags(
    "MS_???",
    &[(4, "MS_SYNC"), (1, "MS_ASYNC"), (2, "MS_INVALIDATE")],
);
static OPEN: Names = Names {
    mask: 3,
    words: &[
        (0, "O_RDONLY"),
        (1, "O_WRONLY"),
        (2, "O_RDWR"),
        (3, "O_ACCMODE"),
    ],
    ..flags(
        "O_???",
        &[
            (0o100, "O_CREAT"),
            (0o200, "O_EXCL"),
            (0o400, "O_NOCTTY"),
            (0o1000, "O_TRUNC"),
            (0o2000, "O_APPEND"),
            (0o4000, "O_NONBLOCK"),
            (0o4_010_000, "O_SYNC"),
            (0o10_000, "O_DSYNC"),
            (0o40_000, "O_DIRECT"),
            (0o100_000, "O_LARGEFILE"),
            (0o400_000, "O_NOFOLLOW"),
            (0o1_000_000, "O_NOATIME"),
            (0o2_000_000, "O_CLOEXEC"),
            (0o10_000_000, "O_PATH"),
            (0o20_200_000, "O_TMPFILE"),
            (0o200_000, "O_DIRECTORY"),
            (0o20_000, "FASYNC"),
        ],
    )
};
static PROT: Names = Names {
    zero: "PROT_NONE",
    ..flags(
        "PROT_???",
        &[(1, "PROT_READ"), (2, "PROT_WRITE"), (4, "PROT_EXEC")],
    )
};
static PWRITE: Names = flags(
    "RWF_???",
    &[
        (1, "RWF_HIPRI"),
        (2, "RWF_DSYNC"),
        (4, "RWF_SYNC"),
        (8, "RWF_NOWAIT"),
        (0x10, "RWF_APPEND"),
    ],
);
static REMAP: Names = flags(
    "MREMAP_???",
    &[
        (1, "MREMAP_MAYMOVE"),
        (2, "MREMAP_FIXED"),
        (4, "MREMAP_DONTUNMAP"),
    ],
);
static RENAME: Names = flags(
    "RENAME_??",
    &[
        (1, "RENAME_NOREPLACE"),
        (2, "RENAME_EXCHANGE"),
        (4, "RENAME_WHITEOUT"),
    ],
);
static RESOLVE: Names = flags(
    "RESOLVE_???",
    &[
        (1, "RESOLVE_NO_XDEV"),
        (2, "RESOLVE_NO_MAGICLINKS"),
        (4, "RESOLVE_NO_SYMLINKS"),
        (8, "RESOLVE_BENEATH"),
        (0x10, "RESOLVE_IN_ROOT"),
        (0x20, "RESOLVE_CACHED"),
    ],
);
static RESOURCE: Names = words(
    "RLIMIT_???",
    &[
        (0, "RLIMIT_CPU"),
        (1, "RLIMIT_FSIZE"),
        (2, "RLIMIT_DATA"),
        (3, "RLIMIT_STACK"),
        (4, "RLIMIT_CORE"),
        (5, "RLIMIT_RSS"),
        (6, "RLIMIT_NPROC"),
        (7, "RLIMIT_NOFILE"),
        (8, "RLIMIT_MEMLOCK"),
        (9, "RLIMIT_AS"),
        (10, "RLIMIT_LOCKS"),
        (11, "RLIMIT_SIGPENDING"),
        (12, "RLIMIT_MSGQUEUE"),
        (13, "RLIMIT_NICE"),
        (14, "RLIMIT_RTPRIO"),
        (15, "RLIMIT_RTTIME"),
    ],
);
static SPLICE: Names = flags(
    "SPLICE_F_???",
    &[
        (1, "SPLICE_F_MOVE"),
        (2, "SPLICE_F_NONBLOCK"),
        (4, "SPLICE_F_MORE"),
        (8, "SPLICE_F_GIFT"),
    ],
);
static STATX_AT: Names = Names {
    mask: 0x6000,
    words: &[
        (0, "AT_STATX_SYNC_AS_STAT"),
        (0x2000, "AT_STATX_FORCE_SYNC"),
        (0x4000, "AT_STATX_DONT_SYNC"),
        (0x6000, "AT_STATX_FORCE_SYNC|AT_STATX_DONT_SYNC"),
    ],
    ..flags(
        "AT_???",
        &[
            (0x100, "AT_SYMLINK_NOFOLLOW"),
            (0x400, "AT_SYMLINK_FOLLOW"),
            (0x800, "AT_NO_AUTOMOUNT"),
            (0x1000, "AT_EMPTY_PATH"),
        ],
    )
};
static STATX_MASK: Names = flags(
    "STATX_???",
    &[
        (0xfff, "STATX_ALL"),
        (0x7ff, "STATX_BASIC_STATS"),
        (1, "STATX_TYPE"),
        (2, "STATX_MODE"),
        (4, "STATX_NLINK"),
        (8, "STATX_UID"),
        (0x10, "STATX_GID"),
        (0x20, "STATX_ATIME"),
        (0x40, "STATX_MTIME"),
        (0x80, "STATX_CTIME"),
        (0x100, "STATX_INO"),
        (0x200, "STATX_SIZE"),
        (0x400, "STATX_BLOCKS"),
        (0x800, "STATX_BTIME"),
        (0x1000, "STATX_MNT_ID"),
        (0x2000, "STATX_DIOALIGN"),
    ],
);
static SYNC_RANGE: Names = flags(
    "SYNC_FILE_RANGE_???",
    &[
        (1, "SYNC_FILE_RANGE_WAIT_BEFORE"),
        (2, "SYNC_FILE_RANGE_WRITE"),
        (4, "SYNC_FILE_RANGE_WAIT_AFTER"),
    ],
);
static TYPE: Names = words(
    "S_IF???",
    &[
        (0o10_000, "S_IFIFO"),
        (0o20_000, "S_IFCHR"),
        (0o40_000, "S_IFDIR"),
        (0o60_000, "S_IFBLK"),
        (0o100_000, "S_IFREG"),
        (0o120_000, "S_IFLNK"),
        (0o140_000, "S_IFSOCK"),
    ],
);
static UNLINK: Names = flags(
    "AT_???",
    &[(0x100, "AT_SYMLINK_NOFOLLOW"), (0x200, "AT_REMOVEDIR")],
);
static WHENCE: Names = words(
    "SEEK_???",
    &[
        (0, "SEEK_SET"),
        (1, "SEEK_CUR"),
        (2, "SEEK_END"),
        (3, "SEEK_DATA"),
        (4, "SEEK_HOLE"),
    ],
);
static XATTR: Names = flags("XATTR_???", &[(1, "XATTR_CREATE"), (2, "XATTR_REPLACE")]);

/// Name and sentence of an errno.
pub fn errno(number: i32) -> Option<(&'static str, &'static str)> {
    let found = ERRNOS.iter().find(|(errno, ..)| *errno == number)?;
    Some((found.1, found.2))
}

/// Those that a call of `calls` can end with.
static ERRNOS: &[(i32, &str, &str)] = &[
    (1, "EPERM", "Operation not permitted"),
    (2, "ENOENT", "No such file or directory"),
    (3, "ESRCH", "No such process"),
    (4, "EINTR", "Interrupted system call"),
    (5, "EIO", "Input/output error"),
    (6, "ENXIO", "No such device or address"),
    (7, "E2BIG", "Argument list too long"),
    (8, "ENOEXEC", "Exec format error"),
    (9, "EBADF", "Bad file descriptor"),
    (11, "EAGAIN", "Resource temporarily unavailable"),
    (12, "ENOMEM", "Cannot allocate memory"),
    (13, "EACCES", "Permission denied"),
    (14, "EFAULT", "Bad address"),
    (15, "ENOTBLK", "Block device required"),
    (16, "EBUSY", "Device or resource busy"),
    (17, "EEXIST", "File exists"),
    (18, "EXDEV", "Invalid cross-device link"),
    (19, "ENODEV", "No such device"),
    (20, "ENOTDIR", "Not a directory"),
    (21, "EISDIR", "Is a directory"),
    (22, "EINVAL", "Invalid argument"),
    (23, "ENFILE", "Too many open files in system"),
    (24, "EMFILE", "Too many open files"),
    (25, "ENOTTY", "Inappropriate ioctl for device"),
    (26, "ETXTBSY", "Text file busy"),
    (27, "EFBIG", "File too large"),
    (28, "ENOSPC", "No space left on device"),
    (29, "ESPIPE", "Illegal seek"),
    (30, "EROFS", "Read-only file system"),
    (31, "EMLINK", "Too many links"),
    (32, "EPIPE", "Broken pipe"),
    (34, "ERANGE", "Numerical result out of range"),
    (35, "EDEADLK", "Resource deadlock avoided"),
    (36, "ENAMETOOLONG", "File name too long"),
    (37, "ENOLCK", "No locks available"),
    (38, "ENOSYS", "Function not implemented"),
    (39, "ENOTEMPTY", "Directory not empty"),
    (40, "ELOOP", "Too many levels of symbolic links"),
    (61, "ENODATA", "No data available"),
    (75, "EOVERFLOW", "Value too large for defined data type"),
    (88, "ENOTSOCK", "Socket operation on non-socket"),
    (89, "EDESTADDRREQ", "Destination address required"),
    (90, "EMSGSIZE", "Message too long"),
    (95, "EOPNOTSUPP", "Operation not supported"),
    (98, "EADDRINUSE", "Address already in use"),
    (99, "EADDRNOTAVAIL", "Cannot assign requested address"),
    (103, "ECONNABORTED", "Software caused connection abort"),
    (104, "ECONNRESET", "Connection reset by peer"),
    (105, "ENOBUFS", "No buffer space available"),
    (106, "EISCONN", "Transport endpoint is already connected"),
    (107, "ENOTCONN", "Transport endpoint is not connected"),
    (109, "ETOOMANYREFS", "Too many references: cannot splice"),
    (110, "ETIMEDOUT", "Connection timed out"),
    (111, "ECONNREFUSED", "Connection refused"),
    (114, "EALREADY", "Operation already in progress"),
    (115, "EINPROGRESS", "Operation now in progress"),
    (116, "ESTALE", "Stale file handle"),
    (122, "EDQUOT", "Disk quota exceeded"),
];
