//! When the last commit of a pool on an ordinary file is made durable.
//!
//! Invariants:
//!  * A separate thread writes and flushes most of what is dirty while records are still applied, a
//!    little at a time, with flushes of clients in between. The checkpoint itself then finds little
//!    left to wait for.
//!  * After a flush that failed, whoever made it, the kernel may treat pages as clean that are not
//!    on the device: before the next checkpoint all data and nodes in use are made dirty again.
//!  * A checkpoint begins at the latest `PERIOD` after the commit that needs it, or as soon as
//!    clients may soon need the room in the journal that only it frees.

use super::Store;
use crate::base::error::{Error, Result};
use holdfast_pmem::env::Instant;
use holdfast_pmem::{Region, write_gently};
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::space::Space;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

/// As long as ext4 puts off its own commits.
const PERIOD: Duration = Duration::from_secs(5);
/// A flush that took no longer left little behind.
const SHORT: Duration = Duration::from_millis(30);
/// Flushes that are made before a checkpoint, however long they take.
const ROUNDS_MAX: u32 = 4;
/// The part of the journal that may be in use before it is emptied without delay.
const JOURNAL_PART: u64 = 4;
/// After a failure it is tried again after so long.
const AGAIN: Duration = Duration::from_secs(1);

/// A flush of the segments that goes on in the background.
struct Flush {
    done: Receiver<std::result::Result<Duration, Errno>>,
}

/// Writes and flushes segments of these lengths; how long the flushes alone took.
fn flush(segments: &[(OwnedFd, u64)], gently: bool) -> std::result::Result<Duration, Errno> {
    let mut took = Duration::ZERO;
    for (fd, len) in segments {
        if gently {
            write_gently(fd.as_fd(), *len)?;
        }
        let begun = Instant::now();
        rustix::fs::fdatasync(fd)?;
        took += begun.elapsed();
    }
    Ok(took)
}

/// What is known about checkpoints to come.
#[derive(Default)]
pub struct Checkpoints {
    flush: Option<Flush>,
    rounds: u32,
    /// When the oldest commit that is not durable was seen first.
    loose_since: Option<Instant>,
    failed_at: Option<Instant>,
    /// A flush of data failed since the last checkpoint.
    doubtful: bool,
    /// Somebody waits for room in the journal.
    pub room_wanted: bool,
}

impl Checkpoints {
    /// Whether a flush goes on, of whose end nobody is told.
    pub fn is_busy(&self) -> bool {
        self.flush.is_some()
    }

    /// Whether the time has come; `used` bytes of the journal, of a length, wait for it.
    fn is_due(&mut self, used: u64, journal_len: u64) -> bool {
        let since = *self.loose_since.get_or_insert_with(Instant::now);
        let failed_lately = self.failed_at.is_some_and(|at| at.elapsed() < AGAIN);
        let full = self.room_wanted || used > journal_len / JOURNAL_PART;
        !failed_lately && (full || since.elapsed() > PERIOD)
    }

    /// Looks whether the flush is over; `None`: it is not.
    fn poll(&mut self) -> Option<Result<Duration>> {
        let flush = self.flush.as_ref()?;
        let done = match flush.done.try_recv() {
            Ok(Ok(took)) => Ok(took),
            Ok(Err(errno)) => Err(Error::os("flushing the segments")(errno)),
            Err(TryRecvError::Empty) => return None,
            // Nobody knows how far it came.
            Err(TryRecvError::Disconnected) => Err(Error::os("flushing the segments")(Errno::IO)),
        };
        self.flush = None;
        Some(done)
    }

    fn begin(&mut self, segments: Vec<(OwnedFd, u64)>, gently: bool) {
        let (tell, done) = channel();
        let work = move || {
            // A store that is closed does not listen any more.
            let _ = tell.send(flush(&segments, gently));
        };
        let thread = std::thread::Builder::new().name("flush".into());
        if thread.spawn(work).is_ok() {
            self.flush = Some(Flush { done });
            self.rounds += 1;
        }
    }

