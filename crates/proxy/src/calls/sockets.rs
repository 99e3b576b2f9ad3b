//! Sockets with a name in the pool.
//!
//! Invariants: the name, its owner and its permissions are the pool's; the socket is the kernel's.
//! One that a user bound lies where that user could bind it, and a link in the pool's directory of
//! the kernel's objects leads there. Nobody gets what a link leads to unless it is a socket of the
//! user who owns the name: else a user could have us open what only we may reach.

use super::{Call, Reply};
use crate::connection;
use holdfast_client::abi::*;
use holdfast_client::served::wire::Note;
use holdfast_client::{Base, Caller, Error, Result, Stat};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, fstat, open, readlinkat, symlink};
use rustix::io::Errno;
use std::path::PathBuf;

pub(super) fn kernel(call: &'static str, errno: Errno) -> Error {
    let errno = errno.raw_os_error();
    Error::Kernel { call, errno }
}

fn refused() -> Error {
    kernel("connect", Errno::CONNREFUSED)
}

/// What is at a path of the host, without following a link there.
fn look(path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
}

/// The kind and the owner of what is open.
pub(super) fn kind(fd: &OwnedFd) -> Result<(FileType, u32), Errno> {
    fstat(fd).map(|stat| (FileType::from_raw_mode(stat.st_mode), stat.st_uid))
}

/// Whether a path is one in the directory where a user binds sockets.
fn is_place(path: &[u8], user: u32) -> bool {
    let directory = format!("/tmp/.holdfast-{user}/");
    let name = path.strip_prefix(directory.as_bytes());
    name.is_some_and(|name| !name.is_empty() && name.iter().all(u8::is_ascii_digit))
}

impl Call<'_> {
    /// Where the kernel's object of an inode is.
    pub(super) fn object(&self, ino: u64) -> PathBuf {
        self.member.shared.special.join(ino.to_string())
    }

    /// The directory of these is made by who needs it first.
    pub(super) fn make_special(&self) -> Result<()> {
        match rustix::fs::mkdir(&self.member.shared.special, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(e) => Err(kernel("mkdir", e)),
        }
    }

    /// The socket that the first text names; `flags` are those of open(2), and `f` may look at it.
    fn socket(&self, flags: u32, f: impl FnOnce(&Caller<'_>, Base) -> Result<()>) -> Result<Stat> {
        let (base, path) = (self.base(0)?, self.path(0)?);
        self.as_caller(|c| {
            // Whatever happens to the path, it is one object that is looked at.
            let ofd = self.client.open(c, base, path, O_PATH | flags, 0, 0)?;
            let stat = self.client.fstat(ofd).and_then(|stat| {
                f(c, Base::Ofd(ofd))?;
                match stat.mode & S_IFMT == S_IFSOCK {
                    true => Ok(stat),
                    false => Err(refused()),
                }
            });
            self.client.release(ofd)?;
            stat
        })
    }

    pub(super) fn place_socket(&self) -> Result<Reply> {
        let host = self.path(1)?;
        let stat = self.socket(O_NOFOLLOW, |_, _| Ok(()))?;
        let is_callers = self.as_caller(|c| Ok(c.uid == stat.uid))?;
        let bound = look(host).and_then(|fd| kind(&fd));
        let is_theirs = bound == Ok((FileType::Socket, stat.uid));
        if !is_callers || !is_theirs || !is_place(host, stat.uid) {
            return Err(Error::NotPermitted);
        }
        self.make_special()?;
        let placed = symlink(host, self.object(stat.ino));
        Reply::done(placed.map_err(|e| kernel("symlink", e)))
    }

    pub(super) fn socket_at(&self) -> Result<Reply> {
        let flags = AT_EACCESS | AT_EMPTY_PATH;
        let stat = self.socket(0, |c, socket| {
            self.client.access(c, socket, b"", W_OK, flags)
        })?;
        let socket = self.bound(&stat).map_err(|_| refused())?;
        let sent = connection::send(self.member, &Note::Object.encode(), &[socket.as_fd()]);
        Reply::done(sent.map_err(|_| Error::TableFull))
    }

    /// The socket of a name. An error: there is none, or it is not the user's who owns the name.
    fn bound(&self, stat: &Stat) -> Result<OwnedFd, Errno> {
        use std::os::unix::ffi::OsStrExt;
        let object = look(self.object(stat.ino).as_os_str().as_bytes())?;
        let object = match kind(&object)? {
            (FileType::Symlink, _) => {
                let host = readlinkat(&object, "", Vec::new())?;
                let socket = look(host.to_bytes())?;
                match kind(&socket)? {
                    (FileType::Socket, uid) if uid == stat.uid => socket,
                    _ => return Err(Errno::CONNREFUSED),
                }
            }
            (FileType::Socket, _) => object,
            _ => return Err(Errno::CONNREFUSED),
        };
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use super::is_place;

    #[test]
    fn users_bind_sockets_in_their_own_directory() {
        assert!(is_place(b"/tmp/.holdfast-7/0123456789", 7));
        for path in [
            &b"/tmp/.holdfast-7/"[..],
            b"/tmp/.holdfast-7/../x",
            b"/tmp/.holdfast-70/12",
            b"/tmp/.holdfast-7/12/34",
            b"/tmp/.holdfast-7/ab",
            b"tmp/.holdfast-7/12",
            b"",
        ] {
            assert!(!is_place(path, 7), "{}", path.escape_ascii());
        }
    }
}
