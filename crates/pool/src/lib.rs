//! Holdfast pool: the format on media and in session memory.
//!
//! Invariants:
//!  * Bytes from the pool or the session are never trusted: checked views, no panic, no reference.
//!  * Only the holder of a write token changes trees; clients append journal records.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod apply;
pub mod bytes;
pub mod check;
pub mod checksum;
pub mod directory;
pub mod error;
pub mod expiry;
pub mod format;
pub mod id_map;
pub mod journal;
pub mod layout;
pub mod pool;
pub mod protocol;
pub mod quota;
pub mod reclaim;
pub mod segment;
pub mod session;
pub mod snapshot;
pub mod space;
pub mod tree;

pub use bytes::Bytes;
pub use error::{Error, Result};
pub use pool::{Params, Pool, WriteToken};
pub use tree::{Batch, Leaf, Reader};
