//! Waiting for the service.
//!
//! Invariants: every wait is bounded by the service's progress; nobody waits here with a bucket or
//! a table locked, or with a record that is not published yet. Waiters help: they finish what
//! dead processes left in the lanes, for which the service would wait too.

use crate::clock::monotonic_ms;
use crate::error::{Error, Result};
use crate::session::Session;
use crate::{live, recover};
use core::sync::atomic::Ordering::*;
use core::time::Duration;
use pmem::futex;
use pool::session::{LANES, Lane, SERVICE_SLOT};

/// Without progress for so long the service is gone.
const PATIENCE_MS: u64 = 10_000;
/// Without progress for so long a dead process may hold things up.
const DOUBT_MS: u64 = 50;
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

/// Waits until record `seq` is in the trees. `ServiceGone` after 10 s without progress.
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

/// Waits until everything of `lane` before `end` is in the trees.
pub(crate) fn wait_in_trees(s: &Session, lane: &Lane, end: u64) -> Result<()> {
    wait_until(s, true, || lane.applied.load(Acquire) >= end)
}

/// As `wait_in_trees` for recovery itself, which nobody helps.
pub(crate) fn wait_in_trees_alone(s: &Session, lane: &Lane, end: u64) -> Result<()> {
    wait_until(s, false, || lane.applied.load(Acquire) >= end)
}

/// Sleeps until `done`, as long as the service makes progress.
#[cold]
pub(crate) fn wait_until(s: &Session, help: bool, done: impl Fn() -> bool) -> Result<()> {
    let h = s.header();
    let (mut seen, mut since) = (s.applied_seq(), monotonic_ms());
    let mut helped = since;
    ring(s);
    loop {
        let tick = h.applied_tick.load(Acquire);
        if done() {
            return Ok(());
        }
        s.check_poison()?;
        let _ = futex::wait(&h.applied_tick, tick, Some(NAP));
        let (now, applied) = (monotonic_ms(), s.applied_seq());
        if applied != seen || is_flushing(s) {
            (seen, since) = (applied, now);
        }
        if now.saturating_sub(since) > PATIENCE_MS {
            return Err(Error::ServiceGone);
        }
        let asked = help && h.recover_wanted.load(Relaxed) != 0;
        if asked || now.saturating_sub(helped.max(since)) > DOUBT_MS {
            helped = now;
            if help {
                // Who fails at it waits for the service as we do.
                let _ = recover::lanes(s);
            }
            ring(s);
        }
    }
}

/// Whether the service waits for a disk, which may take long.
fn is_flushing(s: &Session) -> bool {
    let flushing = s.header().flushing.load(Acquire) != 0;
    flushing && s.slot_at(SERVICE_SLOT as u32).is_ok_and(live::is_alive)
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
        while busy() {
            looks += 1;
            match looks < SPINS {
                true => core::hint::spin_loop(),
                // Whoever is at work on it may need our processor.
                false => rustix::thread::sched_yield(),
            }
            let waited = monotonic_ms().saturating_sub(started);
            if waited > PATIENCE_MS {
                return Err(Error::ServiceGone);
            }
            if waited > DOUBT_MS {
                let _ = recover::lanes(s);
                let _ = futex::wait(&lane.lock, lane.lock.load(Relaxed), Some(NAP));
            }
        }
    }
    Ok(())
}
