//! Session memory: the volatile state that all processes of one user on one pool share.
//!
//! Invariants:
//!  * Every field is an atomic and every bit pattern is valid, so a process that dies or lies can
//!    make values wrong but never undefined.
//!  * Everything here is derived from journal and trees, except what is called *dirty* (sizes,
//!    times and pending blocks of files that were not yet synced).
//!  * A change of a durable object is visible here only after its journal record is durable.
//!  * An entry whose `seq` is above `Header::applied_seq` is pinned: the trees do not have it yet.
//!  * All-zero memory is an empty session.
//!
//! The service creates the memory and trusts nothing in it; the client crate gives it meaning.

mod broken;
pub mod free_table;
mod layout;
mod leases;
mod lent;
pub mod live;
mod quotas;
mod stall;

pub use broken::{Broken, Finding};
pub use layout::*;
pub use leases::*;
pub use lent::{LENT_DIRECTORY, lent_prefix};
pub use quotas::*;
pub use stall::Stall;
