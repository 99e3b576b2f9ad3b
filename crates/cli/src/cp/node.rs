//! Files and directories, of the host or of a pool, with the same calls.
//!
//! Invariants: names are looked up in directories that are open, so nobody who moves directories
//! about leads a copy elsewhere; flags and modes are the kernel's.

use super::fault::{Fault, Result};
use holdfast::{FileStat, Opened};
use holdfast_pool::layout::is_legal_name;
use rustix::fs::{self, AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::LazyLock;

/// An open file or directory.
pub enum Node {
    Host(OwnedFd),
    Pool(Opened),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Link,
    /// A pipe, socket or device.
    Special,
}

/// What stat(2) tells. Times are nanoseconds since 1970, the nearest ones that there are.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    pub kind: Kind,
    /// With the type.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub blocks: u64,
    pub links: u64,
    /// Of what is a device.
    pub device: u64,
    /// The host's file system; 0 in a pool.
    pub file_system: u64,
    pub ino: u64,
    pub times: [i64; 2],
}

impl Meta {
    /// Tells a file from all others.
    pub fn identity(&self) -> (u64, u64) {
        (self.file_system, self.ino)
    }
}

const NS: i64 = 1_000_000_000;

fn kind(mode: u32) -> Kind {
    match mode & 0o170000 {
        0o100000 => Kind::File,
        0o040000 => Kind::Directory,
        0o120000 => Kind::Link,
        _ => Kind::Special,
    }
}

impl From<fs::Stat> for Meta {
    fn from(s: fs::Stat) -> Meta {
        let time = |s: i64, ns: u64| s.saturating_mul(NS).saturating_add(ns as i64);
        Meta {
            kind: kind(s.st_mode),
            mode: s.st_mode,
            uid: s.st_uid,
            gid: s.st_gid,
            size: s.st_size as u64,
            blocks: s.st_blocks as u64,
            links: s.st_nlink,
            device: s.st_rdev,
            file_system: s.st_dev,
            ino: s.st_ino,
            times: [
                time(s.st_atime, s.st_atime_nsec),
                time(s.st_mtime, s.st_mtime_nsec),
            ],
        }
    }
}

impl From<FileStat> for Meta {
    fn from(s: FileStat) -> Meta {
        Meta {
            kind: kind(s.mode),
            mode: s.mode,
            uid: s.uid,
            gid: s.gid,
            size: s.size,
            blocks: s.blocks,
            links: s.nlink.into(),
            device: s.rdev,
            file_system: 0,
            ino: s.ino,
            times: [s.atime, s.mtime],
        }
    }
}

