//! Making a pool larger or smaller.
//!
//! Invariants: nobody uses the pool meanwhile; a segment durably has the length that the superblock
//! says before the superblock says so, and is cut only afterwards; a pool shrinks only by space
//! that is free, out of which its data was moved.

use crate::alone::bring_up_to_date;
use crate::base::error::{Error, Result};
use crate::base::files::{self, Files};
use crate::base::lock::PoolLock;
use crate::moving::Moving;
use crate::restoring::DataFile;
use holdfast_pmem::{Access, Medium};
use holdfast_pool::directory;
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::segment::{self, Sizes};
use holdfast_pool::{Pool, WriteToken};
use rustix::fd::OwnedFd;
use rustix::fs::ftruncate;
use std::path::Path;

/// Gives the pool in `directory`, which nobody may use, room for `size` bytes of data; how many it
/// has then.
pub fn resize(directory: &Path, size: u64) -> Result<u64> {
    Files::open(directory)?.check_owner()?;
    let _lock = PoolLock::take_patiently(directory)?;
    bring_up_to_date(directory)?;
    let files = Files::open(directory)?;
    let (old, size) = (files.superblock.data_len, files::data_size(size)?);
    let pool_error = |error| Error::Pool {
        path: directory.into(),
        error,
    };
    let sizes = Sizes::for_pool(size).map_err(pool_error)?;
    let sb = &files.superblock;
    let meta_len = sizes.meta_len.clamp(sb.meta_len, sb.meta_len_max);
    if size > sb.data_len_max {
        let (min, max) = (directory::SIZE_MIN, sb.data_len_max);
        return Err(Error::Size { size, min, max });
    }
    files.check_room(old, size)?;
    set_len(&files.meta, segment::META, meta_len)?;
    if size > old {
        set_len(&files.data, &segment::data(0), size)?;
    }
    // A superblock that a power cut leaves must not speak of lengths that it took away.
    for name in [segment::META, &segment::data(0), "."] {
        files::sync_file(directory, name)?;
    }
    let token = WriteToken::for_offline_tool();
    let open = || {
        let meta = files::map(&files.meta, meta_len, Access::ReadWrite, files.medium)?;
        Pool::open(meta, &token).map_err(pool_error)
    };
    if size < old {
        make_room(directory, &mut open()?, (&token, files.medium), size)?;
    }
    let mut pool = open()?;
    pool.resize(meta_len, size, &token).map_err(pool_error)?;
    drop(pool);
    if size < old {
        set_len(&files.data, &segment::data(0), size)?;
    }
    Ok(size)
}

/// Moves what is beyond the first `size` bytes of data. What snapshots have is not moved: then it
/// shows whether anything is in the way.
fn make_room(
    directory: &Path,
    pool: &mut Pool,
    (token, medium): (&WriteToken, Medium),
    size: u64,
) -> Result<()> {
    let end = size / PAGE_LEN;
    if pool.has_snapshots() || pool.data_space().end_in_use() <= end {
        return Ok(());
    }
    let mut moving = Moving {
        directory,
        pool,
        token,
        data: &DataFile::open(directory, medium)?,
        end,
    };
    moving.all()
}

fn set_len(file: &OwnedFd, name: &str, len: u64) -> Result<()> {
    ftruncate(file, len).map_err(Error::os(name))
}
