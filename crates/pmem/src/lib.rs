//! The only access to pool memory. It knows no format.
//!
//! What always holds here:
//! - No reference to memory that another process can write ever leaves this crate, except to
//!   atomics: bytes are copied in and out by machine code that the compiler cannot see into.
//! - Every offset is checked against the mapping before it is used; a bad one is an error.
//! - The way to make bytes durable is chosen once, when a range is mapped ([`Region::map`]); the
//!   hot path calls it and never asks what the medium is.
//! - A copy that reaches memory it may not touch ends with a short count, never with a signal, once
//!   the process routes SIGSEGV and SIGBUS through [`fault::landing_for`].
//! - Nothing here calls libc, so all of it may run inside an intercepted system call.
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod atomic;
mod buf;
mod copy;
pub mod cpu;
pub mod crc;
mod dirty;
pub mod env;
mod error;
pub mod fault;
mod file_map;
mod flush;
mod fork;
pub mod futex;
mod guard;
#[cfg(feature = "recording")]
pub mod images;
pub mod interrupt;
mod map;
mod medium;
#[cfg(feature = "model")]
pub mod model;
mod pace;
pub mod peer;
mod persist;
pub mod process;
mod protection;
#[cfg(feature = "recording")]
pub mod record;
pub mod record_locks;
mod region;
mod scheme;
mod shared;
mod sigaction;
#[cfg(not(feature = "recording"))]
mod silent;
mod slow;
mod spin;
mod sys;
mod take_cell;
#[cfg(feature = "recording")]
mod watch;

pub use buf::{ConstBuf, CstrFault, Fault, MutBuf, copy_cstr};
pub use dirty::DirtyMap;
pub use error::Error;
pub use file_map::{FileMap, Hint};
pub use flush::{SegmentFile, begin_write_back, write_gently};
pub use fork::ForkMark;
pub use map::{Access, MapOptions, Reservation, Writing};
pub use medium::{Medium, caches_persistent, huge_page};
pub use pace::{Meter, Pace};
pub use persist::{Persistence, Registers};
pub use protection::Protection;
#[cfg(feature = "recording")]
pub use record::Recorder;
pub use record_locks::{Holder, RecordLocks};
pub use region::Region;
pub use scheme::Scheme;
#[doc(hidden)]
pub use shared::__check_shared;
pub use shared::{Shared, SharedMem};
pub use slow::{BadSlow, Slow};
pub use take_cell::TakeCell;
#[cfg(feature = "recording")]
pub use watch::{Watch, watch};

/// Bytes in a cache line, the unit in which cached stores reach the medium.
pub const LINE: usize = 64;
/// Bytes in a page, the unit in which an ordinary file reaches its medium.
pub const PAGE: usize = 4096;
