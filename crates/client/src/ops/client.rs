//! `Client`: a process's view of a pool, on which all operations are defined.

use crate::base::error::Result;
use crate::content::durable;
use crate::session::Session;
use alloc::boxed::Box;

/// One process's view of a pool.
pub struct Client {
    pub(crate) session: Session,
    /// Absolute host path under which the pool appears; empty when it appears nowhere.
    pub(crate) at: Box<[u8]>,
}

/// The session.
impl Client {
    /// A view of the pool of `session`, which appears at the absolute host path `at` (empty:
    /// nowhere, so absolute symbolic links and `..` stay inside).
    pub fn new(session: Session, at: &[u8]) -> Client {
        Client {
            session,
            at: at.into(),
        }
    }

    /// For another process whose calls this one makes, to which the pool appears at `at`. It has no
    /// place in the session yet.
    pub fn another(&self, at: &[u8]) -> Client {
        Client::new(self.session.another(), at)
    }

    /// RLIMIT_FSIZE of this process: `OverLimit` for what would let a file grow beyond it.
    pub fn file_limit(&self) -> u64 {
        self.session.file_limit()
    }

    /// See `file_limit`.
    pub fn set_file_limit(&self, bytes: u64) {
        self.session.set_file_limit(bytes);
    }

    /// The session: slots, fork, exec, counters.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// What was done survives what the medium survives, where the pool promises that at return.
    #[inline]
    pub(crate) fn durable<T>(&self, done: Result<T>) -> Result<T> {
        if self.session.consistency() == 0 || !durable::is_needed(&self.session) {
            return done;
        }
        let done = done?;
        durable::records(&self.session)?;
        Ok(done)
    }
}
