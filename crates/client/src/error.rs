//! Every way in which an operation fails. Each error has exactly one errno.

use alloc::boxed::Box;
use core::fmt;

/// Result of a client operation.
pub type Result<T> = core::result::Result<T, Error>;

/// Why an operation failed.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The path left the pool: continue in the kernel with this host path.
    Outside(Box<[u8]>),
    /// As `Outside`, for the second path of link(2) and rename(2).
    OutsideSecond(Box<[u8]>),
    /// A rule of POSIX or Linux says no, with this errno.
    Refused(Errno),
    /// Pool memory refused.
    Memory(holdfast_pmem::Error),
    /// The trees hold something impossible.
    Damaged { what: &'static str },
    /// The service is gone and nobody took over.
    ServiceGone,
    /// The session can no longer be applied; the errno is the service's.
    Poisoned(i32),
}

macro_rules! errnos {
    ($($name:ident = $number:literal, $sentence:literal;)*) => {
        /// The errnos that operations give, by the kernel's names.
        #[non_exhaustive]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Errno { $(#[doc = $sentence] $name = $number),* }

        impl Errno {
            #[cfg(test)]
            const ALL: &[Errno] = &[$(Errno::$name),*];

            fn sentence(self) -> &'static str {
                match self { $(Errno::$name => $sentence),* }
            }
        }
    };
}

errnos! {
    EPERM = 1, "the caller may not do this to the object";
    ENOENT = 2, "no object has this name";
    EINTR = 4, "a signal interrupted the wait";
    EIO = 5, "the medium or the service failed";
    ENXIO = 6, "there is no data at or after this offset, or no reader of the pipe";
    E2BIG = 7, "the value is longer than allowed";
    EBADF = 9, "the descriptor does not allow this";
    EAGAIN = 11, "the call would have to wait";
    ENOMEM = 12, "session memory has no free entry";
    EACCES = 13, "the permissions deny it";
    EFAULT = 14, "the caller's memory cannot be accessed";
    EBUSY = 16, "the object is in use";
    EEXIST = 17, "the name exists";
    EXDEV = 18, "the names are on different file systems";
    ENODEV = 19, "the object does not support this";
    ENOTDIR = 20, "a component of the path is not a directory";
    EISDIR = 21, "the object is a directory";
    EINVAL = 22, "an argument is not valid";
    ENFILE = 23, "the session has no free entry for another open file";
    EMFILE = 24, "the descriptor number is too high for a pool file";
    ENOTTY = 25, "the object is not a terminal";
    ETXTBSY = 26, "the program file is being executed";
    EFBIG = 27, "the file would become too large";
    ENOSPC = 28, "the pool is full";
    ESPIPE = 29, "the object has no file offset";
    EROFS = 30, "the pool is attached for reading only";
    EMLINK = 31, "the object has too many names";
    ERANGE = 34, "the buffer is too small for the value";
    EDEADLK = 35, "waiting for the lock would be a deadlock";
    ENAMETOOLONG = 36, "a name or the path is too long";
    ENOLCK = 37, "the session has no free lock";
    ENOTEMPTY = 39, "the directory is not empty";
    ELOOP = 40, "too many symbolic links";
    ENODATA = 61, "the object has no such attribute";
    EOVERFLOW = 75, "a value does not fit";
    EOPNOTSUPP = 95, "the pool does not support this";
}

impl Error {
    /// The positive errno that a program sees.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Outside(_) | Error::OutsideSecond(_) => Errno::EXDEV as i32,
            Error::Refused(errno) => *errno as i32,
            Error::Memory(e) => e.errno(),
            Error::Damaged { .. } | Error::ServiceGone => Errno::EIO as i32,
            Error::Poisoned(errno) => *errno,
        }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Error::Refused(errno)
    }
}

impl From<holdfast_pmem::Error> for Error {
    fn from(e: holdfast_pmem::Error) -> Self {
        Error::Memory(e)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Outside(_) => f.write_str("the path leads out of the pool"),
            Error::OutsideSecond(_) => f.write_str("the second path leads out of the pool"),
            Error::Refused(errno) => f.write_str(errno.sentence()),
            Error::Memory(e) => e.fmt(f),
            Error::Damaged { what } => write!(f, "the pool is damaged: {what}"),
            Error::ServiceGone => f.write_str("the service of the pool does not answer"),
            Error::Poisoned(errno) => {
                write!(
                    f,
                    "the service refuses this session's changes with error {errno}"
                )
            }
        }
    }
}

impl core::error::Error for Error {}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    #[test]
    fn every_errno_has_a_sentence_of_its_own() {
        for (i, a) in Errno::ALL.iter().enumerate() {
            assert!(*a as i32 > 0 && a.sentence().len() > 10);
            for b in &Errno::ALL[..i] {
                assert_ne!(a.sentence(), b.sentence());
                assert_ne!(*a as i32, *b as i32);
            }
        }
        assert_eq!(Error::from(Errno::ENOSPC).errno(), 28);
        assert_eq!(format!("{}", Error::ServiceGone).is_empty(), false);
    }
}
