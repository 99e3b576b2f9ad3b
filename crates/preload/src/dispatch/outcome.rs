//! How a handler of a system call ends.
//!
//! Invariant: every end of a handler is one of these; nothing falls through silently.

use super::args::Errno;
use super::process::Retired;
use alloc::boxed::Box;
use holdfast_client::Error;

pub use holdfast_client::refusal::Why;

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Holdfast did it, also if it failed.
    Served,
    /// It is not about the pool.
    Passed,
    /// It is, and the pool cannot do it.
    Refused(Why),
}

/// What a handler returns: the call's result, or why there is none.
pub type Outcome = Result<isize, Stop>;

/// Why a handler has no result.
#[derive(Debug)]
pub enum Stop {
    /// The call is not about the pool: the kernel does it.
    Native,
    /// As `Native`; the process has left the session, so nothing may be counted any more.
    Left,
    /// The kernel did it, with this result; the process has another state now, and the one that the
    /// handler was given ends.
    Moved(isize, Retired),
    /// The call is not about the pool: the kernel did it, with this result.
    Passed(isize),
    /// The call was served and fails with this errno.
    Errno(Errno),
    /// The call is about the pool, which cannot do it: fails with this errno, and is reported.
    Refused(Errno, Why),
    /// A file would grow beyond RLIMIT_FSIZE: SIGXFSZ and EFBIG.
    OverLimit,
    /// The path led out of the pool: the kernel does the call with this path.
    Outside(Box<[u8]>),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Stop::Errno(errno)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        match error {
            Error::Outside(path) => Stop::Outside(path),
            Error::OverLimit => Stop::OverLimit,
            other => Stop::Errno(other.errno()),
        }
    }
}

/// Success without a value.
pub fn done(result: Result<(), Error>) -> Outcome {
    Ok(result.map(|()| 0)?)
}

/// Success with a count.
pub fn count(result: Result<usize, Error>) -> Outcome {
    Ok(result.map(|n| n as isize)?)
}
