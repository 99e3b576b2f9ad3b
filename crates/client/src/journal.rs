//! Appending to the journal.

use crate::error::{Error, Result};
use crate::session::Session;
use pool::journal::Record;

/// Makes one record durable and publishes it in the tables; its sequence number. The caller holds
/// the locks of all inodes that the record changes (a new inode needs none). Fails only before
/// the record exists.
pub fn commit(_s: &Session, _record: &Record<'_>) -> Result<u64> {
    Err(Error::NotImplemented)
}
