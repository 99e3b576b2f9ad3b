//! A lock that fork cannot leave locked.
//!
//! Invariant: it is held only for short, bounded work in hooks, where signals are held back; a
//! child of fork, which has one thread, opens every lock before it continues (`process`). It makes
//! no call but sched_yield, and that only under contention: the program may have forbidden others.
use crate::sys;
use core::sync::atomic::{AtomicBool, Ordering};

const SCHED_YIELD: usize = 24;
const SPINS: u32 = 1024;

pub struct Lock(AtomicBool);

pub struct Guard<'a>(&'a AtomicBool);

impl Lock {
    pub const fn new() -> Lock {
        Lock(AtomicBool::new(false))
    }

    pub fn hold(&self) -> Guard<'_> {
        let mut spins = 0u32;
        while self.0.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
            spins += 1;
            if spins.is_multiple_of(SPINS) {
                // SAFETY: touches no memory.
                unsafe { sys::raw(SCHED_YIELD, [0; 6]) };
            }
        }
        Guard(&self.0)
    }

    /// In the child of a fork, whose other threads are gone.
    pub fn reopen(&self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
