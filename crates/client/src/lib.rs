//! Holdfast client: session, open files, path walk and operations; untrusted.
//!
//! Invariants:
//!  * Runs inside other people's programs: no libc, no threads, no locks of std, no panic.
//!  * Cannot write a tree node: changes are journal records.
//!  * Nothing in shared memory is trusted or borrowed: copied, checked, used.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

extern crate holdfast_pmem as pmem;

pub mod abi;
mod api;
pub mod attach;
pub mod env;
pub mod error;
mod types;

pub use api::Client;
pub use error::{Error, Result};
pub use types::*;
