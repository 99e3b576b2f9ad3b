//! Copies that take longer than they do: as long as on a slower medium.
//!
//! What always holds here:
//! - A copy ends no earlier than its settings say: never before `factor` times the time that it
//!   took, nor before its latency has passed, nor before the medium has been busy with all that was
//!   copied before it, by any process, and with itself.
//! - What other processes store into [`Meter`] can make copies wait, for a bounded time each, and
//!   has no other effect.

use crate::atomic::{AtomicU32, AtomicU64};
use crate::slow::{ONCE, Slow, Slower};
use crate::{Error, SharedMem, env};
use alloc::sync::Arc;
use core::hint::spin_loop;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

crate::shared! {
    /// What all processes know of the medium that they simulate.
    pub struct Meter {
        /// Ticks of the processor's clock in a millisecond; 0: nobody has measured that yet.
        ticks_per_ms: AtomicU64,
        /// When the medium will have read, and written, all that it was asked for.
        read_until: AtomicU64,
        write_until: AtomicU64,
    }
}

/// Who waits longer leaves the processor to others.
const SPINS_MS: u64 = 10;
/// A medium that is busy for longer is none.
const BUSY_MAX_MS: u64 = 3_600_000;
/// Clocks of processors tick so often in a millisecond.
const PLAUSIBLE: core::ops::RangeInclusive<u64> = 100_000..=10_000_000;
/// How long clocks are compared.
const COMPARED: Duration = Duration::from_millis(2);

/// How long copies take.
pub struct Pace {
    slow: Slow,
    meter: SharedMem,
    at: u64,
    ticks_per_ms: u64,
}

/// Where the bytes of a copy go.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    Read,
    Write,
}

impl Pace {
    /// As `slow` says, which all whose `Meter` is at offset `at` of `memory` share. `None`: nothing
    /// is slowed.
    pub fn new(slow: Slow, memory: &SharedMem, at: u64) -> Result<Option<Arc<Pace>>, Error> {
        if slow.is_none() {
            return Ok(None);
        }
        let len = size_of::<Meter>();
        let meter: &Meter = memory.at(at).ok_or(Error::OutOfRange { off: at, len })?;
        let mut ticks_per_ms = meter.ticks_per_ms.load(Relaxed);
        if !PLAUSIBLE.contains(&ticks_per_ms) {
            ticks_per_ms = measure_ticks().clamp(*PLAUSIBLE.start(), *PLAUSIBLE.end());
            meter.ticks_per_ms.store(ticks_per_ms, Relaxed);
        }
        Ok(Some(Arc::new(Pace {
            slow,
            meter: memory.clone(),
            at,
            ticks_per_ms,
        })))
    }

    /// Makes a copy of `len` bytes, and lets it take as long as it should.
    pub(crate) fn time<T>(&self, way: Way, len: usize, copy: impl FnOnce() -> T) -> T {
        let slower = match way {
            Way::Read => self.slow.read,
            Way::Write => self.slow.write,
        };
        if slower == Slower::default() || len == 0 {
            return copy();
        }
        let begun = env::ticks();
        let done = copy();
        let ended = env::ticks().max(begun);
        self.wait_until(match slower.factor {
            0 => {
                let busy = self.busy_until(way, slower, (begun, len)).max(ended);
                busy.saturating_add(self.latency(slower))
            }
            factor => {
                let more = scaled(ended - begun, u64::from(factor - ONCE), ONCE.into());
                ended.saturating_add(more)
            }
        });
        done
    }

    fn latency(&self, slower: Slower) -> u64 {
        scaled(self.ticks_per_ms, slower.latency.into(), 1_000_000)
    }

    /// Until when the medium is busy with a copy that it was asked for at `begun`.
    fn busy_until(&self, way: Way, slower: Slower, (begun, len): (u64, usize)) -> u64 {
        let Some(meter) = self.meter.at::<Meter>(self.at) else {
            return begun;
        };
        if slower.bandwidth == 0 {
            return begun;
        }
        // MB/s are thousands of bytes in a millisecond.
        let takes = scaled(
            self.ticks_per_ms,
            len as u64,
            u64::from(slower.bandwidth) * 1000,
        );
        let latest = begun.saturating_add(self.ticks_per_ms * BUSY_MAX_MS);
        let after = |until: u64| match until {
            // Nothing that a medium would be busy with so long.
            until if until > latest => begun.saturating_add(takes),
            until => until.max(begun).saturating_add(takes),
        };
        let until = match way {
            Way::Read => &meter.read_until,
            Way::Write => &meter.write_until,
        };
        let before = until.fetch_update(Relaxed, Relaxed, |until| Some(after(until)));
        before.map_or(begun, after)
    }

