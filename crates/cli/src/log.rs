//! What the service logs while it runs: lines with time and level on standard error.
//!
//! Invariant: a line that cannot be written, as on a full disk, does not end the service.

use crate::failure::Failure;
use holdfast_pmem::huge_page;
use holdfast_pool::directory::LOG;
use holdfast_service::ordinary;
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use std::path::Path;
use tracing_subscriber::filter::LevelFilter;

/// Chooses what is said: off, error, warn, info (the default), debug or trace.
pub const VARIABLE: &str = "HOLDFAST_LOG";

/// A log that is longer is begun anew when a service is started.
const LENGTH_MAX: u64 = 1 << 20;

/// Standard error becomes the log in the pool; on a full or read-only file system it stays, and on
/// hugetlbfs, where nothing can be written to a file.
pub fn take_over(pool: &Path) {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    if let Ok(Some(file)) = ordinary::open(&pool.join(LOG), flags)
        && huge_page(file.as_fd()).is_none()
    {
        if rustix::fs::fstat(&file).is_ok_and(|found| found.st_size as u64 > LENGTH_MAX) {
            // A log that cannot be cut goes on to grow.
            rustix::fs::ftruncate(&file, 0).unwrap_or(());
        }
        let _ = rustix::stdio::dup2_stderr(file);
    }
}

/// From now on the service's messages are written.
pub fn start() -> Result<(), Failure> {
    tracing_subscriber::fmt()
        .with_max_level(level()?)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .log_internal_errors(false)
        .init();
    Ok(())
}

fn level() -> Result<LevelFilter, Failure> {
    let Some(said) = std::env::var_os(VARIABLE).filter(|said| !said.is_empty()) else {
        return Ok(LevelFilter::INFO);
    };
    let said = said.to_string_lossy();
    said.parse().map_err(|_| {
        Failure::new(format!("{VARIABLE} is {said}, which is not a level"))
            .fix("set it to off, error, warn, info, debug or trace")
    })
}

/// What a line of the log says, if that is an error or the message with which a command ended.
pub fn error_in(line: &str) -> Option<&str> {
    let said = line.split_once(" ERROR ").map(|(_, said)| said);
    said.or_else(|| line.strip_prefix("holdfast: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_found_in_a_log() {
        let time = "2026-11-23T18:10:42.000001Z";
        let error = format!("{time} ERROR the journal is gone");
        assert_eq!(error_in(&error), Some("the journal is gone"));
        assert_eq!(error_in("holdfast: no pool."), Some("no pool."));
        assert_eq!(error_in(&format!("{time}  INFO the service ends")), None);
    }
}
