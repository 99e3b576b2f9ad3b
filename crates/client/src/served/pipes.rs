//! Pipes with a name in the pool: the name and its permissions are the pool's, the pipe is the
//! kernel's.

use crate::base::error::Result;
use crate::base::types::OfdLink;
use crate::served::Served;
use crate::served::channel::Ask;
use crate::served::life::args;
use crate::served::wire::{Note, Op};
use rustix::fd::OwnedFd;

impl Served {
    /// Opens the pipe that `open_as` gave this handle for, and waits for the other side as open(2)
    /// does. Descriptor `fd` is bound to it, and is to become a duplicate of what this returns.
    pub fn open_pipe(&self, handle: OfdLink, fd: u32) -> Result<OwnedFd> {
        let waits = Ask {
            waits: true,
            ..args(&[handle.raw().into()])
        };
        if let Err(e) = self.tell(Op::OpenPipe, &waits) {
            let _ = self.release(handle);
            return Err(e);
        }
        let taken = self.alone(|| {
            self.tell(Op::TakePipe, &args(&[handle.raw().into(), fd.into()]))?;
            match self.get()? {
                (Note::Object, [pipe]) => Ok(pipe),
                _ => Err(self.give_up()),
            }
        });
        match &taken {
            Ok(_) if self.is_own() => {
                self.note_bound(fd, true);
                self.pipes.set(fd, true);
            }
            Ok(_) => {}
            // It may be bound already.
            Err(_) => {
                let _ = self.number(Op::Unbind, &args(&[fd.into()]));
            }
        }
        taken
    }
}
