//! Counters and lists of one `holdfast run`.
//!
//! Invariants: a process counts in its own slot; when the slot is freed its counts move to the run
//! (a death in between loses or keeps them, and never counts twice). The tables of refusals and
//! executables only grow, under the run's lock; when one is full, its last entry collects the rest.

use crate::base::error::{Error, Result};
use crate::session::Session;
use crate::session::joining::Joining;
use crate::session::lock;
use pmem::atomic::{AtomicU8, AtomicU64, Ordering::*};
use pool::session::*;

/// A run record for process `pid` with the path under which the pool appears; its index.
pub fn create(s: &Session, pid: u32, at: &[u8]) -> Result<u32> {
    let _joining = Joining::begin(s)?;
    let _guard = lock::acquire_plain(s, &s.header().slots_lock)?;
    for index in 0..RUNS as u32 {
        let run = s.run_at(index)?;
        let dead = || !crate::session::live::process_lives(run.pid.load(Relaxed), 0);
        if run.state.load(Acquire) != 0 && !(dead() && is_unused(s, index)) {
            continue;
        }
        run.state.store(0, Release);
        if at.len() > run.at.len() {
            return Err(Error::NameTooLong);
        }
        clear(run);
        run.pid.store(pid, Relaxed);
        store(&run.at, at);
        run.at_len.store(at.len() as u32, Relaxed);
        run.state.store(1, Release);
        return Ok(index);
    }
    Err(Error::TableFull)
}

fn is_unused(s: &Session, index: u32) -> bool {
    (0..s.slots_used()).all(|i| {
        s.slot_at(i)
            .is_ok_and(|slot| slot.state.load(Acquire) == 0 || slot.run.load(Relaxed) != index + 1)
    })
}

fn clear(run: &Run) {
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
    run.lock.store(0, Release);
}

fn store(to: &[AtomicU8], from: &[u8]) {
    for (to, from) in to.iter().zip(from) {
        to.store(*from, Relaxed);
    }
}

/// The record goes when the run's command has read it.
pub fn remove(s: &Session, index: u32) {
    if let Ok(run) = s.run_at(index) {
        run.state.store(0, Release);
    }
}

/// One more call served from the pool.
#[inline]
pub fn count_served(s: &Session) {
    add(&s.slot().served);
}

/// One more call passed to the kernel.
#[inline]
pub fn count_passed(s: &Session) {
    add(&s.slot().passed);
}

/// So many more, of a process that counts elsewhere.
pub fn count(s: &Session, served: u64, passed: u64) {
    s.slot().served.fetch_add(served, Relaxed);
    s.slot().passed.fetch_add(passed, Relaxed);
}

/// Threads of a process may lose a count to each other; a locked add would cost every call.
#[inline]
fn add(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

/// What was done for the mappings of a process, by its place in `Run::mapping`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapCount {
    /// Mappings that were handed out again.
    Hits,
    /// Mappings that were made, and could be kept.
    Misses,
    /// Mappings that were kept when the program unmapped them.
    Kept,
    /// Kept mappings that were unmapped.
    Evicted,
    /// Bytes of mappings that were handed out again.
    Bytes,
    /// Pages that were mapped ahead of the program, or were so already.
    AheadPages,
    /// Windows of pages that were begun.
    AheadWindows,
    /// Windows that the program reached.
    AheadReached,
    /// Mappings in which nothing more is mapped ahead: their end was, or the program did not come.
    AheadEnded,
    /// How often it was put off because no core was free.
    AheadRests,
    /// Huge pages that were made of the host's files.
    Promotions,
}

/// So many more. Each saved a call of the kernel or cost one, so a locked add is cheap here.
pub fn count_mapping(s: &Session, what: MapCount, n: u64) {
    if let Some(run) = s.run() {
        run.mapping[what as usize].fetch_add(n, Relaxed);
    }
    let total = match what {
        MapCount::Hits => 0,
        MapCount::Bytes => 1,
        MapCount::AheadPages => 2,
        MapCount::Promotions => 3,
        _ => return,
    };
    s.header().mapped[total].fetch_add(n, Relaxed);
}

/// One more call refused; `why` is an index into the caller's list of sentences.
pub fn refuse(s: &Session, call: u32, why: u32) {
    s.slot().refused.fetch_add(1, Relaxed);
    let Some(run) = s.run() else { return };
    let Ok(_guard) = lock::acquire_plain(s, &run.lock) else {
        return;
    };
    for (i, entry) in run.refusals.iter().enumerate() {
        let (known, reason) = (entry.call.load(Relaxed), entry.why.load(Relaxed));
        if known == 0 {
            entry.why.store(why, Relaxed);
            entry.call.store(call + 1, Release);
        } else if (known, reason) != (call + 1, why) && i + 1 < REFUSALS {
            continue;
        }
        entry.count.fetch_add(1, Relaxed);
        return;
    }
}

/// An executable that could not be instrumented.
pub fn uninstrumented(s: &Session, path: &[u8]) {
    let Some(run) = s.run() else { return };
    let Ok(_guard) = lock::acquire_plain(s, &run.lock) else {
        return;
    };
    for (i, entry) in run.uninstrumented.iter().enumerate() {
        let path = path
            .get(..path.len().min(entry.path.len()))
            .unwrap_or_default();
        let len = entry.len.load(Relaxed) as usize;
        let same = len == path.len()
            && path
                .iter()
                .zip(&entry.path)
                .all(|(a, b)| *a == b.load(Relaxed));
        if len == 0 {
            store(&entry.path, path);
            entry.len.store(path.len() as u32, Release);
        } else if !same && i + 1 < UNINSTRUMENTED {
            continue;
        }
        entry.count.fetch_add(1, Relaxed);
        return;
    }
}

/// Served, passed and refused calls of a run: of processes that are gone and of those that live.
pub fn totals(s: &Session, index: u32) -> Result<[u64; 3]> {
    let run = s.run_at(index)?;
    let mut sums = [&run.served, &run.passed, &run.refused].map(|c| c.load(Relaxed));
    for i in 0..s.slots_used() {
        let slot = s.slot_at(i)?;
        if slot.state.load(Acquire) == 0 || slot.run.load(Relaxed) != index + 1 {
            continue;
        }
        let counts = [&slot.served, &slot.passed, &slot.refused];
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum = sum.wrapping_add(count.load(Relaxed));
        }
    }
    Ok(sums)
}

/// Moves a slot's counts to its run.
pub(crate) fn fold(s: &Session, slot: &Slot) {
    let Some(index) = slot.run.load(Relaxed).checked_sub(1) else {
        return;
    };
    let Ok(run) = s.run_at(index) else { return };
    let pairs = [
        (&slot.served, &run.served),
        (&slot.passed, &run.passed),
        (&slot.refused, &run.refused),
    ];
    for (from, to) in pairs {
        to.fetch_add(from.swap(0, AcqRel), AcqRel);
    }
}
