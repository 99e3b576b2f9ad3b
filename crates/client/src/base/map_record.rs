//! What a run counts of its mappings where no pool's session does: memory that `holdfast run` makes
//! and the programs of the run map.
//!
//! Invariants: it is found by the number of a descriptor that `holdfast run` has open, under /proc,
//! so programs inherit nothing; what is found there counts only if it begins with `MAGIC`. Sums
//! only grow. Programs of the run write here, so what is read is a number and nothing else.

use pmem::atomic::{AtomicU64, Ordering::Relaxed};
use pmem::shared;
use pool::session::MAP_COUNTS;

/// The first word of a record.
pub const MAGIC: u64 = u64::from_le_bytes(*b"hfmaps01");

/// What the memory is called.
pub const NAME: &str = "holdfast-maps";

shared! {
    /// Sums over all programs of a run.
    pub struct MapRecord {
        pub magic: AtomicU64,
        /// By `MapCount`.
        pub mapping: [AtomicU64; MAP_COUNTS],
    }
}

impl MapRecord {
    /// What was counted, by `MapCount`.
    pub fn mapping(&self) -> [u64; MAP_COUNTS] {
        core::array::from_fn(|i| self.mapping[i].load(Relaxed))
    }
}

/// Where programs find the record: a descriptor of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordAt {
    /// The process, not 0.
    pub pid: u32,
    pub fd: u32,
}
