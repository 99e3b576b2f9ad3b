//! What the client needs to know from the committed trees.
//!
//! Invariant: answers are checked copies. They may be older than what the tables of session
//! memory say, so a caller that caches an answer holds the lock of the object and has seen that
//! no table knows better.

use crate::error::Result;
use alloc::vec::Vec;

/// An inode as the trees have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeInode {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub size: u64,
    pub blocks: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub btime: i64,
    pub rdev: u64,
    /// Directories: the parent.
    pub parent: u64,
    /// Directories: number of names.
    pub entries: u64,
    /// The content is in the record.
    pub inline: bool,
    /// The object has extended attributes.
    pub xattrs: bool,
    /// It has no name and waits for its last close.
    pub orphan: bool,
}

/// A name as the trees have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeDirent {
    pub ino: u64,
    /// d_type of dirent(5).
    pub kind: u8,
}

/// File blocks as the trees have them, from the block asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// This many blocks have no storage.
    Hole(u64),
    /// This many blocks lie here in a row.
    Blocks { block: u64, len: u64 },
}

/// The committed trees, read without locks.
pub trait Trees {
    /// The inode `ino`.
    fn inode(&self, ino: u64) -> Result<Option<TreeInode>>;
    /// Target of a symlink, content of an inline file, or name of a directory.
    fn tail(&self, ino: u64) -> Result<Option<Vec<u8>>>;
    /// The name `name` in directory `dir`.
    fn dirent(&self, dir: u64, name: &[u8]) -> Result<Option<TreeDirent>>;
    /// The first name of `dir` with a cookie of at least `from`: cookie, entry, name.
    fn next_dirent(&self, dir: u64, from: u64) -> Result<Option<(u64, TreeDirent, Vec<u8>)>>;
    /// Where file block `file_block` is and how many follow in the same way.
    fn extent(&self, ino: u64, file_block: u64) -> Result<Run>;
    /// Value of an extended attribute.
    fn xattr(&self, ino: u64, name: &[u8]) -> Result<Option<Vec<u8>>>;
    /// Names of all extended attributes, each with a NUL, in order.
    fn xattr_names(&self, ino: u64) -> Result<Vec<u8>>;
}
