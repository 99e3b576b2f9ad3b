//! The position of a record in the journal.

use crate::session::Session;
use pmem::atomic::Ordering::Acquire;

/// A lane and a position in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub lane: u32,
    pub position: u64,
}

impl Place {
    /// Whether the trees may not know what is there.
    #[inline]
    pub fn is_waiting(self, s: &Session) -> bool {
        let lane = s.lane(self.lane);
        lane.is_ok_and(|lane| self.position >= lane.applied.load(Acquire))
    }

    /// Where its bytes are in the journal segment.
    #[inline]
    pub fn offset(self, s: &Session) -> u64 {
        u64::from(self.lane) * s.lane_len() + self.position % s.lane_len()
    }
}
