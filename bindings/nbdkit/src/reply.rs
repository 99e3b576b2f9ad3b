//! What nbdkit is told when something fails.
//!
//! Invariants: the sentence goes to nbdkit's log, the errno to the client; nbdkit makes EINVAL of
//! every errno that NBD does not have, so such a one never reaches it.

use holdfast::Error;

const EPERM: i32 = 1;
const EIO: i32 = 5;
const EBADF: i32 = 9;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
pub const EINVAL: i32 = 22;
const EFBIG: i32 = 27;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
pub const EOVERFLOW: i32 = 75;
const EOPNOTSUPP: i32 = 95;
pub const ESHUTDOWN: i32 = 108;
const EDQUOT: i32 = 122;

/// An answer that is always the same.
pub struct Reply {
    errno: i32,
    sentence: &'static str,
}

pub const NOT_FAST: Reply = Reply {
    errno: EOPNOTSUPP,
    sentence: "zeroes that are no hole are written, which is not fast",
};

impl Reply {
    pub fn error(&self) -> nbdkit::Error {
        nbdkit::Error::new(self.errno, self.sentence)
    }
}

/// A request that failed.
#[cold]
pub fn failed(error: Error) -> nbdkit::Error {
    let errno = match error.errno() {
        EPERM | EACCES | EBADF | EROFS => EPERM,
        ENOSPC | EDQUOT | EFBIG => ENOSPC,
        known @ (ENOMEM | EINVAL) => known,
        _ => EIO,
    };
    nbdkit::Error::new(errno, error)
}

/// A volume that cannot be opened.
pub fn failed_to_start(error: &Error) -> nbdkit::Error {
    let fix = error.fix().map(|fix| format!(". Fix: {fix}"));
    nbdkit::Error::new(error.errno(), format!("{error}{}", fix.unwrap_or_default()))
}
