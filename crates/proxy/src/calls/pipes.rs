//! Pipes with a name in the pool.
//!
//! Invariants: the name, its owner and its permissions are the pool's; the pipe is the kernel's, in
//! the pool's directory of the kernel's objects, where a served user does not come. Who gets it
//! gets it as it was opened here: for what the description in the pool was opened for.

use super::sockets::{kernel, kind};
use super::{Call, Reply};
use crate::{connection, pipes};
use holdfast_client::served::wire::{Note, UNBOUND};
use holdfast_client::{Error, Result};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::io::Errno;

/// What of the flags of a description says how the kernel's pipe is opened.
const KEPT: OFlags = OFlags::RWMODE.union(OFlags::NONBLOCK).union(OFlags::APPEND);

impl Call<'_> {
    pub(super) fn open_pipe(&self) -> Result<Reply> {
        let handle = self.arg_u32(0)?;
        let pipe = self.opened(handle)?;
        Reply::done(self.member.keep_pipe(handle, pipe))
    }

    fn opened(&self, handle: u32) -> Result<OwnedFd> {
        let ofd = self.ofd(0)?;
        if handle & UNBOUND == 0 || !self.client.is_kernels(ofd) {
            return Err(Error::Invalid);
        }
        let flags = self.client.getfl(ofd)?;
        self.make_special()?;
        let object = self.object(self.client.ino_of(ofd)?);
        match mknodat(CWD, &object, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(kernel("mknod", e)),
        }
        let flags = OFlags::from_bits_retain(flags) & KEPT | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (channel, index, member) = (self.channel.clone(), self.index, self.member.clone());
        let must_end = move || channel.is_cancelled(index) || member.has_ended();
        let opened = pipes::open(&object, flags, must_end);
        let pipe = opened.map_err(|e| match e {
            Errno::INTR => Error::Interrupted,
            e => kernel("open", e),
        })?;
        match kind(&pipe) {
            Ok((FileType::Fifo, _)) => Ok(pipe),
            _ => Err(Error::Invalid),
        }
    }

    pub(super) fn take_pipe(&self) -> Result<Reply> {
        let (client, member) = (self.client, self.member);
        let (ofd, pipe) = member.take_pipe(self.arg_u32(0)?)?;
        let fd = self.arg_u32(1)?;
        let bound = self.bind(fd, ofd)?;
        match connection::send(member, &Note::Object.encode(), &[pipe.as_fd()]) {
            Ok(()) => Ok(bound),
            Err(_) => {
                member.unbind(client, fd)?;
                Err(Error::TableFull)
            }
        }
    }
}