fn path(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Names.
impl Node {
    /// The directory in which paths of the host begin.
    pub fn host() -> Result<Node> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Node::Host(fs::openat(fs::CWD, ".", flags, Mode::empty())?))
    }

    /// openat(2).
    pub fn open(&self, name: &[u8], flags: OFlags, mode: u32) -> Result<Node> {
        let flags = flags | OFlags::CLOEXEC;
        Ok(match self {
            Node::Host(dir) => {
                let mode = Mode::from_raw_mode(mode);
                Node::Host(again(|| fs::openat(dir, path(name), flags, mode))?)
            }
            Node::Pool(dir) => Node::Pool(dir.open(name, flags.bits(), mode)?),
        })
    }

    /// A directory to put something into; one that may only be searched as well.
    pub fn open_dir(&self, name: &[u8]) -> Result<Node> {
        let flags = OFlags::DIRECTORY;
        match self.open(name, flags | OFlags::RDONLY, 0) {
            Err(e) if e.is(Errno::ACCESS) => self.open(name, flags | OFlags::PATH, 0),
            opened => opened,
        }
    }

    /// Whether numbers of files mean the same for both.
    pub fn is_beside(&self, other: &Node) -> bool {
        match (self, other) {
            (Node::Host(_), Node::Host(_)) => true,
            (Node::Pool(a), Node::Pool(b)) => a.is_beside(b),
            _ => false,
        }
    }

    pub fn stat(&self) -> Result<Meta> {
        Ok(match self {
            Node::Host(file) => fs::fstat(file)?.into(),
            Node::Pool(file) => file.stat()?.into(),
        })
    }

    pub fn stat_at(&self, name: &[u8], follow: bool) -> Result<Meta> {
        Ok(match self {
            Node::Host(dir) => {
                let flags = match follow {
                    true => AtFlags::empty(),
                    false => AtFlags::SYMLINK_NOFOLLOW,
                };
                fs::statat(dir, path(name), flags)?.into()
            }
            Node::Pool(dir) => dir.stat_at(name, follow)?.into(),
        })
    }

    /// As `stat_at`, of what need not be there; no link is followed.
    pub fn find(&self, name: &[u8]) -> Result<Option<Meta>> {
        match self.stat_at(name, false) {
            Err(e) if e.is(Errno::NOENT) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Numbers and names of what is in a directory, in the order of the names.
    pub fn entries(&self) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut all = Vec::new();
        match self {
            Node::Host(dir) => {
                for entry in fs::Dir::read_from(dir)? {
                    let entry = entry?;
                    let name = entry.file_name().to_bytes();
                    if name != b"." && name != b".." {
                        all.push((entry.ino(), name.to_vec()));
                    }
                }
            }
            Node::Pool(dir) => {
                for (ino, name, _) in dir.entries()? {
                    // A pool of somebody else says what it likes, and the host would follow it.
                    if !is_legal_name(&name) {
                        let damage = Fault::new("a name in it is none, so the pool is damaged");
                        return Err(damage.fix("holdfast pool check POOL"));
                    }
                    all.push((ino, name));
                }
            }
        }
        all.sort_by(|a, b| a.1.cmp(&b.1));
        // Others may have changed the directory between two buffers.
        all.dedup_by(|a, b| a.1 == b.1);
        Ok(all)
    }

    pub fn mkdir(&self, name: &[u8], mode: u32) -> Result<()> {
        Ok(match self {
            Node::Host(dir) => fs::mkdirat(dir, path(name), Mode::from_raw_mode(mode))?,
            Node::Pool(dir) => dir.mkdir(name, mode)?,
        })
    }

    /// A pipe, socket or device.
    pub fn mknod(&self, name: &[u8], like: &Meta) -> Result<()> {
        Ok(match self {
            Node::Host(dir) => {
                let kind = fs::FileType::from_raw_mode(like.mode);
                let mode = Mode::from_raw_mode(like.mode);
                fs::mknodat(dir, path(name), kind, mode, like.device)?
            }
            Node::Pool(dir) => dir.mknod(name, like.mode, like.device)?,
        })
    }

    pub fn symlink(&self, target: &[u8], name: &[u8]) -> Result<()> {
        Ok(match self {
            Node::Host(dir) => fs::symlinkat(path(target), dir, path(name))?,
            Node::Pool(dir) => dir.symlink(target, name)?,
        })
    }

    pub fn readlink(&self, name: &[u8]) -> Result<Vec<u8>> {
        Ok(match self {
            Node::Host(dir) => fs::readlinkat(dir, path(name), Vec::new())?.into_bytes(),
            Node::Pool(dir) => dir.readlink(name)?,
        })
    }

    /// What is `old` in `base` is also `name` in this directory.
    pub fn link_from(&self, base: &Node, old: &[u8], name: &[u8]) -> Result<()> {
        Ok(match (base, self) {
            (Node::Host(from), Node::Host(to)) => {
                fs::linkat(from, path(old), to, path(name), AtFlags::empty())?
            }
            (Node::Pool(from), Node::Pool(to)) => from.link(old, to, name)?,
            _ => return Err(Errno::XDEV.into()),
        })
    }

    /// Gives a file of O_TMPFILE a name in this directory.
    pub fn name_file(&self, file: &Node, name: &[u8]) -> Result<()> {
        Ok(match (file, self) {
            (Node::Host(file), Node::Host(dir)) => name_host_file(file, dir, path(name))?,
            (Node::Pool(file), Node::Pool(dir)) => file.name(dir, name)?,
            _ => return Err(Errno::XDEV.into()),
        })
    }

    pub fn rename(&self, old: &[u8], new: &[u8]) -> Result<()> {
        Ok(match self {
            Node::Host(dir) => fs::renameat(dir, path(old), dir, path(new))?,
            Node::Pool(dir) => dir.rename(old, new)?,
        })
    }

    pub fn unlink(&self, name: &[u8]) -> Result<()> {
        Ok(match self {
            Node::Host(dir) => fs::unlinkat(dir, path(name), AtFlags::empty())?,
            Node::Pool(dir) => dir.unlink(name)?,
        })
    }
}

