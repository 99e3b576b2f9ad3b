//! The program that `holdfast bench mapping` measures.
//!
//! Invariant: it is small and has no system calls but those of a program that maps files, so that
//! what is measured is what happens to such programs.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    ExitCode::from(holdfast_bench::worker::mapping::main(&args))
}
