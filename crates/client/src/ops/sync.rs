//! fsync(2), sync(2).
//!
//! Invariants: when a call returns, everything that was written before it survives what the medium
//! promises to survive. Each open description reports a failed flush once.

use crate::base::error::{Error, Result};
use crate::content::file::File;
use crate::content::{close, durable, lending, lent};
use crate::ops::client::Client;
use crate::ops::writeback;
use crate::session::{BLOCK, OfdLink};
use crate::tables::inode_table;
use crate::tables::open_values::is_value;
use pmem::atomic::Ordering::{Acquire, Relaxed};
use pool::session::INODE_DIRTY;

/// Flags of sync_file_range(2).
const WAIT_BEFORE: u32 = 1;
const WRITE: u32 = 2;
const WAIT_AFTER: u32 = 4;

pub(crate) fn fsync(c: &Client, ofd: OfdLink) -> Result<()> {
    let s = &c.session;
    let file = File::usable(s, ofd)?;
    if lent::is_lent(file.inode.e) {
        let inode = lending::lock(s, file.inode)?;
        lending::write_back(s, &inode, 0, u64::MAX)?;
    }
    if durable::is_needed(s) {
        let done = match is_value(file.inode.e) {
            true => durable::changes(s),
            false => fsync_file(&file),
        };
        return report(&file).and(done);
    }
    if file.inode.e.state.load(Acquire) & INODE_DIRTY != 0 {
        let inode = inode_table::lock_ref(s, file.inode)?;
        close::flush(s, &inode)?;
    }
    // What was stored around the cache before is ordered by this.
    s.data().fence();
    Ok(())
}

fn fsync_file(file: &File<'_>) -> Result<()> {
    let inode = inode_table::lock_ref(file.s, file.inode)?;
    let placing = durable::prepare(file.s, &inode, 0..u64::MAX)?;
    drop(inode);
    durable::finish(file.s, placing)
}

/// Only begins to write, or waits for that: as the manual says, nothing is durable by it.
pub(crate) fn sync_file_range(
    c: &Client,
    ofd: OfdLink,
    offset: i64,
    len: i64,
    flags: u32,
) -> Result<()> {
    let s = &c.session;
    let file = File::usable(s, ofd)?;
    let (Ok(from), Ok(len)) = (u64::try_from(offset), u64::try_from(len)) else {
        return Err(Error::Invalid);
    };
    let end = from.checked_add(len).filter(|end| *end <= i64::MAX as u64);
    let end = end.ok_or(Error::Invalid)?;
    if flags & !(WAIT_BEFORE | WRITE | WAIT_AFTER) != 0 {
        return Err(Error::Invalid);
    }
    if !durable::is_needed(s) || flags == 0 || is_value(file.inode.e) {
        return Ok(());
    }
    let end = if len == 0 {
        u64::MAX
    } else {
        end.div_ceil(BLOCK)
    };
    let wait = flags & (WAIT_BEFORE | WAIT_AFTER) != 0;
    durable::write_back(s, &file.inode, from / BLOCK..end, wait)
}

/// An error if flushes failed since the description was opened or reported one.
fn report(file: &File<'_>) -> Result<()> {
    let errors = file.s.header().sync_errors.load(Acquire);
    match file.ofd.errors_seen.swap(errors, Relaxed) == errors {
        true => Ok(()),
        false => Err(Error::FlushFailed),
    }
}

pub(crate) fn sync(c: &Client) -> Result<()> {
    let s = &c.session;
    writeback::all(s)?;
    s.data().fence();
    if durable::is_needed(s) {
        durable::all_data(s)?;
        durable::records(s)?;
    }
    Ok(())
}
