//! What was done to a volume.
//!
//! Invariant: counting stops nobody and costs no line that another kind of request counts in.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A kind of request.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Read,
    Write,
    Flush,
    Trim,
    Zero,
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Those that were done.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that failed.
    pub failed: u64,
}

/// What was done by a handle and its clones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeStats {
    /// Reads.
    pub reads: Counted,
    /// Writes.
    pub writes: Counted,
    /// Flushes.
    pub flushes: Counted,
    /// Trims.
    pub trims: Counted,
    /// Writes of zeroes.
    pub zeroes: Counted,
}

#[repr(align(64))]
#[derive(Default)]
struct Line {
    requests: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
}

/// Of a handle and its clones.
#[derive(Default)]
pub(super) struct Counters([Line; 5]);

impl Counters {
    #[inline]
    pub fn count(&self, kind: Kind, len: u64, done: bool) {
        let Some(line) = self.0.get(kind as usize) else {
            return;
        };
        match done {
            true => {
                line.requests.fetch_add(1, Relaxed);
                line.bytes.fetch_add(len, Relaxed);
            }
            false => {
                line.failed.fetch_add(1, Relaxed);
            }
        }
    }

    pub fn stats(&self) -> VolumeStats {
        let [reads, writes, flushes, trims, zeroes] = self.0.each_ref().map(|line| Counted {
            requests: line.requests.load(Relaxed),
            bytes: line.bytes.load(Relaxed),
            failed: line.failed.load(Relaxed),
        });
        VolumeStats {
            reads,
            writes,
            flushes,
            trims,
            zeroes,
        }
    }
}
