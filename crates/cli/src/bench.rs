//! `holdfast bench`.
//!
//! Invariant: without a name it only lists.

use crate::args::BenchArgs;
use crate::failure::{self, Failure};

/// `bench`.
pub fn bench(args: &BenchArgs, _json: bool) -> Result<u8, Failure> {
    match &args.name {
        None => Ok(failure::OK),
        Some(name) => Err(
            Failure::new(format!("there is no benchmark called '{name}'"))
                .fix("holdfast bench lists them")
                .code(failure::USAGE),
        ),
    }
}
