//! Values of a snapshot, opened as files: an entry of the inode table stands for each.

use crate::base::error::{Error, Result};
use crate::base::trees::TreeInode;
use crate::session::Session;
use crate::tables::dentry_table::Found;
use crate::tables::frozen::Place;
use crate::tables::inode_table::{self, InodeRef};
use crate::values::files::{self, Meta};
use pool::layout::value::{NUMBERS, number};

/// Inode numbers that are tried: another key, or a file that was a value once, may have the first.
const TRIES: u64 = 8;

/// What the value of `name`, of which `meta` is known, is as a file; `None`: there is none.
#[cold]
pub(crate) fn open(
    s: &Session,
    dir: &InodeRef<'_>,
    name: &[u8],
    meta: &Meta,
) -> Result<Option<Found>> {
    let Some(place) = Place::find(s, dir.ino, name)? else {
        return Ok(None);
    };
    let shown = files::attributes(&inode_table::attrs(s, dir)?, name, meta);
    let value = TreeInode {
        mode: shown.mode,
        uid: shown.uid,
        gid: shown.gid,
        nlink: shown.nlink,
        size: shown.size,
        blocks: shown.blocks,
        atime: shown.atime,
        mtime: shown.mtime,
        ctime: shown.ctime,
        btime: shown.btime,
        parent: place.keyspace,
        entries: place.pack(),
        inline: shown.blocks == 0 && shown.size > 0,
        ..TreeInode::default()
    };
    let first = number(dir.ino, name);
    for ino in (first..2 * NUMBERS).take(TRIES as usize) {
        let inode = inode_table::get_or(s, ino, || Ok(value))?;
        if Place::of(s, ino, inode.e) == Some(place) {
            let (kind, inode) = (files::KIND_FILE, inode.link);
            return Ok(Some(Found { ino, kind, inode }));
        }
    }
    Err(Error::Busy)
}
