//! Values that have expired: who removes them, and when.
//!
//! Invariants:
//!  * While there is a session only clients remove values, by records: the helper, which is started
//!    for that. What the index has without a value, and, where there is no session, the values
//!    themselves, go from the trees right here, a bounded number in a commit.
//!  * Where nothing expires nobody looks. Where the newest snapshot has all values nothing is
//!    removed.

use crate::base::error::Result;
use crate::session::memory::Memory;
use crate::store::Store;
use holdfast_pmem::env::{Instant, exact_now};
use holdfast_pool::session::TREES_ROOMY;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// How long what has expired may stay where there is room: so one helper removes many.
const LAG: Duration = Duration::from_secs(1);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// What is known of what expires.
pub struct Expiry {
    lag: Duration,
    looked: Option<Instant>,
    /// How long after that to look again.
    pause: Duration,
    /// Without a session nothing changes: when the first value expires, once that is known.
    first: Option<Option<i64>>,
}

impl Expiry {
    pub fn new() -> Expiry {
        Expiry {
            lag: LAG,
            looked: None,
            pause: PAUSE,
            first: None,
        }
    }

    /// A session has ended, which may have changed when the first value expires. It may have been
    /// so short that nobody looked in it.
    pub fn session_ended(&mut self) {
        self.first = None;
    }

    /// Whether there are values for a helper to remove.
    pub fn look(&mut self, store: &mut Store, memory: &Memory) -> Result<bool> {
        let header = memory.header();
        let early = self.looked.is_some_and(|then| then.elapsed() < self.pause);
        if header.expiring.load(Acquire) == 0 || early || memory.is_poisoned() {
            return Ok(false);
        }
        (self.looked, self.pause) = (Some(Instant::now()), PAUSE);
        let roomy = header.out_of_space.load(Relaxed) == 0
            && header.trees_full.load(Relaxed) == TREES_ROOMY;
        let lag = if roomy { self.lag.as_nanos() as i64 } else { 0 };
        let now = exact_now();
        let late = |first: i64| first <= now.saturating_sub(lag);
        if !store.first_expiry().is_some_and(late) {
            return Ok(false);
        }
        if store.first_to_expire().is_none() {
            self.pause = self.lag;
            return Ok(false);
        }
        let due = store.remove_expired(now, false)?;
        Ok(due.is_some_and(|due| due.values > 0))
    }

    /// Removes some of what has expired where there is no session; whether there may be more.
    pub fn remove_alone(&mut self, store: &mut Store) -> Result<bool> {
        let first = *self.first.get_or_insert_with(|| store.first_expiry());
        let now = exact_now();
        let early = self.looked.is_some_and(|then| then.elapsed() < LAG);
        if early || first.is_none_or(|first| first > now) {
            return Ok(false);
        }
        if store.first_to_expire().is_none() {
            self.looked = Some(Instant::now());
            return Ok(false);
        }
        let Some(due) = store.remove_expired(now, true)? else {
            (self.first, self.looked) = (None, Some(Instant::now()));
            return Ok(false);
        };
        self.first = Some(due.first);
        Ok(due.removed > 0)
    }
}
