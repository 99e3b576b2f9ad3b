//! `holdfast snapshot thin`: of many snapshots the newest of each stretch of time.
//!
//! Invariants: the newest of all is kept whatever is asked for; what is deleted is said; one that
//! is in use stays, and is said to.

use crate::failure::{self, Failure, printed};
use crate::kv::open_pool;
use crate::states::TEMPORARY;
use holdfast_cli::keep::Keep;
use std::io::Write;
use std::path::Path;

/// `snapshot thin`.
pub fn thin(pool: &Path, keep: &Keep, prefix: &str, dry_run: bool) -> Result<u8, Failure> {
    let opened = open_pool(pool, None)?;
    let mut all = opened.snapshot_list()?;
    all.retain(|s| s.name.starts_with(prefix) && !s.name.starts_with(TEMPORARY));
    let mut status = failure::OK;
    for snapshot in keep.goes(&all, holdfast_pmem::env::now()) {
        let name = &snapshot.name;
        if !dry_run && let Err(error) = opened.snapshot_delete(name) {
            failure::say(Failure::from(error));
            status = failure::FAILED;
            continue;
        }
        let word = if dry_run { "would delete" } else { "deleted" };
        printed(writeln!(std::io::stdout(), "{word} {name}"))?;
    }
    Ok(status)
}
