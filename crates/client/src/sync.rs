//! fsync(2), sync(2).
//!
//! Invariant: when a call returns, everything that was written before it survives what the medium
//! promises to survive.

use crate::api::Client;
use crate::error::Result;
use crate::file::File;
use crate::session::OfdLink;
use crate::{close, drain, inode_table};
use core::sync::atomic::Ordering::Acquire;
use pool::session::INODE_DIRTY;

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
    drain::sync_all(&c.session)
}
