//! Clocks: the wall's, this thread's, this process's, and those of processes that help.
//!
//! Invariant: what a helper used before it was first looked at does not count.

use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use std::time::Instant;

/// Nanoseconds of a clock; 0 when its process is gone.
fn read(id: ClockId) -> u64 {
    clock_gettime(id).map_or(0, |t| t.num_nanoseconds().max(0) as u64)
}

/// CPU time of this thread.
pub fn thread_ns() -> u64 {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of this process and of the helpers.
pub fn all_ns(helpers: &[i32]) -> u64 {
    let helper = |pid: &i32| clock_getcpuclockid(Pid::from_raw(*pid)).map_or(0, read);
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID) + helpers.iter().map(helper).sum::<u64>()
}

/// All clocks at one time.
pub struct Clocks {
    wall: Instant,
    thread: u64,
    all: u64,
}

/// What passed on each, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Passed {
    pub wall: f64,
    pub thread: f64,
    pub all: f64,
}

impl Clocks {
    pub fn now(helpers: &[i32]) -> Clocks {
        Clocks {
            all: all_ns(helpers),
            thread: thread_ns(),
            wall: Instant::now(),
        }
    }

    pub fn passed(&self, helpers: &[i32]) -> Passed {
        let wall = self.wall.elapsed().as_nanos() as f64;
        let thread = thread_ns().saturating_sub(self.thread) as f64;
        let all = all_ns(helpers).saturating_sub(self.all) as f64;
        Passed { wall, thread, all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_of_thread_and_process_pass_and_those_of_nobody_do_not() {
        let start = Clocks::now(&[i32::MAX]);
        let mut x = 1u64;
        while thread_ns() - start.thread < 5_000_000 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        let passed = start.passed(&[i32::MAX]);
        assert!(passed.thread >= 5e6 && passed.all >= 5e6 && passed.wall >= 5e6);
        let own = std::process::id() as i32;
        assert!(all_ns(&[own]) >= all_ns(&[]) + 5_000_000);
    }
}
