//! The files of a pool directory beside its segments, and what may stand in the directory.
//!
//! Invariants: names are fixed; a name that `is_ours` refuses was not made by Holdfast and is
//! never touched; a size that `check_size` accepts holds the structures and some data.

/// What the service has to say when it runs in the background.
pub const LOG: &str = "service.log";
/// Block ranges handed to the session that is alive; means nothing after it.
pub const GRANTS: &str = "grants-0";
/// The next one, while it is written.
pub const GRANTS_NEW: &str = "grants-0.new";
/// The kernel's pipes and sockets that have a name in the pool, by inode number.
pub const SPECIAL: &str = "special";
/// An empty file of pools that were made before this was a file without a name.
pub const BASE: &str = "base";

/// Bytes of one journal lane.
pub const LANE_LEN: u64 = 1 << 20;
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
        || [
            "lock", "sock", "empty", SPECIAL, LOG, GRANTS, GRANTS_NEW, BASE,
        ]
        .contains(&name)
}

fn numbered(stem: &str, prefix: &str) -> bool {
    stem.strip_prefix(prefix)
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// True for sizes that a pool may have.
pub fn check_size(size: u64) -> bool {
    (SIZE_MIN..=SIZE_MAX).contains(&size)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            LOG,
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
