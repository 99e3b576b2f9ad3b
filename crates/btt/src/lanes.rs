//! The lanes of an arena: each has a free block, and a log of what it last did with it.
//!
//! Invariant: a lane that was taken is used by its taker alone; one whose write failed half done is
//! not used again until the table is opened, which completes the write.

use crate::flog::{self, Move};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Threads begin to look for lanes so far from each other.
const APART: usize = 64;

/// What the next write of a lane uses.
pub struct Lane {
    /// The free block.
    pub free: u32,
    /// Which of the two entries of its log is next, and with which sequence number.
    pub slot: usize,
    pub sequence: u32,
    /// A write is half done.
    pub interrupted: bool,
}

impl Lane {
    /// After what its log has as the newest entry.
    pub fn after(slot: usize, newest: &Move) -> Lane {
        Lane {
            free: newest.old,
            slot: 1 - slot,
            sequence: flog::next_sequence(newest.sequence),
            interrupted: false,
        }
    }

    /// Its free block became the sector's, and the block that the sector had is free.
    pub fn advance(&mut self, old: u32) {
        self.free = old;
        self.slot = 1 - self.slot;
        self.sequence = flog::next_sequence(self.sequence);
        self.interrupted = false;
    }
}

/// A lane that was taken.
pub struct Taken<'a> {
    pub number: usize,
    pub lane: MutexGuard<'a, Lane>,
}

pub struct Lanes(Box<[Mutex<Lane>]>);

impl Lanes {
    pub fn new(lanes: impl IntoIterator<Item = Lane>) -> Lanes {
        Lanes(lanes.into_iter().map(Mutex::new).collect())
    }

    #[cfg(test)]
    pub fn free_of(&self, number: usize) -> u32 {
        self.0[number].lock().unwrap().free
    }

    /// Whether there are none: the table is only read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes at least one lane and at most `wanted`; waits for one if others have all. Empty: none
    /// can be used any more.
    pub fn take(&self, wanted: usize) -> Vec<Taken<'_>> {
        let first = own_first();
        let mut taken = Vec::with_capacity(wanted);
        let mut busy = None;
        for number in (0..self.0.len()).map(|n| (first + n) % self.0.len()) {
            if taken.len() == wanted {
                break;
            }
            match self.try_take(number) {
                Some(Ok(lane)) => taken.push(lane),
                Some(Err(())) => {}
                None => busy = busy.or(Some(number)),
            }
        }
        // Whoever has lanes waits for none, so this one is let go some time.
        if let Some(number) = busy.filter(|_| taken.is_empty())
            && let Some(lane) = self.0.get(number)
        {
            let lane = lane.lock().unwrap_or_else(|e| e.into_inner());
            match lane.interrupted {
                true => return self.take(wanted),
                false => taken.push(Taken { number, lane }),
            }
        }
        taken
    }

    /// `None`: somebody has it.
    fn try_take(&self, number: usize) -> Option<Result<Taken<'_>, ()>> {
        let lane = match self.0.get(number)?.try_lock() {
            Ok(lane) => lane,
            Err(TryLockError::Poisoned(lane)) => lane.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(match lane.interrupted {
            true => Err(()),
            false => Ok(Taken { number, lane }),
        })
    }
}

/// Where this thread begins to look.
fn own_first() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static FIRST: Cell<Option<usize>> = const { Cell::new(None) });
    FIRST.with(|first| {
        let own = first
            .get()
            .unwrap_or_else(|| THREADS.fetch_add(1, Relaxed).wrapping_mul(APART));
        first.set(Some(own));
        own
    })
}
