//! Callers and the threads that answer them on processors of their own.
//!
//! Who looks for the other side on the processor that the other side waits for looks in vain, and
//! where both sleep instead, a scheduler that wakes each beside the other keeps them together: a
//! call takes five times as long then, for as long as nothing else happens.

use holdfast_pmem::process::own_cpu;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::time::{Duration, Instant};

/// Callers that fell asleep on our processor in a row, before we leave it.
const SLEEPS: u32 = 4;
/// Where nothing comes of it, since others need the processors, it is not tried again for so long.
const PAUSE: Duration = Duration::from_millis(2);

/// What one thread has seen of its callers.
#[derive(Default)]
pub struct Apart {
    sleeps: u32,
    last: Option<Instant>,
}

impl Apart {
    /// A caller fell asleep on processor `cpu` before we had the answer.
    pub fn note_sleep(&mut self, cpu: u32) {
        if cpu != own_cpu() {
            self.sleeps = 0;
            return;
        }
        self.sleeps += 1;
        if self.sleeps >= SLEEPS && self.last.is_none_or(|last| last.elapsed() > PAUSE) {
            leave(cpu as usize);
            (self.sleeps, self.last) = (0, Some(Instant::now()));
        }
    }
}

/// Goes on on another processor, if we may use one. Nothing depends on it.
fn leave(cpu: usize) {
    let Ok(all) = sched_getaffinity(None) else {
        return;
    };
    if cpu >= CpuSet::MAX_CPU || all.count() < 2 {
        return;
    }
    let mut others = all;
    others.unset(cpu);
    if sched_setaffinity(None, &others).is_ok() {
        // We stay where we are now until the scheduler has a reason.
        let _ = sched_setaffinity(None, &all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_keeps_its_caller_from_running_goes_elsewhere() {
        let all = sched_getaffinity(None).unwrap();
        let mut apart = Apart::default();
        // The scheduler may move us meanwhile, too.
        while apart.last.is_none() {
            apart.note_sleep(own_cpu());
        }
        assert_eq!(apart.sleeps, 0);
        // What we may use is what it was.
        assert_eq!(sched_getaffinity(None).unwrap(), all);
        // A caller that cannot be here, nor anywhere.
        leave(usize::MAX);
        apart.note_sleep(u32::MAX);
        assert_eq!(apart.sleeps, 0);
    }
}
