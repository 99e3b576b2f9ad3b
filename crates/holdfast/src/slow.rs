//! Pools that are slower than they are.
//!
//! Invariant: what cannot be slowed as it was asked for is an error, never at full speed.

use crate::error::{Error, Result};
use holdfast_pmem::Slow;

/// The environment variable that says how slow pools are to a process.
pub const SLOW_VARIABLE: &str = "HOLDFAST_SLOW";

/// What [`SLOW_VARIABLE`] says, in the words of [`Slow::parse`]. Without it nothing is slow.
pub fn slow_by_environment() -> Result<Slow> {
    let word = std::env::var_os(SLOW_VARIABLE).filter(|word| !word.is_empty());
    let Some(word) = word else {
        return Ok(Slow::NONE);
    };
    Slow::parse(&word.to_string_lossy()).map_err(|why| Error::Slow {
        why: format!("{SLOW_VARIABLE}: {why}"),
    })
}

pub(crate) fn not_for_others() -> Error {
    Error::Slow {
        why: "a proxy copies for users who do not own the pool, and is never slow".into(),
    }
}
