//! An open-file description and its inode, checked for the present use.
//!
//! Invariant: an open description pins its inode entry, so the entry belongs to the same inode as
//! long as the description is referred to.

use crate::base::abi::*;
use crate::base::error::{Error, Result};
use crate::content::perm;
use crate::session::{OfdLink, Session};
use crate::tables::inode_table::InodeRef;
use pmem::atomic::Ordering::Relaxed;
use pool::session::Ofd;

/// A description in use.
#[derive(Clone, Copy)]
pub(crate) struct File<'s> {
    pub s: &'s Session,
    pub ofd: &'s Ofd,
    pub inode: InodeRef<'s>,
    /// Flags of open(2) as of now.
    pub flags: u32,
}

impl<'s> File<'s> {
    /// Any description, also one that was opened with O_PATH.
    #[inline]
    pub fn any(s: &'s Session, ofd: OfdLink) -> Result<File<'s>> {
        s.check()?;
        let ofd = s.ofd(ofd.raw())?;
        let link = ofd.inode.load(Relaxed);
        let inode = InodeRef {
            link,
            ino: ofd.ino.load(Relaxed),
            e: s.inode(link)?,
        };
        Ok(File {
            s,
            ofd,
            inode,
            flags: ofd.flags.load(Relaxed),
        })
    }

    /// `BadDescriptor` if it was opened with O_PATH.
    #[inline]
    pub fn usable(s: &'s Session, ofd: OfdLink) -> Result<File<'s>> {
        let file = File::any(s, ofd)?;
        if file.flags & O_PATH != 0 {
            Err(Error::BadDescriptor)
        } else {
            Ok(file)
        }
    }

    /// Open for reading.
    #[inline]
    pub fn readable(s: &'s Session, ofd: OfdLink) -> Result<File<'s>> {
        let file = File::usable(s, ofd)?;
        match file.flags & O_ACCMODE {
            O_RDONLY | O_RDWR => Ok(file),
            _ => Err(Error::BadDescriptor),
        }
    }

    /// Open for writing.
    #[inline]
    pub fn writable(s: &'s Session, ofd: OfdLink) -> Result<File<'s>> {
        let file = File::usable(s, ofd)?;
        match file.flags & O_ACCMODE {
            O_WRONLY | O_RDWR => Ok(file),
            _ => Err(Error::BadDescriptor),
        }
    }

    /// The file type bits of the mode, which never change.
    #[inline]
    pub fn kind(&self) -> u32 {
        perm::file_type(self.inode.e.mode.load(Relaxed))
    }

    /// Reads and writes need a regular file.
    #[inline]
    pub fn check_regular(&self) -> Result<()> {
        match self.kind() {
            S_IFREG => Ok(()),
            S_IFDIR => Err(Error::IsDirectory),
            _ => Err(Error::Invalid),
        }
    }

    /// What preadv2(2) and pwritev2(2) look at, in their order, before they move `len` bytes;
    /// false: there is nothing to move.
    pub fn takes_vectors(&self, len: usize, offset: Option<u64>, rwf: u32) -> Result<bool> {
        if len == 0 {
            return Ok(false);
        }
        let end = offset.map_or(0, |at| at.saturating_add(len as u64));
        if end > i64::MAX as u64 {
            return Err(Error::Invalid);
        }
        let known = match self.kind() {
            S_IFREG => RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND | RWF_NOAPPEND,
            _ => RWF_HIPRI,
        };
        match rwf & !known {
            0 => Ok(true),
            _ => Err(Error::NotSupported),
        }
    }

    /// O_DIRECT wants everything in multiples of 512.
    #[inline]
    pub fn check_direct(&self, offset: u64, addr: usize, len: usize) -> Result<()> {
        let direct = self.flags & O_DIRECT != 0;
        if direct && !(offset as usize | addr | len).is_multiple_of(DIRECT_ALIGN) {
            return Err(Error::Invalid);
        }
        Ok(())
    }
}

const DIRECT_ALIGN: usize = 512;

/// A file offset that a caller gave: `Invalid` if negative.
#[inline]
pub(crate) fn offset(given: i64) -> Result<u64> {
    u64::try_from(given).map_err(|_| Error::Invalid)
}
