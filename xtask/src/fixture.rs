//! `cargo xtask fixture`: the pool of today's format that the tests read.

use std::path::Path;
use std::process::{Command, ExitCode};

/// Builds the shipped programs and runs `tests/fixtures/make` with them.
pub fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask has a parent");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let holdfast = root.join(target).join("release/holdfast");
    let build = |package: &str| {
        let mut command = Command::new(&cargo);
        command.args(["build", "--release", "-p", package]);
        command
    };
    let mut make = Command::new("tests/fixtures/make");
    make.env("HOLDFAST", holdfast);
    for mut step in [build("holdfast-cli"), build("holdfast-preload"), make] {
        match step.current_dir(root).status() {
            Ok(status) if status.success() => {}
            Ok(_) => return ExitCode::FAILURE,
            Err(e) => {
                eprintln!("{step:?}: {e}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
