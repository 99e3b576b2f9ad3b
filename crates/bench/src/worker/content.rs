//! What is written and how it is recognised.
//!
//! Invariants: content is random (nothing can compress or skip it) and can be computed again from
//! its place, so that every read can be checked.

use std::io;

/// Bytes that one seed gives.
pub const UNIT: usize = 512;
/// Longest buffer.
pub const BLOCK: usize = 4096;
const BUFFERS: usize = 256;

/// A small generator; the same seed gives the same numbers.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        // Spreads neighbouring seeds (the finaliser of SplitMix64).
        let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Random((z ^ (z >> 31)) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Fills `bytes`, a whole number of units, as a file holds them from unit `first` on.
pub fn fill(first: u64, bytes: &mut [u8]) {
    for (i, unit) in bytes.chunks_mut(UNIT).enumerate() {
        let mut random = Random::new(first + i as u64);
        for word in unit.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
    }
}

/// Whether `got` is what `fill` makes of its place.
pub fn check(first: u64, got: &[u8]) -> io::Result<()> {
    let mut want = vec![0; got.len()];
    fill(first, &mut want);
    same(&want, got, first * UNIT as u64)
}

/// Whether both are the same; `at` is where they lie in the file.
pub fn same(want: &[u8], got: &[u8], at: u64) -> io::Result<()> {
    match want.iter().zip(got).position(|(a, b)| a != b) {
        None if want.len() == got.len() => Ok(()),
        None => Err(io::Error::other(format!("short content at byte {at}"))),
        Some(i) => Err(io::Error::other(format!(
            "wrong content at byte {}",
            at + i as u64
        ))),
    }
}

/// Buffers to write from; together they stay in the second-level cache.
pub struct Buffers(Vec<u8>);

impl Buffers {
    pub fn new(seed: u64) -> Buffers {
        let mut bytes = vec![0; BUFFERS * BLOCK];
        fill(seed << 32, &mut bytes);
        Buffers(bytes)
    }

    /// The content of the `i`th write.
    pub fn nth(&self, i: usize, size: usize) -> &[u8] {
        let start = (i % BUFFERS) * BLOCK;
        &self.0[start..start + size.min(BLOCK)]
    }
}

/// Offsets in random order: multiples of `size` below `len`.
pub fn offsets(seed: u64, len: u64, size: usize, n: usize) -> Vec<u64> {
    let mut random = Random::new(seed);
    let slots = (len / size as u64) as usize;
    (0..n)
        .map(|_| random.below(slots) as u64 * size as u64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_content_is_found_where_it_is() {
        let mut bytes = vec![0; 2048];
        fill(3, &mut bytes);
        assert!(check(3, &bytes).is_ok());
        assert!(check(4, &bytes).is_err());
        bytes[1500] ^= 1;
        let error = check(3, &bytes).unwrap_err().to_string();
        assert!(error.ends_with(&(3 * 512 + 1500).to_string()), "{error}");
        assert!(same(&[1, 2], &[1], 0).is_err());
    }

    #[test]
    fn offsets_lie_in_the_file() {
        let all = offsets(1, 1 << 20, 4096, 1000);
        assert!(all.iter().all(|at| at % 4096 == 0 && *at < 1 << 20));
        assert!(all.windows(2).any(|w| w[0] > w[1]));
        let buffers = Buffers::new(1);
        assert_ne!(buffers.nth(0, 512), buffers.nth(1, 512));
        assert_eq!(buffers.nth(0, 512), buffers.nth(256, 512));
    }
}
