//! The whole command line: that of `holdfast`, and of the programs that it starts for commands.
//!
//! Invariant: what completes words and what the manual is made from is this, so that neither says
//! anything else than `--help`.

use crate::args::Cli;
use clap::{Command, CommandFactory};

#[path = "../../bench/src/args.rs"]
pub mod bench;
#[path = "../../export/src/args.rs"]
pub mod export;
#[path = "../../export/src/files/args.rs"]
pub mod mount;

/// With the commands of other programs in the place of what starts them.
pub fn whole() -> Command {
    let others = [
        ("bench", bench::Args::command()),
        ("export", export::Export::command()),
    ];
    others
        .into_iter()
        .fold(Cli::command(), |all, (name, other)| {
            all.mut_subcommand(name, |_| other.name(name))
        })
}
