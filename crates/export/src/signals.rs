//! Signals as events that can be waited for with a limit.
//!
//! Invariant: they are caught, not blocked, so a program that is started has them as it expects.

use crate::failure::Failure;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// From `catch` on, no signal of these ends this process by itself.
pub struct Signals {
    arrived: UnixStream,
    end: Arc<AtomicBool>,
}

impl Signals {
    /// Those that ask for the end.
    pub fn catch() -> Result<Signals, Failure> {
        Signals::try_catch(false).map_err(|e| Failure::io("signals", &e))
    }

    /// And the one that tells that a child has ended.
    pub fn with_children() -> Result<Signals, Failure> {
        Signals::try_catch(true).map_err(|e| Failure::io("signals", &e))
    }

    fn try_catch(children: bool) -> io::Result<Signals> {
        let (arrived, arrive) = UnixStream::pair()?;
        let end = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            // Before the byte arrives, so that it is seen by who is woken by it.
            flag::register(signal, Arc::clone(&end))?;
            pipe::register(signal, arrive.try_clone()?)?;
        }
        if children {
            pipe::register(SIGCHLD, arrive)?;
        }
        Ok(Signals { arrived, end })
    }

    /// Whether somebody wants this process to end.
    pub fn end(&self) -> bool {
        self.end.load(Relaxed)
    }

    /// Returns when somebody has wanted it since the last call.
    pub fn wait_for_end(&mut self) {
        while !self.end.swap(false, Relaxed) {
            self.wait(None);
        }
    }

    /// Returns when a signal has arrived since the last call, or after `limit`.
    pub fn wait(&mut self, limit: Option<Duration>) {
        // What it could say is that no signal has arrived yet.
        let _ = self.arrived.set_read_timeout(limit);
        let _ = self.arrived.read(&mut [0; 64]);
    }
}
