//! The files of a pool, for programs that were not started by `holdfast run`.
//!
//! Invariants: each call means what the system call of its name does, and is made as the user that
//! this process was when it asked for the pool's files; ids are those of the process, as in its
//! other calls. A file is used in the process that opened it.

use crate::error::{Error, Result};
use crate::file::{self, File, call};
use crate::inner::{Inner, Reach};
use crate::keyspace::Keyspace;
use crate::pool::Pool;
use holdfast_client::{Base, Caller, SetTime, Stat, Target, abi};
use holdfast_pmem::{ConstBuf, MutBuf};
use holdfast_pool::layout::value;
use std::sync::Arc;

/// Whether a file's number is that of a value of a keyspace, which has no file of its own.
pub fn is_value(ino: u64) -> bool {
    value::is_number(ino)
}

/// Who makes the calls.
struct Who {
    groups: Vec<u32>,
    umask: u32,
}

/// An open file or directory of a pool, or of a snapshot.
pub struct Opened {
    file: File,
    who: Arc<Who>,
}

impl Pool {
    /// The root directory, to look up names in. What is made from there on has no more permissions
    /// than `umask` leaves; where a proxy makes the calls, the last one counts for all.
    pub fn root(&self, umask: u32) -> Result<Opened> {
        if let Reach::Served(served) = self.inner.reach()? {
            served.calls().set_creation_mask(umask);
        }
        let groups = rustix::process::getgroups().map_err(Error::os("getgroups"))?;
        let ids = self.inner.ids();
        let groups = groups.iter().map(|group| ids.group(group.as_raw()));
        let who = Who {
            groups: groups.collect(),
            umask,
        };
        let flags = abi::O_PATH | abi::O_DIRECTORY;
        Ok(Opened {
            file: File::open(self, b"/", flags, 0)?,
            who: Arc::new(who),
        })
    }
}

impl Opened {
    fn inner(&self) -> &Inner {
        &self.file.pool().inner
    }

