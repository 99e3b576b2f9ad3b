//! The clock for the times of objects.
//!
//! Invariant: it must be read before any lock is taken (`pmem::env::now` says why).

/// As `now`, but exact, and also where locks are held.
pub(crate) use pmem::env::exact_now;
pub(crate) use pmem::env::monotonic_ms;
pub use pmem::env::now;
