//! The inode record: everything about an object except names, blocks and attributes.
//!
//! Invariants of a decoded record:
//!  * `mode` has exactly one of the seven file types and no bits beyond them.
//!  * `tail` is what its type says: a symlink's whole target unless `TARGET_IN_XATTRS`; with
//!    `INLINE` the start of a regular file's block 0, the rest of which is zeroes; a directory's
//!    own name (empty for the root); else empty.
//!  * `parent` and `entries` are zero unless it is a directory, `rdev` unless it is a device.

use super::fields::{Reading, Writing};
use super::{
    BadValue, FILE_SIZE_MAX, INLINE_MAX, INODES, NAME_MAX, ReadTrees, TARGET_MAX, bad, ino_key,
};

/// Bits of `mode` that tell the type.
pub const TYPE_MASK: u32 = 0o170_000;
/// Pipe.
pub const TYPE_FIFO: u32 = 0o010_000;
/// Character device.
pub const TYPE_CHAR: u32 = 0o020_000;
/// Directory.
pub const TYPE_DIR: u32 = 0o040_000;
/// Block device.
pub const TYPE_BLOCK: u32 = 0o060_000;
/// Regular file.
pub const TYPE_FILE: u32 = 0o100_000;
/// Symbolic link.
pub const TYPE_SYMLINK: u32 = 0o120_000;
/// Socket.
pub const TYPE_SOCKET: u32 = 0o140_000;

/// The tail stands for file block 0 of a regular file, which no extent covers then.
pub const INLINE: u32 = 1;
/// The target of a symlink is longer than a tail: it lies in `XATTRS` under the empty name.
pub const TARGET_IN_XATTRS: u32 = 2;
/// The object has at least one extended attribute.
pub const HAS_XATTRS: u32 = 4;
/// The directory is a keyspace: it may have values in `VALUES`.
pub const KEYSPACE: u32 = 8;

/// The highest project.
pub const PROJECT_MAX: u16 = 1024;

/// Bytes before the tail.
pub const FIXED: usize = 96;
/// The longest tail.
pub const TAIL_MAX: usize = 512;
/// The longest encoded record.
pub const ENCODED_MAX: usize = FIXED + TAIL_MAX;

/// An inode. Times are nanoseconds since 1970, `size` is bytes, `blocks` are allocated blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct InodeRecord<'a> {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Names; a directory has 2 and one for each of its subdirectories.
    pub nlink: u32,
    pub size: u64,
    pub blocks: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub btime: i64,
    pub rdev: u64,
    pub flags: u32,
    /// Which quota of a directory it counts for: its place plus 1; 0: none.
    pub project: u16,
    /// Directories: the directory that holds its name (the root: itself).
    pub parent: u64,
    /// Directories: how many names it holds.
    pub entries: u64,
    pub tail: &'a [u8],
}

/// The d_type of dirent(5) for a mode.
pub fn kind_of_mode(mode: u32) -> u8 {
    ((mode & TYPE_MASK) >> 12) as u8
}

/// Whether a mode has one of the seven types and no bit above them.
pub fn is_legal_mode(mode: u32) -> bool {
    mode & !(TYPE_MASK | 0o7777) == 0
        && matches!(
            mode & TYPE_MASK,
            TYPE_FIFO | TYPE_CHAR | TYPE_DIR | TYPE_BLOCK | TYPE_FILE | TYPE_SYMLINK | TYPE_SOCKET
        )
}

impl<'a> InodeRecord<'a> {
    /// The file type bits.
    pub fn file_type(&self) -> u32 {
        self.mode & TYPE_MASK
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type() == TYPE_DIR
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type() == TYPE_FILE
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.file_type() == TYPE_SYMLINK
    }

    /// Whether `rdev` means something.
    pub fn is_device(&self) -> bool {
        matches!(self.file_type(), TYPE_CHAR | TYPE_BLOCK)
    }

    /// The d_type of dirent(5).
    pub fn kind(&self) -> u8 {
        kind_of_mode(self.mode)
    }

