//! The address of a block of file data: its data segment, and its number there.
//!
//! Invariants:
//!  * An address is one word, in the same form in trees, journal records and session memory. For
//!    data segment 0, the only one so far, the word is the number of the block.
//!  * A word from trees is parsed, so it is in a segment that exists. A word from a record or from
//!    session memory may be anything: it is checked where it is followed.

use super::{BLOCK, BadValue, bad};
use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// Bits of an address that hold the number of the block; the segment is above.
pub const NUMBER_BITS: u32 = 40;
/// Bits of an address; those above are zero.
pub const ADDR_BITS: u32 = 48;
/// Data segments of a pool.
pub const SEGMENTS: u64 = 1;

/// A block of a data segment.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockAddr(u64);

impl BlockAddr {
    /// Block `number` of data segment `segment`.
    pub const fn new(segment: u8, number: u64) -> BlockAddr {
        assert!(number >> NUMBER_BITS == 0, "no segment has so many blocks");
        BlockAddr((segment as u64) << NUMBER_BITS | number)
    }

    /// What a word says that others can write. It may be the address of nothing.
    #[inline]
    pub const fn from_word(word: u64) -> BlockAddr {
        BlockAddr(word)
    }

    /// The address as it is stored.
    #[inline]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The address of the first of `len` blocks, which are all in a segment that exists.
    #[inline]
    pub fn parse(word: u64, len: u32) -> Result<BlockAddr, BadValue> {
        let last = word.saturating_add(u64::from(len).saturating_sub(1));
        if last >> ADDR_BITS != 0 {
            return bad("a block has an address of an unknown form");
        }
        if last >> NUMBER_BITS >= SEGMENTS {
            return bad("a block is in a data segment that does not exist");
        }
        Ok(BlockAddr(word))
    }

    /// The data segment; more than any has if the address is that of nothing.
    #[inline]
    pub const fn segment(self) -> u64 {
        self.0 >> NUMBER_BITS
    }

    /// The number in the segment.
    #[inline]
    pub const fn number(self) -> u64 {
        self.0 & ((1 << NUMBER_BITS) - 1)
    }

    /// Where the block starts in its segment, in bytes.
    #[inline]
    pub const fn offset(self) -> u64 {
        self.number() * BLOCK
    }

    /// The address behind `len` blocks that begin here; the highest one where there is none.
    #[inline]
    pub const fn end(self, len: u64) -> BlockAddr {
        BlockAddr(self.0.saturating_add(len))
    }

    /// Whether `len` blocks that begin here are among the first `count` of data segment 0.
    #[inline]
    pub const fn is_within(self, len: u64, count: u64) -> bool {
        match self.0.checked_add(len) {
            Some(end) => end <= count,
            None => false,
        }
    }
}

impl Add<u64> for BlockAddr {
    type Output = BlockAddr;

    /// So many blocks on.
    #[inline]
    fn add(self, blocks: u64) -> BlockAddr {
        BlockAddr(self.0 + blocks)
    }
}

impl AddAssign<u64> for BlockAddr {
    #[inline]
    fn add_assign(&mut self, blocks: u64) {
        self.0 += blocks;
    }
}

impl Sub for BlockAddr {
    type Output = u64;

    /// Blocks from `first` to here.
    #[inline]
    fn sub(self, first: BlockAddr) -> u64 {
        self.0 - first.0
    }
}

impl fmt::Debug for BlockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment(), self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: u64 = (1 << NUMBER_BITS) - 1;

    #[test]
    fn the_address_of_a_block_of_segment_0_is_its_number() {
        for number in [0, 7, LAST] {
            let addr = BlockAddr::new(0, number);
            assert_eq!(
                (addr.word(), addr.number(), addr.segment()),
                (number, number, 0)
            );
            assert_eq!(BlockAddr::parse(number, 1), Ok(addr));
            assert_eq!(addr.offset(), number * BLOCK);
        }
    }

    #[test]
    fn another_segment_is_told_apart_and_refused_by_name() {
        let other = BlockAddr::new(3, 7);
        assert_eq!((other.segment(), other.number()), (3, 7));
        assert_eq!(other.offset(), BlockAddr::new(0, 7).offset());
        assert!(other > BlockAddr::new(0, LAST));
        let refused = |word, len| BlockAddr::parse(word, len).unwrap_err().what;
        assert!(refused(other.word(), 1).contains("segment that does not exist"));
        assert!(refused(BlockAddr::new(255, LAST).word(), 1).contains("does not exist"));
        // The first block is there, the second one is not.
        assert!(BlockAddr::parse(LAST, 1).is_ok());
        assert!(refused(LAST, 2).contains("segment that does not exist"));
        for word in [1 << ADDR_BITS, 1 << 63, u64::MAX] {
            assert!(refused(word, 1).contains("unknown form"));
        }
        assert!(refused((1 << ADDR_BITS) - 1, 2).contains("unknown form"));
    }

    #[test]
    fn only_blocks_of_segment_0_are_within_it() {
        assert!(BlockAddr::new(0, 9).is_within(1, 10) && !BlockAddr::new(0, 9).is_within(2, 10));
        assert!(!BlockAddr::new(1, 0).is_within(1, LAST));
        assert!(!BlockAddr::from_word(u64::MAX).is_within(2, u64::MAX));
        assert_eq!(BlockAddr::from_word(u64::MAX - 1).end(7).word(), u64::MAX);
    }
}
