//! Keys and values of the trees that hold files: inodes, names, extents, attributes, orphans.
//!
//! Invariants:
//!  * Keys are big-endian, so that their byte order is the order of their numbers; fields of
//!    values are little-endian.
//!  * `decode` accepts exactly what `encode` makes, never panics, and borrows from a private copy.
//!  * Nothing here knows how trees are stored: finders work on anything that is `ReadTrees`.
//!
//! `docs/spec/objects.md` states every field.

pub mod block;
pub mod dirent;
pub mod extent;
pub(crate) mod fields;
pub mod inode;
pub mod value;
pub mod xattr;

pub use block::BlockAddr;
pub use inode::InodeRecord;

/// Number of a tree in the forest.
pub type TreeId = u8;
/// Inode number -> `InodeRecord`.
pub const INODES: TreeId = 0;
/// Directory and cookie -> `Dirent`.
pub const DIRENTS: TreeId = 1;
/// Inode number and file block -> `Extent`.
pub const EXTENTS: TreeId = 2;
/// Inode number, attribute name and chunk -> piece of the attribute's value.
pub const XATTRS: TreeId = 3;
/// Inode number of an object without a name that was open when its last name went -> nothing.
pub const ORPHANS: TreeId = 4;
/// Name of a snapshot -> its roots (`crate::snapshot`). Not part of snapshots.
pub const SNAPSHOTS: TreeId = 6;
/// Subtrees that were cut out of other trees and are not freed yet (`crate::reclaim`). Not part of
/// snapshots.
pub const RECLAIM: TreeId = 7;
/// How far a restore has come; only a pool that is not complete has it. Not part of snapshots.
pub const RESTORE: TreeId = 15;
/// Keyspace and user's key -> value, or the blocks where it is.
pub const VALUES: TreeId = 5;

/// Inode number of the root directory.
pub const ROOT_INO: u64 = 1;
/// No name is longer.
pub const NAME_MAX: usize = 255;
/// No symlink target is longer.
pub const TARGET_MAX: usize = 4095;
/// No attribute value is longer.
pub const XATTR_VALUE_MAX: usize = 8 * 1024;
/// No object has more attributes.
pub const XATTRS_MAX: usize = 256;
/// No more names for one object that is not a directory.
pub const LINK_MAX: u32 = 65_000;
/// No file has more bytes.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// Bytes of a block.
pub const BLOCK: u64 = 4096;
/// Blocks of the largest file.
pub const FILE_BLOCKS_MAX: u64 = FILE_SIZE_MAX / BLOCK + 1;
/// Files of at most this many bytes may be kept in their inode.
pub const INLINE_MAX: usize = 512;

/// Bytes that are not a key or value of the tree in which they were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadValue {
    /// What is wrong, as the end of a sentence.
    pub what: &'static str,
}

impl core::fmt::Display for BadValue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.what)
    }
}

pub(crate) const fn bad<T>(what: &'static str) -> Result<T, BadValue> {
    Err(BadValue { what })
}

/// Something that finds entries of trees: committed trees under a running writer, or the writer's
/// own batch. Keys and values are copied out; one that does not fit its buffer is damage, and the
/// implementation says so.
pub trait ReadTrees {
    /// Says that a tree could not be read or holds a bad value.
    type Error: From<BadValue>;

    /// The pool's seed of `dirent::name_hash`; see `name_seed`.
    fn name_seed(&self) -> Result<u64, Self::Error>;

    /// Copies the value of `key` to the start of `value` and says how long it is.
    fn get(&self, tree: TreeId, key: &[u8], value: &mut [u8])
    -> Result<Option<usize>, Self::Error>;

    /// The entry with the lowest key at or after `from`: lengths of key and value.
    fn at_or_after(
        &self,
        tree: TreeId,
        from: &[u8],
        key: &mut [u8],
        value: &mut [u8],
    ) -> Result<Option<(usize, usize)>, Self::Error>;

    /// The entry with the highest key at or before `to`: lengths of key and value.
    fn at_or_before(
        &self,
        tree: TreeId,
        to: &[u8],
        key: &mut [u8],
        value: &mut [u8],
    ) -> Result<Option<(usize, usize)>, Self::Error>;
}

/// The seed of the hashes of names in the pool with this uuid: who only chooses names cannot make
/// them collide.
pub fn name_seed(uuid: [u8; 16]) -> u64 {
    let both = u128::from_le_bytes(uuid);
    both as u64 ^ (both >> 64) as u64
}

/// Key in `INODES` and `ORPHANS`, and the start of the keys of everything that belongs to `ino`.
pub fn ino_key(ino: u64) -> [u8; 8] {
    ino.to_be_bytes()
}

/// The inode number of a key of `INODES` or `ORPHANS`.
pub fn parse_ino_key(key: &[u8]) -> Result<u64, BadValue> {
    match key.try_into() {
        Ok(bytes) => Ok(u64::from_be_bytes(bytes)),
        Err(_) => bad("an inode key is not 8 bytes long"),
    }
}

/// Key made of two numbers: directory and cookie, or file and file block.
pub(crate) fn pair_key(first: u64, second: u64) -> [u8; 16] {
    ((u128::from(first) << 64) | u128::from(second)).to_be_bytes()
}

/// The two numbers of a `pair_key`.
pub(crate) fn parse_pair_key(key: &[u8]) -> Result<(u64, u64), BadValue> {
    match <[u8; 16]>::try_from(key) {
        Ok(bytes) => {
            let both = u128::from_be_bytes(bytes);
            Ok(((both >> 64) as u64, both as u64))
        }
        Err(_) => bad("a key of a directory entry or extent is not 16 bytes long"),
    }
}

/// Whether `name` can be the name of a directory entry.
pub fn is_legal_name(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && name != b"."
        && name != b".."
        && !name.iter().any(|b| matches!(b, 0 | b'/'))
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
