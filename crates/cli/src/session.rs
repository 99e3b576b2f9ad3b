//! The run's own view of session memory: its `Run` record and its counters.
//!
//! Invariants: other processes write here too, so values are copied and bounded before use; the
//! record is free again when the value that took it is dropped.

use crate::failure::Failure;
use holdfast_client::attach::{Attachment, SERVICE_IS_NEWER, SERVICE_IS_OLDER};
use holdfast_client::live;
use holdfast_pmem::{RecordLocks, Shared, SharedMem, record_locks};
use holdfast_pool::session::*;
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::*;

/// The record is being filled in.
const SETUP: u32 = 2;
/// The record is in use.
const USED: u32 = 1;

/// One run's place in session memory.
pub struct RunRecord {
    memory: SharedMem,
    /// On the file of `memory`: who lives.
    locks: RecordLocks,
    /// Our own open file description of it, which holds the life of the run.
    life: Option<OwnedFd>,
    index: usize,
    /// Somebody else's record, only looked at.
    borrowed: bool,
}

/// Calls of all processes of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub served: u64,
    pub passed: u64,
    pub refused: u64,
}

impl RunRecord {
    /// Takes a record; the pool appears at `at`.
    pub fn create(session: BorrowedFd<'_>, at: &[u8]) -> Result<RunRecord, Failure> {
        let mut record = RunRecord::existing(session, 0)?;
        record.borrowed = false;
        record.life = Some(open_again(session)?);
        for index in 0..RUNS {
            record.index = index;
            if record.take(at)? {
                return Ok(record);
            }
        }
        Err(Failure::new(format!(
            "{RUNS} programs run on the pool already"
        )))
    }

    /// The record of a run that is under way.
    pub fn existing(session: BorrowedFd<'_>, index: u32) -> Result<RunRecord, Failure> {
        let (memory, locks) = map(session)?;
        Ok(RunRecord {
            memory,
            locks,
            life: None,
            index: index as usize,
            borrowed: true,
        })
    }

    fn take(&self, at: &[u8]) -> Result<bool, Failure> {
        let run = self.run()?;
        if run.state.load(Acquire) != 0 && self.is_used()? {
            return Ok(false);
        }
        // Who has the life has the record.
        let life = self.life.as_ref().map(AsFd::as_fd);
        let byte = live::run_life(self.index());
        if life.is_none_or(|life| record_locks::hold_by_description(life, byte).is_err()) {
            return Ok(false);
        }
        run.state.store(SETUP, Release);
        if at.len() > run.at.len() {
            run.state.store(0, Release);
            return Err(Failure::new("the path given with --at is too long"));
        }
        let calls = [&run.served, &run.passed, &run.refused];
        for sum in calls.into_iter().chain(&run.mapping) {
            sum.store(0, Relaxed);
        }
        for refusal in &run.refusals {
            refusal.call.store(0, Relaxed);
            refusal.count.store(0, Relaxed);
        }
        for exe in &run.uninstrumented {
            exe.len.store(0, Relaxed);
            exe.count.store(0, Relaxed);
        }
        for (to, from) in run.at.iter().zip(at) {
            to.store(*from, Relaxed);
        }
        run.at_len.store(at.len() as u32, Relaxed);
        run.lock.store(0, Relaxed);
        run.pid.store(std::process::id(), Relaxed);
        run.state.store(USED, Release);
        Ok(true)
    }

    fn entry<T: Shared>(&self, base: usize, index: usize) -> Result<&T, Failure> {
        let entry = self.memory.at((base + index * size_of::<T>()) as u64);
        entry.ok_or_else(|| Failure::new("session memory is too short"))
    }

    fn header(&self) -> Result<&Header, Failure> {
        self.entry(HEADER_AT, 0)
    }

    /// The record.
    pub fn run(&self) -> Result<&Run, Failure> {
        self.entry(RUNS_AT, self.index)
    }

    /// Which one.
    pub fn index(&self) -> u32 {
        self.index as u32
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        let mine = self.index as u32 + 1;
        let used = self.header().map_or(0, |h| h.slots_used.load(Acquire));
        let all = (0..used as usize).filter_map(|i| self.entry::<Slot>(SLOTS_AT, i).ok());
        all.filter(move |s| s.state.load(Acquire) != 0 && s.run.load(Relaxed) == mine)
    }

    fn is_used(&self) -> Result<bool, Failure> {
        Ok(self.slots().next().is_some())
    }

