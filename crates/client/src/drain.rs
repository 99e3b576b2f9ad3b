//! Waiting for the service and making things durable.

use crate::error::{Error, Result};
use crate::inode_table::InodeRef;
use crate::session::Session;

/// Tells the service to drain the lanes now.
pub fn ring(_s: &Session) {}

/// Waits until record `seq` is in the trees. `ServiceGone` after 10 s without progress.
pub fn wait_applied(_s: &Session, _seq: u64) -> Result<()> {
    Err(Error::NotImplemented)
}

/// fsync: everything committed so far, and the blocks of `inode`, survive what the medium
/// survives.
pub fn persist_medium(_s: &Session, _inode: Option<&InodeRef<'_>>) -> Result<()> {
    Err(Error::NotImplemented)
}

/// sync(2): as `persist_medium` for all data.
pub fn sync_all(_s: &Session) -> Result<()> {
    Err(Error::NotImplemented)
}
