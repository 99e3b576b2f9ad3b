//! Segments that were cut: by a program that had one open, or by hand.
//!
//! Invariants: what was behind a cut is gone, and reads as zeroes once the segment has its length
//! again. It gets that by itself while a service runs, where others would suffer meanwhile, and
//! else only if the loss is accepted.

use crate::base::error::{Error, Result};
use crate::base::files::Files;
use crate::base::ordinary;
use holdfast_pool::format::LANES;
use holdfast_pool::format::superblock::Superblock;
use holdfast_pool::segment;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::fmt;
use std::path::Path;

/// A segment that was shorter than the pool says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    pub name: String,
    pub found: u64,
    pub expected: u64,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cut {
            name,
            found,
            expected,
        } = self;
        write!(
            f,
            "{name} was cut to {found} of {expected} bytes; the rest is lost"
        )
    }
}

/// Gives the segments of an unused pool their lengths again; which of them were shorter.
pub fn mend(directory: &Path, superblock: &Superblock) -> Result<Vec<Cut>> {
    let mut cuts = Vec::new();
    for (name, expected) in lengths(superblock) {
        let path = directory.join(&name);
        // What is missing, or is something else, is named by whoever opens the pool.
        let Ok(Some(file)) = ordinary::open(&path, OFlags::RDWR) else {
            continue;
        };
        let mended = restore(&file, &name, expected);
        cuts.extend(mended.map_err(Error::os(path.display().to_string()))?);
    }
    Ok(cuts)
}

/// Gives the segments that a service has open their lengths again.
pub fn mend_open(files: &Files) {
    let open = [&files.data, &files.journal];
    for ((name, expected), file) in lengths(&files.superblock).into_iter().zip(open) {
        match restore(file, &name, expected) {
            Ok(None) => {}
            Ok(Some(cut)) => tracing::error!("{cut}"),
            Err(e) => tracing::error!("{name} was cut and cannot get its length again: {e}"),
        }
    }
}

/// File data and journal.
fn lengths(superblock: &Superblock) -> [(String, u64); 2] {
    let journal = segment::journal(superblock.journal_segment);
    [
        (segment::data(0), superblock.data_len),
        (journal, LANES as u64 * superblock.lane_len),
    ]
}

fn restore(file: &OwnedFd, name: &str, expected: u64) -> rustix::io::Result<Option<Cut>> {
    let found = rustix::fs::fstat(file)?.st_size as u64;
    if found >= expected {
        return Ok(None);
    }
    rustix::fs::ftruncate(file, expected)?;
    Ok(Some(Cut {
        name: name.into(),
        found,
        expected,
    }))
}
