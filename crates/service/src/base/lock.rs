//! The right to write a pool: one process at a time.
//!
//! Invariants: the lock is an flock(2) on `POOL/lock`, so it ends with its holder in any case; the
//! file's text is the holder's process id and PID namespace, for messages only.

use crate::base::error::{Error, Result};
use crate::base::ordinary;
use holdfast_pmem::env::{self, Instant};
use holdfast_pmem::process::namespace;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use std::path::Path;
use std::time::Duration;

/// Held for as long as this value lives.
#[derive(Debug)]
pub struct PoolLock {
    file: OwnedFd,
}

/// Who only looks holds the lock for a moment, too.
const LOOK: Duration = Duration::from_millis(50);
/// How long the service of a user who has just left may take to end.
const PATIENCE: Duration = Duration::from_secs(2);

impl PoolLock {
    /// Takes the lock of the pool in `directory`, or says who has it.
    pub fn take(directory: &Path) -> Result<PoolLock> {
        let path = directory.join(holdfast_pool::segment::LOCK);
        let file = ordinary::open_or_say(&path, OFlags::RDWR | OFlags::CREATE)?;
        match lock(&file) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(Error::InUse {
                    path: directory.into(),
                    pid: holder(&file),
                });
            }
            Err(e) => return Err(Error::os(path.display().to_string())(e)),
        }
        // Only a message would be lost if this failed, for instance on a full file system.
        let _ = rustix::fs::ftruncate(&file, 0);
        let text = format!("{} {}", std::process::id(), namespace());
        let _ = rustix::io::pwrite(&file, text.as_bytes(), 0);
        Ok(PoolLock { file })
    }

    /// As [`take`](PoolLock::take); the service of a user who has just left may still be ending.
    pub fn take_patiently(directory: &Path) -> Result<PoolLock> {
        let begun = Instant::now();
        loop {
            match PoolLock::take(directory) {
                Err(Error::InUse { .. }) if begun.elapsed() < PATIENCE => {
                    env::sleep(Duration::from_millis(20));
                }
                done => return done,
            }
        }
    }

    /// Whether this is the lock of the pool that is in `directory` now, where another may have been
    /// made since.
    pub fn is_of(&self, directory: &Path) -> bool {
        let there = rustix::fs::lstat(directory.join(holdfast_pool::segment::LOCK));
        let ours = rustix::fs::fstat(&self.file);
        matches!((there, ours), (Ok(there), Ok(ours))
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino))
    }

    /// Whether somebody holds the lock, and who, if it is a process of our PID namespace.
    pub fn holder(directory: &Path) -> Option<Option<u32>> {
        let path = directory.join(holdfast_pool::segment::LOCK);
        let file = ordinary::open(&path, OFlags::RDONLY).ok()??;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => Some(holder(&file)),
            _ => None,
        }
    }
}

impl Drop for PoolLock {
    /// By name: a child between fork and exec still has the descriptor.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

fn lock(file: &OwnedFd) -> rustix::io::Result<()> {
    let begun = Instant::now();
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if begun.elapsed() < LOOK => {
                env::sleep(Duration::from_millis(1));
            }
            done => return done,
        }
    }
}

fn holder(file: &OwnedFd) -> Option<u32> {
    let mut text = [0; 32];
    let n = rustix::io::pread(file, &mut text, 0).ok()?;
    let mut words = std::str::from_utf8(text.get(..n)?).ok()?.split(' ');
    let (pid, theirs) = (words.next()?.parse().ok()?, words.next()?.parse::<u64>());
    (theirs == Ok(namespace())).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn the_second_is_told_who_was_first() {
        let dir = TempDir::new("lock");
        assert!(PoolLock::holder(dir.path()).is_none());
        let first = PoolLock::take(dir.path()).unwrap();
        let me = std::process::id();
        let second = PoolLock::take(dir.path());
        assert!(matches!(second, Err(Error::InUse { pid: Some(pid), .. }) if pid == me));
        assert_eq!(PoolLock::holder(dir.path()), Some(Some(me)));
        drop(first);
        assert!(PoolLock::take(dir.path()).is_ok());
    }

    #[test]
    fn it_is_not_that_of_a_pool_that_was_made_anew() {
        let dir = TempDir::new("lock-anew");
        let lock = PoolLock::take(dir.path()).unwrap();
        assert!(lock.is_of(dir.path()));
        let path = dir.path().join(holdfast_pool::segment::LOCK);
        std::fs::remove_file(path).unwrap();
        assert!(!lock.is_of(dir.path()));
        let _other = PoolLock::take(dir.path()).unwrap();
        assert!(!lock.is_of(dir.path()));
    }
}
