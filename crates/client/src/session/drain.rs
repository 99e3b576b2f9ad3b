//! Waiting for the service.
//!
//! Invariants: every wait is bounded by the service's work; nobody waits here with a bucket or a
//! table locked, or with a record that is not published yet. Waiters help: they complete what dead
//! processes left in the lanes, for which the service would wait, too.

use crate::base::clock::monotonic_ms;
use crate::base::error::{Error, Result};
use crate::session::{Session, lock};
use core::time::Duration;
use pmem::atomic::Ordering::*;
use pmem::futex;
use pool::session::{LANES, Lane, SERVICE_SLOT};

/// Without progress, and without a sign of work, for so long the service is gone.
const PATIENCE_MS: u64 = 10_000;
/// Without progress for so long a dead process may hold things up.
const DOUBT_MS: u64 = 50;
/// Numbers that were taken in vain, by creations that failed, are made up for in less.
const NUMBERS_MS_MAX: u64 = 1000;
const NAP: Duration = Duration::from_millis(20);
/// Looks at a lane before others get the processor.
const SPINS: u32 = 100;

/// Tells the service to drain the lanes now.
#[inline]
pub fn ring(s: &Session) {
    let h = s.header();
    // Sequentially consistent against the service's "I sleep" and its last look at the bell.
    h.doorbell.fetch_add(1, SeqCst);
    if h.service_sleeps.load(SeqCst) != 0 {
        futex::wake(&h.doorbell, 1);
    }
}

/// Waits until record `seq` is in the trees. `ServiceGone` after 10 s without progress or work.
#[inline]
pub fn wait_applied(s: &Session, seq: u64) -> Result<()> {
    if s.applied_seq() >= seq {
        return Ok(());
    }
    wait_until(s, true, || s.applied_seq() >= seq)
}

/// Waits until record `seq` is in the trees, or the time is over.
pub fn wait_applied_for(s: &Session, seq: u64, ms_max: u64) {
    let h = s.header();
    let since = monotonic_ms();
    if s.applied_seq() < seq {
        ring(s);
    }
    loop {
        let tick = h.applied_tick.load(Acquire);
        if s.applied_seq() >= seq || s.check_poison().is_err() {
            return;
        }
        if monotonic_ms().saturating_sub(since) >= ms_max {
            return;
        }
        let _ = futex::wait(&h.applied_tick, tick, Some(NAP));
    }
}

/// Waits a moment for the service to let new inodes have number `ino`; says whether it does.
#[cold]
pub fn wait_for_numbers(s: &Session, ino: u64) -> bool {
    let (h, since) = (s.header(), monotonic_ms());
    loop {
        let tick = h.applied_tick.load(Acquire);
        if ino < h.ino_end.load(Acquire) {
            return true;
        }
        if s.check_poison().is_err() || monotonic_ms().saturating_sub(since) > NUMBERS_MS_MAX {
            return false;
        }
        ring(s);
        let _ = futex::wait(&h.applied_tick, tick, Some(NAP));
    }
}

/// Waits until everything of `lane` before `end` is in the trees.
pub(crate) fn wait_in_trees(s: &Session, lane: &Lane, end: u64) -> Result<()> {
    wait_until(s, true, || lane.applied.load(Acquire) >= end)
}

/// As `wait_in_trees` for recovery itself, which nobody helps.
pub(crate) fn wait_in_trees_alone(s: &Session, lane: &Lane, end: u64) -> Result<()> {
    wait_until(s, false, || lane.applied.load(Acquire) >= end)
}

/// How long the service has shown no sign of life.
pub(crate) struct Patience {
    applied: u64,
    beat: u32,
    /// When there was progress, and when there was progress or a sign of work.
    progress: u64,
    alive: u64,
}

impl Patience {
    pub fn new(s: &Session) -> Patience {
        let now = monotonic_ms();
        Patience {
            applied: s.applied_seq(),
            beat: s.header().heartbeat.load(Relaxed),
            progress: now,
            alive: now,
        }
    }

    /// Looks for signs of life; `ServiceGone` after 10 s without one.
    pub fn look(&mut self, s: &Session) -> Result<()> {
        let (now, applied) = (monotonic_ms(), s.applied_seq());
        if applied != self.applied || is_flushing(s) {
            (self.applied, self.progress) = (applied, now);
        }
        let last = core::mem::replace(&mut self.beat, s.header().heartbeat.load(Relaxed));
        if self.progress == now || self.beat != last {
            self.alive = now;
        }
        match now.saturating_sub(self.alive) > PATIENCE_MS {
            true => Err(Error::ServiceGone),
            false => Ok(()),
        }
    }
}

/// Sleeps until `done`, as long as the service makes progress or is at work at one thing.
#[cold]
pub(crate) fn wait_until(s: &Session, help: bool, done: impl Fn() -> bool) -> Result<()> {
    let h = s.header();
    let (mut patience, mut helped) = (Patience::new(s), monotonic_ms());
    ring(s);
    loop {
        let tick = h.applied_tick.load(Acquire);
        if done() {
            return Ok(());
        }
        s.check_poison()?;
        let _ = futex::wait(&h.applied_tick, tick, Some(NAP));
        patience.look(s)?;
        let now = monotonic_ms();
        let asked = help && h.recover_wanted.load(Relaxed) != 0;
        if asked || now.saturating_sub(helped.max(patience.progress)) > DOUBT_MS {
            helped = now;
            if help {
                // Who fails at it waits for the service as we do.
                let _ = s.recover();
            }
            ring(s);
        }
    }
}

/// Whether the service waits for a disk, which may take long.
fn is_flushing(s: &Session) -> bool {
    let flushing = s.header().flushing.load(Acquire) != 0;
    flushing && s.is_alive(SERVICE_SLOT as u32)
}

/// Waits until no record up to `upto` is in flight.
pub(crate) fn wait_lanes(s: &Session, upto: u64) -> Result<()> {
    for index in 0..LANES as u32 {
        let lane = s.lane(index)?;
        let void_below = &s.header().void_below;
        let busy = || {
            let seq = lane.busy_seq.load(SeqCst);
            // A stopped process: the service goes on without it.
            (1..=upto).contains(&seq) && seq >= void_below.load(SeqCst)
        };
        let (started, mut looks) = (monotonic_ms(), 0);
        // A stopped process is passed over by the service, when that comes to it.
        let mut patience = Patience::new(s);
        while busy() {
            looks += 1;
            match looks < SPINS {
                true => core::hint::spin_loop(),
                // Whoever is at work on it may need our processor.
                false => pmem::env::yield_now(),
            }
            if monotonic_ms().saturating_sub(started) > DOUBT_MS {
                s.check_poison()?;
                patience.look(s)?;
                let _ = s.recover();
                lock::tell_stalled(s, &lane.lock);
                let _ = futex::wait(&lane.lock, lane.lock.load(Relaxed), Some(NAP));
            }
        }
    }
    Ok(())
}
