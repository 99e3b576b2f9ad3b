//! Files that show whether a snapshot is in use.
//!
//! Invariant: a snapshot is in use exactly while its file is locked; see `survivors.rs`.

use super::error::Result;
use super::{ordinary, survivors};
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::path::Path;

/// Whether programs run on any snapshot of the pool in `directory`.
pub fn any_in_use(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut users = entries.filter(|e| e.file_name().as_encoded_bytes().ends_with(b".users"));
    users.any(|e| open(&e.path(), OFlags::RDWR).is_ok_and(|fd| survivors::exist(&fd)))
}

pub fn open(path: &Path, flags: OFlags) -> Result<OwnedFd> {
    ordinary::open_or_say(path, flags)
}