/// Content.
impl Node {
    pub fn read_at(&self, room: &mut [u8], at: u64) -> Result<usize> {
        Ok(match self {
            Node::Host(file) => again(|| rustix::io::pread(file, &mut *room, at))?,
            Node::Pool(file) => file.read_at(room, at)?,
        })
    }

    pub fn write_all_at(&self, mut bytes: &[u8], mut at: u64) -> Result<()> {
        match self {
            Node::Host(file) => {
                while !bytes.is_empty() {
                    let n = again(|| rustix::io::pwrite(file, bytes, at))?;
                    bytes = &bytes[n..];
                    at += n as u64;
                }
            }
            Node::Pool(file) => file.write_all_at(bytes, at)?,
        }
        Ok(())
    }

    /// Copies from the same place of `from` without this process seeing it; `None`: it cannot be.
    pub fn copy_at(&self, from: &Node, at: u64, len: usize) -> Result<Option<usize>> {
        match (from, self) {
            (Node::Pool(from), Node::Pool(to)) if from.is_beside(to) => {
                Ok(Some(to.copy_at(from, at, len)?))
            }
            _ => Ok(None),
        }
    }

    pub fn set_size(&self, size: u64) -> Result<()> {
        Ok(match self {
            Node::Host(file) => again(|| fs::ftruncate(file, size))?,
            Node::Pool(file) => file.set_size(size)?,
        })
    }

    /// The next piece of data from `at` on: where it begins and ends. `None`: none is left.
    pub fn data_from(&self, at: u64) -> Result<Option<(u64, u64)>> {
        let (begin, end) = match self {
            Node::Host(file) => {
                let begin = match fs::seek(file, fs::SeekFrom::Data(at)) {
                    Err(Errno::NXIO) => return Ok(None),
                    begin => begin?,
                };
                (begin, fs::seek(file, fs::SeekFrom::Hole(begin))?)
            }
            Node::Pool(file) => {
                let Some(begin) = file.data_from(at)? else {
                    return Ok(None);
                };
                (begin, file.hole_from(begin)?.unwrap_or(u64::MAX))
            }
        };
        // A file that grew or was cut meanwhile.
        Ok((end > begin).then_some((begin, end)))
    }

    /// syncfs(2) of the host's file system that it is on; a pool is synced as a whole.
    pub fn sync_all(&self) -> Result<()> {
        let Node::Host(node) = self else {
            return Ok(());
        };
        match fs::syncfs(node) {
            // A directory that may only be searched.
            Err(Errno::BADF) => {
                fs::sync();
                Ok(())
            }
            synced => Ok(synced?),
        }
    }

    /// fsync(2) of a file or directory of the host.
    pub fn sync(&self) -> Result<()> {
        match self {
            Node::Host(file) => match fs::fsync(file) {
                // There is nothing to wait for in some file systems.
                Err(Errno::INVAL) => Ok(()),
                Err(Errno::BADF) => self.sync_all(),
                synced => Ok(synced?),
            },
            Node::Pool(_) => Ok(()),
        }
    }
}

/// Attributes. An empty name means the file itself.
impl Node {
    pub fn chmod(&self, name: &[u8], mode: u32) -> Result<()> {
        let bits = Mode::from_raw_mode(mode & 0o7777);
        Ok(match self {
            Node::Host(file) if name.is_empty() => fs::fchmod(file, bits)?,
            Node::Host(dir) => fs::chmodat(dir, path(name), bits, AtFlags::empty())?,
            Node::Pool(node) => node.chmod(name, mode & 0o7777)?,
        })
    }

