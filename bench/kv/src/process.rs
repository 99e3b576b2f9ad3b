//! Other processes that have files of a store mapped.
//!
//! Invariant: this process is never among them.

use nix::sys::signal::{Signal, kill as send};
use nix::unistd::Pid;
use std::fs;
use std::path::Path;

/// The processes that have a file below `dir` mapped.
pub fn users(dir: &Path) -> Vec<i32> {
    let dir = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let prefix = format!("{}/", dir.display());
    let own = std::process::id() as i32;
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| {
            let maps = fs::read_to_string(format!("/proc/{pid}/maps"));
            maps.is_ok_and(|maps| maps.contains(&prefix))
        })
        .collect()
}

/// Ends a process at once.
pub fn kill(pid: i32) {
    let _ = send(Pid::from_raw(pid), Signal::SIGKILL);
}
