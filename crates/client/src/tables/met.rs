//! What was looked up recently and is not cached.
//!
//! Invariant: these are only hints. Once a table has its maximum of entries, an entry takes the
//! place of another one only when it is looked up a second time. So going once through millions of
//! names leaves what others use in the tables, and costs no table work.

use crate::session::Session;
use pmem::atomic::Ordering::Relaxed;
use pool::session::{MET_LINE, MET_LINES};

/// Whether what has this hash was looked up before, not long ago; from now on it was.
pub(super) fn before(s: &Session, hash: u64) -> bool {
    let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (line, at) = (mixed >> 32, mixed >> 8);
    let Ok(line) = s.met(line as u32 % MET_LINES as u32) else {
        return true;
    };
    let Some(mark) = line.marks.get(at as usize % MET_LINE) else {
        return true;
    };
    // 0 is the mark of none.
    let wanted = (mixed as u8).max(1);
    if mark.load(Relaxed) == wanted {
        return true;
    }
    mark.store(wanted, Relaxed);
    false
}
