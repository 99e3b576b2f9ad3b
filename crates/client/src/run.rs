//! Counters and lists of one `holdfast run`.

use crate::error::{Error, Result};
use crate::session::Session;

/// A run record with the path under which the pool appears; its index.
pub fn create(_s: &Session, _pid: u32, _at: &[u8]) -> Result<u32> {
    Err(Error::NotImplemented)
}

/// One more call served from the pool.
#[inline]
pub fn count_served(_s: &Session) {}

/// One more call passed to the kernel.
#[inline]
pub fn count_passed(_s: &Session) {}

/// One more call refused; `why` is an index into the caller's list of sentences.
pub fn refuse(_s: &Session, _call: u32, _why: u32) {}

/// An executable that could not be instrumented.
pub fn uninstrumented(_s: &Session, _path: &[u8]) {}
