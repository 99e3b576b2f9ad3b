//! Names and attributes.

use super::{Call, Reply};
use holdfast_client::abi::{O_ACCMODE, O_KERNELS, O_PATH, O_RDONLY, PATH_MAX};
use holdfast_client::served::answers::{Asked, access_arg, asks_for_what_is_there, stat_arg};
use holdfast_client::served::wire::*;
use holdfast_client::{Base, Error, OfdLink, Result, Stat, StatFs, Target};

impl Call<'_> {
    pub(super) fn names(&self, op: Op) -> Result<Reply> {
        let client = self.client;
        match op {
            Op::Open => self.open(),
            Op::Mkdir => self.one(|c, base, path| client.mkdir(c, base, path, self.arg_u32(1)?)),
            Op::Mknod => {
                self.one(|c, base, path| client.mknod(c, base, path, self.arg_u32(1)?, self.arg(2)))
            }
            Op::Symlink => {
                let (target, path) = (self.path(0)?, self.path(1)?);
                let base = self.base(0)?;
                Reply::done(self.as_caller(|c| client.symlink(c, target, base, path)))
            }
            Op::Link | Op::Rename => self.two(op),
            Op::Unlink => self.one(|c, base, path| client.unlink(c, base, path)),
            Op::Rmdir => self.one(|c, base, path| client.rmdir(c, base, path)),
            Op::Readlink => {
                let (base, path, room) = (self.base(0)?, self.path(0)?, self.room(self.arg(1))?);
                self.as_caller(|c| client.readlink(c, base, path, room))
                    .map(Reply::bytes)
            }
            Op::Access => self.access(),
            Op::Chdir => {
                self.one(|c, base, path| client.chdir(c, base, path))?;
                self.directory_now()
            }
            Op::Fchdir => {
                let handle = word_handle(self.arg(0))?;
                let ofd = self.member.description(client, handle)?;
                self.as_caller(|c| client.fchdir(c, ofd))?;
                self.directory_now()
            }
            Op::ChdirOutside => Reply::done(client.chdir_outside()),
            Op::CwdInside => Ok(Reply::number(client.cwd_inside().into())),
            Op::Getcwd => self.text(self.arg(0), |out| client.getcwd(out)),
            Op::PathOf => {
                let ofd = self.ofd(0)?;
                self.text(self.arg(1), |out| client.path_of(ofd, out))
            }
            _ => Err(Error::Invalid),
        }
    }

    fn access(&self) -> Result<Reply> {
        let (mode, flags) = (self.arg_u32(1)?, self.arg_u32(2)?);
        if let Some(arg) = access_arg(mode, flags)
            && let Some(reply) = self.kept(Asked::Access, arg)?
        {
            return Ok(reply);
        }
        self.one(|c, base, path| self.client.access(c, base, path, mode, flags))
    }

    fn open(&self) -> Result<Reply> {
        let (base, path) = (self.base(0)?, self.path(0)?);
        let fd = self.arg(4).checked_sub(1);
        let (mode, resolve) = (self.arg_u32(2)?, self.arg(3));
        // Pipes are for whoever has a descriptor that can become one.
        let flags = match fd {
            Some(_) => self.arg_u32(1)? | O_KERNELS,
            None => self.arg_u32(1)? & !O_KERNELS,
        };
        let opened = self.as_caller(|c| self.client.open(c, base, path, flags, mode, resolve));
        if let (Err(Error::NotFound), true) = (&opened, asks_for_what_is_there(flags, resolve)) {
            // Who looks for a file in one directory after the other looks for many.
            let _ = self.kept(Asked::Stat, 0);
        }
        let ofd = opened?;
        if let Some(fd) = fd
            && !self.client.is_kernels(ofd)
        {
            let fd = u32::try_from(fd).unwrap_or(u32::MAX);
            let ino = self.client.ino_of(ofd)?;
            let reply = self.with_content(ofd, ino);
            return self.bind(fd, ofd).map(|_| reply);
        }
        let handle = self.member.hold(self.client, ofd)?;
        Ok(Reply::number(handle.into()))
    }

    /// The number and the flags of a file that was opened. One that is only read comes with its
    /// content, if that is short, and with the lease that it has been read under.
    fn with_content(&self, ofd: OfdLink, ino: u64) -> Reply {
        // Nothing depends on them that the flags themselves do not tell.
        let flags = self.client.getfl(ofd).unwrap_or(O_PATH);
        let told = match self.client.is_regular(ofd) {
            true => u64::from(flags | REGULAR),
            false => flags.into(),
        };
        let plain = Reply::words(&[0, ino, told]);
        if self.member.answers().is_none() {
            return plain;
        }
        let content = match flags & (O_ACCMODE | O_PATH) {
            O_RDONLY => self.content(ofd),
            _ => None,
        };
        // What was fetched of the file for its content recalls leases.
        self.keep_fstat(ofd, ino);
        match content {
            Some((len, (index, value))) => Reply {
                len,
                ..Reply::words(&[0, ino, told, u64::from(index) + 1, value])
            },
            None => plain,
        }
    }

    /// The number of the working directory; 0: another thread has left the pool since.
    fn directory_now(&self) -> Result<Reply> {
        Ok(Reply::number(self.client.start_of(Base::Cwd).unwrap_or(0)))
    }

    /// A call about one path, whose base is the first argument.
    fn one(
        &self,
        f: impl FnOnce(&holdfast_client::Caller<'_>, holdfast_client::Base, &[u8]) -> Result<()>,
    ) -> Result<Reply> {
        let (base, path) = (self.base(0)?, self.path(0)?);
        Reply::done(self.as_caller(|c| f(c, base, path)))
    }

    fn two(&self, op: Op) -> Result<Reply> {
        let (old, new) = (
            (self.base(0)?, self.path(0)?),
            (self.base(1)?, self.path(1)?),
        );
        let flags = self.arg_u32(2)?;
        Reply::done(self.as_caller(|c| match op {
            Op::Link => self.client.link(c, old, new, flags),
            _ => self.client.rename(c, old, new, flags),
        }))
    }

    /// A path, of which at most `len` bytes are wanted.
    fn text(&self, len: u64, f: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<Reply> {
        let mut text = [0; 2 * PATH_MAX];
        let wanted = usize::try_from(len).unwrap_or(usize::MAX).min(text.len());
        let len = f(&mut text[..wanted])?.min(wanted);
        self.room(len as u64)?
            .write(&text[..len])
            .map_err(Error::Fault)?;
        Ok(Reply::bytes(len))
    }

    pub(super) fn attributes(&self, op: Op) -> Result<Reply> {
        let client = self.client;
        let owner = || (word_id(self.arg(1)), word_id(self.arg(2)));
        let times = || [word_time(self.arg(1)), word_time(self.arg(2))];
        match op {
            Op::Chmod => self.one(|c, base, path| {
                client.chmod(c, base, path, self.arg_u32(1)?, self.arg_u32(2)?)
            }),
            Op::Chown => {
                self.one(|c, base, path| client.chown(c, base, path, owner(), self.arg_u32(3)?))
            }
            Op::Utimens => {
                self.one(|c, base, path| client.utimens(c, base, path, times(), self.arg_u32(3)?))
            }
            Op::Truncate => {
                self.one(|c, base, path| client.truncate(c, base, path, self.arg(1) as i64))
            }
            Op::Stat => {
                let (base, path, flags) = (self.base(0)?, self.path(0)?, self.arg_u32(1)?);
                if let Some(arg) = stat_arg(flags)
                    && let Some(reply) = self.kept(Asked::Stat, arg)?
                {
                    return Ok(reply);
                }
                self.as_caller(|c| client.stat(c, base, path, flags))
                    .map(stat)
            }
            Op::Statfs => {
                let (base, path, flags) = (self.base(0)?, self.path(0)?, self.arg_u32(1)?);
                self.as_caller(|c| client.statfs_at(c, base, path, flags))
                    .map(statfs)
            }
            Op::Fstat => self.kept_fstat(),
            Op::Fchmod | Op::Fchown | Op::Futimens => {
                let ofd = self.member.description(client, word_handle(self.arg(0))?)?;
                Reply::done(self.as_caller(|c| match op {
                    Op::Fchmod => client.fchmod(c, ofd, self.arg_u32(1)?),
                    Op::Fchown => client.fchown(c, ofd, owner()),
                    _ => client.futimens(c, ofd, times()),
                }))
            }
            _ => self.extended(op),
        }
    }

    fn extended(&self, op: Op) -> Result<Reply> {
        let (client, base) = (self.client, self.base(0)?);
        let target = match (self.arg(1), base) {
            (2, holdfast_client::Base::Ofd(ofd)) => Target::Ofd(ofd),
            (nofollow @ 0..=1, base) => Target::Path {
                base,
                path: self.path(0)?,
                nofollow: nofollow == 1,
            },
            _ => return Err(Error::Invalid),
        };
        let name = self.path(1)?;
        let wanted = self.arg(2);
        match op {
            Op::Getxattr => {
                let room = self.room(wanted)?;
                self.as_caller(|c| client.getxattr(c, target, name, room))
                    .map(|len| self.maybe(len, wanted))
            }
            Op::Listxattr => {
                let room = self.room(wanted)?;
                self.as_caller(|c| client.listxattr(c, target, room))
                    .map(|len| self.maybe(len, wanted))
            }
            Op::Setxattr => {
                let flags = self.arg_u32(2)?;
                let value = self.copied()?;
                Reply::done(self.as_caller(|c| {
                    client.setxattr(c, target, name, value.as_slice().into(), flags)
                }))
            }
            Op::Removexattr => Reply::done(self.as_caller(|c| client.removexattr(c, target, name))),
            _ => Err(Error::Invalid),
        }
    }

    /// A length, with the bytes if there was room for any.
    fn maybe(&self, len: usize, wanted: u64) -> Reply {
        match wanted {
            0 => Reply::number(len as u64),
            _ => Reply::bytes(len),
        }
    }

    /// A value, which must not change while it is made a record.
    fn copied(&self) -> Result<Vec<u8>> {
        let bytes = self.bytes()?;
        let mut copy = vec![0; bytes.len()];
        bytes.read(&mut copy).map_err(Error::Fault)?;
        Ok(copy)
    }
}

/// The handle in a word that tells a base.
fn word_handle(word: u64) -> Result<u32> {
    match word_base(word) {
        Some(holdfast_client::Base::Ofd(handle)) => Ok(handle.raw()),
        _ => Err(Error::BadDescriptor),
    }
}

fn stat(stat: Stat) -> Reply {
    Reply::words(&stat_words(&stat))
}

fn statfs(s: StatFs) -> Reply {
    Reply::words(&[
        s.block_size.into(),
        s.blocks,
        s.free,
        s.available,
        s.files,
        s.files_free,
        s.name_max.into(),
    ])
}
