//! Removing the lent files of sessions that are over (`docs/spec/session-memory.md`).

use holdfast_pool::session::{LENT_DIRECTORY, lent_prefix};
use rustix::fd::OwnedFd;
use std::fs;

/// Removes all of the pool with this meta segment. Nobody may be in a session on it.
pub fn remove_all(meta: &OwnedFd) {
    // One that stays only takes memory.
    let (Ok(stat), Ok(entries)) = (rustix::fs::fstat(meta), fs::read_dir(LENT_DIRECTORY)) else {
        return;
    };
    let prefix = lent_prefix(stat.st_dev, stat.st_ino);
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
