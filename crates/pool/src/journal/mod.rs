//! The journal: what a session changed since the trees were last committed.
//!
//! Invariants:
//!  * A record is durable and complete or it does not exist: its CRC covers every byte of it.
//!  * Sequence numbers are unique in a session and strictly increase inside one lane.
//!  * Records about one object are ordered by sequence number; a record is written only after
//!    everything that it depends on is durable.
//!  * A record carries absolute values, so applying it twice changes nothing more.

mod durable;
mod files;
mod ops;
mod record;

pub use durable::{BlockRuns, MarkLanes};
pub use files::{Naming, Promote};
pub use ops::{Change, OP_ALIGN, OP_HEADER, OPS_AT, Op, OpHeader, Ops, mark_alone};
pub use record::*;
