//! The independent check of a pool that nobody uses.
//!
//! Invariant: nothing is written; a pool whose service runs is not checked.

use crate::base::error::Result;
use crate::base::files::{self, Files};
use crate::base::process;
use holdfast_pmem::Access;
use holdfast_pool::check::{Now, Report};

/// Derives again everything that must hold in the pool of `files`.
pub fn check(files: &Files) -> Result<Report> {
    let sb = &files.superblock;
    let meta = files::map(&files.meta, sb.meta_len, Access::ReadOnly, files.medium)?;
    let journal_len = files.journal_len();
    let journal = files::map(&files.journal, journal_len, Access::ReadOnly, files.medium)?;
    let now = Now {
        boot_id: process::boot_id(),
        is_file: files.was_on_file(),
    };
    Ok(holdfast_pool::check::check_now(
        &meta,
        sb.data_len,
        Some(&journal),
        Some(now),
    ))
}
