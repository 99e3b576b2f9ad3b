//! The independent check of a pool that nobody uses.
//!
//! Invariants: nothing is written; a pool whose service runs is not checked. The segments are read
//! by system calls: through a mapping, each hole of a file in memory would take a page, which a
//! full host does not have.

use crate::base::error::Result;
use crate::base::files::Files;
use crate::base::process;
use holdfast_pool::check::{Bytes, Now, Report};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// A segment that is only read.
struct Segment<'a> {
    file: &'a OwnedFd,
    len: u64,
}

impl Bytes for Segment<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, at: u64, out: &mut [u8]) -> bool {
        let mut done = 0;
        while done < out.len() {
            match rustix::io::pread(self.file, &mut out[done..], at + done as u64) {
                Ok(0) => return false,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

/// Derives again everything that must hold in the pool of `files`.
pub fn check(files: &Files) -> Result<Report> {
    check_as(files, false)
}

/// The same of a pool that a restore has filled, whose mark is still there.
pub(crate) fn check_restored(files: &Files) -> Result<Report> {
    check_as(files, true)
}

fn check_as(files: &Files, is_restored: bool) -> Result<Report> {
    let sb = &files.superblock;
    let meta = Segment {
        file: &files.meta,
        len: sb.meta_len,
    };
    let journal = Segment {
        file: &files.journal,
        len: files.journal_len(),
    };
    let now = Now {
        boot_id: process::boot_id()?,
        is_file: files.was_on_file(),
        is_restored,
    };
    Ok(holdfast_pool::check::check_now(
        &meta,
        sb.data_len,
        Some(&journal),
        Some(now),
    ))
}
