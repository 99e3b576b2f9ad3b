//! Cached inodes.

use crate::error::{Error, Result};
use crate::lock::Guard;
use crate::session::Session;
use core::ops::Deref;
use pool::session::Inode;

/// A copy of an inode's attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attrs {
    pub ino: u64,
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
    pub parent: u64,
    pub entries: u64,
    /// `INODE_*` bits.
    pub state: u32,
}

/// Where an inode is cached. Unless it is pinned or locked the entry may become another inode's
/// at any time: everything that uses it re-checks `ino`.
#[derive(Clone, Copy)]
pub struct InodeRef<'s> {
    /// Index + 1 of the entry.
    pub link: u32,
    /// Which inode.
    pub ino: u64,
    /// The entry.
    pub e: &'s Inode,
}

/// A locked inode: nobody else changes or evicts it.
pub struct LockedInode<'s> {
    inode: InodeRef<'s>,
    _guard: Guard<'s>,
}

impl<'s> Deref for LockedInode<'s> {
    type Target = InodeRef<'s>;

    #[inline]
    fn deref(&self) -> &InodeRef<'s> {
        &self.inode
    }
}

/// The entry of `ino` if it is cached.
pub fn find(_s: &Session, _ino: u64) -> Option<InodeRef<'_>> {
    None
}

/// The entry at `link` if it still holds `ino`.
pub fn by_link(_s: &Session, _link: u32, _ino: u64) -> Option<InodeRef<'_>> {
    None
}

/// The entry of `ino`, loaded from the trees if need be. `NotFound` if there is none.
pub fn get(_s: &Session, _ino: u64) -> Result<InodeRef<'_>> {
    Err(Error::NotImplemented)
}

/// A consistent copy of the attributes. `Stale`: the entry is another inode's now, `get` again.
pub fn attrs(_s: &Session, _inode: &InodeRef<'_>) -> Result<Attrs> {
    Err(Error::NotImplemented)
}

/// Locks `ino`, loading it if need be. `NotFound`: the object is gone.
pub fn lock(_s: &Session, _ino: u64) -> Result<LockedInode<'_>> {
    Err(Error::NotImplemented)
}

/// As `lock` from a reference at hand, pinned or not.
pub fn lock_ref<'s>(_s: &'s Session, _inode: InodeRef<'s>) -> Result<LockedInode<'s>> {
    Err(Error::NotImplemented)
}

/// Locks several inodes in the order that avoids deadlock (ascending numbers). 0 and repeated
/// numbers give `None`.
pub fn lock_many<const N: usize>(
    _s: &Session,
    _inos: [u64; N],
) -> Result<[Option<LockedInode<'_>>; N]> {
    Err(Error::NotImplemented)
}

/// Keeps the entry of `ino` in memory (`opens` + 1). `NotFound`: its last name went.
pub fn pin(_s: &Session, _ino: u64) -> Result<InodeRef<'_>> {
    Err(Error::NotImplemented)
}

/// As `pin` from a reference at hand; `Stale`: the entry is another inode's now.
pub fn pin_ref(_s: &Session, _inode: &InodeRef<'_>) -> Result<()> {
    Err(Error::NotImplemented)
}

/// Target of a symlink; its length.
pub fn symlink_target(_s: &Session, _inode: &InodeRef<'_>, _out: &mut [u8]) -> Result<usize> {
    Err(Error::NotImplemented)
}

/// The name of a directory in its parent; its length. Waits for the service when it is new.
pub fn dir_name(_s: &Session, _inode: &InodeRef<'_>, _out: &mut [u8]) -> Result<usize> {
    Err(Error::NotImplemented)
}

/// Content of an inline file that is in no block; its length.
pub fn inline_data(_s: &Session, _inode: &InodeRef<'_>, _out: &mut [u8; 512]) -> Result<usize> {
    Err(Error::NotImplemented)
}

/// Gives the blocks that shadow inline data of unused files back to `space`.
pub fn drop_shadows(_s: &Session) {}

/// A number for a new inode.
pub fn new_ino(s: &Session) -> u64 {
    s.header()
        .next_ino
        .fetch_add(1, core::sync::atomic::Ordering::Relaxed)
}
