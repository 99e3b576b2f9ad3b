//! Project chores. A chore prints what it found and exits 0 only if all is well.
#![forbid(unsafe_code)]

mod fixture;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy      the rules of CONTRIBUTING.md
       cargo xtask fixture   makes the pool of today's format in tests/fixtures anew";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (Some("tidy"), None) => tidy::main(),
        (Some("fixture"), None) => fixture::main(),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
