//! One page of a space bitmap: 32,256 bits, kept twice on the medium.
//!
//! What always holds here: a decoded page carried the right magic, checksum and index. Which of
//! the two copies is in force is decided by `space`: the highest seq that a superblock covers.

use super::{PAGE, array_at, put_at, u32_at, u64_at};
use crate::checksum::crc32c;
use alloc::boxed::Box;

/// "HFB1".
const MAGIC: u32 = u32::from_le_bytes(*b"HFB1");
const AT_CRC: usize = 4;
const AT_INDEX: usize = 8;
const AT_SEQ: usize = 16;
const AT_BITS: usize = 64;
/// 64-bit words of bits in one page.
pub const WORDS_PER_PAGE: usize = (PAGE - AT_BITS) / 8;
/// Bits in one page.
pub const BITS_PER_PAGE: u64 = WORDS_PER_PAGE as u64 * 64;

/// A checked bitmap page.
pub struct BitmapPage {
    pub seq: u64,
    pub words: Box<[u64; WORDS_PER_PAGE]>,
}

/// The page with bits `words` (zeroes when there are fewer), as written by commit `seq`.
/// `index` names the page: space in the top byte, place in its bitmap below.
pub fn encode(index: u64, seq: u64, words: &[u64], out: &mut [u8; PAGE]) {
    out.fill(0);
    put_at(out, 0, &MAGIC.to_le_bytes());
    put_at(out, AT_INDEX, &index.to_le_bytes());
    put_at(out, AT_SEQ, &seq.to_le_bytes());
    for (slot, word) in out[AT_BITS..].chunks_exact_mut(8).zip(words) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    let crc = crc32c(&out[AT_INDEX..]);
    put_at(out, AT_CRC, &crc.to_le_bytes());
}

/// The page, if it is the bitmap page `index`.
pub fn decode(index: u64, page: &[u8; PAGE]) -> Option<BitmapPage> {
    let named = u32_at(page, 0) == MAGIC && u64_at(page, AT_INDEX) == index;
    if !named || u32_at(page, AT_CRC) != crc32c(&page[AT_INDEX..]) {
        return None;
    }
    let mut words = Box::new([0; WORDS_PER_PAGE]);
    for (i, word) in words.iter_mut().enumerate() {
        *word = u64::from_le_bytes(array_at(page, AT_BITS + 8 * i));
    }
    Some(BitmapPage {
        seq: u64_at(page, AT_SEQ),
        words,
    })
}

/// The seq that a page claims, checked or not: what a crash left there may be anything.
pub fn claimed_seq(page: &[u8; PAGE]) -> u64 {
    u64_at(page, AT_SEQ)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_and_rejects_every_flipped_bit() {
        let words: alloc::vec::Vec<u64> = (0..WORDS_PER_PAGE as u64).map(|i| i * 77).collect();
        let mut page = [0; PAGE];
        encode(1 << 56 | 5, 9, &words, &mut page);
        let back = decode(1 << 56 | 5, &page).unwrap();
        assert_eq!((back.seq, &back.words[..]), (9, &words[..]));
        assert!(decode(5, &page).is_none());
        for bit in (0..PAGE * 8).step_by(13) {
            page[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(1 << 56 | 5, &page).is_none(), "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
