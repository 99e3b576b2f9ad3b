//! Where things are in `meta.seg`.
//!
//! What always holds here: superblocks in pages 0 and 1, the live page in page 2, then the
//! bitmap pages in pairs (meta first, data second), then nodes; `first_node < meta_pages`, and
//! the bitmaps have room for `meta_pages_max` and `data_blocks_max`, so both may grow in place.

use super::PAGE_LEN;
use super::bitmap::BITS_PER_PAGE;
use crate::error::{Error, Result};

/// Pages of the two superblock copies.
pub const SUPERBLOCK_PAGES: [u64; 2] = [0, 1];
/// Page of the current roots for lock-free readers.
pub const LIVE_PAGE: u64 = 2;
const BITMAPS_START: u64 = 3;
/// No segment is larger, so that page arithmetic cannot overflow.
const PAGES_MAX: u64 = 1 << 44;

/// Sizes in pages and blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub meta_pages: u64,
    pub meta_pages_max: u64,
    pub data_blocks: u64,
    pub data_blocks_max: u64,
}

impl Geometry {
    /// The sizes given in bytes, checked; `region_len` is what is mapped of `meta.seg`.
    pub fn new(meta: [u64; 2], data: [u64; 2], region_len: u64) -> Result<Geometry> {
        let g = Geometry {
            meta_pages: meta[0] / PAGE_LEN,
            meta_pages_max: meta[1] / PAGE_LEN,
            data_blocks: data[0] / PAGE_LEN,
            data_blocks_max: data[1] / PAGE_LEN,
        };
        let whole = [meta, data].concat().iter().all(|len| len % PAGE_LEN == 0);
        let ordered = g.meta_pages <= g.meta_pages_max && g.data_blocks <= g.data_blocks_max;
        let bounded = g.meta_pages_max <= PAGES_MAX && g.data_blocks_max <= PAGES_MAX;
        if !whole || !ordered || !bounded {
            return Err(Error::Geometry {
                what: "segment sizes are not possible",
            });
        }
        if g.meta_pages > region_len / PAGE_LEN {
            return Err(Error::Geometry {
                what: "meta.seg is shorter than its superblock says",
            });
        }
        if g.first_node() >= g.meta_pages {
            return Err(Error::Geometry {
                what: "meta.seg has no room for its bitmaps",
            });
        }
        Ok(g)
    }

    /// Bitmap pages (each stored twice) for `bits`.
    pub fn bitmap_pages(bits: u64) -> u64 {
        bits.div_ceil(BITS_PER_PAGE)
    }

    /// First page of the bitmap of meta pages.
    pub fn meta_bitmap(&self) -> u64 {
        BITMAPS_START
    }

    /// First page of the bitmap of data blocks.
    pub fn data_bitmap(&self) -> u64 {
        BITMAPS_START + 2 * Self::bitmap_pages(self.meta_pages_max)
    }

    /// First page that may hold a node.
    pub fn first_node(&self) -> u64 {
        self.data_bitmap() + 2 * Self::bitmap_pages(self.data_blocks_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn places_do_not_overlap() {
        let g = Geometry::new([16 * MIB, 256 * MIB], [64 * MIB, 1024 * MIB], 16 * MIB).unwrap();
        assert_eq!(g.meta_bitmap(), 3);
        assert_eq!(g.data_bitmap(), 3 + 2 * 3);
        assert_eq!(g.first_node(), 9 + 2 * 9);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for (meta, data, len) in [
            ([16 * MIB, 8 * MIB], [0, 0], 16 * MIB),
            ([16 * MIB, 16 * MIB], [0, 0], 8 * MIB),
            ([16 * MIB + 1, 32 * MIB], [0, 0], 32 * MIB),
            ([4096 * 5, 4096 * 5], [0, 0], 16 * MIB),
            ([16 * MIB, !4095], [0, 0], 16 * MIB),
            ([16 * MIB, 16 * MIB], [2, 1], 16 * MIB),
        ] {
            assert!(
                Geometry::new(meta, data, len).is_err(),
                "{meta:?} {data:?} {len}"
            );
        }
    }
}
