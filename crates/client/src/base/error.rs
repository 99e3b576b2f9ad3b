//! Why an operation failed.
//!
//! Invariant: every variant has one sentence and one errno; the errno is what Linux gives for the
//! same mistake, so unmodified programs understand it.

use alloc::boxed::Box;
use core::fmt;

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident $errno:literal $text:literal,)*) => {
        /// Why an operation failed.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Error {
            $($(#[$doc])* $name,)*
            /// The path leaves the pool: go on with this path of the host.
            Outside(Box<[u8]>),
            /// The second path of link or rename leaves the pool: go on with this one.
            OutsideSecond(Box<[u8]>),
            /// Session memory or the pool holds something impossible.
            Damaged {
                /// What kind of thing.
                what: &'static str,
                /// Which one.
                index: u64,
            },
            /// The session can no longer be applied; the errno that the service gave.
            Poisoned(i32),
            /// A mapped range could not be used.
            Memory(pmem::Error),
            /// The caller's memory or the medium could not be copied from or to.
            Fault(pmem::Fault),
            /// The pool's trees could not be read.
            Pool(i32),
            /// The kernel refused a call that the client needs.
            Kernel {
                /// The call.
                call: &'static str,
                /// What it said.
                errno: i32,
            },
        }

        impl Error {
            /// The positive errno that a program sees.
            pub fn errno(&self) -> i32 {
                match self {
                    $(Error::$name => $errno,)*
                    Error::Outside(_) | Error::OutsideSecond(_) => 18,
                    Error::Damaged { .. } => 117,
                    Error::Poisoned(errno) | Error::Pool(errno) => positive(*errno),
                    Error::Memory(e) => e.errno(),
                    Error::Fault(f) => f.errno(),
                    Error::Kernel { errno, .. } => positive(*errno),
                }
            }
        }

        impl fmt::Display for Error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Error::$name => f.write_str($text),)*
                    Error::Outside(_) | Error::OutsideSecond(_) => {
                        f.write_str("the path leads out of the pool")
                    }
                    Error::Damaged { what, index } => write!(f, "{what} {index} is damaged"),
                    Error::Poisoned(errno) => {
                        write!(f, "the service gave up on this session with error {errno}")
                    }
                    Error::Memory(e) => e.fmt(f),
                    Error::Fault(fault) => {
                        write!(f, "copying stopped after {} bytes", fault.copied())
                    }
                    Error::Pool(errno) => write!(f, "reading the pool failed with error {errno}"),
                    Error::Kernel { call, errno } => write!(f, "{call} failed with error {errno}"),
                }
            }
        }

        #[cfg(test)]
        const PLAIN: &[Error] = &[$(Error::$name,)*];
    };
}

errors! {
    /// EPERM
    NotPermitted 1 "only the owner or a privileged process may do this",
    /// ENOENT
    NotFound 2 "no such file or directory",
    /// EINTR
    Interrupted 4 "a signal interrupted the wait",
    /// EIO
    ServiceGone 5 "the service does not apply changes any more",
    /// EIO
    ProxyGone 5 "the proxy that makes this process's calls has ended",
    /// EIO
    FlushFailed 5 "the host could not write what was stored before to its disk",
    /// ENXIO
    NoData 6 "no data or hole beyond this offset",
    /// E2BIG
    TooBig 7 "the list is too long",
    /// EBADF
    BadDescriptor 9 "the descriptor is not open for this",
    /// EAGAIN
    WouldBlock 11 "the lock is held by somebody else",
    /// ENOMEM
    NoMemory 12 "a table of the session is full of things in use",
    /// EACCES
    Denied 13 "permission denied",
    /// EBUSY
    Busy 16 "the directory is in use",
    /// EEXIST
    Exists 17 "the file exists",
    /// EXDEV
    CrossDevice 18 "both names must be in the pool",
    /// EXDEV
    OtherQuota 18 "nothing is moved or linked into or out of a directory with a quota",
    /// ENODEV
    NoDevice 19 "the object cannot do this",
    /// ENOTDIR
    NotDirectory 20 "a component of the path is not a directory",
    /// EISDIR
    IsDirectory 21 "it is a directory",
    /// EINVAL
    Invalid 22 "an argument is not valid",
    /// ENFILE
    /// See `Session::has_place`.
    NoPlace 5 "the process has no place in the session",
    TableFull 23 "too many files are open in the session",
    /// EMFILE
    TooManyFiles 24 "the descriptor number is too high for a pool file",
    /// EINVAL
    NestedQuota 22 "a directory above or below this one has a quota",
    /// ENOTTY
    NotTerminal 25 "pool files have no such control",
    /// ETXTBSY
    TextBusy 26 "the file is being executed",
    /// EFBIG, with SIGXFSZ
    OverLimit 27 "the file would exceed the process's limit",
    /// EFBIG
    FileTooLarge 27 "the file would be too large",
    /// ENOSPC
    NoSpace 28 "the pool is full",
    /// ENOSPC
    TooManyQuotas 28 "the pool has as many quotas as it may have",
    /// ESPIPE
    IllegalSeek 29 "the file cannot be positioned",
    /// EROFS
    ReadOnly 30 "the pool is read-only",
    /// EMLINK
    TooManyLinks 31 "the file has too many names",
    /// ERANGE
    Range 34 "the buffer is too small",
    /// EDEADLK
    Deadlock 35 "waiting for this lock would never end",
    /// ENAMETOOLONG
    NameTooLong 36 "a name or the path is too long",
    /// ENOLCK
    NoLocks 37 "the lock table is full",
    /// ENOSYS
    NotImplemented 38 "the call does not exist for pool files",
    /// ENOTEMPTY
    NotEmpty 39 "the directory is not empty",
    /// ELOOP
    Loop 40 "too many symbolic links",
    /// ENODATA
    NoAttribute 61 "there is no such attribute",
    /// EUSERS
    TooManyViews 87 "too many views are open in the session",
    /// EOVERFLOW
    Overflow 75 "the value does not fit",
    /// EOPNOTSUPP
    NotSupported 95 "pool files do not support this",
    /// EDQUOT
    OverQuota 122 "the quota of the directory or keyspace, or of the user who owns it, is used up",
    /// ESTALE
    ViewTooOld 116 "the view was given up: it held too much space back",
    /// ESTALE
    Stale 116 "the object is gone",
}

fn positive(errno: i32) -> i32 {
    match errno {
        1..=4095 => errno,
        _ => 5,
    }
}

impl core::error::Error for Error {}

impl From<pmem::Error> for Error {
    fn from(e: pmem::Error) -> Self {
        Error::Memory(e)
    }
}

impl From<pmem::Fault> for Error {
    fn from(f: pmem::Fault) -> Self {
        Error::Fault(f)
    }
}

/// What operations return.
pub type Result<T, E = Error> = core::result::Result<T, E>;

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn every_error_has_a_sentence_and_an_errno() {
        for e in PLAIN {
            assert!((1..4096).contains(&e.errno()), "{e:?}");
            assert!(e.to_string().len() > 10, "{e:?}");
        }
        assert_eq!(Error::Poisoned(0).errno(), 5);
        assert_eq!(
            Error::Damaged {
                what: "inode entry",
                index: 3
            }
            .errno(),
            117
        );
    }
}
