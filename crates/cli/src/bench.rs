//! `holdfast bench`: starts the benchmark program, which not every installation has.
//!
//! Invariant: everything behind `bench` on the command line is passed to that program.

use crate::args::BenchArgs;
use crate::beside::become_program;
use crate::failure::Failure;

/// `bench`. Returns only when the program cannot be run.
pub fn bench(args: &BenchArgs, json: bool) -> Result<u8, Failure> {
    let mut words = args.words.clone();
    if json && !words.iter().any(|word| word == "--json") {
        words.push("--json".into());
    }
    Err(become_program(
        "holdfast-bench",
        "the benchmarks are",
        &words,
    ))
}
