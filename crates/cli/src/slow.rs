//! How slow the pool is to be to a program.
//!
//! Invariant: a word that makes no sense is an error, never a pool at full speed.

use crate::args::RunArgs;
use crate::failure::Failure;
use holdfast::Slow;

/// What a run is asked for: by its option, else by the environment.
pub fn wanted(args: &RunArgs) -> Result<Slow, Failure> {
    Ok(args.slow.map_or_else(holdfast::slow_by_environment, Ok)?)
}
