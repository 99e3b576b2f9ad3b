//! The rows of `bench disk`: their names and targets.
//!
//! Invariants: workers know the rows by these names; every compared figure is a time, so that below
//! 1 is faster; a target is a ratio within one round.

use crate::sheet::{Against, Row, Target};

/// The file system under the directory, which files of the pool are compared with.
pub const FS: &str = "fs";
/// A pool on it; also its keyspaces.
pub const SUBJECT: &str = "holdfast";
/// Other stores of keys and values, in the order of tables.
pub const STORES: [&str; 5] = ["lmdb", "lmdb-writemap", "redb", "rocksdb", "fjall"];

/// Who measures a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The worker of the round.
    Files,
    /// A worker of its own, after nothing of the file is cached any more.
    Cold,
    /// A worker of its own, which runs a server as an ordinary user.
    Postgres,
    /// The worker of `bench kv`.
    Keys,
}

const fn target(against: Against, whom: &'static str, at_most: f64) -> Target {
    Target {
        groups: &[],
        figure: "wall",
        against,
        whom,
        at_most,
    }
}

const fn fs(at_most: f64) -> Target {
    target(Against::Lowest(&[FS]), "of the file system", at_most)
}

const fn store(at_most: f64) -> Target {
    target(Against::Lowest(&STORES), "of the best store", at_most)
}

const fn row(name: &'static str, title: &'static str, targets: &'static [Target]) -> Row {
    Row {
        name,
        title,
        unit: 1.0,
        targets,
    }
}

pub static ROWS: &[Row] = &[
    row("overwrite-4k", "overwrite 4 KB + fsync", &[fs(1.1)]),
    row("append-100", "append 100 B + fsync", &[fs(0.8)]),
    row("append-4k", "append 4 KB + fsync", &[fs(0.8)]),
    row("new-file", "new file of 4 KB + fsyncs", &[fs(0.6)]),
    row("save-rename", "save by rename + fsyncs", &[fs(0.6)]),
    row("page-192m", "page of 192 MiB + fsync", &[fs(1.1)]),
    row("page-large", "page of the largest + fsync", &[fs(1.1)]),
    row("page-800-runs", "page of 800 runs + fsync", &[fs(1.1)]),
    row("processes-1", "1 process, overwrite + fsync", &[fs(1.1)]),
    row("processes-4", "4 processes, each", &[]),
    row("processes-8", "8 processes, each", &[fs(0.7)]),
    row("processes-16", "16 processes, each", &[]),
    row("sqlite-wal", "SQLite, WAL, transaction", &[fs(0.8)]),
    row("sqlite-delete", "SQLite, DELETE, transaction", &[fs(0.6)]),
    row("bulk", "256 MiB, one fsync, per MiB", &[fs(1.1)]),
    row("create", "create, no sync", &[fs(0.5)]),
    row("stat", "stat", &[fs(0.5)]),
    row("unlink", "unlink, no sync", &[fs(0.5)]),
    // At least 0.9 of the throughput.
    row("cold-read", "cold read, per MiB", &[fs(1.11)]),
    row("pgbench-1", "pgbench, 1 client", &[]),
    row("pgbench-8", "pgbench, 8 clients, each", &[]),
    row("postgres-stop", "PostgreSQL's shutdown", &[]),
    row("put-1", "durable put, 1 writer", &[store(0.8)]),
    row("put-8", "durable put, 8 writers, each", &[store(0.5)]),
    row("batch-1", "1000 puts, 1 writer", &[]),
    row("batch-8", "1000 puts, 8 writers, each", &[]),
];

/// Who measures the row of this name.
pub fn kind(name: &str) -> Kind {
    match name {
        "cold-read" => Kind::Cold,
        "pgbench-1" | "pgbench-8" | "postgres-stop" => Kind::Postgres,
        "put-1" | "put-8" | "batch-1" | "batch-8" => Kind::Keys,
        _ => Kind::Files,
    }
}

/// The rows of a kind.
pub fn of(wanted: Kind) -> impl Iterator<Item = &'static Row> {
    ROWS.iter().filter(move |row| kind(row.name) == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_rows_with_names_of_their_own() {
        let counts = [Kind::Files, Kind::Cold, Kind::Postgres, Kind::Keys];
        assert_eq!(counts.map(|k| of(k).count()), [18, 1, 3, 4]);
        let names: std::collections::BTreeSet<_> = ROWS.iter().map(|r| r.name).collect();
        assert_eq!(names.len(), ROWS.len());
    }
}
