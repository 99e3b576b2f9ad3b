//! What running exports of volumes tell about themselves: who serves one publishes a [`Report`] at
//! a socket in the pool's directory, and who wants to know asks there.
//!
//! Invariants: nothing is written while nobody asks; a process that is dead, stopped or hostile
//! costs those who ask a limited time and a limited amount of memory, and no other report.
#![forbid(unsafe_code)]

mod ask;
mod publish;
mod report;
mod socket;

pub use ask::{Exports, running};
pub use publish::{About, Published, publish};
pub use report::{Report, Requests};
