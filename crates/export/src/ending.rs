//! Signals that end an export, as events.
//!
//! Invariant: they are blocked in every thread, because `Ending` is made before any other.

use crate::failure::Failure;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// SIGTERM and SIGINT.
pub struct Ending(SignalFd);

impl Ending {
    pub fn new() -> Result<Ending, Failure> {
        let failed = |e: nix::errno::Errno| Failure::io("signals", &e.into());
        let mask: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
        mask.thread_block().map_err(failed)?;
        let fd = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC).map_err(failed)?;
        Ok(Ending(fd))
    }

    /// Returns when one has come.
    pub fn wait(&self) {
        while !matches!(self.0.read_signal(), Ok(Some(_))) {}
    }
}
