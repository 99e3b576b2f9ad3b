//! Cached names.

use crate::error::{Error, Result};
use crate::inode_table::{InodeRef, LockedInode};
use crate::session::Session;

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub ino: u64,
    /// d_type of dirent(5).
    pub kind: u8,
    /// Where the inode entry was last seen, for `inode_table::by_link`; 0 unknown.
    pub inode: u32,
}

/// What `name` in `dir` leads to; `None`: it does not exist. Locks the directory only when
/// nothing is cached about the name.
pub fn lookup(_s: &Session, _dir: &InodeRef<'_>, _name: &[u8]) -> Result<Option<Found>> {
    Err(Error::NotImplemented)
}

/// As `lookup` for a caller that holds the directory's lock.
pub fn lookup_locked(_s: &Session, _dir: &LockedInode<'_>, _name: &[u8]) -> Result<Option<Found>> {
    Err(Error::NotImplemented)
}
