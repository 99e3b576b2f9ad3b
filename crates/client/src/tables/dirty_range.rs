//! Bounds on the dirty blocks of a file on the medium `file`, so that an fsync looks only at those.
//!
//! Invariants:
//!  * The range is an upper bound: a dirty block of a file that is not mapped lies within it.
//!    Whoever stores to a block, or gives a file one, widens it first; whoever has cleared all of
//!    it makes it empty. Both have the file locked.
//!  * `Inode::stores` rises whenever a range is widened: if it has not changed, nothing was stored
//!    meanwhile.
//!  * An entry of the table that was just filled, and one about which anything is unclear, says
//!    `any`.

use crate::session::Session;
use crate::tables::inode::is_file;
use core::ops::Range;
use pmem::atomic::Ordering::*;
use pool::session::{Inode, MEDIUM_FILE};

/// Set in the word of a file of which a range is known; the word of a directory never has it.
const KNOWN: u64 = 1 << 63;
/// Blocks are counted in units, so that both ends fit into the word.
const UNIT: u64 = 16;
const BITS: u32 = 31;
const MASK: u64 = (1 << BITS) - 1;

/// The file blocks that may be dirty.
pub(crate) fn get(e: &Inode) -> Range<u64> {
    range(e.dir_seq.load(Acquire))
}

fn range(word: u64) -> Range<u64> {
    match word & KNOWN {
        0 => 0..u64::MAX,
        _ => (word & MASK) * UNIT..(word >> BITS & MASK) * UNIT,
    }
}

/// Blocks `from..to` are about to be stored to, or to become others.
#[inline]
pub(crate) fn widen(s: &Session, e: &Inode, from: u64, to: u64) {
    if s.medium() != MEDIUM_FILE {
        return;
    }
    let stores = e.stores.load(Relaxed);
    e.stores.store(stores.wrapping_add(1), Release);
    let word = e.dir_seq.load(Relaxed);
    let wider = widened(word, from, to);
    if wider != word {
        e.dir_seq.store(wider, Release);
    }
}

#[inline]
fn widened(word: u64, from: u64, to: u64) -> u64 {
    if word & KNOWN == 0 || from >= to {
        return word;
    }
    let (from, to) = (from / UNIT, to.div_ceil(UNIT));
    if to > MASK {
        return word & !KNOWN;
    }
    let (old_from, old_to) = (word & MASK, word >> BITS & MASK);
    let (from, to) = match old_from < old_to {
        true => (from.min(old_from), to.max(old_to)),
        false => (from, to),
    };
    KNOWN | to << BITS | from
}

/// No block is dirty, unless somebody has mapped the file meanwhile.
pub(crate) fn set_empty(e: &Inode) {
    if !is_file(e.mode.load(Relaxed)) {
        return;
    }
    e.dir_seq.store(KNOWN, SeqCst);
    if e.maps.load(SeqCst) > 0 {
        forget(e);
    }
}

/// Any block may be dirty.
pub(crate) fn forget(e: &Inode) {
    e.dir_seq.fetch_and(!KNOWN, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_what_was_stored_to_since_it_was_settled() {
        assert_eq!(range(widened(0, 5, 6)), 0..u64::MAX);
        assert!(range(KNOWN).is_empty());
        let word = widened(KNOWN, 100, 101);
        assert_eq!(range(word), 96..112);
        assert_eq!(widened(word, 7, 7), word);
        let word = widened(widened(word, 3, 4), 111, 113);
        assert_eq!(range(word), 0..128);
        let far = 1 << 34;
        assert_eq!(range(widened(KNOWN, far, far + 1)), far..far + UNIT);
    }

    #[test]
    fn what_does_not_fit_is_any() {
        assert_eq!(range(widened(KNOWN, 0, u64::MAX)), 0..u64::MAX);
        assert_eq!(
            range(widened(KNOWN, MASK * UNIT, MASK * UNIT + 1)),
            0..u64::MAX
        );
        assert_eq!(range(widened(KNOWN, 0, MASK * UNIT)), 0..MASK * UNIT);
    }
}
