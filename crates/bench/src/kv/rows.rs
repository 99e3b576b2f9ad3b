//! The rows of `bench kv`: their names and targets.
//!
//! Invariants: workers answer with these names; targets are ratios of time to other stores in the
//! same round, or absolute figures.

use crate::sheet::{Against, Row, Target};

/// The subject of the comparison.
pub const SUBJECT: &str = "holdfast";

/// What the program that measures should know.
pub const PEERS: [&str; 8] = [
    "holdfast",
    "lmdb",
    "lmdb-writemap",
    "redb",
    "rocksdb",
    "fjall",
    "canopydb",
    "btreemap",
];

const LMDB: Against = Against::Lowest(&["lmdb", "lmdb-writemap"]);
const WRITEMAP: Against = Against::Lowest(&["lmdb-writemap"]);
/// Whatever survives its process.
const DURABLE: Against = Against::Lowest(&[
    "lmdb",
    "lmdb-writemap",
    "redb",
    "rocksdb",
    "fjall",
    "canopydb",
]);
const SMALL: &[&str] = &["100b", "1k"];
const LARGE: &[&str] = &["4k"];

const fn wall(against: Against, whom: &'static str, at_most: f64) -> Target {
    Target {
        groups: &[],
        of: None,
        figure: "wall",
        against,
        whom,
        at_most,
    }
}

const fn within(groups: &'static [&'static str], target: Target) -> Target {
    Target { groups, ..target }
}

const fn cpu(target: Target) -> Target {
    Target {
        figure: "all",
        ..target
    }
}

const fn of_caller(target: Target) -> Target {
    Target {
        figure: "thread",
        ..target
    }
}

const fn space(groups: &'static [&'static str], at_most: f64) -> Target {
    Target {
        groups,
        of: None,
        figure: "ratio",
        against: Against::Itself,
        whom: "times keys and values",
        at_most,
    }
}

/// What a worker is asked for, in this order; the loads are always made.
pub const COMMANDS: [&str; 10] = [
    "load-sequential",
    "load-random",
    "get",
    "get-own",
    "get-other",
    "scan",
    "put",
    "batch",
    "mix",
    "reopen",
];

/// Every row.
pub static ROWS: &[Row] = &[
    Row::new(
        "load-sequential",
        "load in order, 1000 per commit",
        &[
            within(SMALL, wall(LMDB, "of the better LMDB", 0.9)),
            within(LARGE, wall(LMDB, "of the better LMDB", 0.3)),
        ],
    ),
    Row::new(
        "load-random",
        "load at random, 1000 per commit",
        &[
            within(SMALL, wall(WRITEMAP, "of LMDB writemap", 0.7)),
            within(LARGE, wall(LMDB, "of the better LMDB", 0.3)),
        ],
    ),
    Row::new(
        "get",
        "get, transaction held",
        &[
            within(SMALL, wall(LMDB, "of the better LMDB", 0.8)),
            within(LARGE, wall(LMDB, "of the better LMDB", 0.7)),
        ],
    ),
    Row::new(
        "get-own",
        "get, own transaction",
        &[wall(LMDB, "of the better LMDB", 0.8)],
    ),
    Row::new(
        "get-other",
        "get, own transaction, other process",
        &[wall(LMDB, "of the better LMDB", 0.8)],
    ),
    Row::new("scan", "scan 100", &[wall(LMDB, "of the better LMDB", 1.0)]),
    Row::new(
        "put",
        "overwrite, durable commit each",
        &[
            within(SMALL, wall(DURABLE, "of the best peer", 0.2)),
            within(LARGE, wall(DURABLE, "of the best peer", 0.25)),
            cpu(wall(DURABLE, "of the best peer", 0.35)),
        ],
    ),
    Row::new(
        "batch",
        "overwrite, 1000 per commit",
        &[
            wall(WRITEMAP, "of LMDB writemap", 0.6),
            cpu(wall(WRITEMAP, "of LMDB writemap", 0.9)),
        ],
    ),
    Row::new(
        "mix-read",
        "2 readers + 1 writer: a read",
        // By the clock, which also counts how many threads share the processors, and by what a read
        // takes of one.
        &[
            wall(WRITEMAP, "of LMDB writemap", 0.77),
            of_caller(wall(WRITEMAP, "of LMDB writemap", 0.77)),
        ],
    ),
    Row::new(
        "mix-write",
        "2 readers + 1 writer: a write",
        &[wall(WRITEMAP, "of LMDB writemap", 0.33)],
    ),
    Row::new(
        "space-loaded",
        "space after loading",
        &[space(SMALL, 1.4), space(LARGE, 1.05)],
    ),
    Row::new(
        "space-overwritten",
        "space after overwriting",
        &[space(SMALL, 1.8), space(LARGE, 1.5)],
    ),
    Row {
        unit: 1e6,
        ..Row::new(
            "reopen",
            "open after a kill (ms)",
            &[wall(Against::Itself, "ms", 50.0)],
        )
    },
];

/// The row of that name.
pub fn find(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (i, row) in ROWS.iter().enumerate() {
            assert!(std::ptr::eq(find(row.name).unwrap(), row));
            assert!(ROWS[..i].iter().all(|other| other.title != row.title));
        }
        assert!(find("nothing").is_none());
    }
}
