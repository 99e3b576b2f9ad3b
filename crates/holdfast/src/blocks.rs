//! Whose a block of the pool's data is.
//!
//! Invariant: looking changes nothing, and keeps nobody from writing but for a moment.

use crate::error::{Error, Result};
use crate::file::File;
use crate::pool::Pool;
use crate::walk;
use holdfast_client::{BlockRun, abi};

/// The pool's unit of space.
const BLOCK: u64 = 4096;
/// Blocks that are asked for at a time.
const RUN_MAX: u64 = 1 << 30;

/// Where in the pool a block is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// A path of its file, below the pool's root.
    pub path: String,
    /// Whether the file is a volume.
    pub is_volume: bool,
    /// Where in it the block begins.
    pub offset: u64,
}

impl Pool {
    /// Whose block `number` of the pool's data is, by looking through all files that this user can
    /// find. `None`: it is in none of them. It may be free, or in snapshots alone, or in a file
    /// that has no name any more. Only for the pool's owner and root.
    pub fn find_block(&self, number: u64) -> Result<Option<BlockPlace>> {
        let blocks = self.inner.client()?.session().data_blocks();
        if number >= blocks {
            return Err(Error::Missing {
                what: "block",
                name: number.to_string(),
            });
        }
        let mut found = None;
        walk::files(self, &mut |path| {
            let offset = match offset_in(self, path, number) {
                Err(e) if walk::is_elsewhere(&e) => None,
                offset => offset?,
            };
            found = offset.map(|offset| (path.to_vec(), offset));
            Ok(found.is_some())
        })?;
        Ok(found.map(|(path, offset)| {
            let path = String::from_utf8_lossy(&path).into_owned();
            BlockPlace {
                is_volume: self.volume_to_read(&path).is_ok(),
                path,
                offset,
            }
        }))
    }
}

/// Where in the file the block begins.
fn offset_in(pool: &Pool, path: &[u8], number: u64) -> Result<Option<u64>> {
    let file = File::open(pool, path, abi::O_PATH | abi::O_NOFOLLOW, 0)?;
    let stat = file.stat()?;
    // Blocks of small files are in their inodes.
    let mut left = (stat.blocks * 512).div_ceil(BLOCK);
    let (client, ofd, end) = (pool.inner.client()?, file.ofd()?, stat.size.div_ceil(BLOCK));
    let mut at = 0;
    // There may be blocks behind the end, which count as well.
    while at < end || left > 0 {
        let BlockRun { first, len } = client.block_run(ofd, at, RUN_MAX)?;
        match first {
            Some(first) if (first..first + len).contains(&number) => {
                return Ok(Some((at + (number - first)) * BLOCK));
            }
            Some(_) => left = left.saturating_sub(len),
            None if at >= end && len == RUN_MAX => return Ok(None),
            None => {}
        }
        at += len;
    }
    Ok(None)
}