    fn reset(&mut self) {
        self.rounds = 0;
        self.loose_since = None;
    }
}

impl Store {
    /// Does what is due of the next checkpoint, for which `used` bytes of the journal wait; `now`:
    /// whatever the time. Says whether it is over and was the last that is needed: everything that
    /// was committed is durable.
    pub fn tend_checkpoint(&mut self, now: bool, used: u64) -> Result<bool> {
        if self.pool.is_parked() {
            return Ok(false);
        }
        if !self.pool.is_loose() {
            self.checkpoints.reset();
            return Ok(true);
        }
        if !self.checkpoints.is_busy() {
            let len = self.files.journal_len();
            if now || self.checkpoints.is_due(used, len) {
                let segments = self.segments_to_flush()?;
                self.checkpoints.begin(segments, !now);
            }
            return Ok(false);
        }
        match self.checkpoints.poll() {
            None => Ok(false),
            Some(Ok(took)) if took > SHORT && self.checkpoints.rounds < ROUNDS_MAX => {
                let segments = self.segments_to_flush()?;
                self.checkpoints.begin(segments, !now);
                Ok(false)
            }
            Some(flushed) => {
                // In doubt everything is flushed again in any case, and that counts.
                let counts = !self.checkpoints.doubtful;
                self.checkpoints.doubtful |= flushed.is_err();
                let done = match flushed {
                    Err(e) if counts => Err(e),
                    _ => self.checkpoint(),
                };
                self.checkpoints.failed_at = done.is_err().then(Instant::now);
                done.map(|()| true)
            }
        }
    }

    /// Makes the last commit durable, however long that takes.
    pub fn checkpoint(&mut self) -> Result<()> {
        self.flush_pool().map_err(|error| Error::Pool {
            path: self.files.directory.clone(),
            error,
        })
    }

    /// The same, with the error of the pool.
    pub fn flush_pool(&mut self) -> holdfast_pool::Result<()> {
        self.checkpoints.reset();
        let in_doubt = self.checkpoints.doubtful;
        let mut done = self.flush_once();
        // Of a failure that is known the kernel may have yet to tell our descriptor, too.
        if in_doubt && done.is_err() {
            done = self.flush_once();
        }
        done
    }

    fn flush_once(&mut self) -> holdfast_pool::Result<()> {
        if std::mem::take(&mut self.checkpoints.doubtful) {
            self.redirty();
        }
        let done = self.pool.checkpoint();
        self.checkpoints.doubtful |= done.is_err();
        done
    }

    /// A client's flush of data failed.
    pub fn doubt_data(&mut self) {
        self.checkpoints.doubtful = true;
    }

    /// All blocks and pages that are in use, or granted, are to be written again.
    fn redirty(&mut self) {
        let pool = &self.pool;
        let data = redirty_used(pool.data_space(), &self.data);
        let meta = redirty_used(pool.meta_space(), pool.meta());
        // A page that cannot be had from the disk has nothing that could be written.
        self.checkpoints.doubtful |= data.is_err() | meta.is_err();
    }

    /// Descriptors of the segments, and their lengths.
    fn segments_to_flush(&self) -> Result<Vec<(OwnedFd, u64)>> {
        let clone = |fd: &OwnedFd| fd.try_clone().map_err(Error::io("descriptors"));
        let (data, meta) = (clone(&self.files.data)?, clone(&self.files.meta)?);
        let meta_len = self.pool.meta().len() as u64;
        Ok(vec![(data, self.data.len() as u64), (meta, meta_len)])
    }
}

/// Makes dirty what is in use of a segment; the first of its failures, if there are any.
fn redirty_used(space: &Space, segment: &Region) -> std::result::Result<(), holdfast_pmem::Error> {
    let (mut at, mut done) = (0, Ok(()));
    while at < space.len() {
        let free = space.next_free(at, space.len());
        let (end, next) = free.map_or((space.len(), space.len()), |f| (f.start, f.end()));
        let len = ((end - at) * PAGE_LEN) as usize;
        done = done.and(segment.redirty(at * PAGE_LEN, len));
        at = next;
    }
    done
}