    /// Writes the record to the start of `out` and says how long it is; `None` if it does not fit.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let tail_len = u16::try_from(self.tail.len()).ok()?;
        let mut w = Writing::new(out);
        for v in [self.mode, self.uid, self.gid, self.nlink] {
            w.u32(v)?;
        }
        w.u64(self.size)?;
        w.u64(self.blocks)?;
        for v in [self.atime, self.mtime, self.ctime, self.btime] {
            w.i64(v)?;
        }
        w.u64(self.rdev)?;
        w.u32(self.flags)?;
        w.u16(tail_len)?;
        w.u16(self.project)?;
        w.u64(self.parent)?;
        w.u64(self.entries)?;
        w.put(self.tail)?;
        Some(w.len())
    }

    /// The record that is exactly `bytes`.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, BadValue> {
        let mut r = Reading(bytes);
        let (mode, uid, gid, nlink) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
        let (size, blocks) = (r.u64()?, r.u64()?);
        let (atime, mtime, ctime, btime) = (r.i64()?, r.i64()?, r.i64()?, r.i64()?);
        let (rdev, flags) = (r.u64()?, r.u32()?);
        let (tail_len, project) = (r.u16()?, r.u16()?);
        let (parent, entries) = (r.u64()?, r.u64()?);
        let tail = r.0;
        if usize::from(tail_len) != tail.len() {
            return bad("an inode's tail has another length than it says");
        }
        let inode = InodeRecord {
            mode,
            uid,
            gid,
            nlink,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            btime,
            rdev,
            flags,
            project,
            parent,
            entries,
            tail,
        };
        inode.check()?;
        Ok(inode)
    }

    fn check(&self) -> Result<(), BadValue> {
        if !is_legal_mode(self.mode) {
            return bad("an inode has an unknown file type");
        }
        if self.size > FILE_SIZE_MAX {
            return bad("an inode has an impossible size");
        }
        if self.project > PROJECT_MAX {
            return bad("an inode counts for a quota that there cannot be");
        }
        if !self.is_dir() && (self.parent != 0 || self.entries != 0) {
            return bad("an inode that is no directory has a parent or entries");
        }
        if !self.is_device() && self.rdev != 0 {
            return bad("an inode that is no device has a device number");
        }
        self.check_tail()
    }

    fn check_tail(&self) -> Result<(), BadValue> {
        let len = self.tail.len();
        let fits = match (self.file_type(), self.flags & !HAS_XATTRS) {
            (TYPE_FILE, 0) => len == 0,
            (TYPE_FILE, INLINE) => (1..=INLINE_MAX).contains(&len) && len as u64 <= self.size,
            (TYPE_DIR, 0 | KEYSPACE) => len <= NAME_MAX && self.parent != 0 && self.size == 0,
            (TYPE_SYMLINK, 0) => len as u64 == self.size && (1..=TAIL_MAX).contains(&len),
            (TYPE_SYMLINK, TARGET_IN_XATTRS) => {
                len == 0 && self.size > TAIL_MAX as u64 && self.size <= TARGET_MAX as u64
            }
            (_, 0) => len == 0 && self.size == 0,
            _ => false,
        };
        if fits && (self.is_file() || self.blocks == 0) {
            Ok(())
        } else {
            bad("an inode's flags, size, blocks and tail contradict its type")
        }
    }
}

/// The inode `ino`, in `buf`; `None` if there is none.
pub fn find<'b, R: ReadTrees>(
    trees: &R,
    ino: u64,
    buf: &'b mut [u8; ENCODED_MAX],
) -> Result<Option<InodeRecord<'b>>, R::Error> {
    let Some(len) = trees.get(INODES, &ino_key(ino), buf)? else {
        return Ok(None);
    };
    let bytes = buf.get(..len).ok_or(BadValue {
        what: "an inode record is too long",
    })?;
    Ok(Some(InodeRecord::decode(bytes)?))
}
