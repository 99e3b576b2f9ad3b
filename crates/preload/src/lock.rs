//! A lock that neither fork nor a killed thread can leave shut.
//!
//! Invariant: the word holds the owner's thread id; a waiter that has spun long enough asks the
//! kernel whether that thread still lives in this process, and takes over from one that does
//! not. Held only for short, bounded work in hooks, where signals are held back.
use crate::sys;
use core::sync::atomic::{AtomicU32, Ordering};

const TGKILL: usize = 234;
const ESRCH: isize = 3;
const SPINS: u32 = 4096;

pub struct Lock(AtomicU32);

pub struct Guard<'a>(&'a AtomicU32);

impl Lock {
    pub const fn new() -> Lock {
        Lock(AtomicU32::new(0))
    }

    pub fn hold(&self) -> Guard<'_> {
        let own = sys::gettid();
        let mut spins = 0;
        loop {
            let take = self
                .0
                .compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed);
            let Err(owner) = take else {
                return Guard(&self.0);
            };
            core::hint::spin_loop();
            spins += 1;
            if spins % SPINS == 0 && (owner == own || is_gone(owner)) {
                let steal =
                    self.0
                        .compare_exchange(owner, own, Ordering::Acquire, Ordering::Relaxed);
                if steal.is_ok() {
                    return Guard(&self.0);
                }
            }
        }
    }
}

fn is_gone(tid: u32) -> bool {
    let args = [sys::getpid() as usize, tid as usize, 0, 0, 0, 0];
    // SAFETY: signal 0 only asks.
    unsafe { sys::raw(TGKILL, args) == -ESRCH }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}
