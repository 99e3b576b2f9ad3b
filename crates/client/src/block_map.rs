//! Where the blocks of a file are.

use crate::error::{Error, Result};
use crate::inode_table::{InodeRef, LockedInode};
use crate::session::Session;

pub use crate::trees::Run;

/// The run at `file_block`, at most `max` blocks long. Without the inode's lock: re-check
/// `truncations` after using it. With the lock, what comes from the trees is kept.
pub fn lookup_run(_s: &Session, _inode: &InodeRef<'_>, _file_block: u64, _max: u64) -> Result<Run> {
    Err(Error::NotImplemented)
}

/// Maps `len` file blocks to `block..`; `NoMemory` before anything changed.
pub fn map(
    _s: &Session,
    _inode: &LockedInode<'_>,
    _file_block: u64,
    _block: u64,
    _len: u64,
    _pending: bool,
) -> Result<()> {
    Err(Error::NotImplemented)
}

/// Makes `len` file blocks holes (`u64::MAX`: all from there). Bumps `truncations`.
pub fn unmap(_s: &Session, _inode: &LockedInode<'_>, _file_block: u64, _len: u64) -> Result<()> {
    Err(Error::NotImplemented)
}
