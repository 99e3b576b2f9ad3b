//! A whole pool, or what changed in it since a snapshot, as one stream.
//!
//! Invariants:
//!  * A stream holds states, oldest first, each as what differs from the one before. So it has what
//!    snapshots share once, and the pool that is made from it shares it again.
//!  * Entries of trees are copied as they are, so whatever the trees know of an object is in the
//!    stream. Where blocks lie is not: they get new places.
//!  * Bytes of a stream are never trusted: a chunk is checked before a record of it is used, and
//!    every record before it changes anything.
//!
//! `docs/spec/stream.md` states every field.
#![forbid(unsafe_code)]

mod chunk;
mod error;
mod mark;
pub mod record;
mod restore;
mod save;
#[cfg(test)]
mod tests;

pub use chunk::{Begun, ChunkReader, ChunkWriter};
pub use error::{Error, Result};
pub use mark::Mark;
pub use record::{Base, Head};
pub use restore::{Restored, Restorer, Sink, Target};
pub use save::{Progress, Saved, Source, State, Stored, save, save_after};

/// The version of the format.
pub const VERSION: u16 = 1;
