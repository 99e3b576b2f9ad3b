//! A region whose copies take as long as on a slower medium.
//!
//! What always holds here: the short ways of a slowed region are closed (`short` and `writable` are
//! 0), so each of its copies fails the check that it makes anyway, comes here, and is made and
//! timed once, by the region as it was before. A region that is not slowed pays nothing.

use super::Region;
use crate::pace::{Pace, Way};
use alloc::sync::Arc;

/// What makes the copies, and how long they take.
pub(super) struct Slowed {
    pub region: Region,
    pace: Arc<Pace>,
}

impl Region {
    /// The same region, whose copies take their time. It is complete before: what it notes, and
    /// through which file it flushes, cannot be changed any more.
    pub fn slowed(self, pace: &Arc<Pace>) -> Region {
        let slowed = Slowed {
            region: self.clone(),
            pace: pace.clone(),
        };
        Region {
            short: 0,
            writable: 0,
            slowed: Some(Arc::new(slowed)),
            ..self
        }
    }

    /// Reads `len` bytes by `copy`, unless it is for `error` that the short way is closed.
    #[cold]
    #[inline(never)]
    pub(super) fn read_slowly<T, E>(
        &self,
        len: usize,
        error: E,
        copy: impl FnOnce(&Region) -> Result<T, E>,
    ) -> Result<T, E> {
        self.slowly(Way::Read, len, error, copy)
    }

    /// The same of a write.
    #[cold]
    #[inline(never)]
    pub(super) fn write_slowly<T, E>(
        &self,
        len: usize,
        error: E,
        copy: impl FnOnce(&Region) -> Result<T, E>,
    ) -> Result<T, E> {
        self.slowly(Way::Write, len, error, copy)
    }

    fn slowly<T, E>(
        &self,
        way: Way,
        len: usize,
        error: E,
        copy: impl FnOnce(&Region) -> Result<T, E>,
    ) -> Result<T, E> {
        match &self.slowed {
            None => Err(error),
            Some(slowed) => slowed.pace.time(way, len, || copy(&slowed.region)),
        }
    }
}
