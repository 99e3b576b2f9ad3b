//! The rows of `bench disk`: their names and targets.
//!
//! Invariants: workers know the rows by these names; every compared figure is a time, so that below
//! 1 is faster; a target is a ratio within one round.

use crate::sheet::{Row, Target};

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

const fn fs(at_most: f64) -> Target {
    Target::wall(&[], &[FS], "of the file system", at_most)
}

const fn store(at_most: f64) -> Target {
    Target::wall(&[], &STORES, "of the best store", at_most)
}

pub static ROWS: &[Row] = &[
    Row::new("overwrite-4k", "overwrite 4 KB + fsync", &[fs(1.1)]),
    Row::new("append-100", "append 100 B + fsync", &[fs(0.8)]),
    Row::new("append-4k", "append 4 KB + fsync", &[fs(0.8)]),
    Row::new("new-file", "new file of 4 KB + fsyncs", &[fs(0.6)]),
    Row::new("save-rename", "save by rename + fsyncs", &[fs(0.6)]),
    Row::new("page-192m", "page of 192 MiB + fsync", &[fs(1.1)]),
    Row::new("page-large", "page of the largest + fsync", &[fs(1.1)]),
    Row::new("page-800-runs", "page of 800 runs + fsync", &[fs(1.1)]),
    Row::new("processes-1", "1 process, overwrite + fsync", &[fs(1.1)]),
    Row::new("processes-4", "4 processes, each", &[]),
    Row::new("processes-8", "8 processes, each", &[fs(0.7)]),
    Row::new("processes-16", "16 processes, each", &[]),
    Row::new("sqlite-wal", "SQLite, WAL, transaction", &[fs(0.8)]),
    Row::new("sqlite-delete", "SQLite, DELETE, transaction", &[fs(0.6)]),
    Row::new("bulk", "256 MiB, one fsync, per MiB", &[fs(1.1)]),
    Row::new("create", "create, no sync", &[fs(0.5)]),
    Row::new("stat", "stat", &[fs(0.5)]),
    Row::new("unlink", "unlink, no sync", &[fs(0.5)]),
    // At least 0.9 of the throughput.
    Row::new("cold-read", "cold read, per MiB", &[fs(1.11)]),
    Row::new("pgbench-1", "pgbench, 1 client", &[]),
    Row::new("pgbench-8", "pgbench, 8 clients, each", &[]),
    Row::new("postgres-stop", "PostgreSQL's shutdown", &[]),
    Row::new("put-1", "durable put, 1 writer", &[store(0.8)]),
    Row::new("put-8", "durable put, 8 writers, each", &[store(0.5)]),
    Row::new("batch-1", "1000 puts, 1 writer", &[]),
    Row::new("batch-8", "1000 puts, 8 writers, each", &[]),
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
