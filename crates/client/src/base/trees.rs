//! What the client asks of the committed trees.
//!
//! Invariant: answers are checked copies. They may be older than the tables of session memory, so a
//! caller that caches an answer holds the lock of the object and has checked that no table has
//! something newer.

use crate::base::abi::{XATTR_NAME_POSIX_ACL_ACCESS, XATTR_NAME_POSIX_ACL_DEFAULT};
use crate::base::error::{Error, Result};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use pmem::Region;
use pool::Reader;
use pool::layout::dirent::Dirent;
use pool::layout::{self, DIRENTS, ORPHANS, ReadTrees, dirent, extent, inode, xattr};
use pool::snapshot::{self, Snapshot};
use pool::tree::{Fixed, Verified};

pub use pool::layout::extent::Run;

/// An inode as the trees have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeInode {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub project: u16,
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
    /// Among them are access control lists: its own, and that for what is made in it.
    pub acls: [bool; 2],
    /// It has no name and waits for its last close.
    pub orphan: bool,
    /// Directories: it is a keyspace.
    pub keyspace: bool,
    /// `Link` to the open value that this stands for, which no tree has as an inode; 0: an object.
    pub value: u32,
}

/// A name as the trees have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeDirent {
    pub ino: u64,
    /// d_type of dirent(5).
    pub kind: u8,
}

/// Takes cookie, entry and name; false ends the visit.
pub type VisitDirent<'a> = dyn FnMut(u64, TreeDirent, &[u8]) -> Result<bool> + 'a;

/// The committed trees of a pool's `meta.seg`, mapped for reading and read without locks.
#[derive(Clone)]
pub struct Trees {
    meta: Region,
    /// Of a snapshot instead of the present.
    fixed: Option<Fixed>,
    verified: Option<Verified>,
}

impl Trees {
    /// Where `meta.seg` is mapped: address and length.
    pub(crate) fn mapped(&self) -> (usize, usize) {
        (self.meta.addr(), self.meta.len())
    }

    /// Wraps the mapping.
    pub fn new(meta: Region) -> Trees {
        Trees {
            meta,
            fixed: None,
            verified: None,
        }
    }

    /// The same trees, of a snapshot, which exists for as long as they are used.
    pub fn of_snapshot(self, fixed: Fixed) -> Trees {
        let fixed = Some(fixed);
        Trees { fixed, ..self }
    }

    /// The same trees, of which each node that was there after commit `since` is verified before it
    /// is used for the first time.
    pub fn verifying(self, since: u64) -> Result<Trees> {
        let verified = Verified::new(self.meta.len() as u64, since)?;
        let verified = Some(verified);
        Ok(Trees { verified, ..self })
    }
}

impl From<pool::Error> for Error {
    fn from(e: pool::Error) -> Self {
        Error::Pool(e.errno())
    }
}

