//! Stores that nobody means, to see whether something stops them.
//!
//! Invariant: no lock is held at that moment, and no byte is another one afterwards.

use crate::base::error::{Error, Result};
use crate::content::file::{self, File};
use crate::ops::client::Client;
use crate::session::{BLOCK, OfdLink};
use crate::tables::block_map::{self, Run};
use crate::tables::inode_table;

/// Stores to a byte of an open file in the pool's memory, without changing it. Where the memory is
/// protected, the process gets a SIGSEGV. ENXIO: there is a hole.
pub(crate) fn store(c: &Client, ofd: OfdLink, offset: i64) -> Result<()> {
    let s = &c.session;
    let offset = file::offset(offset)?;
    let file = File::writable(s, ofd)?;
    file.check_regular()?;
    let inode = inode_table::lock_ref(s, file.inode)?;
    let run = block_map::lookup_run_locked(s, &inode, offset / BLOCK, 1)?;
    drop(inode);
    match run {
        Run::Blocks { block, .. } => {
            let segment = s.segment(block)?;
            Ok(segment.stray_store(block.offset() + offset % BLOCK)?)
        }
        Run::Hole(_) => Err(Error::NoData),
    }
}
