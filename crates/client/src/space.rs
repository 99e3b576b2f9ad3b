//! Free blocks for new data.

use crate::error::{Error, Result};
use crate::session::Session;

/// Blocks of a huge page.
pub const HUGE_BLOCKS: u32 = 512;

/// Between 1 and `want` blocks in a row: (first block, how many). `near`: begin there if that
/// block is free; `align_2m`: begin on a 2 MiB boundary where there is such a run.
/// `NoSpace` when the pool is full.
pub fn alloc(_s: &Session, _want: u32, _near: Option<u64>, _align_2m: bool) -> Result<(u64, u32)> {
    Err(Error::NotImplemented)
}

/// Returns blocks that no journal record mentions.
pub fn give_back(_s: &Session, _block: u64, _len: u32) {}
