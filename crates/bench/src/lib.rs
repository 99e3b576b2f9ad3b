//! The programs behind `holdfast bench`.
//!
//! Invariants: the measured program (`worker`) is an ordinary one, which reaches files through the
//! standard library alone and knows nothing of Holdfast; the same worker measures every peer.
//! Whatever a benchmark sets up (mounts, zram devices, directories) is registered with the janitor,
//! a separate process, before it exists, so that it is removed however the benchmark ends.

#![forbid(unsafe_code)]

mod block;
mod disk;
mod error;
mod files;
mod janitor;
mod kv;
mod link;
mod loops;
mod mapping;
mod options;
mod paths;
mod peers;
#[cfg(feature = "plot")]
mod plot;
mod programs;
mod report;
mod rows;
mod sharing;
mod sheet;
mod sheet_table;
mod space;
mod stats;
mod table;
mod webproxy;
pub mod worker;

pub use error::{Error, Result};
pub use janitor::main as janitor_main;
pub use options::Options;

/// The hidden command under which a program of this crate runs `worker::main`.
pub const WORKER: &str = "bench-worker";
/// The hidden command under which a program of this crate runs `janitor_main`.
pub const JANITOR: &str = "bench-janitor";

/// Names and descriptions of what can be measured.
pub fn list() -> &'static [(&'static str, &'static str)] {
    &[
        (
            "block",
            "volumes, by protection and write scheme, side by side with memory and NBD servers",
        ),
        (
            "disk",
            "waiting for a disk: a pool in DIR, side by side with the file system of DIR",
        ),
        (
            "files",
            "calls on files, side by side with tmpfs, huge tmpfs, and ext4 and XFS on zram",
        ),
        (
            "kv",
            "keys and values, side by side with LMDB, redb, RocksDB, fjall, canopydb, BTreeMap",
        ),
        (
            "mapping",
            "mapped files: plain, populated, mapped ahead, from a cache, and on a pool",
        ),
        (
            "programs",
            "whole programs, side by side with tmpfs, and ext4 and XFS on zram",
        ),
        (
            "sharing",
            "processes that share files, also of different users, side by side with tmpfs",
        ),
        (
            "webproxy",
            "get and put, side by side with open, read, write and close on files",
        ),
    ]
}

/// Runs the benchmark `name` and returns what is to be printed.
pub fn run(name: &str, options: &Options) -> Result<String> {
    if options.dir.is_some() && name != "disk" {
        return Err(Error::Usage(format!("bench {name} takes no directory")));
    }
    if options.programs && name != "block" {
        return Err(Error::Usage(format!("bench {name} has no --macro")));
    }
    match name {
        "block" if options.programs => block::systems::run(options),
        "block" => block::run(options),
        "disk" => disk::run(options),
        "files" => files::run(options),
        "kv" => kv::run(options),
        "mapping" => mapping::run(options),
        "programs" => programs::run(options),
        "sharing" => sharing::run(options),
        "webproxy" => webproxy::run(options),
        _ => Err(Error::Unknown(name.into())),
    }
}
