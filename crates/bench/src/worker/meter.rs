//! Timing of operations.
//!
//! Invariants: only the operations run between two readings of the clock; the cost of reading the
//! clock is measured and subtracted.

use crate::stats::{Timing, median, quantile};
use std::io;
use std::time::Instant;

/// Operations between two readings of the clock, for median and mean.
pub const CHUNK: usize = 32;

/// How a pass is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// `CHUNK` operations at a time.
    Chunks,
    /// Each operation, for the 99th percentile.
    Singles,
}

/// Collects the times of one pass.
pub struct Meter {
    pub pass: Pass,
    clock_ns: f64,
    /// Nanoseconds per operation, one value per reading.
    values: Vec<f64>,
    total_ns: f64,
    ops: usize,
}

impl Meter {
    pub fn new(pass: Pass) -> Meter {
        Meter {
            pass,
            clock_ns: clock_ns(),
            values: Vec::new(),
            total_ns: 0.0,
            ops: 0,
        }
    }

    /// Runs `op` for 0..n and times it.
    pub fn run(&mut self, n: usize, mut op: impl FnMut(usize) -> io::Result<()>) -> io::Result<()> {
        let step = match self.pass {
            Pass::Chunks => CHUNK,
            Pass::Singles => 1,
        };
        self.values.reserve(n / step + 1);
        let mut from = 0;
        while from < n {
            let to = n.min(from + step);
            let start = Instant::now();
            for i in from..to {
                op(i)?;
            }
            self.add(start, to - from);
            from = to;
        }
        Ok(())
    }

    /// Times `op` as a whole; it counts as many operations as it says.
    pub fn run_counted(&mut self, op: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        let start = Instant::now();
        let ops = op()?;
        self.add(start, ops);
        Ok(ops)
    }

    fn add(&mut self, start: Instant, ops: usize) {
        let ns = (start.elapsed().as_nanos() as f64 - self.clock_ns).max(0.0);
        self.values.push(ns / ops.max(1) as f64);
        self.total_ns += ns;
        self.ops += ops;
    }

    /// Takes over what another job of the same pass measured.
    pub fn merge(&mut self, other: &Meter) {
        self.values.extend_from_slice(&other.values);
        self.total_ns += other.total_ns;
        self.ops += other.ops;
    }

    /// For another process.
    pub fn encode(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("{} {}", self.total_ns, self.ops);
        for value in &self.values {
            let _ = write!(text, " {value:.1}");
        }
        text
    }

    /// From another process.
    pub fn decode(pass: Pass, text: &str) -> Option<Meter> {
        let mut words = text.split_ascii_whitespace();
        let total_ns = words.next()?.parse().ok()?;
        let ops = words.next()?.parse().ok()?;
        let values = words
            .map(|w| w.parse().ok())
            .collect::<Option<Vec<f64>>>()?;
        Some(Meter {
            pass,
            clock_ns: 0.0,
            values,
            total_ns,
            ops,
        })
    }
}

/// The figures of a pass in chunks and a pass in single operations.
pub fn timing(chunks: &Meter, singles: &Meter) -> Option<Timing> {
    Some(Timing {
        median: median(&chunks.values)?,
        mean: chunks.total_ns / chunks.ops.max(1) as f64,
        p99: quantile(&singles.values, 0.99)?,
    })
}

/// What a pair of clock readings costs.
fn clock_ns() -> f64 {
    let pairs: Vec<f64> = (0..512)
        .map(|_| {
            let start = Instant::now();
            start.elapsed().as_nanos() as f64
        })
        .collect();
    median(&pairs).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn chunks_cover_all_operations_once() {
        let mut seen = Vec::new();
        let mut meter = Meter::new(Pass::Chunks);
        let done = meter.run(70, |i| {
            seen.push(i);
            Ok(())
        });
        assert!(done.is_ok());
        assert_eq!(seen, (0..70).collect::<Vec<_>>());
        assert_eq!((meter.values.len(), meter.ops), (3, 70));
    }

    #[test]
    fn a_slow_operation_shows_in_the_percentile_and_the_mean() {
        let mut chunks = Meter::new(Pass::Chunks);
        let mut singles = Meter::new(Pass::Singles);
        for meter in [&mut chunks, &mut singles] {
            let done = meter.run(96, |i| {
                if i == 40 || i == 41 {
                    std::thread::sleep(Duration::from_millis(3));
                }
                Ok(())
            });
            assert!(done.is_ok());
        }
        let timing = timing(&chunks, &singles).unwrap();
        assert!(timing.p99 >= 3e6, "{timing:?}");
        assert!(timing.mean >= 6e6 / 96.0, "{timing:?}");
        assert!(timing.median < timing.mean, "{timing:?}");
    }

    #[test]
    fn meters_travel_between_processes() {
        let mut meter = Meter::new(Pass::Singles);
        assert!(meter.run(5, |_| Ok(())).is_ok());
        let mut back = Meter::decode(Pass::Singles, &meter.encode()).unwrap();
        assert_eq!((back.values.len(), back.ops), (5, 5));
        back.merge(&meter);
        assert_eq!((back.values.len(), back.ops), (10, 10));
        assert!(Meter::decode(Pass::Singles, "1 x").is_none());
    }
}
