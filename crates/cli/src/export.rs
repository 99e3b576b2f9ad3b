//! `holdfast export`: starts the program that exports volumes.
//!
//! Invariant: everything behind `export` on the command line is passed to that program.

use crate::args::ExportArgs;
use crate::beside::become_program;
use crate::failure::Failure;

/// `export`. Returns only when the program cannot be run.
pub fn export(args: &ExportArgs) -> Result<u8, Failure> {
    Err(become_program(
        "holdfast-export",
        "exports are",
        &args.words,
    ))
}
