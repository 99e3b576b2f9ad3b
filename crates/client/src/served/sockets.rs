//! Sockets with a name in the pool: the name and its permissions are the pool's, the socket is the
//! kernel's.

use crate::base::error::Result;
use crate::base::types::{Base, Caller};
use crate::served::Served;
use crate::served::channel::Ask;
use crate::served::names::at;
use crate::served::wire::{Note, Op};
use rustix::fd::OwnedFd;

impl Served {
    /// The socket of the name at `path`, which `c` just made, is the one that `c` bound at the
    /// absolute path `host`. EEXIST: the name has one already.
    pub fn place_socket(&self, c: &Caller, base: Base, path: &[u8], host: &[u8]) -> Result<()> {
        let ask = Ask {
            texts: [path, host],
            ..at(c, base, path, &[])
        };
        self.tell(Op::PlaceSocket, &ask)
    }

    /// The socket of the name at `path`, opened with O_PATH, if `c` may write to it. ECONNREFUSED:
    /// that is no socket, or nobody's any more.
    pub fn socket_at(&self, c: &Caller, base: Base, path: &[u8]) -> Result<OwnedFd> {
        self.alone(|| {
            self.tell(Op::SocketAt, &at(c, base, path, &[]))?;
            match self.get()? {
                (Note::Object, [socket]) => Ok(socket),
                _ => Err(self.give_up()),
            }
        })
    }
}
