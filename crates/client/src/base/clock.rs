//! The clock for the times of objects.
//!
//! Invariant: it must be read before any lock is taken (`pmem::env::now` says why).

pub(crate) use pmem::env::monotonic_ms;
pub use pmem::env::now;
