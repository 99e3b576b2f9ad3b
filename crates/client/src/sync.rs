//! fsync(2), sync(2).
//!
//! Invariant: when a call returns, everything that was written before it survives what the medium
//! promises to survive.

use crate::api::Client;
use crate::error::{Error, Result};
use crate::file::File;
use crate::inode_table::InodeRef;
use crate::session::OfdLink;
use crate::{close, drain, inode_table};
use core::sync::atomic::Ordering::Acquire;
use pool::session::{INODE_DIRTY, INODE_VALID};

pub(crate) fn fsync(c: &Client, ofd: OfdLink) -> Result<()> {
    let s = &c.session;
    let file = File::usable(s, ofd)?;
    if file.inode.e.state.load(Acquire) & INODE_DIRTY != 0 {
        let inode = inode_table::lock_ref(s, file.inode)?;
        close::flush(s, &inode)?;
    }
    drain::persist_medium(s, Some(&file.inode))
}

pub(crate) fn sync(c: &Client) -> Result<()> {
    let s = &c.session;
    for link in 1..=s.header().inode_used.load(Acquire) {
        let Ok(e) = s.inode(link) else { break };
        let (ino, state) = (e.ino.load(Acquire), e.state.load(Acquire));
        if ino == 0 || state & (INODE_DIRTY | INODE_VALID) != INODE_DIRTY | INODE_VALID {
            continue;
        }
        match inode_table::lock_ref(s, InodeRef { link, ino, e }) {
            Ok(inode) => close::flush(s, &inode)?,
            // It went meanwhile, and what was lazy about it with it.
            Err(Error::NotFound) => {}
            Err(e) => return Err(e),
        }
    }
    drain::sync_all(s)
}
