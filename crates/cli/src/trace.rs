//! `run --trace`: where the lines go that programs write of their calls.
//!
//! Invariant: lines of several programs do not overwrite each other.

use crate::args::STANDARD_ERROR;
use crate::failure::Failure;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use std::path::Path;

/// Opens the file, which is made or emptied; or standard error once more.
pub fn output(path: &Path) -> Result<OwnedFd, Failure> {
    if path.as_os_str() == STANDARD_ERROR {
        let copy = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3);
        return copy.map_err(|e| Failure::io("standard error", &e.into()));
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::APPEND | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::from_raw_mode(0o666));
    file.map_err(|e| Failure::io(path.display(), &e.into()))
}