    fn caller(&self) -> Caller<'_> {
        Caller {
            groups: &self.who.groups,
            umask: self.who.umask,
            ..self.inner().ids().caller()
        }
    }

    fn base(&self) -> Result<Base> {
        Ok(Base::Ofd(self.file.ofd()?))
    }

    /// The pool, or the snapshot, whose file it is.
    pub fn pool(&self) -> &Pool {
        self.file.pool()
    }

    /// Whether both are of one session, so that calls can take one of each.
    pub fn is_beside(&self, other: &Opened) -> bool {
        Arc::ptr_eq(&self.file.pool().inner, &other.file.pool().inner)
    }

    /// openat(2), with the kernel's flags; a path that begins with a slash begins at the root.
    pub fn open(&self, path: &[u8], flags: u32, mode: u32) -> Result<Opened> {
        let (caller, base) = (self.caller(), self.base()?);
        let ofd = call!(self.inner().reach()?, calls => {
            calls.open(&caller, base, path, flags, mode, 0)
        })?;
        Ok(Opened {
            file: File::of(self.file.pool(), ofd),
            who: self.who.clone(),
        })
    }

    /// fstat(2).
    pub fn stat(&self) -> Result<Stat> {
        Ok(self.pool().seen(self.file.stat()?))
    }

    /// newfstatat(2).
    pub fn stat_at(&self, path: &[u8], follow: bool) -> Result<Stat> {
        let (caller, base) = (self.caller(), self.base()?);
        let flags = nofollow(follow);
        let stat = call!(self.inner().reach()?, calls => calls.stat(&caller, base, path, flags))?;
        Ok(self.pool().seen(stat))
    }

    /// mkdirat(2).
    pub fn mkdir(&self, name: &[u8], mode: u32) -> Result<()> {
        let (caller, base) = (self.caller(), self.base()?);
        Ok(call!(self.inner().reach()?, calls => calls.mkdir(&caller, base, name, mode))?)
    }

    /// mknodat(2); `device` as stat(2) shows it.
    pub fn mknod(&self, name: &[u8], mode: u32, device: u64) -> Result<()> {
        let (caller, base) = (self.caller(), self.base()?);
        Ok(call!(self.inner().reach()?, calls => calls.mknod(&caller, base, name, mode, device))?)
    }

    /// symlinkat(2).
    pub fn symlink(&self, target: &[u8], name: &[u8]) -> Result<()> {
        let (caller, base) = (self.caller(), self.base()?);
        Ok(call!(self.inner().reach()?, calls => calls.symlink(&caller, target, base, name))?)
    }

    /// readlinkat(2).
    pub fn readlink(&self, name: &[u8]) -> Result<Vec<u8>> {
        let (caller, base) = (self.caller(), self.base()?);
        let mut room = vec![0; abi::PATH_MAX];
        let out = MutBuf::from(&mut room[..]);
        let len = call!(self.inner().reach()?, calls => calls.readlink(&caller, base, name, out))?;
        room.truncate(len);
        Ok(room)
    }

    /// linkat(2): `old`, from this directory, is also `name` in `dir`.
    pub fn link(&self, old: &[u8], dir: &Opened, name: &[u8]) -> Result<()> {
        let (caller, from, to) = (self.caller(), self.base()?, dir.base()?);
        let (old, new) = ((from, old), (to, name));
        Ok(call!(self.inner().reach()?, calls => calls.link(&caller, old, new, 0))?)
    }

    /// Gives this file, which was opened with O_TMPFILE, a name.
    pub fn name(&self, dir: &Opened, name: &[u8]) -> Result<()> {
        let (caller, from, to) = (self.caller(), self.base()?, dir.base()?);
        let (old, new, flags) = ((from, &[][..]), (to, name), abi::AT_EMPTY_PATH);
        Ok(call!(self.inner().reach()?, calls => calls.link(&caller, old, new, flags))?)
    }

    /// renameat(2) within this directory.
    pub fn rename(&self, old: &[u8], new: &[u8]) -> Result<()> {
        let (caller, base) = (self.caller(), self.base()?);
        let (old, new) = ((base, old), (base, new));
        Ok(call!(self.inner().reach()?, calls => calls.rename(&caller, old, new, 0))?)
    }

    /// unlinkat(2).
    pub fn unlink(&self, name: &[u8]) -> Result<()> {
        let (caller, base) = (self.caller(), self.base()?);
        Ok(call!(self.inner().reach()?, calls => calls.unlink(&caller, base, name))?)
    }

    /// All entries but `.` and `..`: number, name and type (`DT_*`), as getdents64(2) tells them.
    pub fn entries(&self) -> Result<Vec<(u64, Vec<u8>, u8)>> {
        let (mut all, mut room) = (Vec::new(), vec![0; LISTING]);
        loop {
            let len = self.file.entries(&mut room)?;
            if len == 0 {
                return Ok(all);
            }
            let found = crate::walk::entries(room.get(..len).unwrap_or_default());
            let found = found.filter(|(_, _, name)| *name != b"." && *name != b"..");
            all.extend(found.map(|(ino, kind, name)| (ino, name.to_vec(), kind)));
        }
    }

    /// The keyspace that this directory is, which may be called `name`; `None`: it is none.
    pub fn keyspace(&self, name: &[u8]) -> Result<Option<Keyspace>> {
        let (pool, ino) = (self.file.pool(), self.file.stat()?.ino);
        let of = |name: &str| match pool.keyspace(name) {
            Ok(keyspace) => Ok(Some(keyspace).filter(|keyspace| keyspace.id.ino() == ino)),
            Err(e) if e.is_missing() || e.errno() == ENOTDIR => Ok(None),
            Err(e) => Err(e),
        };
        if let Some(name) = std::str::from_utf8(name).ok().filter(|name| is_legal(name))
            && let Some(found) = of(name)?
        {
            return Ok(Some(found));
        }
        // Another way leads here, if it is one at all.
        if self.stat_at(b"..", false)?.ino != self.stat_at(b"/", false)?.ino {
            return Ok(None);
        }
        for name in pool.keyspaces()? {
            if let Some(found) = of(&name)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// Content.
impl Opened {
    /// pread64(2).
    pub fn read_at(&self, room: &mut [u8], at: u64) -> Result<usize> {
        self.file.read_at(room, at)
    }

    /// pwrite64(2), until everything is written.
    pub fn write_all_at(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.file.write_all_at(bytes, at)
    }

    /// copy_file_range(2) from the same place of `from`, which is beside this; 0 at its end.
    pub fn copy_at(&self, from: &Opened, at: u64, len: usize) -> Result<usize> {
        let (from, to) = (from.file.ofd()?, self.file.ofd()?);
        let at = i64::try_from(at).unwrap_or(i64::MAX);
        let (mut read, mut written) = (at, at);
        Ok(call!(self.inner().reach()?, calls => {
            calls.copy_range(from, Some(&mut read), to, Some(&mut written), len)
        })?)
    }

    /// ftruncate(2).
    pub fn set_size(&self, size: u64) -> Result<()> {
        self.file.set_size(size)
    }

    /// Where data begins at or behind `at`; `None`: there is none any more.
    pub fn data_from(&self, at: u64) -> Result<Option<u64>> {
        self.file.seek(at, abi::SEEK_DATA)
    }

    /// Where a hole, or the end, is at or behind `at`.
    pub fn hole_from(&self, at: u64) -> Result<Option<u64>> {
        self.file.seek(at, abi::SEEK_HOLE)
    }
}

/// Attributes.
impl Opened {
    /// fchmodat2(2); an empty name means this file itself.
    pub fn chmod(&self, name: &[u8], mode: u32) -> Result<()> {
        let (caller, base) = (self.caller(), self.base()?);
        let flags = abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH;
        Ok(call!(self.inner().reach()?, calls => {
            calls.chmod(&caller, base, name, mode, flags)
        })?)
    }

    /// fchownat(2); an empty name means this file itself.
    pub fn chown(&self, name: &[u8], uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let (caller, base, ids) = (self.caller(), self.base()?, self.inner().ids());
        let owner = (uid.map(|id| ids.user(id)), gid.map(|id| ids.group(id)));
        let flags = abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH;
        Ok(call!(self.inner().reach()?, calls => {
            calls.chown(&caller, base, name, owner, flags)
        })?)
    }

    /// utimensat(2): access and change, in nanoseconds since 1970; an empty name means this file
    /// itself.
    pub fn set_times(&self, name: &[u8], times: [i64; 2]) -> Result<()> {
        let (caller, base) = (self.caller(), self.base()?);
        let (times, flags) = (
            times.map(SetTime::At),
            abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH,
        );
        Ok(call!(self.inner().reach()?, calls => {
            calls.utimens(&caller, base, name, times, flags)
        })?)
    }

    /// flistxattr(2).
    pub fn attributes(&self) -> Result<Vec<Vec<u8>>> {
        let (caller, target) = (self.caller(), Target::Ofd(self.file.ofd()?));
        let mut room = vec![0; abi::XATTR_LIST_MAX];
        let out = MutBuf::from(&mut room[..]);
        let len = call!(self.inner().reach()?, calls => calls.listxattr(&caller, target, out))?;
        let names = room.get(..len).unwrap_or_default().split(|byte| *byte == 0);
        let names = names.filter(|name| !name.is_empty());
        Ok(names.map(<[u8]>::to_vec).collect())
    }

    /// fgetxattr(2); `None`: there is no such attribute.
    pub fn attribute(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let target = Target::Ofd(self.file.ofd()?);
        let mut room = vec![0; abi::XATTR_SIZE_MAX];
        let found = file::attribute(self.file.pool(), target, name, &mut room)?;
        Ok(found.map(<[u8]>::to_vec))
    }

    /// fsetxattr(2).
    pub fn set_attribute(&self, name: &[u8], value: &[u8]) -> Result<()> {
        let (caller, target) = (self.caller(), Target::Ofd(self.file.ofd()?));
        let value = ConstBuf::from(value);
        Ok(call!(self.inner().reach()?, calls => {
            calls.setxattr(&caller, target, name, value, 0)
        })?)
    }

    /// fremovexattr(2).
    pub fn remove_attribute(&self, name: &[u8]) -> Result<()> {
        let (caller, target) = (self.caller(), Target::Ofd(self.file.ofd()?));
        Ok(call!(self.inner().reach()?, calls => calls.removexattr(&caller, target, name))?)
    }
}

fn nofollow(follow: bool) -> u32 {
    match follow {
        true => 0,
        false => abi::AT_SYMLINK_NOFOLLOW,
    }
}

fn is_legal(name: &str) -> bool {
    holdfast_pool::layout::is_legal_name(name.as_bytes())
}

/// A keyspace is gone through for each buffer.
const LISTING: usize = 1 << 20;
const ENOTDIR: i32 = 20;
