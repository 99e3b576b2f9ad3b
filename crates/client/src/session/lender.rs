//! Whose the lent files of a pool are, and what tells them from those of others.

use crate::base::error::{Error, Result};
use rustix::fd::BorrowedFd;

/// The meta segment of the pool, and its owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lender {
    pub device: u64,
    pub inode: u64,
    pub owner: u32,
}

impl Lender {
    /// Of memory that belongs to no pool.
    pub fn nobody() -> Lender {
        Lender {
            device: 0,
            inode: 0,
            owner: rustix::process::geteuid().as_raw(),
        }
    }

    pub fn of(meta: BorrowedFd<'_>) -> Result<Lender> {
        let stat = rustix::fs::fstat(meta).map_err(|e| Error::Kernel {
            call: "fstat",
            errno: e.raw_os_error(),
        })?;
        Ok(Lender {
            device: stat.st_dev,
            inode: stat.st_ino,
            owner: stat.st_uid,
        })
    }
}