    pub fn chown(&self, name: &[u8], uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        Ok(match self {
            Node::Host(node) => {
                let owner = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
                fs::chownat(node, path(name), owner.0, owner.1, flags)?
            }
            Node::Pool(node) => node.chown(name, uid, gid)?,
        })
    }

    pub fn set_times(&self, name: &[u8], times: [i64; 2]) -> Result<()> {
        let [access, change] = times.map(|ns| Timespec {
            tv_sec: ns.div_euclid(NS),
            tv_nsec: ns.rem_euclid(NS),
        });
        let both = Timestamps {
            last_access: access,
            last_modification: change,
        };
        Ok(match self {
            Node::Host(file) if name.is_empty() => fs::futimens(file, &both)?,
            Node::Host(dir) => fs::utimensat(dir, path(name), &both, AtFlags::SYMLINK_NOFOLLOW)?,
            Node::Pool(node) => node.set_times(name, times)?,
        })
    }

    /// Names of extended attributes; none where there are none of any file.
    pub fn attributes(&self) -> Result<Vec<Vec<u8>>> {
        match self {
            Node::Host(file) => {
                let mut room = vec![0; 65536];
                let len = match fs::flistxattr(file, &mut room[..]) {
                    Err(Errno::OPNOTSUPP | Errno::BADF) => 0,
                    len => len?,
                };
                let names = room[..len].split(|byte| *byte == 0);
                let names = names.filter(|name| !name.is_empty());
                Ok(names.map(<[u8]>::to_vec).collect())
            }
            Node::Pool(file) => match file.attributes().map_err(Fault::from) {
                Err(e) if e.is(Errno::OPNOTSUPP) || e.is(Errno::BADF) => Ok(Vec::new()),
                names => names,
            },
        }
    }

    /// `None`: there is none of this name, or none of any.
    pub fn attribute(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let value = match self {
            Node::Host(file) => {
                let mut room = vec![0; 65536];
                let got = fs::fgetxattr(file, path(name), &mut room[..]);
                got.map_err(Fault::from).map(|len| {
                    room.truncate(len);
                    Some(room)
                })
            }
            Node::Pool(file) => file.attribute(name).map_err(Fault::from),
        };
        match value {
            Err(e) if e.is(Errno::NODATA) || e.is(Errno::OPNOTSUPP) || e.is(Errno::BADF) => {
                Ok(None)
            }
            value => value,
        }
    }

    pub fn set_attribute(&self, name: &[u8], value: &[u8]) -> Result<()> {
        Ok(match self {
            Node::Host(file) => fs::fsetxattr(file, path(name), value, fs::XattrFlags::empty())?,
            Node::Pool(file) => file.set_attribute(name, value)?,
        })
    }

    pub fn remove_attribute(&self, name: &[u8]) -> Result<()> {
        Ok(match self {
            Node::Host(file) => fs::fremovexattr(file, path(name))?,
            Node::Pool(file) => file.remove_attribute(name)?,
        })
    }
}

/// Which names need no rights, unlike descriptors themselves.
static DESCRIPTORS: LazyLock<rustix::io::Result<OwnedFd>> = LazyLock::new(|| {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    fs::open("/proc/self/fd", flags, Mode::empty())
});

fn name_host_file(file: &OwnedFd, dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    match fs::linkat(file, "", dir, name, AtFlags::EMPTY_PATH) {
        Err(Errno::NOENT) => {}
        linked => return linked,
    }
    let descriptors = DESCRIPTORS.as_ref().map_err(|e| *e)?;
    let number = file.as_raw_fd().to_string();
    fs::linkat(descriptors, number, dir, name, AtFlags::SYMLINK_FOLLOW)
}

/// Until no signal interrupts it.
fn again<T>(call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    rustix::io::retry_on_intr(call)
}
