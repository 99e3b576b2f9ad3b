//! The name under which a process that has no slot yet holds locks: it takes some to get one.
//!
//! Invariants:
//!  * Such a process is as alive to others as one with a slot: it holds a record lock on a life of
//!    its own, and its lock words name that life. The kernel ends it with the process.
//!  * No two processes have the same number at a time, nor do two threads of one process.

use crate::base::error::{Error, Result};
use crate::session::{NOBODY, Session, owner_word};
use pool::session::live::{JOINING_MAX, joining_life};
use rustix::io::Errno;

/// From here until it is dropped, the caller may take locks although it has no slot.
pub(crate) struct Joining<'a> {
    session: &'a Session,
    /// As lock words name the caller.
    owner: u32,
    life: u64,
}

impl<'a> Joining<'a> {
    /// `TableFull`: the kernel has no memory for the lock.
    pub fn begin(s: &'a Session) -> Result<Joining<'a>> {
        // Threads share the lock on a life and do not see each other's, but have numbers of their
        // own. Those of other processes are passed over.
        let first = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        for n in 0..JOINING_MAX {
            let number = first.wrapping_add(n) % JOINING_MAX + 1;
            let (owner, life) = (owner_word(NOBODY, number), joining_life(number));
            match s.locks().hold(life) {
                Ok(()) => {
                    s.set_me(NOBODY, number);
                    return Ok(Joining {
                        session: s,
                        owner,
                        life,
                    });
                }
                Err(Errno::AGAIN | Errno::ACCESS) => {}
                Err(_) => break,
            }
        }
        Err(Error::TableFull)
    }
}

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        if self.session.owner() == self.owner {
            self.session.set_me(NOBODY, 0);
        }
        self.session.locks().leave(self.life);
    }
}
