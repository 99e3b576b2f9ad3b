//! How long a queue is watched before its thread sleeps.
//!
//! Invariants: never longer than `MAX` after a request; not at all where the next request was
//! further away than that, so a device that nobody uses costs nothing.

use std::time::{Duration, Instant};

const MAX: Duration = Duration::from_micros(64);
const FIRST: Duration = Duration::from_micros(8);

/// Grows while requests come soon after the thread went to sleep, for it would have seen them.
pub struct Poll {
    time: Duration,
    slept: Instant,
}

impl Poll {
    pub fn new() -> Poll {
        Poll {
            time: Duration::ZERO,
            slept: Instant::now(),
        }
    }

    /// A request woke the thread.
    pub fn woken(&mut self) {
        self.learn(self.slept.elapsed());
    }

    fn learn(&mut self, slept: Duration) {
        self.time = match slept < MAX {
            true => (self.time * 2).clamp(FIRST, MAX),
            false => Duration::ZERO,
        };
    }

    /// Looks until it finds something; false when the time is up.
    pub fn found(&self, mut look: impl FnMut() -> bool) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < self.time {
            if look() {
                return true;
            }
            (0..32).for_each(|_| std::hint::spin_loop());
        }
        false
    }

    /// The thread sleeps now.
    pub fn sleeps(&mut self) {
        self.slept = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_only_while_requests_come_soon() {
        let mut poll = Poll::new();
        assert!(!poll.found(|| true));
        for _ in 0..10 {
            poll.learn(Duration::from_micros(3));
        }
        assert_eq!(poll.time, MAX);
        assert!(poll.found(|| true));
        assert!(!poll.found(|| false));
        poll.learn(Duration::from_millis(1));
        assert!(!poll.found(|| true));
    }
}
