//! CRC-32C with the processor's own instruction.
//!
//! Invariants: uses general registers only, because hooks inside a program may not touch its
//! wide vector registers (the published crates choose AVX-512 or need std); `update` over pieces
//! equals one `update` over their concatenation.

use core::arch::x86_64::{__cpuid, _mm_crc32_u8, _mm_crc32_u64};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// 0 not asked yet, 1 the processor lacks SSE4.2, 2 it has it.
static SSE42: AtomicU8 = AtomicU8::new(0);

fn has_sse42() -> bool {
    match SSE42.load(Relaxed) {
        0 => {
            let yes = __cpuid(1).ecx & (1 << 20) != 0;
            SSE42.store(1 + u8::from(yes), Relaxed);
            yes
        }
        known => known == 2,
    }
}

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

#[target_feature(enable = "sse4.2")]
fn update_sse42(crc: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut crc = u64::from(crc);
    for word in words {
        crc = _mm_crc32_u64(crc, u64::from_le_bytes(*word));
    }
    rest.iter().fold(crc as u32, |crc, b| _mm_crc32_u8(crc, *b))
}

/// Continues a checksum over more bytes. Start with `!0` and invert the end result.
pub fn update(crc: u32, bytes: &[u8]) -> u32 {
    if has_sse42() {
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
    fn pieces_equal_the_whole() {
        let bytes: [u8; 100] = core::array::from_fn(|i| (i * 37) as u8);
        for cut in 0..100 {
            let crc = update(update(!0, &bytes[..cut]), &bytes[cut..]);
            assert_eq!(crc, update_table(!0, &bytes));
        }
    }
}
