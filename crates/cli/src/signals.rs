//! Signals as events: they wait in a descriptor until they are read.
//!
//! Invariant: a signal taken here is blocked in every thread, but in no program that is started:
//! the standard library passes the mask on, so `open_for_a_child` unblocks it around the start.

use crate::failure::Failure;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::fd::{AsFd, BorrowedFd};

/// si_code of signals that the kernel sent, for instance from the terminal.
const SI_KERNEL: i32 = 0x80;

/// A set of blocked signals.
pub struct Signals {
    fd: SignalFd,
}

/// One signal that came.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// Its number.
    pub number: i32,
    /// The terminal sent it to the whole foreground group, the program included.
    pub from_terminal: bool,
}

/// A file that would grow beyond the limit is an error, not a signal.
pub fn survive_limits() {
    let mask: SigSet = [Signal::SIGXFSZ].into_iter().collect();
    let _ = mask.thread_block();
}

/// What ends a service does not end this process.
pub fn outlive() -> Result<(), Failure> {
    let mask: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]
        .into_iter()
        .collect();
    let blocked = mask.thread_block();
    blocked.map_err(|e| Failure::io("signals", &e.into()))
}

/// Runs `start`, which starts a program, with every signal open, as the program expects it. A
/// signal that arrives just then ends this process before it can be handed on.
pub fn open_for_a_child<T>(start: impl FnOnce() -> T) -> T {
    let before = SigSet::empty().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let started = start();
    if let Ok(mask) = before {
        let _ = mask.thread_set_mask();
    }
    started
}

impl Signals {
    /// What ends a service.
    pub fn of_service() -> Result<Signals, Failure> {
        Signals::of(&[Signal::SIGTERM, Signal::SIGINT], SfdFlags::SFD_CLOEXEC)
    }

    /// What `run` hands on to the program.
    pub fn to_hand_on() -> Result<Signals, Failure> {
        let all = [
            Signal::SIGTERM,
            Signal::SIGINT,
            Signal::SIGHUP,
            Signal::SIGQUIT,
            Signal::SIGUSR1,
            Signal::SIGUSR2,
            Signal::SIGALRM,
        ];
        Signals::of(&all, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
    }

    fn of(all: &[Signal], flags: SfdFlags) -> Result<Signals, Failure> {
        let fail = |e: nix::errno::Errno| Failure::io("signals", &e.into());
        let mask: SigSet = all.iter().copied().collect();
        mask.thread_block().map_err(fail)?;
        Ok(Signals {
            fd: SignalFd::with_flags(&mask, flags).map_err(fail)?,
        })
    }

    /// Returns when one has come.
    pub fn wait_for_end(self) {
        while !matches!(self.fd.read_signal(), Ok(Some(_))) {}
    }

    /// The next one that has come.
    pub fn next(&mut self) -> Option<Arrived> {
        let info = self.fd.read_signal().ok().flatten()?;
        Some(Arrived {
            number: info.ssi_signo as i32,
            from_terminal: info.ssi_code == SI_KERNEL,
        })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
