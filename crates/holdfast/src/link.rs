//! The connection of a process that has the pool mapped to the service, and a thread that looks for
//! the next service when this one dies.
//!
//! Invariant: the thread ends with the last handle; in a child of fork(2) a while later.

use crate::error::{Error, Result};
use crate::memory::SessionMemory;
use crate::start;
use holdfast_client::attach::Attachment;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long the thread of a child of fork(2) outlives its handles, at most.
const CHILD_NAP: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// The pauses between attempts to get a service again, which double, and after a service that did
/// its work.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(1);

/// The connection to the service, and what is needed to find the next service.
pub(crate) struct Link {
    path: PathBuf,
    /// Session memory, to offer it to the next service.
    session: SessionMemory,
    /// Journal and data: the client flushes through them.
    _segments: [OwnedFd; 2],
    connection: Mutex<OwnedFd>,
    closing: AtomicBool,
    /// The process whose connection it is.
    opener: u64,
    /// Whether the session needs a service.
    watched: AtomicBool,
}

/// The number of this process.
pub(crate) fn process() -> u64 {
    rustix::process::getpid().as_raw_nonzero().get() as u64
}

impl Link {
    /// What `attachment` came with, on the pool in `path`.
    pub fn new(path: PathBuf, attachment: Attachment, session: SessionMemory) -> Arc<Link> {
        Arc::new(Link {
            path,
            session,
            _segments: [attachment.journal, attachment.data],
            connection: Mutex::new(attachment.connection),
            closing: AtomicBool::new(false),
            opener: process(),
            watched: AtomicBool::new(false),
        })
    }

    /// The pool's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts a thread that looks for the next service when this one dies.
    pub fn start_watching(self: &Arc<Link>) -> Result<()> {
        self.watched.store(true, Release);
        let link = self.clone();
        let thread = std::thread::Builder::new().name("holdfast".into());
        let spawned = thread.spawn(move || link.watch());
        spawned.map(drop).map_err(|e| Error::Os {
            what: "a thread cannot be started",
            errno: e.raw_os_error().unwrap_or(11),
        })
    }

    /// This process has a place in the session from now on, which may be its parent's thread's to
    /// watch.
    pub fn joined(self: &Arc<Link>) {
        if self.opener != process() && self.watched.load(Acquire) {
            // The thread that watches is the parent's. Without one this goes on until the service
            // dies.
            let _ = self.start_watching();
        }
    }

    /// The last handle is dropped. `keep`: another library in this process has a place in the
    /// session.
    pub fn close(&self, keep: bool) {
        if keep {
            self.session.keep();
        }
        self.closing.store(true, Release);
        // A child's end of the connection is its parent's, too.
        if self.opener == process()
            && let Ok(connection) = self.connection.lock()
        {
            let _ = rustix::net::shutdown(&*connection, rustix::net::Shutdown::Both);
        }
    }

    fn watch(&self) {
        let (mut pause, mut joined) = (Duration::ZERO, Instant::now());
        while !self.closing.load(Acquire) {
            let Ok(connection) = self.connection.lock().map(|c| c.try_clone()) else {
                return;
            };
            let Ok(connection) = connection else { return };
            let mut fds = [PollFd::new(&connection, PollFlags::IN)];
            // A child cannot shut its parent's connection down: it looks now and then.
            let nap = (self.opener != process()).then_some(CHILD_NAP);
            match rustix::event::poll(&mut fds, nap.as_ref()) {
                Ok(0) => continue,
                Ok(_) if self.closing.load(Acquire) => return,
                Ok(_) => {}
                Err(_) => continue,
            }
            // One that ends soon after it starts is not started in a loop.
            if joined.elapsed() > LONG {
                pause = Duration::ZERO;
            }
            std::thread::sleep(pause);
            if self.closing.load(Acquire) {
                return;
            }
            pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            if let Ok(attachment) = start::join_again(&self.path, self.session.as_fd())
                && let Ok(mut place) = self.connection.lock()
            {
                *place = attachment.connection;
                joined = Instant::now();
            }
        }
    }
}
