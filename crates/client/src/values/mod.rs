//! Values: finding them, where their bytes are, and values as files of their keyspace's directory.

pub(crate) mod blocks;
pub(crate) mod files;
pub(crate) mod get;
pub(crate) mod opened;
pub(crate) mod view;

use crate::session::Session;
use crate::tables::inode_table::{self, InodeRef};

/// The longest value of one put.
pub(crate) const VALUE_MAX: u64 = 64 << 20;

/// A keyspace by its directory's inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Keyspace {
    pub(crate) ino: u64,
    /// Where its inode's entry was seen; for who is served, how the proxy names it.
    pub(crate) link: u32,
}

impl Keyspace {
    /// The inode number of its directory.
    pub fn ino(self) -> u64 {
        self.ino
    }

    pub(crate) fn new(ino: u64, link: u32) -> Keyspace {
        Keyspace { ino, link }
    }

    /// The entry of its directory, if it is in memory.
    #[inline]
    pub(crate) fn entry(self, s: &Session) -> Option<InodeRef<'_>> {
        inode_table::by_link(s, self.link, self.ino).or_else(|| inode_table::find(s, self.ino))
    }
}
