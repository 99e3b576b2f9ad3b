//! Where the bytes of a file lie in the pool's data.
//!
//! Invariant: what is told was so at one moment; the next write may move it.

use crate::base::error::Result;
use crate::content::file::File;
use crate::ops::client::Client;
use crate::session::OfdLink;
use crate::tables::block_map::{self, Run};
use crate::tables::inode_table;

/// A part of a file, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRun {
    /// The number of its first block in the pool's data; `None`: it has none.
    pub first: Option<u64>,
    /// How many.
    pub len: u64,
}

/// What an open file has from its block `at` on: a part of at least one block and at most `max`.
/// The description may be one that was opened with O_PATH.
pub(crate) fn run_at(c: &Client, ofd: OfdLink, at: u64, max: u64) -> Result<BlockRun> {
    let s = &c.session;
    let file = File::any(s, ofd)?;
    file.check_regular()?;
    let inode = inode_table::lock_ref(s, file.inode)?;
    Ok(match block_map::lookup_run_locked(s, &inode, at, max)? {
        Run::Hole(len) => BlockRun { first: None, len },
        Run::Blocks { block, len, .. } => BlockRun {
            first: Some(block.number()),
            len,
        },
    })
}
