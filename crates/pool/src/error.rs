//! Every error of a pool. Each has exactly one errno.

use crate::bytes::Bytes;
use core::fmt;

/// What this crate's functions return.
pub type Result<T> = core::result::Result<T, Error>;

/// Why an operation on a pool failed.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Neither superblock copy carries the magic.
    NotAPool,
    /// The pool was written by another version of the format.
    Version { found: u32 },
    /// The sizes of the pool's segments cannot be.
    Geometry { what: &'static str },
    /// Bytes of `meta.seg` are not what was written; `page` is where.
    Damaged { what: &'static str, page: u64 },
    /// The pool has no room for the change; the batch can still be dropped.
    NoSpace,
    /// The file system under the pool has no room, or lost some; the batch can still be dropped.
    HostFull,
    /// The end of a segment that was to become shorter is in use.
    EndInUse {
        /// Bytes that are left then.
        least: u64,
    },
    /// The pool has a snapshot of this name already.
    SnapshotExists,
    /// The pool has no snapshot of this name.
    NoSnapshot,
    /// A snapshot cannot have this name.
    SnapshotName,
    /// The pool has newer snapshots, or what is left of some.
    NotNewest,
    /// A key or a value is longer than a tree can hold.
    TooLarge { what: &'static str, len: usize },
    /// Space was given or taken that the caller does not hold.
    NotHeld { start: u64, len: u64 },
    /// The roots changed too often under a reader, or their writer died while changing them.
    Busy,
    /// An earlier commit failed half-way; only opening the pool again helps.
    Poisoned,
    /// A tree holds a value that its layout does not know.
    BadValue(crate::layout::BadValue),
    /// Pool memory refused.
    Memory(holdfast_pmem::Error),
}

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const E2BIG: i32 = 7;
const EAGAIN: i32 = 11;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const EBUSY: i32 = 16;
const ENOSPC: i32 = 28;
const EUCLEAN: i32 = 117;
const EMEDIUMTYPE: i32 = 124;

impl Error {
    /// The positive errno that a program sees for this error.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NotAPool | Error::Version { .. } => EMEDIUMTYPE,
            Error::Geometry { .. } | Error::Damaged { .. } | Error::BadValue(_) => EUCLEAN,
            Error::NoSpace | Error::HostFull => ENOSPC,
            Error::EndInUse { .. } | Error::NotNewest => EBUSY,
            Error::SnapshotExists => EEXIST,
            Error::NoSnapshot => ENOENT,
            Error::SnapshotName => EINVAL,
            Error::TooLarge { .. } => E2BIG,
            Error::NotHeld { .. } => EINVAL,
            Error::Busy => EAGAIN,
            Error::Poisoned => EIO,
            Error::Memory(e) => e.errno(),
        }
    }
}

impl From<holdfast_pmem::Error> for Error {
    fn from(e: holdfast_pmem::Error) -> Error {
        Error::Memory(e)
    }
}

impl From<crate::layout::BadValue> for Error {
    fn from(e: crate::layout::BadValue) -> Error {
        Error::BadValue(e)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotAPool => f.write_str("this is not a Holdfast pool"),
            Error::Version { found } => write!(
                f,
                "the pool has format version {found}, and this program reads version {}",
                crate::format::superblock::VERSION
            ),
            Error::Geometry { what } => write!(f, "the pool cannot be used: {what}"),
            Error::Damaged { what, page } => {
                write!(f, "the pool is damaged: {what} in page {page} of meta.seg")
            }
            Error::NoSpace => f.write_str("the pool has no space left"),
            Error::HostFull => {
                f.write_str("the file system that the pool is on has no room for its trees")
            }
            Error::EndInUse { least } => {
                let least = Bytes(*least);
                write!(
                    f,
                    "the pool cannot become that small: its data needs {least:#}"
                )
            }
            Error::SnapshotExists => f.write_str("the pool has a snapshot of this name already"),
            Error::NoSnapshot => f.write_str("the pool has no snapshot of this name"),
            Error::SnapshotName => f.write_str(
                "the name of a snapshot has 1 to 255 bytes, no slash and no control character",
            ),
            Error::NotNewest => f.write_str("the pool has newer snapshots"),
            Error::TooLarge { what, len } => write!(f, "a {what} of {len} bytes is too long"),
            Error::NotHeld { start, len } => {
                write!(
                    f,
                    "blocks {start} to {} are not held by the caller",
                    start + len
                )
            }
            Error::Busy => f.write_str("the pool's roots change too often to be read"),
            Error::Poisoned => {
                f.write_str("an earlier commit failed, so the pool must be opened again")
            }
            Error::BadValue(e) => write!(f, "the pool is damaged: {e}"),
            Error::Memory(e) => e.fmt(f),
        }
    }
}

impl core::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn every_error_has_a_positive_errno_and_a_sentence() {
        let memory = holdfast_pmem::Error::OutOfRange { off: 1, len: 2 };
        for (e, errno) in [
            (Error::NotAPool, EMEDIUMTYPE),
            (Error::Version { found: 9 }, EMEDIUMTYPE),
            (Error::Geometry { what: "x" }, EUCLEAN),
            (Error::Damaged { what: "x", page: 1 }, EUCLEAN),
            (Error::NoSpace, ENOSPC),
            (Error::HostFull, ENOSPC),
            (Error::EndInUse { least: 1 << 30 }, EBUSY),
            (Error::SnapshotExists, EEXIST),
            (Error::NoSnapshot, ENOENT),
            (Error::SnapshotName, EINVAL),
            (
                Error::TooLarge {
                    what: "key",
                    len: 9999,
                },
                E2BIG,
            ),
            (Error::NotHeld { start: 1, len: 2 }, EINVAL),
            (Error::Busy, EAGAIN),
            (Error::Poisoned, EIO),
            (
                Error::BadValue(crate::layout::BadValue {
                    what: "a value is short",
                }),
                EUCLEAN,
            ),
            (Error::Memory(memory), memory.errno()),
        ] {
            assert_eq!(e.errno(), errno, "{e}");
            assert!(format!("{e}").len() > 15);
        }
    }
}
