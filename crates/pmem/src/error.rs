//! Every error of pool memory. Each has exactly one errno.

use core::fmt;

/// Why an operation on pool memory failed.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The range does not lie inside the mapping.
    OutOfRange { off: u64, len: usize },
    /// The offset is not a multiple of what the operation needs.
    Misaligned { off: u64, align: usize },
    /// The mapping does not allow writing.
    ReadOnly,
    /// The medium reported that bytes at this offset are lost (SIGBUS in the mapping).
    Media { off: u64 },
    /// The reservation has no free room of this length.
    NoRoom { len: usize },
    /// The machine, or the medium, does not have this.
    NotHere { what: &'static str },
    /// A system call failed.
    Os { call: &'static str, errno: i32 },
}

const EIO: i32 = 5;
const ENOMEM: i32 = 12;
const EINVAL: i32 = 22;
const EROFS: i32 = 30;
const EOPNOTSUPP: i32 = 95;

impl Error {
    /// The positive errno that a program sees for this error.
    pub fn errno(&self) -> i32 {
        match *self {
            Error::OutOfRange { .. } | Error::Misaligned { .. } => EINVAL,
            Error::ReadOnly => EROFS,
            Error::Media { .. } => EIO,
            Error::NoRoom { .. } => ENOMEM,
            Error::NotHere { .. } => EOPNOTSUPP,
            Error::Os { errno, .. } => errno,
        }
    }

    /// What the kernel said to `call`.
    pub fn os(call: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
        move |e| Error::Os {
            call,
            errno: e.raw_os_error(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::OutOfRange { off, len } => {
                write!(
                    f,
                    "{len} bytes at offset {off} are not inside the mapped segment"
                )
            }
            Error::Misaligned { off, align } => {
                write!(f, "offset {off} is not a multiple of {align}")
            }
            Error::ReadOnly => f.write_str("the segment is mapped for reading only"),
            Error::Media { off } => {
                write!(
                    f,
                    "the medium lost the bytes at offset {off} of the segment"
                )
            }
            Error::NoRoom { len } => {
                write!(f, "the reserved address range has no room for {len} bytes")
            }
            Error::NotHere { what } => f.write_str(what),
            Error::Os { call, errno } => write!(f, "{call} failed with error {errno}"),
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
        let all = [
            (Error::OutOfRange { off: 1, len: 2 }, EINVAL),
            (Error::Misaligned { off: 1, align: 8 }, EINVAL),
            (Error::ReadOnly, EROFS),
            (Error::Media { off: 3 }, EIO),
            (Error::NoRoom { len: 4 }, ENOMEM),
            (
                Error::NotHere {
                    what: "there are no keys",
                },
                EOPNOTSUPP,
            ),
            (
                Error::Os {
                    call: "mmap",
                    errno: 1,
                },
                1,
            ),
        ];
        for (e, errno) in all {
            assert_eq!(e.errno(), errno, "{e}");
            assert!(format!("{e}").len() > 15);
        }
    }
}
