//! Moving the records of a session to the trees.
//!
//! Invariants: a missing number delays the others only while its writer may be working on it, and
//! never longer than `GAP_MAX`; a record whose writer has not finished waits for at most
//! `REDO_AFTER`.

use super::Session;
use super::memory::Memory;
use crate::base::error::Result;
use crate::journal::engine::{AHEAD_MAX, Engine};
use crate::journal::lane::Entry;
use crate::journal::order::FLIGHT_MAX;
use holdfast_pmem::Medium;
use holdfast_pmem::env::Instant;
use holdfast_pool::apply::INO_WINDOW;
use holdfast_pool::format::LANES;
use holdfast_pool::session::{TREES_FULL, TREES_OVER};
use std::sync::atomic::Ordering::*;
use std::time::Duration;

use super::EIO;
/// A writer that was stopped in the middle of a record holds the others up for this long.
const GAP_MAX: Duration = Duration::from_millis(500);
/// After so long a writer that lives may be stopped, and be made to finish.
const STALLED_AFTER: Duration = Duration::from_millis(20);
/// A writer that is not through with its record by then is dead or stopped.
const REDO_AFTER: Duration = Duration::from_millis(200);
/// After so long clients are asked to see whether it is dead, and to finish for it.
const HELP_AFTER: Duration = Duration::from_millis(4);

/// Numbers of inodes are passed over once in this time: a client that takes them all needs
/// centuries.
const PASS_OVER_AFTER: Duration = Duration::from_millis(100);

/// A gap in the sequence numbers.
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    first: u64,
    bound: u64,
    since: Instant,
    /// Lanes whose writers cannot be at work on a number of the gap, one bit each.
    cleared: u32,
}

/// What one turn of the drain did.
#[derive(Debug, Default)]
pub struct Turn {
    /// Records that went to the trees.
    pub applied: usize,
    /// Something waits that cannot go on yet.
    pub waiting: bool,
    /// There is more to do at once.
    pub more: bool,
}

impl Session {
    /// Drains what can be drained now.
    pub fn turn(&mut self, engine: &mut Engine) -> Turn {
        let mut turn = Turn::default();
        let on_file = engine.store.files.medium == Medium::File;
        self.memory.header().flushing.store(on_file.into(), SeqCst);
        self.look_for_failures(engine);
        self.look_for_findings();
        if !self.given_up {
            match self.drain(engine) {
                Ok((applied, waiting, more)) => {
                    (turn.applied, turn.waiting, turn.more) = (applied, waiting, more);
                }
                Err(e) => self.give_up(&e.to_string(), e.errno()),
            }
            let more = self.supply.top_up(engine, &self.memory);
            self.publish_free(engine);
            turn.more |= more;
            self.tend_checkpoint(engine, false);
        }
        self.memory.header().flushing.store(0, SeqCst);
        turn
    }

    /// Makes up for numbers of inodes that were taken in vain, slowly.
    fn pass_over_numbers(&mut self, engine: &mut Engine) -> Result<()> {
        let taken = self.memory.header().next_ino.load(Acquire);
        let wanted = taken > engine.store.ino_end().saturating_sub(INO_WINDOW / 2);
        if wanted && self.passed_over.elapsed() > PASS_OVER_AFTER {
            self.passed_over = Instant::now();
            engine.store.pass_over_numbers(taken)?;
            self.publish(engine);
        }
        Ok(())
    }

    fn drain(&mut self, engine: &mut Engine) -> Result<(usize, bool, bool)> {
        self.pass_over_numbers(engine)?;
        engine.journal.read(AHEAD_MAX);
        let memory = self.memory.clone();
        self.serve_views(engine);
        let upto = memory.wanted_root(engine.journal.applied_seq());
        let progress = engine.apply(usize::MAX, upto, |entry| is_finished(&memory, entry))?;
        let frees = engine.store.reclaim_some()?;
        let epoch = engine.store.pool.superblock().epoch;
        self.untold |= epoch != memory.header().epoch.load(Relaxed);
        self.tell_refused(&progress);
        self.untold |= progress.applied > 0 || progress.short;
        // What makes room for something may have made a checkpoint.
        self.untold |= engine.passed() != self.told;
        let full = matches!(engine.store.trees_full(), TREES_FULL | TREES_OVER);
        if self.untold && !(frees && full) {
            self.publish(engine);
        }
        if progress.short {
            return Ok((0, false, frees));
        }
        if let Some((seq, why)) = progress.rejected {
            self.reject(seq, &why);
            return Ok((progress.applied, false, false));
        }
        let mut more = false;
        let mut waiting = false;
        match progress.unfinished {
            Some(seq) => (waiting, more) = self.look_into_unfinished(engine, seq)?,
            None => self.unfinished = None,
        }
        match progress.missing {
            Some((first, bound)) if bound - first > FLIGHT_MAX => {
                self.give_up(&format!("sequence number {bound} is nobody's"), EIO);
            }
            Some((first, bound)) => {
                more = self.look_into_gap(engine, first, bound);
                waiting |= !more;
            }
            None if engine.journal.order.waiting() > 0 => {
                self.gap = None;
                more = !waiting;
            }
            None => more = self.look_behind_last(engine),
        }
        Ok((progress.applied, waiting, more || frees))
    }

