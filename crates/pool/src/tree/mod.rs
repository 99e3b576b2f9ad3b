//! Copy-on-write B+-trees in `meta.seg`.
//!
//! What always holds here:
//! - Nothing that a committed root can reach is ever written: a change copies the node, or is
//!   appended to it where only new roots look.
//! - All changes of a [`Batch`] become true together, with one superblock, or not at all.
//! - A [`Reader`] needs no lock and no write access: it checks what it follows, and asks at the
//!   end whether the root it used was still intact.

mod append;
mod batch;
mod commit;
mod compact;
mod diff;
mod dirty;
mod edit;
mod entries;
mod erase_range;
mod garbage;
mod leaf;
mod links;
mod page;
mod park;
mod reader;
mod room;
mod verified;
mod walk;

pub use crate::format::node::{KEY_MAX, VALUE_MAX};
pub use crate::layout::TreeId;
pub use batch::Batch;
pub use compact::Compacted;
pub use diff::{Difference, Differences};
pub(crate) use dirty::Dirty;
pub(crate) use garbage::{Between, Garbage, Place};
pub use leaf::Leaf;
pub(crate) use park::Parked;
pub use reader::{Fixed, Reader};
pub use verified::Verified;

#[cfg(test)]
mod append_tests;
#[cfg(test)]
mod check;
#[cfg(test)]
mod compact_tests;
#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod diff_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod links_tests;
#[cfg(test)]
mod park_tests;
#[cfg(test)]
mod room_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod thread_tests;
