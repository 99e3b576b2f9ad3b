//! What callers pass to `Client` and get back.
//!
//! Invariant: plain values; nothing here refers to shared memory except by `OfdLink`.

use core::num::NonZeroU32;
use pool::id_map::IdMaps;

/// Whose rights an operation uses.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// File system uid (effective uid, unless setfsuid(2) was called).
    pub uid: u32,
    /// File system gid.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'a [u32],
    pub umask: u32,
    /// Capabilities that override file permissions and ownership, in the caller's user namespace.
    pub privileged: bool,
    /// That namespace, if its ids are not the pool's; all ids here are the pool's.
    pub ids: Option<&'a IdMaps>,
}

impl Caller<'_> {
    /// Whether the caller's capabilities count for an object with this owner and group.
    #[inline]
    pub fn overrides(&self, uid: u32, gid: u32) -> bool {
        self.privileged && self.ids.is_none_or(|ids| ids.have(uid, gid))
    }

    /// Whether they count for what is nobody's.
    pub fn is_root(&self) -> bool {
        self.privileged && self.ids.is_none()
    }

    /// Whether the caller is in `gid`.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// An open-file description of the session: its index plus one, as `Slot` tables store it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OfdLink(pub(crate) NonZeroU32);

impl OfdLink {
    /// The number as stored in shared tables; `None` for 0.
    pub fn from_raw(raw: u32) -> Option<OfdLink> {
        NonZeroU32::new(raw).map(OfdLink)
    }

    /// The number as stored in shared tables.
    pub fn raw(self) -> u32 {
        self.0.get()
    }
}

/// Where the walk of a path starts. A leading `/` in a path means the pool's root whatever the
/// base is: the dispatcher has removed the place where the pool appears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The pool's root directory.
    Root,
    /// The working directory of the process, which is in the pool.
    Cwd,
    /// An open directory (or any object with an empty path and `AT_EMPTY_PATH`).
    Ofd(OfdLink),
    /// The object with this number, to which an empty path leads in every call: what a file system
    /// of the kernel found by name before. Only those that have the pool mapped can have it.
    Node(u64),
}

/// An object by name or by descriptor.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    Path {
        base: Base,
        path: &'a [u8],
        nofollow: bool,
    },
    Ofd(OfdLink),
}

/// A time for utimensat(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Now,
    Omit,
    /// Nanoseconds since 1970.
    At(i64),
}

/// stat(2) and statx(2). Times are nanoseconds since 1970; `blocks` counts 512 bytes.
/// The device number is the dispatcher's to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    pub ino: u64,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: u64,
    pub block_size: u32,
    pub blocks: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub btime: i64,
}

/// statfs(2); sizes in blocks of `block_size`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    pub block_size: u32,
    pub blocks: u64,
    pub free: u64,
    pub available: u64,
    pub files: u64,
    pub files_free: u64,
    pub name_max: u32,
}

/// `struct flock` of fcntl(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flock {
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i16,
    pub whence: i16,
    pub start: i64,
    /// 0: to the end of any file.
    pub len: i64,
    pub pid: i32,
}

/// A file that is mapped somewhere; keeps its blocks where they are until unpinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapPin {
    pub ino: u64,
    /// `Link` to the inode entry.
    pub(crate) inode: u32,
}

/// One piece of a mapping, in order and without gaps. Lengths are multiples of 4096.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapPiece {
    /// Map the data segment at this offset.
    Data { segment_offset: u64, len: u64 },
    /// Zeroes; private mappings only.
    Zero { len: u64 },
    /// One page that begins with the bytes that `map_inline` gives and goes on with zeroes; only
    /// on snapshots.
    Inline,
    /// Map the file that `lent_file` opens, at this offset: all of the mapping, whatever its size.
    Lent { offset: u64, len: u64 },
    /// Beyond the end of the file, or a large hole of a shared mapping: access must raise SIGBUS,
    /// and the handler asks for a plan of the place (which fills a hole).
    Beyond { len: u64 },
}

/// Format of directory entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirentFormat {
    /// getdents64(2).
    Linux64,
    /// getdents(2).
    Legacy,
}
