//! The trusted service of a pool: admission, grants, validation, commit, recovery.
//!
//! Invariants:
//!  * No byte that a client can write is trusted: it is copied, then checked, then used.
//!  * Nothing waits for a client, and no client determines how long a loop runs.
//!  * One service per pool; it is the only writer of the trees.
#![forbid(unsafe_code)]

mod alone;
mod base;
mod check;
mod journal;
mod listener;
mod moving;
mod recovery;
mod resize;
mod restoring;
mod rollback;
mod service;
mod session;
mod store;
mod writer;

#[cfg(test)]
mod admission_tests;
#[cfg(test)]
mod extents_tests;
#[cfg(test)]
mod idle_tests;
#[cfg(test)]
mod medium_tests;
#[cfg(test)]
mod reclaim_tests;
#[cfg(test)]
mod recover_tests;
#[cfg(test)]
mod spill_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod untrusted_tests;

pub use base::error::{Error, Loss, Result};
pub use base::files::{CreateOptions, Files, create, destroy};
pub use base::lent::remove_all as remove_lent_files;
pub use base::lock::PoolLock;
pub use base::ordinary;
pub use check::check;
pub use listener::proxies::Launcher;
pub use recovery::recover::{Accepted, Recovered, accept_loss};
pub use resize::resize;
pub use restoring::{DataFile, Left, Restoring, Whole};
pub use rollback::{RolledBack, roll_back};
pub use service::{Service, Stopper};
pub use session::writeback::{Helper, Job};
pub use writer::Options;

/// What a service does, one step after the other in the caller's thread.
#[cfg(any(feature = "recording", feature = "model", feature = "stepping"))]
pub mod stepping {
    pub use crate::journal::engine::Engine;
    pub use crate::recovery::recover::recover;
    pub use crate::session::Session;
    pub use crate::session::handout::Sent;
    pub use crate::session::snapshots::{JOURNAL_LEN, begin as begin_on_snapshot};
}
