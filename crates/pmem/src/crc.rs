//! CRC-32C with the processor's own instruction.
//!
//! Invariants: it uses general registers only, because hooks inside a program may not touch its
//! wide vector registers (the published crates choose AVX-512 or need std); `update` over pieces
//! equals one `update` over their concatenation.

use crate::cpu;
use core::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};

/// The reflected polynomial of CRC-32C (Castagnoli).
const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ POLYNOMIAL
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

fn update_table(crc: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(crc, |crc, b| {
        (crc >> 8) ^ TABLE[((crc ^ u32::from(*b)) & 0xff) as usize]
    })
}

/// Bytes of each of three streams that are summed at once: the instruction takes three cycles
/// but one can start in each. A tree node is three long streams and a little; a record that is
/// not tiny is some short ones.
const LONG: usize = 1360;
const SHORT: usize = 168;

/// A table that continues a checksum over zero bytes, for each byte of the checksum.
type Zeros = [[u32; 256]; 4];

/// The `Zeros` of `len` bytes. The step is linear, so the powers of two say all.
const fn zeros(len: usize) -> Zeros {
    let mut out = [[0; 256]; 4];
    let mut bit = 0;
    while bit < 32 {
        let mut crc = 1u32 << bit;
        let mut i = 0;
        while i < len {
            crc = (crc >> 8) ^ TABLE[(crc & 0xff) as usize];
            i += 1;
        }
        let mut n = 0;
        while n < 256 {
            if n >> (bit % 8) & 1 == 1 {
                out[bit / 8][n] ^= crc;
            }
            n += 1;
        }
        bit += 1;
    }
    out
}

static LONG_ZEROS: Zeros = zeros(LONG);
static SHORT_ZEROS: Zeros = zeros(SHORT);

#[inline]
fn over_zeros(zeros: &Zeros, crc: u64) -> u64 {
    let bytes = (crc as u32).to_le_bytes();
    let sum = zeros
        .iter()
        .zip(bytes)
        .map(|(table, b)| table[usize::from(b)]);
    u64::from(sum.fold(0, |all, part| all ^ part))
}

/// Sums whole groups of three streams of `LEN` bytes; returns what is left.
#[target_feature(enable = "sse4.2")]
fn three_streams<'a, const LEN: usize>(
    crc: &mut u64,
    zeros: &Zeros,
    mut bytes: &'a [u8],
) -> &'a [u8] {
    while let Some((group, rest)) = bytes.split_at_checked(3 * LEN) {
        let (first, others) = group.split_at(LEN);
        let (second, third) = others.split_at(LEN);
        let (mut a, mut b, mut c) = (*crc, 0, 0);
        let seconds = second
            .as_chunks::<8>()
            .0
            .iter()
            .zip(third.as_chunks::<8>().0);
        for (x, (y, z)) in first.as_chunks::<8>().0.iter().zip(seconds) {
            a = _mm_crc32_u64(a, u64::from_le_bytes(*x));
            b = _mm_crc32_u64(b, u64::from_le_bytes(*y));
            c = _mm_crc32_u64(c, u64::from_le_bytes(*z));
        }
        *crc = over_zeros(zeros, over_zeros(zeros, a) ^ b) ^ c;
        bytes = rest;
    }
    bytes
}

#[target_feature(enable = "sse4.2")]
fn update_sse42(crc: u32, bytes: &[u8]) -> u32 {
    let mut crc = u64::from(crc);
    let bytes = three_streams::<LONG>(&mut crc, &LONG_ZEROS, bytes);
    let bytes = three_streams::<SHORT>(&mut crc, &SHORT_ZEROS, bytes);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        crc = _mm_crc32_u64(crc, u64::from_le_bytes(*word));
    }
    rest.iter().fold(crc as u32, |crc, b| _mm_crc32_u8(crc, *b))
}

/// Continues a checksum over more bytes. Start with `!0` and invert the end result.
pub fn update(crc: u32, bytes: &[u8]) -> u32 {
    if cpu::has(cpu::SSE42) {
        // SAFETY: the processor has SSE4.2, the only requirement of the function.
        unsafe { update_sse42(crc, bytes) }
    } else {
        update_table(crc, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_check_value() {
        assert_eq!(!update(!0, b"123456789"), 0xe306_9283);
        assert_eq!(!update_table(!0, b"123456789"), 0xe306_9283);
    }

    #[test]
    fn every_length_agrees_with_the_table() {
        let bytes: std::vec::Vec<u8> = (0..9000u32).map(|i| ((i * i) >> 3) as u8).collect();
        for len in (0..1100).chain(4000..4200).chain([8160, 8191, 9000]) {
            let bytes = &bytes[..len];
            assert_eq!(update(!0, bytes), update_table(!0, bytes), "{len}");
        }
    }

    #[test]
    fn pieces_equal_the_whole() {
        let bytes: [u8; 100] = core::array::from_fn(|i| (i * 37) as u8);
        for cut in 0..100 {
            let crc = update(update(!0, &bytes[..cut]), &bytes[cut..]);
            assert_eq!(crc, update_table(!0, &bytes));
        }
    }
}
