//! Free entries of a table.
//!
//! Invariants, all under the table's lock:
//!  * An entry is below `used` and reachable from `free`, or claimed, or in use, or above `used`.
//!  * `pop` claims before it unlinks, and `push` links before it releases the claim. So an entry
//!    whose holder died in between is on the list and claimed by no live process, which the next
//!    `pop` ignores, or off the list and claimed by a dead process, which `rebuild` finds. No entry
//!    is ever on the list twice.

use crate::base::error::Result;
use crate::session::Session;
use crate::session::lock::{self, Guard};
use pmem::atomic::{AtomicU32, Ordering::*};

/// The words that describe one table.
pub(crate) struct FreeList<'a> {
    pub lock: &'a AtomicU32,
    pub free: &'a AtomicU32,
    pub used: &'a AtomicU32,
    pub capacity: u32,
    /// Index of the table's first entry among all that share a numbering.
    pub base: u32,
}

impl<'a> FreeList<'a> {
    fn guard(&self, s: &'a Session) -> Result<Guard<'a>> {
        lock::acquire_plain(s, self.lock)
    }

    /// How many entries from `base` were ever used.
    pub fn used(&self) -> u32 {
        self.used.load(Acquire).min(self.capacity)
    }

    /// Whether all but `spare` entries were used.
    pub fn is_full(&self, spare: u32) -> bool {
        self.used() >= self.capacity.saturating_sub(spare)
    }

    /// Whether `pop` would succeed with `spare` entries to be left above `used`.
    pub fn has_room(&self, spare: u32) -> bool {
        self.free.load(Relaxed) != 0 || !self.is_full(spare)
    }

    /// Takes an entry. `next` is the entry's list word; `claim` marks it as the caller's.
    #[inline(always)]
    pub fn pop(
        &self,
        s: &'a Session,
        next: impl Fn(u32) -> Result<&'a AtomicU32>,
        claim: impl FnOnce(u32) -> Result<()>,
    ) -> Result<Option<u32>> {
        let _guard = self.guard(s)?;
        if let Some(index) = self.free.load(Relaxed).checked_sub(1) {
            let used = self.used.load(Relaxed);
            let own = (self.base..self.base.saturating_add(used)).contains(&index);
            s.ensure(own, "a free list has entries of its table that were used")?;
            let after = next(index)?.load(Relaxed);
            claim(index)?;
            self.free.store(after, Release);
            return Ok(Some(index));
        }
        let used = self.used();
        if used >= self.capacity {
            return Ok(None);
        }
        let index = self.base + used;
        claim(index)?;
        self.used.store(used + 1, Release);
        Ok(Some(index))
    }

    /// Returns an entry; `unclaim` makes it nobody's.
    #[inline(always)]
    pub fn push(
        &self,
        s: &'a Session,
        index: u32,
        next: &AtomicU32,
        unclaim: impl FnOnce(),
    ) -> Result<()> {
        let _guard = self.guard(s)?;
        let new = self.free.load(Relaxed) != index + 1;
        s.ensure(new, "an entry is freed once")?;
        self.push_locked(index, next);
        unclaim();
        Ok(())
    }

    fn push_locked(&self, index: u32, next: &AtomicU32) {
        next.store(self.free.load(Relaxed), Relaxed);
        self.free.store(index + 1, Release);
    }

    /// Finds entries that died with their holders: the list becomes exactly the entries for
    /// which `is_free`. Dying here leaves a shorter list, which the next rebuild mends.
    pub fn rebuild(
        &self,
        s: &'a Session,
        next: impl Fn(u32) -> Result<&'a AtomicU32>,
        is_free: impl Fn(u32) -> bool,
    ) -> Result<u32> {
        let _guard = self.guard(s)?;
        self.free.store(0, Release);
        let mut found = 0;
        for index in (self.base..self.base + self.used()).rev() {
            if is_free(index) {
                self.push_locked(index, next(index)?);
                found += 1;
            }
        }
        Ok(found)
    }
}

/// With fewer entries than this that say that something is gone, looking for them does not pay.
const GONE_MIN: u32 = 64;

/// Whether to look for an entry to use again rather than touch new memory.
#[inline]
pub(crate) fn recycles(list: &FreeList<'_>, gone: &AtomicU32) -> bool {
    gone.load(Relaxed) >= GONE_MIN && list.free.load(Relaxed) == 0
}

/// One less of what is counted about; never below 0.
pub(crate) fn count_down(counter: &AtomicU32) {
    let _ = counter.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
}