    /// Calls of processes that are gone and of those that are there.
    pub fn totals(&self) -> Result<Totals, Failure> {
        let run = self.run()?;
        let mut totals = Totals {
            served: run.served.load(Relaxed),
            passed: run.passed.load(Relaxed),
            refused: run.refused.load(Relaxed),
        };
        for slot in self.slots() {
            totals.served = totals.served.wrapping_add(slot.served.load(Relaxed));
            totals.passed = totals.passed.wrapping_add(slot.passed.load(Relaxed));
            totals.refused = totals.refused.wrapping_add(slot.refused.load(Relaxed));
        }
        Ok(totals)
    }

    /// What the mapping caches of the run's processes did, by `MapCount`.
    pub fn mapping(&self) -> Result<[u64; MAP_COUNTS], Failure> {
        let mut counts = [0; MAP_COUNTS];
        for (to, from) in counts.iter_mut().zip(&self.run()?.mapping) {
            *to = from.load(Relaxed);
        }
        Ok(counts)
    }

    /// Tells all programs of the session to give up the mappings that they keep.
    pub fn drop_kept(&self) -> Result<(), Failure> {
        self.header()?.map_drops.fetch_add(1, AcqRel);
        Ok(())
    }

    /// Why the session was given up, as a sentence, if it was.
    pub fn given_up(&self) -> Option<String> {
        let header = self.header().ok()?;
        let errno = header.poisoned.load(Acquire);
        let why = match header.broken.finding() {
            _ if errno == 0 => return None,
            Some(finding) => format!("a mistake of Holdfast was found at {finding}"),
            None => format!("the pool's service gave up on it with error {errno}"),
        };
        Some(format!("the session ended before the program: {why}"))
    }

    /// Whether no process is in the session now.
    pub fn is_last(&self) -> Result<bool, Failure> {
        let used = self.header()?.slots_used.load(Acquire) as usize;
        for index in 0..used.min(SERVICE_SLOT) {
            let slot = self.entry::<Slot>(SLOTS_AT, index)?;
            let counts = slot.run.load(Relaxed) != RUN_OF_HELPER;
            if counts && live::is_alive(&self.locks, index as u32, slot) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sets the consistency of a session in which no program runs yet; false if one runs that
    /// began with another.
    pub fn set_consistency(&self, wanted: u32) -> Result<bool, Failure> {
        let consistency = &self.header()?.consistency;
        let before = consistency.load(Acquire);
        if before != wanted && self.is_last()? {
            let _ = consistency.compare_exchange(before, wanted, AcqRel, Acquire);
        }
        // Another run may have set it, to the same, since it was looked at.
        Ok(consistency.load(Acquire) == wanted)
    }
}

/// Session memory, and who lives, if it has the layout that this program knows.
pub fn map(session: BorrowedFd<'_>) -> Result<(SharedMem, RecordLocks), Failure> {
    let memory = SharedMem::map(session, SESSION_LEN).map_err(|e| {
        Failure::new(format!("the session cannot be mapped: {e}")).fix("raise `ulimit -v`")
    })?;
    let locks = RecordLocks::new(session).map_err(|e| Failure::new(e.to_string()))?;
    let header = memory.at::<Header>(HEADER_AT as u64);
    let header = header.ok_or_else(|| Failure::new("session memory is too short"))?;
    match header.magic.load(Acquire) {
        MAGIC => Ok((memory, locks)),
        other => Err(of_other_version(other)),
    }
}

/// Session memory has another layout than this program knows.
fn of_other_version(magic: u64) -> Failure {
    let digits = |magic: u64| [magic.to_le_bytes()[6], magic.to_le_bytes()[7]];
    // What stands there, where it is no session of any version, does not matter.
    let (age, fix) = match digits(magic) < digits(MAGIC) {
        true => ("older", SERVICE_IS_OLDER),
        false => ("newer", SERVICE_IS_NEWER),
    };
    let what = "the pool's session is of a version of Holdfast that is";
    Failure::new(format!("{what} {age} than this program")).fix(fix)
}

/// Whether the session has ended: a service did all that was to be done, or gave it up.
pub fn is_over(session: BorrowedFd<'_>) -> Result<bool, Failure> {
    let record = RunRecord::existing(session, 0)?;
    Ok(record.header()?.poisoned.load(Acquire) != 0)
}

/// The descriptor of session memory that came with the attachment.
pub fn memory(attachment: &Attachment) -> Result<BorrowedFd<'_>, Failure> {
    attachment.memory().map_err(|e| Failure::new(e.to_string()))
}

/// The file of `fd`, which is one of the session's, opened once more.
pub fn open_again(fd: BorrowedFd<'_>) -> Result<OwnedFd, Failure> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    opened.map_err(|e| Failure::io("a file of the session", &e.into()))
}

impl Drop for RunRecord {
    fn drop(&mut self) {
        // A program left behind in the background goes on counting here.
        if let (false, Ok(run), Ok(false)) = (self.borrowed, self.run(), self.is_used()) {
            run.state.store(0, Release);
        }
    }
}
