//! The files of a pool directory beside its segments, and what may stand in the directory.
//!
//! Invariants: names are fixed; a name that `is_ours` refuses was not made by Holdfast and is
//! never touched; a size that `check_size` accepts holds the structures and some data.

use crate::format::LANES;
use alloc::format;
use alloc::string::String;
use holdfast_pmem::Medium;

/// What the service has to say when it runs in the background.
pub const LOG: &str = "service.log";
/// Block ranges handed to the session that is alive; means nothing after it.
pub const GRANTS: &str = "grants-0";
/// The next one, while it is written.
pub const GRANTS_NEW: &str = "grants-0.new";
/// The kernel's pipes and sockets that have a name in the pool, by inode number.
pub const SPECIAL: &str = "special";
/// An empty file: root is nobody in the pool.
pub const ROOT_SQUASH: &str = "root-squash";
/// When the pool was saved last by `holdfast serve --keep`, as the target of a symbolic link, which
/// also file systems have where nothing can be written to a file.
pub const SAVED: &str = "saved";
/// The next one, until it takes that one's place.
pub const SAVED_NEW: &str = "saved.new";
/// An empty file of pools that were made before this was a file without a name.
pub const BASE: &str = "base";

/// A directory in which a pool is made that is to stand beside it: until it is complete there is
/// none.
pub const UNFINISHED: &str = "restore.part";

/// Where the running export `n` tells what it does.
pub fn export_socket(n: u64) -> String {
    format!("export-{n}.sock")
}

/// Whether `name` is that of such a socket.
pub fn is_export_socket(name: &str) -> bool {
    let stem = name.strip_suffix(".sock");
    stem.is_some_and(|stem| numbered(stem, "export-"))
}

/// Bytes of one journal lane, at least; of no lane more may wait for the trees.
pub const LANE_LEN: u64 = 1 << 20;
/// Bytes of one journal lane, at most.
pub const LANE_LEN_MAX: u64 = 4 << 20;
/// The part of a pool that a journal of longer lanes may take.
const JOURNAL_PART: u64 = 16;
/// Bytes of a data chunk: what grants and large extents are aligned to.
pub const CHUNK: u64 = 2 << 20;
/// The smallest pool.
pub const SIZE_MIN: u64 = 16 << 20;
/// The largest pool that one data segment makes.
pub const SIZE_MAX: u64 = 1 << 46;

/// True for names that `pool create` or the service gives to files of a pool.
pub fn is_ours(name: &str) -> bool {
    let segment = name.strip_suffix(".seg").is_some_and(|stem| {
        stem == "meta" || numbered(stem, "data-") || numbered(stem, "journal-")
    });
    let users = name.strip_suffix(".users");
    let users = users.is_some_and(|stem| numbered(stem, "snapshot-"));
    segment
        || users
        || is_export_socket(name)
        || [
            "lock",
            "sock",
            "empty",
            SPECIAL,
            LOG,
            GRANTS,
            GRANTS_NEW,
            ROOT_SQUASH,
            SAVED,
            SAVED_NEW,
            BASE,
        ]
        .contains(&name)
}

fn numbered(stem: &str, prefix: &str) -> bool {
    stem.strip_prefix(prefix)
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Bytes of each journal lane in a new pool. On an ordinary file records stay in the journal until
/// the next checkpoint: the more room they have, the less often is what they change written.
pub fn lane_len(size: u64, medium: Medium) -> u64 {
    let whole = size / JOURNAL_PART / LANES as u64 / LANE_LEN * LANE_LEN;
    match medium {
        Medium::File => whole.clamp(LANE_LEN, LANE_LEN_MAX),
        _ => LANE_LEN,
    }
}

/// True for lengths that a journal lane may have.
pub fn check_lane_len(len: u64) -> bool {
    len.is_multiple_of(LANE_LEN) && (LANE_LEN..=LANE_LEN_MAX).contains(&len)
}

/// True for sizes that a pool may have.
pub fn check_size(size: u64) -> bool {
    (SIZE_MIN..=SIZE_MAX).contains(&size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_of_large_pools_on_files_are_longer() {
        for (size, medium, len) in [
            (SIZE_MIN, Medium::File, LANE_LEN),
            (511 << 20, Medium::File, LANE_LEN),
            (512 << 20, Medium::File, 2 * LANE_LEN),
            (1 << 30, Medium::File, LANE_LEN_MAX),
            (SIZE_MAX, Medium::File, LANE_LEN_MAX),
            (SIZE_MAX, Medium::Memory, LANE_LEN),
            (SIZE_MAX, Medium::Dax, LANE_LEN),
        ] {
            assert_eq!(lane_len(size, medium), len, "{size} {medium:?}");
            assert!(check_lane_len(len));
        }
        for len in [0, 1, LANE_LEN - 1, LANE_LEN + 4096, LANE_LEN_MAX + LANE_LEN] {
            assert!(!check_lane_len(len), "{len}");
        }
    }

    #[test]
    fn only_our_names_are_ours() {
        for name in [
            "meta.seg",
            "data-0.seg",
            "snapshot-17.users",
            "journal-12.seg",
            "lock",
            "sock",
            "empty",
            "export-12.sock",
            LOG,
            ROOT_SQUASH,
            SAVED,
        ] {
            assert!(is_ours(name), "{name}");
        }
        for name in [
            "",
            ".seg",
            "data-.seg",
            "data-x.seg",
            "meta",
            "notes.txt",
            "data-0.seg~",
            "export-.sock",
            "export-x.sock",
            "export-1",
        ] {
            assert!(!is_ours(name), "{name}");
        }
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        for size in [0, 1, SIZE_MIN - 1, SIZE_MAX + 1, u64::MAX] {
            assert!(!check_size(size));
        }
        assert!(check_size(SIZE_MIN) && check_size(SIZE_MAX));
    }
}
