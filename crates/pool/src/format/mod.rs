//! Codecs of everything in `meta.seg` (see `docs/spec/format.md`).
//!
//! What always holds here: decoding reads a private copy, never shared memory; a decoded value
//! has been checked so far that no accessor can panic; numbers are little-endian.

pub mod appends;
pub mod bitmap;
pub mod geometry;
pub mod links;
pub mod live;
pub mod node;
pub mod superblock;

/// Bytes in a page of `meta.seg` and in a block of a data segment.
pub const PAGE: usize = 4096;
/// `PAGE` as an offset.
pub const PAGE_LEN: u64 = PAGE as u64;
/// Bits of `PAGE`: page number to byte offset.
pub const PAGE_SHIFT: u32 = 12;
/// Trees that a superblock can name.
pub const TREES: usize = 16;
/// Journal lanes that a superblock can name.
pub const LANES: usize = 16;

/// `N` bytes at `at`; zeroes where `bytes` is too short.
pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    if let Some(from) = bytes.get(at..at + N) {
        out.copy_from_slice(from);
    }
    out
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

/// Writes `from` at `at`, where `bytes` must have room.
pub(crate) fn put_at(bytes: &mut [u8], at: usize, from: &[u8]) {
    bytes[at..at + from.len()].copy_from_slice(from);
}
