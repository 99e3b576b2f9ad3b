//! How long requests took.
//!
//! Invariants: a time is counted in a bucket whose bounds are less than an eighth apart, or one
//! nanosecond; without the wish to know, no clock is read.

use super::stats::Kind;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Buckets of one doubling of time are `1 << STEPS_BITS`.
const STEPS_BITS: u32 = 3;
const STEPS: usize = 1 << STEPS_BITS;
/// Times below this have a bucket each.
const EXACT: u64 = 2 * STEPS as u64;
/// What takes longer than some eighteen minutes is in the last bucket.
const BITS_MAX: u32 = 40;
const BUCKETS: usize = EXACT as usize + (BITS_MAX - STEPS_BITS - 1) as usize * STEPS;

/// How long the requests of one kind took that were done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// All of them together.
    pub total_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// How many took at most so many nanoseconds, and longer than those of the entry before: pairs
    /// of time and number, of which only those are there that are not empty.
    pub spread: Vec<(u64, u64)>,
}

/// How long requests took, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeLatency {
    /// Reads.
    pub reads: Latency,
    /// Writes.
    pub writes: Latency,
    /// Flushes.
    pub flushes: Latency,
    /// Trims.
    pub trims: Latency,
    /// Writes of zeroes.
    pub zeroes: Latency,
}

impl Latency {
    /// How many requests there were.
    pub fn requests(&self) -> u64 {
        let each = self.spread.iter().map(|(_, requests)| *requests);
        each.fold(0, u64::saturating_add)
    }

    /// The mean; 0 without requests.
    pub fn mean_ns(&self) -> u64 {
        self.total_ns.checked_div(self.requests()).unwrap_or(0)
    }

    /// What this share of the requests, from 0 to 1, took at most; 0 without requests.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let wanted = (self.requests() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0_u64;
        let found = self.spread.iter().find(|(_, requests)| {
            seen = seen.saturating_add(*requests);
            seen >= wanted
        });
        found.map_or(0, |(bound, _)| (*bound).min(self.max_ns))
    }

    /// What came since `before`, which was the same handle's. The longest of that is not known:
    /// it is at most what its bucket says.
    pub fn since(&self, before: &Latency) -> Latency {
        let then = |bound: u64| {
            let found = before.spread.iter().find(|(other, _)| *other == bound);
            found.map_or(0, |(_, requests)| *requests)
        };
        let new = self.spread.iter().map(|&(bound, requests)| {
            let new = requests.saturating_sub(then(bound));
            (bound, new)
        });
        let spread: Vec<_> = new.filter(|(_, requests)| *requests > 0).collect();
        let longest = spread.last().map_or(0, |(bound, _)| *bound);
        Latency {
            total_ns: self.total_ns.saturating_sub(before.total_ns),
            max_ns: longest.min(self.max_ns),
            spread,
        }
    }
}

/// Of one kind of request.
struct Times {
    total_ns: AtomicU64,
    max_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// The clock of a handle and its clones, which stands until somebody wants it.
#[derive(Default)]
pub(super) struct Clock(OnceLock<Box<[Times; 5]>>);

/// A request that was begun, with its time if that is wanted.
pub(super) struct Begun<'a>(Option<(&'a Times, Instant)>);

impl Clock {
    /// From now on times are taken.
    pub fn start(&self) {
        self.0.get_or_init(|| {
            Box::new(std::array::from_fn(|_| Times {
                total_ns: AtomicU64::new(0),
                max_ns: AtomicU64::new(0),
                buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            }))
        });
    }

    #[inline]
    pub fn begin(&self, kind: Kind) -> Begun<'_> {
        let times = self.0.get().and_then(|all| all.get(kind as usize));
        Begun(times.map(|times| (times, Instant::now())))
    }

    pub fn latency(&self) -> VolumeLatency {
        let Some(all) = self.0.get() else {
            return VolumeLatency::default();
        };
        let [reads, writes, flushes, trims, zeroes] = all.each_ref().map(Times::latency);
        VolumeLatency {
            reads,
            writes,
            flushes,
            trims,
            zeroes,
        }
    }
}

impl Begun<'_> {
    /// It was done.
    #[inline]
    pub fn done(self) {
        if let Some((times, begun)) = self.0 {
            times.count(begun.elapsed().as_nanos() as u64);
        }
    }
}

impl Times {
    fn count(&self, ns: u64) {
        if let Some(bucket) = self.buckets.get(bucket(ns)) {
            bucket.fetch_add(1, Relaxed);
        }
        self.total_ns.fetch_add(ns, Relaxed);
        if self.max_ns.load(Relaxed) < ns {
            self.max_ns.fetch_max(ns, Relaxed);
        }
    }

    fn latency(&self) -> Latency {
        let counted = self.buckets.iter().enumerate();
        let counted = counted.map(|(at, bucket)| (bound(at), bucket.load(Relaxed)));
        Latency {
            spread: counted.filter(|(_, requests)| *requests > 0).collect(),
            total_ns: self.total_ns.load(Relaxed),
            max_ns: self.max_ns.load(Relaxed),
        }
    }
}

/// Which bucket a time is in.
fn bucket(ns: u64) -> usize {
    if ns < EXACT {
        return ns as usize;
    }
    let shift = ns.ilog2() - STEPS_BITS;
    let at = (shift as usize) * STEPS + (ns >> shift) as usize;
    at.min(BUCKETS - 1)
}

/// The longest time of a bucket.
fn bound(bucket: usize) -> u64 {
    if bucket < EXACT as usize {
        return bucket as u64;
    }
    let shift = bucket / STEPS - 1;
    let step = (bucket % STEPS + STEPS) as u64;
    ((step + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_narrow_and_in_order() {
        let mut last = None;
        for at in 0..BUCKETS {
            let end = bound(at);
            assert_eq!(bucket(end), at, "{end}");
            let start = last.map_or(0, |last: u64| last + 1);
            assert_eq!(bucket(start), at, "{start}");
            assert!(end - start <= start / STEPS as u64, "{start}..={end}");
            last = Some(end);
        }
        for ns in [1 << BITS_MAX, u64::MAX] {
            assert_eq!(bucket(ns), BUCKETS - 1);
        }
    }

    #[test]
    fn times_are_told_by_share() {
        let clock = Clock::default();
        clock.begin(Kind::Read).done();
        assert_eq!(clock.latency(), VolumeLatency::default());
        clock.start();
        let all = clock.0.get().unwrap();
        for ns in 1..=1000 {
            all[Kind::Write as usize].count(ns * 1000);
        }
        let writes = clock.latency().writes;
        assert_eq!((writes.requests(), writes.max_ns), (1000, 1_000_000));
        assert_eq!(writes.mean_ns(), 500_500);
        for (share, ns) in [
            (0.0, 1000),
            (0.5, 500_000),
            (0.99, 990_000),
            (1.0, 1_000_000),
        ] {
            let said = writes.quantile_ns(share);
            assert!((ns..=ns + ns / 8).contains(&said), "{share}: {said}");
        }
        assert_eq!(clock.latency().reads.quantile_ns(0.5), 0);
    }

    #[test]
    fn what_came_since_is_told_apart() {
        let clock = Clock::default();
        clock.start();
        let reads = &clock.0.get().unwrap()[Kind::Read as usize];
        reads.count(1_000_000);
        let before = clock.latency().reads;
        reads.count(100);
        reads.count(200);
        let new = clock.latency().reads.since(&before);
        assert_eq!((new.requests(), new.total_ns), (2, 300));
        assert!((200..225).contains(&new.max_ns), "{}", new.max_ns);
        assert_eq!(before.since(&before), Latency::default());
    }
}
