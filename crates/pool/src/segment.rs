//! Names and sizes of the files in a pool's directory.
//!
//! What always holds here: `meta.seg` is never given to a client for writing; a segment's file is
//! at least as long as the superblock says; sizes are whole blocks.

use crate::error::{Error, Result};
use crate::format::PAGE_LEN;
use crate::format::geometry::Geometry;
use alloc::format;
use alloc::string::String;

/// Superblocks, bitmaps and trees. Clients map it for reading only.
pub const META: &str = "meta.seg";
/// Locked by the service while it runs.
pub const LOCK: &str = "lock";
/// Socket of the service.
pub const SOCKET: &str = "sock";
/// Real working directory of processes whose working directory is in the pool.
pub const EMPTY_DIR: &str = "empty";

const MIB: u64 = 1 << 20;
/// Data segments start and end on this boundary, so that they can be mapped with huge pages.
pub const DATA_ALIGN: u64 = 2 * MIB;
const META_MIN: u64 = 64 * MIB;
/// A pool can grow to this many times its size at creation, without moving anything.
const GROWTH_MAX: u64 = 16;
const DATA_MAX_MIN: u64 = 64 << 30;
/// A pool may be used while it grows to this; addresses of a process end at 128 TiB.
const ROOM_MAX: u64 = 8 << 40;

/// File name of data segment `n`.
pub fn data(n: u32) -> String {
    format!("data-{n}.seg")
}

/// File name of journal segment `n`.
pub fn journal(n: u64) -> String {
    format!("journal-{n}.seg")
}

/// File that programs on the snapshot which ended `epoch` hold locked: it stands in for their
/// journal.
pub fn snapshot_users(epoch: u32) -> String {
    format!("snapshot-{epoch}.users")
}

/// Lengths in bytes of a pool's segments at creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub meta_len: u64,
    pub meta_len_max: u64,
    pub data_len: u64,
    pub data_len_max: u64,
}

/// Bytes that the trees of a pool of `data_len` bytes may take beside its data; `data_len_max`: as
/// many as it may have, which the bitmap of data has room for.
pub fn tree_share(data_len: u64, data_len_max: u64) -> u64 {
    let bitmaps = Geometry::bitmap_pages(data_len_max / PAGE_LEN) * 2 * PAGE_LEN;
    (data_len / 4 + bitmaps)
        .max(META_MIN)
        .next_multiple_of(DATA_ALIGN)
}

/// Bytes of a data segment that are mapped of one that may grow to `data_len_max`, so that it can
/// do so while it is in use: mapping what is not there yet takes addresses alone.
pub fn data_room(data_len: u64, data_len_max: u64) -> u64 {
    data_len_max.min(ROOM_MAX).max(data_len)
}

impl Sizes {
    /// For a pool of `size` bytes. The files are sparse and take what they need: data as much, and
    /// trees as much, but trees beyond `tree_share` in the place of data.
    pub fn for_pool(size: u64) -> Result<Sizes> {
        let too_large = Error::Geometry {
            what: "the size is too large",
        };
        let data_len = size
            .checked_next_multiple_of(DATA_ALIGN)
            .ok_or(too_large)?
            .max(DATA_ALIGN);
        let data_len_max = data_len
            .checked_mul(GROWTH_MAX)
            .ok_or(too_large)?
            .max(DATA_MAX_MIN);
        let share = tree_share(data_len, data_len_max);
        let meta_len = share.max(data_len);
        // Room for bitmaps is taken when the pool is made, so not more of it than before.
        let meta_len_max = share.checked_mul(GROWTH_MAX).ok_or(too_large)?;
        let sizes = Sizes {
            meta_len,
            meta_len_max,
            data_len,
            data_len_max,
        };
        Geometry::new([meta_len, meta_len_max], [data_len, data_len_max], meta_len)?;
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fit_pools_of_every_size() {
        for shift in 0..45 {
            let sizes = Sizes::for_pool(1 << shift).unwrap();
            assert!(sizes.data_len >= 1 << shift);
            assert!(sizes.meta_len >= sizes.data_len && sizes.meta_len <= sizes.meta_len_max);
            assert!(
                sizes.data_len.is_multiple_of(DATA_ALIGN)
                    && sizes.meta_len.is_multiple_of(DATA_ALIGN)
            );
        }
        assert!(Sizes::for_pool(u64::MAX).is_err());
        assert_eq!(
            (data(0), journal(7)),
            ("data-0.seg".into(), "journal-7.seg".into())
        );
    }
}
