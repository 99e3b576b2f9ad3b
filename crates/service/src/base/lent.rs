//! Removing the lent files, and the words of leases, of sessions that are over
//! (`docs/spec/session-memory.md`).

use holdfast_pool::session::{LENT_DIRECTORY, leases_prefix, lent_prefix};
use rustix::fd::OwnedFd;
use std::fs;

/// Removes all of the pool with this meta segment. Nobody may be in a session on it.
pub fn remove_all(meta: &OwnedFd) {
    // One that stays only takes memory.
    let (Ok(stat), Ok(entries)) = (rustix::fs::fstat(meta), fs::read_dir(LENT_DIRECTORY)) else {
        return;
    };
    let (device, inode) = (stat.st_dev, stat.st_ino);
    let prefixes = [lent_prefix(device, inode), leases_prefix(device, inode)];
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
