//! Figures of the whole pool.
//!
//! Invariant: they are as old as the service's last commit, and change nothing.

use crate::api::Client;
use crate::error::Result;
use crate::types::StatFs;
use core::sync::atomic::Ordering::Relaxed;

/// No limit is set on the number of objects; programs that look for one see this many free.
const FILES_FREE: u64 = 1 << 32;

pub(crate) fn statfs(c: &Client) -> Result<StatFs> {
    let header = c.session.header();
    let granted = granted_blocks(c);
    let blocks = header.total_blocks.load(Relaxed);
    let free = header
        .free_blocks
        .load(Relaxed)
        .saturating_add(granted)
        .min(blocks);
    let objects = header.objects.load(Relaxed);
    Ok(StatFs {
        block_size: 4096,
        blocks,
        free,
        available: free,
        files: objects.saturating_add(FILES_FREE),
        files_free: FILES_FREE,
        name_max: crate::abi::NAME_MAX as u32,
    })
}

/// Free blocks that the session holds already.
fn granted_blocks(c: &Client) -> u64 {
    let used = c.session.header().grants_used.load(Relaxed);
    let lens = (0..used).filter_map(|i| c.session.grant(i).ok());
    lens.map(|g| g.len.load(Relaxed))
        .fold(0, u64::saturating_add)
}
