//! The report of a lock for which somebody has waited long.

use super::{Header, OWNER_WAITERS};
use holdfast_pmem::atomic::Ordering::{AcqRel, Relaxed, Release};
use holdfast_pmem::futex;

/// A lock word of session memory, and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The word without `OWNER_WAITERS`; not 0.
    pub owner: u32,
    /// Where it lies.
    pub at: u64,
}

/// Words are aligned, so their places fit in half of `Header::stalled`.
const ALIGN: u64 = 4;
const _: () = assert!(super::SESSION_LEN as u64 / ALIGN <= u32::MAX as u64);

impl Stall {
    /// Of the lock at `at` whose word is `word`; `None`: nobody has it.
    pub fn of(word: u32, at: u64) -> Option<Stall> {
        let owner = word & !OWNER_WAITERS;
        (owner != 0).then_some(Stall { owner, at })
    }

    /// Has the service look after the owner, which may be stopped: it lets that one go on until
    /// the lock is free. One at a time: who finds another stall there says it again later.
    pub fn tell(self, header: &Header) {
        let told = header
            .stalled
            .compare_exchange(0, self.encode(), AcqRel, Relaxed);
        if told.is_ok() {
            header.stalled_bell.fetch_add(1, Release);
            futex::wake(&header.stalled_bell, 1);
        }
    }

    /// As `Header::stalled` holds it.
    pub fn encode(self) -> u64 {
        (u64::from(self.owner) << 32) | (self.at / ALIGN)
    }

    /// `None`: nobody waits.
    pub fn decode(word: u64) -> Option<Stall> {
        let at = (word & u64::from(u32::MAX)) * ALIGN;
        let owner = (word >> 32) as u32;
        (word != 0).then_some(Stall { owner, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_heard() {
        let (owner, at) = (0x7fff_8001, super::super::SESSION_LEN as u64 - 4);
        let stall = Stall { owner, at };
        assert_eq!(Stall::decode(stall.encode()), Some(stall));
        assert_eq!(Stall::decode(0), None);
    }
}