    /// A writer that died, or stays away too long, between its record and what it does outside
    /// the trees. Clients are asked to do that for it; the bytes of a redo record are copied
    /// here if nobody does. Says whether there is still something to wait for, or something to
    /// do.
    fn look_into_unfinished(&mut self, engine: &mut Engine, seq: u64) -> Result<(bool, bool)> {
        let since = match self.unfinished {
            Some((known, since)) if known == seq => since,
            _ => Instant::now(),
        };
        self.unfinished = Some((seq, since));
        if since.elapsed() >= HELP_AFTER {
            // Before the record is applied: from then on what clients have cached may be wrong.
            // Those that wait for the trees look, too.
            if self.memory.header().recover_wanted.swap(1, SeqCst) == 0 {
                self.memory.tick();
            }
        }
        if since.elapsed() >= STALLED_AFTER {
            self.tell_stalled(|busy| busy == seq);
        }
        if since.elapsed() < REDO_AFTER {
            return Ok((true, false));
        }
        engine.redo_next()?;
        let progress = engine.apply(1, u64::MAX, |_| true)?;
        self.unfinished = None;
        self.tell_refused(&progress);
        if progress.applied > 0 {
            self.publish(engine);
        }
        Ok((false, progress.applied > 0))
    }

    /// Numbers that were taken and of which no record is there: nobody waits behind them, but
    /// somebody may wait for them. True if there is something to do at once.
    fn look_behind_last(&mut self, engine: &mut Engine) -> bool {
        let taken = self.memory.header().next_seq.load(Acquire);
        let first = engine.journal.order.next_seq();
        if taken <= first || taken - first > FLIGHT_MAX {
            self.gap = None;
            return false;
        }
        if !self.look_into_gap(engine, first, taken) {
            return false;
        }
        if engine.journal.order.next_seq() == taken {
            self.publish(engine);
        }
        true
    }

    /// Whether the numbers `first..bound` will never come; then they are declared void.
    ///
    /// A number is taken under the lock of a lane. All below `bound` were taken before `bound`
    /// was written, so a lane that is found unlocked, or busy with a number from `bound` on, has
    /// none of them in flight.
    fn look_into_gap(&mut self, engine: &mut Engine, first: u64, bound: u64) -> bool {
        let mut gap = match self.gap {
            Some(gap) if gap.first == first && gap.bound >= bound => gap,
            _ => Gap {
                first,
                bound,
                since: Instant::now(),
                cleared: 0,
            },
        };
        for index in (0..LANES)
            .filter(|i| gap.cleared & (1 << i) == 0)
            .collect::<Vec<_>>()
        {
            if self.is_clear(index, gap.bound) {
                gap.cleared |= 1 << index;
            }
        }
        let all = gap.cleared == (1 << LANES) - 1;
        let missing = gap.since.elapsed();
        self.gap = Some(gap);
        if !all && missing <= GAP_MAX {
            if missing >= STALLED_AFTER {
                self.tell_stalled(|busy| (1..bound).contains(&busy));
            }
            return false;
        }
        // Before the last look: a writer that is not in it finds out that it is late.
        let header = self.memory.header();
        header.void_below.fetch_max(bound, SeqCst);
        // What was completed between our last look at the lanes and now.
        if engine.journal.read(AHEAD_MAX) {
            self.gap = self.gap.filter(|_| !all);
            return true;
        }
        if !all {
            tracing::warn!("a stopped process holds record {first}: going on without it");
        }
        engine.journal.order.declare_void(bound);
        self.gap = None;
        true
    }

    /// Has a writer looked after whose lane is `busy` with what is waited for.
    fn tell_stalled(&self, busy: impl Fn(u64) -> bool) {
        let is_busy = |index: &usize| {
            let lane = self.memory.lane(*index);
            lane.is_some_and(|lane| busy(lane.busy_seq.load(Acquire)))
        };
        if let Some(index) = (0..LANES).find(is_busy) {
            self.memory.tell_stalled(index);
        }
    }

    fn is_clear(&self, index: usize, bound: u64) -> bool {
        let Some(lane) = self.memory.lane(index) else {
            return true;
        };
        let busy = lane.busy_seq.load(Acquire);
        let lock = lane.lock.load(Acquire);
        lock == 0 || busy >= bound || !self.memory.owner_lives(lock)
    }
}

/// A record is finished when its writer has published it (and copied the bytes of a redo record):
/// it says so by turning to something else, or by leaving the rest to us. One that died leaves it
/// to recovery.
pub fn is_finished(memory: &Memory, entry: &Entry) -> bool {
    let Some(lane) = memory.lane(entry.lane) else {
        return true;
    };
    let lock = lane.lock.load(Acquire);
    lane.busy_seq.load(Acquire) != entry.seq
        || lock == 0
        || lane.left_to_trees.load(Acquire) == entry.seq
}
