//! Programs that come with `holdfast`, for commands that not every installation has.
//!
//! Invariant: they find the `holdfast` that started them by the variable HOLDFAST_PROGRAM.

use crate::failure::Failure;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tells the program which `holdfast` started it.
const VARIABLE: &str = "HOLDFAST_PROGRAM";

/// Becomes the program `name`, with `words` as its arguments. Returns only when it cannot be run;
/// `what` says what is missing then.
pub fn become_program(name: &str, what: &str, words: &[OsString]) -> Failure {
    match program(name, what) {
        Ok(mut program) => {
            let error = program.args(words).exec();
            Failure::io(program.get_program().display(), &error)
        }
        Err(failure) => failure,
    }
}

/// The program `name`, ready to be started with its arguments.
pub fn program(name: &str, what: &str) -> Result<Command, Failure> {
    let own = std::env::current_exe().map_err(|e| Failure::io("the holdfast program", &e))?;
    let Some(program) = find(&own, name) else {
        let beside = own.parent().unwrap_or(Path::new("/")).display();
        return Err(Failure::new(format!(
            "{what} not installed: there is no {name} in {beside}"
        ))
        .fix(format!(
            "in the source tree: make install (for a build: cargo build --release -p {name})"
        )));
    };
    let mut command = Command::new(program);
    command.env(VARIABLE, own);
    Ok(command)
}

/// Beside this program, or where `make install` puts it.
fn find(own: &Path, name: &str) -> Option<PathBuf> {
    let dir = own.parent()?;
    let places = [dir.join(name), dir.join("../libexec/holdfast").join(name)];
    places.into_iter().find(|place| place.exists())
}
