//! Attributes as stat(2) shows them.
//!
//! Invariant: one consistent copy of one object.

use crate::base::error::Result;
use crate::base::types::{Base, Caller, Stat};
use crate::content::perm;
use crate::ops::client::Client;
use crate::ops::path::Walk;
use crate::session::OfdLink;
use crate::tables::inode_table::{self, Attrs};
use crate::values::opened;
use pool::session::{INODE_INLINE, INODE_VALUE};

const BLOCK_SIZE: u32 = 4096;
/// stat(2) counts blocks of 512 bytes.
const SECTORS_PER_BLOCK: u64 = 8;

pub(crate) fn stat(c: &Client, who: &Caller, base: Base, path: &[u8], flags: u32) -> Result<Stat> {
    if path.is_empty()
        && flags & crate::base::abi::AT_EMPTY_PATH != 0
        && let Base::Ofd(ofd) = base
    {
        return fstat(c, ofd);
    }
    let walk = Walk::new(&c.session, &c.at, who);
    Ok(from_attributes(&walk.attributes(base, path, flags)?))
}

pub(crate) fn fstat(c: &Client, ofd: OfdLink) -> Result<Stat> {
    let s = &c.session;
    let file = crate::content::file::File::any(s, ofd)?;
    let mut a = inode_table::attrs(s, &file.inode)?;
    if a.state & INODE_VALUE != 0 && !opened::is_current(s, &file.inode)? {
        a.nlink = 0;
    }
    Ok(from_attributes(&a))
}

pub(crate) fn from_attributes(a: &Attrs) -> Stat {
    // Inline data takes no block, but zero would make programs take it for a hole.
    let inline = a.state & INODE_INLINE != 0 && a.size > 0;
    let blocks = if inline { a.blocks.max(1) } else { a.blocks };
    Stat {
        ino: a.ino,
        mode: a.mode,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        size: if perm::is_dir(a) {
            directory_size(a)
        } else {
            a.size
        },
        block_size: BLOCK_SIZE,
        blocks: blocks * SECTORS_PER_BLOCK,
        atime: a.atime,
        mtime: a.mtime,
        ctime: a.ctime,
        btime: a.btime,
    }
}

/// As on tmpfs: 20 bytes for each entry and for `.` and `..`.
fn directory_size(a: &Attrs) -> u64 {
    const ENTRY: u64 = 20;
    a.entries.saturating_add(2).saturating_mul(ENTRY)
}
