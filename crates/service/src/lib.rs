//! The trusted service of a pool: admission, grants, validation, commit, recovery.
//!
//! Invariants:
//!  * No byte that a client can write is trusted: it is copied, then checked, then used.
//!  * Nothing waits for a client, and no loop is as long as a client says.
//!  * One service per pool; it is the only writer of the trees.
#![forbid(unsafe_code)]

mod admission;
mod backing;
mod check;
mod checkpoint;
mod compaction;
mod drained;
mod engine;
mod error;
mod files;
mod fragments;
mod grants;
mod harvest;
mod host;
#[cfg(test)]
mod idle_tests;
mod lane;
mod lock;
#[cfg(test)]
mod medium_tests;
mod memory;
mod order;
mod ordinary;
mod process;
mod recover;
mod resize;
mod runs;
mod service;
mod session;
mod snapshots;
mod store;
mod survivors;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use check::check;
pub use error::{Error, Result};
pub use files::{CreateOptions, Files, create, destroy};
pub use lock::PoolLock;
pub use recover::Recovered;
pub use resize::resize;
pub use service::{Options, Service, Stopper};

/// What a service does, one step after the other in the caller's thread.
#[cfg(feature = "recording")]
pub mod stepping {
    pub use crate::engine::Engine;
    pub use crate::recover::recover;
    pub use crate::session::Session;
    pub use crate::snapshots::{JOURNAL_LEN, begin as begin_on_snapshot};
}
