//! What is measured.

use super::SIZE;
use crate::sheet::{Row, Target};

/// Requests of one kind.
pub struct Plan {
    pub group: &'static str,
    pub row: &'static str,
    pub bytes: usize,
    pub writes: bool,
    pub random: bool,
    /// Requests at a time.
    pub depth: usize,
    /// After so many requests each has a flush; 0: none.
    pub flush_every: usize,
}

impl Plan {
    pub fn title(&self) -> &'static str {
        ROWS.iter()
            .find(|row| row.name == self.row)
            .map_or("", |row| row.title)
    }

    /// All of the disk once.
    pub fn everything() -> Plan {
        plan("256k", "write", WRITE, 4)
    }

    /// How many requests a round has.
    pub fn requests(&self, quick: bool) -> usize {
        let all = (SIZE as usize / self.bytes).min(40_000);
        if quick { all / 50 } else { all }
    }
}

pub const GROUPS: &[(&str, &str)] = &[("4k", "4 KB"), ("256k", "256 KB")];

const fn plan(group: &'static str, row: &'static str, what: (bool, bool), depth: usize) -> Plan {
    Plan {
        group,
        row,
        bytes: if group.len() == 2 { 4096 } else { 256 << 10 },
        writes: what.0,
        random: what.1,
        depth,
        flush_every: 0,
    }
}

const fn flushed(plan: Plan, flush_every: usize) -> Plan {
    Plan {
        flush_every,
        ..plan
    }
}

const READ: (bool, bool) = (false, false);
const READ_RANDOM: (bool, bool) = (false, true);
const WRITE: (bool, bool) = (true, false);
const WRITE_RANDOM: (bool, bool) = (true, true);

pub static PLANS: &[Plan] = &[
    plan("4k", "read", READ, 1),
    plan("4k", "read-random", READ_RANDOM, 1),
    plan("4k", "read-random-32", READ_RANDOM, 32),
    plan("4k", "write", WRITE, 1),
    plan("4k", "write-random", WRITE_RANDOM, 1),
    plan("4k", "write-random-32", WRITE_RANDOM, 32),
    flushed(plan("4k", "write-flush-32", WRITE_RANDOM, 32), 16),
    plan("256k", "read", READ, 1),
    plan("256k", "read-random", READ_RANDOM, 1),
    plan("256k", "read-random-32", READ_RANDOM, 32),
    plan("256k", "write", WRITE, 1),
    plan("256k", "write-random", WRITE_RANDOM, 1),
    plan("256k", "write-random-32", WRITE_RANDOM, 32),
];

/// The share of the peak that reads are to reach, as time.
const PEAK: Target = Target::wall(&[], &["memcpy"], "of memcpy", 1.0 / 0.95);
const PEAK_WRITE: Target = Target::wall(&["256k"], &["memcpy-nt"], "of memcpy-nt", 1.0 / 0.85);
const NBDKIT: Target = Target::wall(&["4k"], &["nbdkit-memory"], "of nbdkit memory", 1.0 / 20.0);

const LOOP: Target = Target::wall(&["4k"], &["loop"], "of a loop device", 1.0 / 5.0);

pub static ROWS: &[Row] = &[
    Row::new("read", "read in order", &[PEAK]),
    Row::new("read-random", "read", &[PEAK, NBDKIT, LOOP]),
    Row::new("read-random-32", "read, 32 at a time", &[PEAK]),
    Row::new("write", "write in order", &[PEAK_WRITE]),
    Row::new("write-random", "write", &[PEAK_WRITE, NBDKIT, LOOP]),
    Row::new("write-random-32", "write, 32 at a time", &[PEAK_WRITE]),
    Row::new("write-flush-32", "the same, each 16th with a flush", &[]),
];
