//! Holdfast client: what programs do with a pool, inside their own process; untrusted.
//!
//! Invariants:
//!  * Runs inside other people's programs: no libc, no threads, no locks of std, no panic.
//!  * Cannot write a tree node: changes are journal records, which the service validates.
//!  * Nothing in shared memory is trusted or borrowed: copied, checked, used.
//!  * A change is visible to others only after its record is durable, and whoever dies anywhere
//!    leaves state that the next one completes or undoes (`recover`).
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

extern crate holdfast_pmem as pmem;
extern crate holdfast_pool as pool;

// What callers see.
pub mod abi;
mod api;
pub mod attach;
pub mod env;
pub mod error;
mod types;

// The substrate: session memory and the tables in it.
pub mod block_map;
pub mod clock;
mod cold;
pub mod dentry_table;
mod dirty_range;
pub mod drain;
mod durable;
mod free_list;
pub mod inode_table;
pub mod journal;
pub mod live;
pub mod lock;
pub mod mapped;
mod members;
pub mod ofd;
mod pins;
pub mod publish;
mod publish_values;
pub mod range_locks;
pub mod recover;
pub mod refusal;
pub mod run;
pub mod session;
pub mod slots;
pub mod space;
pub mod trees;
mod windows;

// The operations.
mod attr;
mod close;
mod copy_range;
mod cow;
mod create;
mod cwd;
mod data;
mod fds;
mod file;
mod flock;
pub mod kv;
mod link;
mod map;
mod open;
mod path;
mod perm;
mod process;
mod read;
mod readdir;
mod rename;
mod snapshot;
mod stat;
mod statfs;
mod strict;
mod sync;
mod truncate;
mod write;
mod xattr;

pub use api::Client;
pub use error::{Error, Result};
pub use mapped::Segments;
pub use session::Session;
pub use slots::{Share, SlotId};
pub use snapshot::{SnapshotError, SnapshotInfo, StoresStopped};
pub use types::*;