    /// A clock that is set back, as in a machine that slept, ends it. Those of two processors may
    /// differ by a little.
    fn wait_until(&self, moment: u64) {
        let whole = moment.saturating_sub(env::ticks());
        let mut left = whole;
        while 0 < left && left <= whole.saturating_add(self.ticks_per_ms) {
            if left > self.ticks_per_ms * SPINS_MS {
                let time = scaled(left, 1_000_000, self.ticks_per_ms);
                // As all waiting inside of programs, which may have no other call.
                env::wait(&AtomicU32::new(0), 0, Some(Duration::from_nanos(time)));
            } else {
                spin_loop();
            }
            left = moment.saturating_sub(env::ticks());
        }
    }
}

/// `number * times / parts`, rounded up.
fn scaled(number: u64, times: u64, parts: u64) -> u64 {
    let scaled = (u128::from(number) * u128::from(times)).div_ceil(parts.max(1).into());
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// How often the processor's clock ticks in a millisecond.
#[cold]
fn measure_ticks() -> u64 {
    let (first, begun) = both_clocks();
    loop {
        let (last, now) = both_clocks();
        let took = now.duration_since(begun);
        if took >= COMPARED {
            let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            return scaled(last.saturating_sub(first), 1_000_000, took);
        }
        spin_loop();
    }
}

/// The same moment by the processor's clock and by the system's: of several attempts the one that
/// was disturbed least.
fn both_clocks() -> (u64, env::Instant) {
    let attempt = || {
        let before = env::ticks();
        let now = env::Instant::now();
        (env::ticks().wrapping_sub(before), before, now)
    };
    let attempts = core::array::from_fn::<_, 5, _>(|_| attempt());
    let first = attempt();
    let best = attempts
        .into_iter()
        .fold(first, |best, other| match other.0 < best.0 {
            true => other,
            false => best,
        });
    (best.1 + best.0 / 2, best.2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use std::{thread, vec::Vec};

    fn pace(text: &str) -> Arc<Pace> {
        let memory = SharedMem::in_memory(4096).unwrap();
        Pace::new(Slow::parse(text).unwrap(), &memory, 64)
            .unwrap()
            .unwrap()
    }

    fn spin(time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {
            spin_loop();
        }
    }

    /// No time is shorter than it should be by more than clocks differ.
    fn took(begun: Instant, least: Duration) {
        let took = begun.elapsed();
        assert!(took >= least.mul_f64(0.99), "{took:?}, not {least:?}");
    }

    #[test]
    fn nothing_is_slowed_unless_somebody_says_so() {
        let memory = SharedMem::in_memory(4096).unwrap();
        assert!(Pace::new(Slow::NONE, &memory, 0).unwrap().is_none());
        assert!(Pace::new(Slow::parse("pcm").unwrap(), &memory, 4096).is_err());
    }

    #[test]
    fn a_copy_takes_so_many_times_its_time() {
        let pace = pace("rdsx=4,wrsx=8.5,rdlat=1000000000");
        let work = Duration::from_millis(1);
        let begun = Instant::now();
        pace.time(Way::Read, 1, || spin(work));
        took(begun, work * 4);
        let begun = Instant::now();
        pace.time(Way::Write, 1, || spin(work));
        took(begun, work.mul_f64(8.5));
    }

    #[test]
    fn a_copy_has_its_latency() {
        let pace = pace("rdlat=300000,wrlat=30000000");
        for (way, least) in [(Way::Read, 300), (Way::Write, 30_000)] {
            let begun = Instant::now();
            assert_eq!(pace.time(way, 64, || 7), 7);
            took(begun, Duration::from_micros(least));
        }
    }

    #[test]
    fn all_threads_together_have_one_bandwidth() {
        // 60 pieces of 1 MB, of which 30 are read while the others are written.
        let memory = SharedMem::in_memory(4096).unwrap();
        let slow = Slow::parse("rdbw=200,wrbw=150").unwrap();
        let begun = Instant::now();
        let threads: Vec<_> = [Way::Read, Way::Read, Way::Write, Way::Write]
            .into_iter()
            .map(|way| {
                // As another process has it.
                let pace = Pace::new(slow, &memory, 0).unwrap().unwrap();
                thread::spawn(move || (0..15).for_each(|_| pace.time(way, 1_000_000, || ())))
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        took(begun, Duration::from_millis(200));
    }

    #[test]
    fn what_others_store_does_no_harm() {
        let memory = SharedMem::in_memory(4096).unwrap();
        let meter: &Meter = memory.at(0).unwrap();
        let slow = Slow::parse("wrbw=1000").unwrap();
        for nonsense in [1, u64::MAX, u64::MAX / 2] {
            meter.ticks_per_ms.store(nonsense, Relaxed);
            meter.write_until.store(nonsense, Relaxed);
            let pace = Pace::new(slow, &memory, 0).unwrap().unwrap();
            assert!(PLAUSIBLE.contains(&pace.ticks_per_ms));
            let begun = Instant::now();
            pace.time(Way::Write, 1_000_000, || ());
            took(begun, Duration::from_millis(1));
        }
    }
}
