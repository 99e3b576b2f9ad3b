//! Open-file descriptions.

use crate::error::{Error, Result};
use crate::inode_table::InodeRef;
use crate::session::{OfdLink, Session};

/// A new description with `refs` = 1, not bound to a descriptor yet. The caller has pinned the
/// inode, and the description owns that pin from now on. `TableFull` when there are too many.
pub fn alloc(_s: &Session, _inode: &InodeRef<'_>, _flags: u32) -> Result<OfdLink> {
    Err(Error::NotImplemented)
}

/// Frees the entry of a description whose last reference is gone; its pin was dropped before.
pub fn free(_s: &Session, _ofd: OfdLink) {}
