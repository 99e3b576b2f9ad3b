//! Why a record is not applied.
//!
//! Invariant: each reason has one sentence and one errno.

use crate::layout::BadValue;
use core::fmt;

/// A record that contradicts the trees or the limits. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The object that the contradiction is about; 0 if it is about none.
    pub ino: u64,
    pub why: Why,
}

/// What is wrong with a record.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    NoObject,
    NotADirectory,
    NotAFile,
    IsADirectory,
    IllegalName,
    NoName,
    NameExists,
    OtherObject,
    NotEmpty,
    Loop,
    TooDeep,
    TooManyNames,
    HashFull,
    NumberInUse,
    NumberTooHigh,
    Mode,
    Device,
    Target,
    Flags,
    Size,
    Blocks,
    Segment,
    NotGranted,
    BlocksInUse,
    NotMapped,
    NotAnOrphan,
    AttributeName,
    AttributeValue,
    NoAttribute,
    TooManyAttributes,
    Lane,
    NoRoom,
    NotAKeyspace,
    Changes,
}

impl Reject {
    /// `ino`: 0 if it is about no object.
    pub fn new(ino: u64, why: Why) -> Self {
        Reject { ino, why }
    }

    /// The positive errno that a program sees for it.
    pub fn errno(&self) -> i32 {
        self.why.errno()
    }
}

impl Why {
    fn sentence(self) -> &'static str {
        match self {
            Why::NoObject => "the object does not exist",
            Why::NotADirectory => "the object is not a directory with a name",
            Why::NotAFile => "the object is not a regular file",
            Why::IsADirectory => "the object is a directory",
            Why::IllegalName => "the name is illegal",
            Why::NoName => "the directory does not hold the name",
            Why::NameExists => "the directory holds the name already",
            Why::OtherObject => "the name refers to another object",
            Why::NotEmpty => "the directory is not empty",
            Why::Loop => "the directory would be below itself",
            Why::TooDeep => "the directory is too deep to be moved",
            Why::TooManyNames => "the object has too many names",
            Why::HashFull => "the directory holds too many names of the same hash",
            Why::NumberInUse => "the inode number is in use",
            Why::NumberTooHigh => "the inode number is not one that comes next",
            Why::Mode => "the mode is illegal",
            Why::Device => "the device number does not fit the type",
            Why::Target => "the symlink target is illegal",
            Why::Flags => "the flags are unknown",
            Why::Size => "the size is too large",
            Why::Blocks => "the blocks are outside the file or the pool",
            Why::Segment => "the blocks are in a data segment that does not exist",
            Why::NotGranted => "the blocks were not granted to the session",
            Why::BlocksInUse => "the blocks are in use",
            Why::NotMapped => "the bytes are not in blocks of the file",
            Why::NotAnOrphan => "the object is not an orphan",
            Why::AttributeName => "the attribute name is illegal",
            Why::AttributeValue => "the attribute value is too long",
            Why::NoAttribute => "the attribute does not exist",
            Why::TooManyAttributes => "the object has too many attributes",
            Why::Lane => "the lane does not exist",
            Why::NoRoom => "the trees have no room left",
            Why::NotAKeyspace => "the directory is not a keyspace",
            Why::Changes => "the changes of keyspaces are malformed",
        }
    }

    fn errno(self) -> i32 {
        const ENOENT: i32 = 2;
        const EEXIST: i32 = 17;
        const ENOTDIR: i32 = 20;
        const EISDIR: i32 = 21;
        const EINVAL: i32 = 22;
        const EFBIG: i32 = 27;
        const ENOSPC: i32 = 28;
        const EMLINK: i32 = 31;
        const ENOTEMPTY: i32 = 39;
        const ELOOP: i32 = 40;
        const ENODATA: i32 = 61;
        match self {
            Why::NoObject | Why::NoName | Why::OtherObject => ENOENT,
            Why::NotADirectory => ENOTDIR,
            Why::IsADirectory => EISDIR,
            Why::NameExists | Why::NumberInUse => EEXIST,
            Why::NotEmpty => ENOTEMPTY,
            Why::TooDeep => ELOOP,
            Why::TooManyNames => EMLINK,
            Why::HashFull | Why::TooManyAttributes | Why::NoRoom => ENOSPC,
            Why::Size => EFBIG,
            Why::NoAttribute => ENODATA,
            _ => EINVAL,
        }
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ino {
            0 => f.write_str(self.why.sentence()),
            ino => write!(f, "{} (object {ino})", self.why.sentence()),
        }
    }
}

impl core::error::Error for Reject {}

/// Why a record was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// The record is wrong; the store is unchanged.
    Rejected(Reject),
    /// A part of the work is done and the store is unchanged: the record is to be applied again.
    Later,
    /// The store failed or is damaged; what was not committed must be dropped.
    Store(E),
}

impl<E> From<Reject> for Failure<E> {
    fn from(reject: Reject) -> Self {
        Failure::Rejected(reject)
    }
}

impl<E: From<BadValue>> From<BadValue> for Failure<E> {
    fn from(bad: BadValue) -> Self {
        Failure::Store(bad.into())
    }
}
