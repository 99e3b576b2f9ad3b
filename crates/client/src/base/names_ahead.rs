//! The names of a keyspace's values that a process has read ahead for a listing.

use crate::base::types::OfdLink;
use alloc::vec::Vec;
use core::ops::Range;

/// A name as readdir shows it: cookie, name, number, d_type.
pub(crate) type Shown = (u64, Vec<u8>, u64, u8);

/// Names of values that come next in a listing.
pub(crate) struct Ahead {
    pub ofd: OfdLink,
    pub dir: u64,
    /// What the directory's `dir_seq` was before they were read, and when that was.
    pub dir_seq: u64,
    pub read: u64,
    /// All those at cookies in this range, in order.
    pub covers: Range<u64>,
    pub names: Vec<Shown>,
}
