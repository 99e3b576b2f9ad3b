//! What is known about each object.
//!
//! Invariant: sorted by inode number.

use alloc::vec::Vec;

/// An object: what its inode says, and what was found elsewhere.
#[derive(Clone, Default)]
pub(super) struct Fact {
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub parent: u64,
    pub entries: u64,
    /// Hash of the own name of a directory.
    pub tail_hash: u64,
    pub tail_len: u16,
    pub mode: u16,
    pub nlink: u32,
    pub flags: u32,
    /// Names found.
    pub names: u32,
    /// Directory of the first name found, 0 if there is none.
    pub dir: u64,
    /// Subdirectories found.
    pub subdirs: u32,
    /// Attributes found.
    pub xattrs: u32,
    /// Names found in it.
    pub entries_found: u64,
    /// Blocks found in its extents.
    pub blocks_found: u64,
    pub orphan: bool,
    /// An extent covers file block 0.
    pub maps_block_0: bool,
    /// The length of a symlink's target that was found in XATTRS.
    pub target_found: Option<u32>,
    /// Whether it is below the root, once that is known.
    pub rooted: Option<bool>,
}

impl Fact {
    pub fn is_dir(&self) -> bool {
        self.mode >> 12 == 0o4
    }

    pub fn is_file(&self) -> bool {
        self.mode >> 12 == 0o10
    }
}

#[derive(Default)]
pub(super) struct Facts {
    pub all: Vec<Fact>,
    /// Entries of the index of expiry.
    pub indexed: usize,
}

impl Facts {
    pub fn get(&self, ino: u64) -> Option<&Fact> {
        let at = self.all.binary_search_by_key(&ino, |f| f.ino).ok()?;
        self.all.get(at)
    }

    pub fn get_mut(&mut self, ino: u64) -> Option<&mut Fact> {
        let at = self.all.binary_search_by_key(&ino, |f| f.ino).ok()?;
        self.all.get_mut(at)
    }
}
