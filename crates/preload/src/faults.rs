//! Which instructions of ours may fault or be interrupted, and where they go on.
//!
//! Invariant: these are the only places in our text where a signal of the program, or a fault,
//! does anything but wait for the hook to leave.

use crate::waiting;

/// Where to resume after a fault at `ip` in one of the fault-tolerant copies.
pub fn landing_for(ip: usize) -> Option<usize> {
    crate::user::landing_for(ip).or_else(|| holdfast_pmem::fault::landing_for(ip))
}

/// Whether a signal at `ip` found a wait that it may interrupt.
pub fn is_interruptible(ip: usize) -> bool {
    holdfast_pmem::futex::interruptible_range().contains(&ip) || waiting::range().contains(&ip)
}

/// Where that wait goes on after the handler: it ends at once, or looks again if the signal
/// restarts what it interrupts.
pub fn interrupted_wait(ip: usize, restarts: bool) -> Option<usize> {
    let wait = match restarts {
        true => holdfast_pmem::futex::restart(ip),
        false => holdfast_pmem::futex::interrupt(ip),
    };
    wait.or_else(|| waiting::landing(ip, restarts))
}
