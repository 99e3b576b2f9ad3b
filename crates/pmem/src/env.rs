//! The clock, and all waiting.
//!
//! What always holds here:
//! - Client and service take the time from here only, and wait for a word of shared memory by
//!   [`wait`] alone.
//! - Without the feature `model` each function is the system call that it names.
//! - With it the time is virtual. It passes when all simulated threads wait, and by a step whenever
//!   one of them reads it; waiting lets others continue. So waits take no real time in a test, and
//!   the seed of the scheduler determines everything.

pub use crate::futex::{WaitResult, wait, wake};
#[cfg(feature = "model")]
use crate::model as world;
use core::ops::Add;
use core::time::Duration;
#[cfg(not(feature = "model"))]
use real as world;

/// Nanoseconds since 1970, as coarse as the kernel's own file times.
///
/// It must be read before any lock is taken. The vDSO is not our text, so a signal may interrupt
/// it and run a handler that never returns.
#[inline]
pub fn now() -> i64 {
    world::now()
}

/// Nanoseconds since 1970, exactly. It may be read while locks are held: it is a system call, so no
/// code but ours runs.
#[inline]
pub fn exact_now() -> i64 {
    world::exact_now()
}

/// Milliseconds of a clock that only grows; coarse, for bounded waits.
#[inline]
pub fn monotonic_ms() -> u64 {
    world::monotonic_ms()
}

/// A clock for short times, of some GHz. Processors may differ by a little.
#[inline]
pub fn ticks() -> u64 {
    world::ticks()
}

/// Others may have the processor.
#[inline]
pub fn yield_now() {
    world::yield_now();
}

/// Waits for so long.
pub fn sleep(time: Duration) {
    world::sleep(time);
}

/// Bytes that nobody can guess.
pub fn random(out: &mut [u8]) {
    world::random(out);
}

/// A moment of a clock that only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant {
    /// Since some moment before.
    age: Duration,
}

impl Instant {
    /// This moment.
    #[inline]
    pub fn now() -> Instant {
        let age = world::age();
        Instant { age }
    }

    /// How long ago it was.
    #[inline]
    pub fn elapsed(&self) -> Duration {
        Instant::now().duration_since(*self)
    }

    /// How long before this `earlier` was; nothing if it was not.
    #[inline]
    pub fn duration_since(&self, earlier: Instant) -> Duration {
        self.age.saturating_sub(earlier.age)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, later: Duration) -> Instant {
        let age = self.age.saturating_add(later);
        Instant { age }
    }
}

/// The system's.
#[cfg(not(feature = "model"))]
mod real {
    pub use crate::cpu::ticks;
    use core::time::Duration;
    use rustix::rand::{GetRandomFlags, getrandom};
    use rustix::thread::{NanosleepRelativeResult, nanosleep, sched_yield};
    use rustix::time::{ClockId, Timespec, clock_gettime};

    #[inline]
    pub fn now() -> i64 {
        let t = clock_gettime(ClockId::RealtimeCoarse);
        t.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec)
    }

    pub fn exact_now() -> i64 {
        crate::sys::realtime_ns()
    }

    #[inline]
    pub fn monotonic_ms() -> u64 {
        let t = clock_gettime(ClockId::MonotonicCoarse);
        t.tv_sec as u64 * 1000 + t.tv_nsec as u64 / 1_000_000
    }

    #[inline]
    pub fn age() -> Duration {
        let t = clock_gettime(ClockId::Monotonic);
        Duration::new(t.tv_sec.unsigned_abs(), t.tv_nsec as u32)
    }

    #[inline]
    pub fn yield_now() {
        sched_yield();
    }

    pub fn sleep(time: Duration) {
        let mut left = Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        while let NanosleepRelativeResult::Interrupted(rest) = nanosleep(&left) {
            left = rest;
        }
    }

    pub fn random(out: &mut [u8]) {
        let mut done = 0;
        while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
            done += getrandom(rest, GetRandomFlags::empty()).unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn the_exact_time_is_not_behind() {
        let coarse = now();
        let (first, second) = (exact_now(), exact_now());
        assert!(coarse <= first && first <= second && first - coarse < 1_000_000_000);
    }

    #[test]
    fn the_time_is_that_of_the_system_and_passes() {
        let system = SystemTime::now().duration_since(UNIX_EPOCH);
        let system = system.unwrap().as_nanos() as i64;
        assert!((now() - system).abs() < 1_000_000_000);
        let (begun, ms) = (Instant::now(), monotonic_ms());
        sleep(Duration::from_millis(20));
        assert!(begun.elapsed() >= Duration::from_millis(20) && monotonic_ms() > ms);
        let later = begun + Duration::from_secs(3600);
        assert!(later > Instant::now() && begun.duration_since(later).is_zero());
    }

    #[test]
    fn random_bytes_fill_all_and_differ() {
        let (mut a, mut b) = ([0; 300], [0; 300]);
        random(&mut a);
        random(&mut b);
        assert!(a != b && a[284..] != [0; 16]);
    }
}
