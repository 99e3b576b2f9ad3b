//! `holdfast bench`: starts the benchmark program, which not every installation has.
//!
//! Invariant: everything behind `bench` on the command line is passed to that program.

use crate::args::BenchArgs;
use crate::failure::Failure;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = "holdfast-bench";
/// Tells the benchmarks which `holdfast` they measure.
const VARIABLE: &str = "HOLDFAST_PROGRAM";

/// `bench`. Returns only when the program cannot be run.
pub fn bench(args: &BenchArgs, json: bool) -> Result<u8, Failure> {
    let own = std::env::current_exe().map_err(|e| Failure::io("the holdfast program", &e))?;
    let program = find(&own).ok_or_else(|| {
        let what = format!("the benchmarks are not installed: there is no {PROGRAM}");
        let beside = own.parent().unwrap_or(Path::new("/")).display();
        Failure::new(format!("{what} in {beside}"))
            .fix("in the source tree: cargo build --release -p holdfast-bench, or make install")
    })?;
    let mut command = Command::new(&program);
    command.args(&args.words).env(VARIABLE, &own);
    if json && !args.words.iter().any(|word| word == "--json") {
        command.arg("--json");
    }
    Err(Failure::io(program.display(), &command.exec()))
}

/// Beside this program, or where `make install` puts it.
fn find(own: &Path) -> Option<PathBuf> {
    let dir = own.parent()?;
    let places = [
        dir.join(PROGRAM),
        dir.join("../libexec/holdfast").join(PROGRAM),
    ];
    places.into_iter().find(|place| place.exists())
}