impl Trees {
    /// The reader behind it.
    pub fn reader(&self) -> Reader<'_> {
        let reader = match &self.fixed {
            None => Reader::new(&self.meta),
            Some(fixed) => Reader::of_snapshot(&self.meta, fixed),
        };
        match &self.verified {
            None => reader,
            Some(verified) => reader.verifying(verified),
        }
    }

    /// Bytes of the segment.
    pub fn segment_len(&self) -> u64 {
        self.meta.len() as u64
    }

    /// The inode `ino`.
    pub fn inode(&self, ino: u64) -> Result<Option<TreeInode>> {
        let (reader, mut buf) = (self.reader(), [0; inode::ENCODED_MAX]);
        let Some(i) = inode::find(&reader, ino, &mut buf)? else {
            return Ok(None);
        };
        let orphan = i.nlink == 0
            && ReadTrees::get(&reader, ORPHANS, &layout::ino_key(ino), &mut [])?.is_some();
        let xattrs = i.flags & inode::HAS_XATTRS != 0;
        let mut acls = [false; 2];
        if xattrs {
            let names = [XATTR_NAME_POSIX_ACL_ACCESS, XATTR_NAME_POSIX_ACL_DEFAULT];
            for (has, name) in acls.iter_mut().zip(names) {
                *has = xattr::find(&reader, ino, name, &mut [])?.is_some();
            }
        }
        Ok(Some(TreeInode {
            mode: i.mode,
            uid: i.uid,
            gid: i.gid,
            project: i.project,
            nlink: i.nlink,
            size: i.size,
            blocks: i.blocks,
            atime: i.atime,
            mtime: i.mtime,
            ctime: i.ctime,
            btime: i.btime,
            rdev: i.rdev,
            parent: i.parent,
            entries: i.entries,
            inline: i.flags & inode::INLINE != 0,
            xattrs,
            acls,
            orphan,
            keyspace: i.flags & inode::KEYSPACE != 0,
            value: 0,
        }))
    }

    /// Target of a symlink, content of an inline file, or name of a directory, to the start of
    /// `out`; its length. `Range`: there is no room for it.
    pub fn tail(&self, ino: u64, out: &mut [u8]) -> Result<Option<usize>> {
        let (reader, mut buf) = (self.reader(), [0; inode::ENCODED_MAX]);
        let Some(i) = inode::find(&reader, ino, &mut buf)? else {
            return Ok(None);
        };
        let long;
        let bytes = match i.flags & inode::TARGET_IN_XATTRS {
            0 => i.tail,
            _ => match self.xattr(ino, b"")? {
                Some(target) => {
                    long = target;
                    &long
                }
                None => return Ok(None),
            },
        };
        let out = out.get_mut(..bytes.len()).ok_or(Error::Range)?;
        out.copy_from_slice(bytes);
        Ok(Some(bytes.len()))
    }

    /// The name `name` in directory `dir`.
    pub fn dirent(&self, dir: u64, name: &[u8]) -> Result<Option<TreeDirent>> {
        let found = dirent::find(&self.reader(), dir, name)?;
        Ok(found.map(|f| TreeDirent {
            ino: f.ino,
            kind: f.kind,
        }))
    }

    /// Shows the names of `dir` with a cookie of at least `from` to `visit`, in order, until it
    /// says false: cookie, entry, name.
    pub fn each_dirent(&self, dir: u64, from: u64, visit: &mut VisitDirent<'_>) -> Result<()> {
        let mut show = |key: &[u8], value: &[u8]| {
            let (_, cookie) = dirent::parse_key(key).map_err(pool::Error::from)?;
            let e = Dirent::decode(value).map_err(pool::Error::from)?;
            let (ino, kind) = (e.ino, e.kind);
            visit(cookie, TreeDirent { ino, kind }, e.name)
        };
        let (first, end) = (
            dirent::key(dir, from),
            dirent::key(dir.saturating_add(1), 0),
        );
        let mut done = Ok(());
        self.reader()
            .scan(DIRENTS, &first, Some(&end), |key, value| {
                match show(key, value) {
                    Ok(true) => return ControlFlow::Continue(()),
                    Ok(false) => {}
                    Err(e) => done = Err(e),
                }
                ControlFlow::Break(())
            })?;
        done
    }

    /// All objects that count for the quota of a directory.
    pub fn inodes_of(&self, project: u16) -> Result<Vec<u64>> {
        let (mut found, mut bad) = (Vec::new(), None);
        self.reader()
            .scan(layout::INODES, &[], None, |key, value| {
                match (key.first_chunk(), layout::inode::InodeRecord::decode(value)) {
                    (Some(ino), Ok(inode)) if inode.project == project => {
                        found.push(u64::from_be_bytes(*ino));
                    }
                    (_, Err(e)) => bad = Some(e),
                    _ => {}
                }
                ControlFlow::Continue(())
            })?;
        match bad {
            Some(e) => Err(pool::Error::from(e).into()),
            None => Ok(found),
        }
    }

    /// Where file block `file_block` is and how many follow in the same way.
    pub fn extent(&self, ino: u64, file_block: u64) -> Result<Run> {
        Ok(extent::find(&self.reader(), ino, file_block)?)
    }

    /// Value of an extended attribute.
    pub fn xattr(&self, ino: u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = vec![0; layout::XATTR_VALUE_MAX];
        let Some(len) = xattr::find(&self.reader(), ino, name, &mut value)? else {
            return Ok(None);
        };
        value.truncate(len);
        Ok(Some(value))
    }

    /// All snapshots with their names.
    pub fn snapshots(&self) -> Result<Vec<(Vec<u8>, Snapshot)>> {
        Ok(snapshot::list(&self.reader())?)
    }

    /// Names of all extended attributes, each with a NUL, in order.
    pub fn xattr_names(&self, ino: u64) -> Result<Vec<u8>> {
        let (mut names, mut name) = (Vec::new(), [0; layout::NAME_MAX]);
        let (mut after, mut after_len) = ([0; layout::NAME_MAX], 0);
        loop {
            let previous = after.get(..after_len).unwrap_or_default();
            let Some(len) = xattr::next_name(&self.reader(), ino, previous, &mut name)? else {
                return Ok(names);
            };
            let found = name.get(..len).unwrap_or_default();
            names.extend_from_slice(found);
            names.push(0);
            (after, after_len) = (name, len);
        }
    }
}
