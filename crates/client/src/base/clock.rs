//! The time that objects are stamped with.
//!
//! Invariant: it must be read before any lock is taken. The vDSO is not our text, so a signal
//! may interrupt it and run a handler that never returns.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since 1970, as coarse as the kernel's own file times.
#[inline]
pub fn now() -> i64 {
    let t = clock_gettime(ClockId::RealtimeCoarse);
    t.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec)
}

/// Milliseconds of a clock that only grows; for bounded waits.
pub(crate) fn monotonic_ms() -> u64 {
    let t = clock_gettime(ClockId::MonotonicCoarse);
    t.tv_sec as u64 * 1000 + t.tv_nsec as u64 / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn now_is_the_system_time() {
        let system = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_nanos() as i64;
        assert!((now() - system).abs() < 1_000_000_000);
    }
}
