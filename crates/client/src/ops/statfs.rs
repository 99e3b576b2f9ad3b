//! Figures of the whole pool.
//!
//! Invariants: they are as old as the service's last commit; asking changes nothing. While little
//! is free, that commit includes everything that was removed before the call, if the service is
//! running.

use crate::base::error::Result;
use crate::base::types::StatFs;
use crate::ops::client::Client;
use crate::session::drain;
use crate::session::space;
use pmem::atomic::Ordering::{Acquire, Relaxed};

/// No limit is set on the number of objects; programs that look for one see this many free.
const FILES_FREE: u64 = 1 << 32;

/// How long the service may take to apply what was removed.
const PATIENCE_MS: u64 = 1000;

pub(crate) fn statfs(c: &Client) -> Result<StatFs> {
    let header = c.session.header();
    let blocks = header.total_blocks.load(Relaxed);
    let mut free = free_blocks(c).min(blocks);
    if free < blocks / 4 {
        let seq = header.next_seq.load(Acquire).saturating_sub(1);
        drain::wait_applied_for(&c.session, seq, PATIENCE_MS);
        free = free_blocks(c).min(blocks);
    }
    let reserved = match c.session.is_for_another() {
        true => space::reserve(&c.session),
        false => 0,
    };
    let objects = header.objects.load(Relaxed);
    Ok(StatFs {
        block_size: 4096,
        blocks,
        free,
        available: free.saturating_sub(reserved),
        files: objects.saturating_add(FILES_FREE),
        files_free: FILES_FREE,
        name_max: crate::base::abi::NAME_MAX as u32,
    })
}

fn free_blocks(c: &Client) -> u64 {
    let free = c.session.header().free_blocks.load(Relaxed);
    free.saturating_add(space::count_free(&c.session))
}
