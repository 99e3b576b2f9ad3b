//! CRC-32C as used by every node, record and superblock.
//!
//! Invariant: `Crc` over pieces equals `crc32c` over their concatenation.

use holdfast_pmem::crc;

/// CRC-32C (Castagnoli) of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !crc::update(!0, bytes)
}

/// CRC-32C of pieces.
pub struct Crc(u32);

impl Crc {
    /// Of nothing so far.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Crc(!0)
    }

    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0 = crc::update(self.0, bytes);
    }

    /// The checksum of all pieces.
    pub fn finish(&self) -> u32 {
        !self.0
    }
}
