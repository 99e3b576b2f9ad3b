//! The run's own view of session memory: its `Run` record and its counters.
//!
//! Invariants: other processes write here too, so values are copied and bounded before use; the
//! record is free again when the value that took it is dropped.

use crate::failure::Failure;
use holdfast_client::live;
use holdfast_pmem::{Shared, SharedMem};
use holdfast_pool::session::*;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::*;

/// The record is being filled in.
const SETUP: u32 = 2;
/// The record is in use.
const USED: u32 = 1;

/// One run's place in session memory.
pub struct RunRecord {
    memory: SharedMem,
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
    pub fn create(session: &OwnedFd, at: &[u8]) -> Result<RunRecord, Failure> {
        let mut record = RunRecord::existing(session, 0)?;
        record.borrowed = false;
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
    pub fn existing(session: &OwnedFd, index: u32) -> Result<RunRecord, Failure> {
        let memory = SharedMem::map(session.as_fd(), SESSION_LEN).map_err(|e| {
            Failure::new(format!("the session cannot be mapped: {e}")).fix("raise `ulimit -v`")
        })?;
        let record = RunRecord {
            memory,
            index: index as usize,
            borrowed: true,
        };
        match record.header()?.magic.load(Acquire) {
            MAGIC => Ok(record),
            _ => Err(Failure::new(
                "the service speaks another version of the protocol",
            )),
        }
    }

    fn take(&self, at: &[u8]) -> Result<bool, Failure> {
        let run = self.run()?;
        let state = run.state.load(Acquire);
        let pid = run.pid.load(Relaxed);
        let left = state != 0 && !live::process_lives(pid, 0) && !self.is_used()?;
        if (state != 0 && !left)
            || run
                .state
                .compare_exchange(state, SETUP, AcqRel, Relaxed)
                .is_err()
        {
            return Ok(false);
        }
        if at.len() > run.at.len() {
            run.state.store(0, Release);
            return Err(Failure::new("the path given with --at is too long"));
        }
        for sum in [&run.served, &run.passed, &run.refused] {
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
        let all = (0..SLOTS).filter_map(|i| self.entry::<Slot>(SLOTS_AT, i).ok());
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

    /// Whether no process is in the session now.
    pub fn is_last(&self) -> Result<bool, Failure> {
        // The last slot is the service's.
        let slots = (0..SLOTS - 1).map(|i| self.entry::<Slot>(SLOTS_AT, i));
        for slot in slots {
            if live::is_alive(slot?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sets the consistency of a session in which no program runs yet; false if one runs that
    /// began with another.
    pub fn set_consistency(&self, wanted: u32) -> Result<bool, Failure> {
        let consistency = &self.header()?.consistency;
        if consistency.load(Acquire) == wanted {
            return Ok(true);
        }
        let used = !self.is_last()?;
        if !used {
            consistency.store(wanted, Release);
        }
        Ok(!used)
    }
}

impl Drop for RunRecord {
    fn drop(&mut self) {
        // A program left behind in the background goes on counting here.
        if let (false, Ok(run), Ok(false)) = (self.borrowed, self.run(), self.is_used()) {
            run.state.store(0, Release);
        }
    }
}
