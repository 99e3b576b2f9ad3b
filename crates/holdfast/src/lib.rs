//! Keys and values in a Holdfast pool: durable when a call returns, shared by processes, and
//! visible as files.
//!
//! ```no_run
//! use holdfast::{Durability, Pool};
//!
//! # fn main() -> holdfast::Result<()> {
//! let pool = Pool::open_or_create("/dev/shm/pool")?;
//! let users = pool.keyspace_or_create("users")?;
//! users.put(b"ada", b"countess", Durability::Durable)?;
//! assert_eq!(users.get(b"ada")?.as_deref(), Some(&b"countess"[..]));
//! for entry in users.prefix(b"a")? {
//!     let (key, value) = entry?;
//!     println!("{key:?} {value:?}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A get costs one descent of a tree in mapped memory, and a put one journal record in mapped
//! memory. Neither makes a system call or waits for another process. The pool's service applies
//! the changes to its trees later.
#![forbid(unsafe_code)]

mod batch;
mod blocks;
mod borrowed;
mod caller;
mod error;
mod expiry;
mod file;
mod files;
mod inner;
mod keyspace;
mod link;
mod memory;
mod others;
mod pool;
mod quota;
mod scan;
mod sector;
mod served;
mod slow;
mod snapshot;
mod start;
mod stream;
mod usage;
mod view;
mod volume;
mod walk;
mod whole;

use holdfast_client::kv;

pub use batch::Batch;
pub use blocks::BlockPlace;
pub use borrowed::Borrowed;
pub use error::{Error, Result};
pub use expiry::{Expires, ExpirySwap};
pub use files::{Opened, is_value};
pub use holdfast_client::Stat as FileStat;
pub use holdfast_client::kv::Durability;
pub use holdfast_pmem::{BadSlow, Protection, Scheme, Slow};
pub use keyspace::Keyspace;
pub use others::User;
pub use pool::{Pool, PoolOptions};
pub use quota::{Quota, QuotaOf};
pub use scan::Scan;
pub use sector::Sector;
pub use slow::{SLOW_VARIABLE, slow_by_environment};
pub use snapshot::SnapshotInfo;
pub use start::use_program;
pub use stream::{ValueReader, ValueWriter};
pub use usage::{Part, PartKind, Space};
pub use view::{View, ViewKeyspace};
pub use volume::{
    Barrier, Counted, Extent, Integrity, Latency, Volume, VolumeChecked, VolumeInfo, VolumeLatency,
    VolumeShape, VolumeStats, VolumeWriting, Written, Zeroes,
};
pub use whole::Swap;
