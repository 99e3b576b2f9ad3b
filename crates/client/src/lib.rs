//! Holdfast client: what programs do with a pool, inside their own process; untrusted.
//!
//! Invariants:
//!  * It runs inside other people's programs: no libc, no threads, no locks of std, no panic.
//!  * It cannot write a tree node: changes are journal records, which the service validates.
//!  * Nothing in shared memory is trusted or borrowed: it is copied, checked, used.
//!  * A change is visible to others only after its record is durable, and a process that dies
//!    anywhere leaves state that the next one completes or undoes (`recover`).
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

extern crate holdfast_pmem as pmem;
extern crate holdfast_pool as pool;

mod api;
mod base;
mod content;
pub mod journal;
pub mod kv;
mod ops;
pub mod served;
mod session;
mod tables;
mod values;

pub use base::error::{Error, Result};
pub use base::map_settings::{Ahead, BadMapSettings, MAP_NUMBERS, MapSettings};
pub use base::trace_settings::{BadTraceFilter, TRACE_NUMBERS, TraceFilter, TraceSettings};
pub use base::types::*;
pub use base::{abi, calls, clock, env, error, map_record, program, refusal, trees};
pub use content::abandoned;
pub use journal::mapped::Segments;
pub use journal::{mapped, recover};
pub use ops::blocks::BlockRun;
pub use ops::client::Client;
pub use ops::slots::{self, Share, SlotId};
pub use ops::snapshot::{SnapshotError, SnapshotInfo, StoresStopped};
pub use pool::id_map::{self, IdMaps};
pub use served::Served;
pub use session::Session;
pub use session::quota::QuotaInfo;
pub use session::run::MapCount;
pub use session::{attach, drain, live, lock, run, space};
pub use tables::inode_table;
pub use tables::leased::LeaseSet;
