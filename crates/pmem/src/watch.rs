//! Recording a whole stack: regions of files that a test watches write into the test's log.
//!
//! What always holds here:
//! - A region mapped while its file is watched records for as long as it lives, whoever mapped
//!   it; regions of other files record nothing.
//! - Offsets in the log are offsets in the file.

use crate::record::{Record, Recorder};
use crate::spin::Spin;
use alloc::vec::Vec;
use rustix::fd::BorrowedFd;

type FileId = (u64, u64);

static WATCHED: Spin<Vec<(FileId, Recorder)>> = Spin::new(Vec::new());

/// A file that is watched, until this is dropped.
pub struct Watch(FileId);

/// Regions of the file under `fd` that are mapped from now on record into `log`. `None` when
/// the file cannot be told from others.
pub fn watch(fd: BorrowedFd<'_>, log: Recorder) -> Option<Watch> {
    let id = id(fd)?;
    WATCHED.lock().push((id, log));
    Some(Watch(id))
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watched = WATCHED.lock();
        if let Some(at) = watched.iter().position(|(id, _)| *id == self.0) {
            watched.swap_remove(at);
        }
    }
}

fn id(fd: BorrowedFd<'_>) -> Option<FileId> {
    rustix::fs::fstat(fd).ok().map(|s| (s.st_dev, s.st_ino))
}

/// A region's own recorder, and the log of its file if that is watched.
pub struct Tap<R> {
    own: R,
    file: Option<Recorder>,
    /// Where the region starts in the file.
    start: u64,
}

impl<R: Record> Tap<R> {
    pub(crate) fn of_own(own: R) -> Tap<R> {
        Tap {
            own,
            file: None,
            start: 0,
        }
    }

    pub(crate) fn of_file(fd: BorrowedFd<'_>, start: u64, own: R) -> Tap<R> {
        let watched = id(fd);
        let all = WATCHED.lock();
        let log = all.iter().find(|(id, _)| Some(*id) == watched);
        Tap {
            own,
            file: log.map(|(_, log)| log.clone()),
            start,
        }
    }

    pub(crate) fn own(&self) -> &R {
        &self.own
    }
}

impl<R: Record> Record for Tap<R> {
    const ACTIVE: bool = true;

    fn listens(&self) -> bool {
        self.own.listens() || self.file.is_some()
    }

    fn store(&self, off: u64, data: &[u8], nt: bool) {
        self.own.store(off, data, nt);
        if let Some(log) = &self.file {
            log.store(off + self.start, data, nt);
        }
    }

    fn flush(&self, line: u64) {
        self.own.flush(line);
        if let Some(log) = &self.file {
            log.flush(line + self.start / crate::LINE as u64);
        }
    }

    fn fence(&self) {
        self.own.fence();
        if let Some(log) = &self.file {
            log.fence();
        }
    }

    fn sync(&self, off: u64, len: usize) {
        self.own.sync(off, len);
        if let Some(log) = &self.file {
            log.sync(off + self.start, len);
        }
    }

    fn zeroed(&self, off: u64, len: usize, read: impl Fn(u64, &mut [u8]) -> bool) {
        self.own.zeroed(off, len, &read);
        if let Some(log) = &self.file {
            log.zeroed(off, len, |at, page| read(at, page));
        }
    }
}
