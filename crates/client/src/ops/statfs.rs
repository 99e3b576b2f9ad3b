//! Figures of the whole pool, and of a directory with a quota.
//!
//! Invariants: those of the pool are as old as the service's last commit; asking changes nothing.
//! While little is free, that commit includes everything that was removed before the call, if the
//! service is running. What is left of a quota is what the session knows now.

use crate::base::abi::AT_EMPTY_PATH;
use crate::base::error::Result;
use crate::base::types::{Base, Caller, StatFs};
use crate::content::file::File;
use crate::ops::client::Client;
use crate::ops::path::Walk;
use crate::session::quota::{self, Room};
use crate::session::{drain, space};
use crate::tables::inode_table;
use pmem::atomic::Ordering::{Acquire, Relaxed};

/// No limit is set on the number of objects; programs that look for one see this many free.
const FILES_FREE: u64 = 1 << 32;

/// How long the service may take to apply what was removed.
const PATIENCE_MS: u64 = 1000;

/// Of what `path` leads to: the pool, or what the quota of a directory leaves of it. A user's quota
/// is not shown, as others have the same directory.
pub(crate) fn statfs_at(
    c: &Client,
    who: &Caller,
    base: Base,
    path: &[u8],
    flags: u32,
) -> Result<StatFs> {
    let a = match base {
        Base::Ofd(ofd) if path.is_empty() && flags & AT_EMPTY_PATH != 0 => {
            inode_table::attrs(&c.session, &File::any(&c.session, ofd)?.inode)?
        }
        _ => Walk::new(&c.session, &c.at, who).attributes(base, path, flags)?,
    };
    let pool = statfs(c)?;
    Ok(match quota::room(&c.session, a.project) {
        Some(room) => within(pool, room),
        None => pool,
    })
}

fn within(pool: StatFs, room: Room) -> StatFs {
    StatFs {
        blocks: pool.blocks.min(room.blocks),
        free: pool.free.min(room.blocks_left),
        available: pool.available.min(room.blocks_left),
        files: pool.files.min(room.files),
        files_free: pool.files_free.min(room.files_left),
        ..pool
    }
}

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
