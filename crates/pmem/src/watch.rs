//! Recording a whole stack: regions of files that a test watches write into the test's log.
//!
//! What always holds here:
//! - A region that is mapped while its file is watched records as long as it lives, whoever mapped
//!   it; regions of other files record nothing.
//! - Offsets in the log are offsets in the file.

use crate::record::Recorder;
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

/// Where a region records: into the log of its file if that is watched, or into one it was given.
#[derive(Clone)]
pub struct Tap {
    log: Option<Recorder>,
    /// Where the region starts in the file.
    start: u64,
}

impl Tap {
    pub(crate) fn silent() -> Tap {
        let (log, start) = (None, 0);
        Tap { log, start }
    }

    pub(crate) fn into_log(log: Recorder) -> Tap {
        let (log, start) = (Some(log), 0);
        Tap { log, start }
    }

    pub(crate) fn of_file(fd: BorrowedFd<'_>, start: u64) -> Tap {
        let watched = id(fd);
        let all = WATCHED.lock();
        let log = all.iter().find(|(id, _)| Some(*id) == watched);
        let log = log.map(|(_, log)| log.clone());
        Tap { log, start }
    }

    /// Whether anybody reads what is recorded.
    pub(crate) fn listens(&self) -> bool {
        self.log.is_some()
    }

    pub(crate) fn store(&self, off: u64, data: &[u8], nt: bool) {
        if let Some(log) = &self.log {
            log.store(off + self.start, data, nt);
        }
    }

    pub(crate) fn flush(&self, line: u64) {
        if let Some(log) = &self.log {
            log.flush(line + self.start / crate::LINE as u64);
        }
    }

    pub(crate) fn fence(&self) {
        if let Some(log) = &self.log {
            log.fence();
        }
    }

    pub(crate) fn sync(&self, off: u64, len: usize) {
        if let Some(log) = &self.log {
            log.sync(off + self.start, len);
        }
    }

    /// `read` takes offsets in the region.
    pub(crate) fn zeroed(&self, off: u64, len: usize, read: impl Fn(u64, &mut [u8]) -> bool) {
        if let Some(log) = &self.log {
            let start = self.start;
            log.zeroed(off + start, len, |at, page| read(at - start, page));
        }
    }
}
