//! The program that `run` starts.
//!
//! Invariants: the program is searched for as in execvp(3); a program in the pool is started by a
//! second process of this command, which is instrumented and so can see it.

use crate::failure::{self, Failure};
use holdfast_client::program::closed;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of a program's file that are looked at: more than its headers and notes take.
const HEAD: u64 = 16 << 10;
/// The hidden command that runs a program of the pool.
const INSIDE: &str = "run-inside";

/// A command for `words`; `make` makes it of the first one.
pub fn named<'a>(
    words: &'a [OsString],
    make: impl FnOnce(&'a OsString) -> Command,
) -> Result<Command, Failure> {
    let Some((program, arguments)) = words.split_first() else {
        return Err(Failure::new("no program was named"));
    };
    if program.is_empty() {
        return Err(Failure::new("the program's name is empty").code(127));
    }
    let mut command = make(program);
    command.args(arguments);
    Ok(command)
}

/// A command that will run `words` when the pool appears at `at`.
pub fn command(words: &[OsString], at: &Path) -> Result<Command, Failure> {
    let me = std::env::current_exe().map_err(|e| Failure::io("the holdfast program", &e))?;
    named(words, |program| started(program, at, &me))
}

fn started(program: &OsStr, at: &Path, me: &Path) -> Command {
    let inside = crate::paths::absolute(Path::new(program)).is_ok_and(|p| p.starts_with(at));
    let named = program.as_bytes().contains(&b'/');
    if !(named && inside) {
        return Command::new(program);
    }
    let mut command = Command::new(me);
    command.arg(INSIDE).arg(program);
    command
}

/// The hidden command that runs a program of the pool, if the command line says so.
pub fn hidden(words: &[OsString]) -> Option<u8> {
    let [first, program, arguments @ ..] = words else {
        return None;
    };
    if first != INSIDE {
        return None;
    }
    let error = Command::new(program).args(arguments).exec();
    let failure = not_started(program, &error);
    eprintln!("{failure}");
    Some(failure.status())
}

/// A program that could not be executed.
pub fn not_started(program: &OsStr, error: &std::io::Error) -> Failure {
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => failure::RUN_NOT_FOUND,
        _ => failure::RUN_NOT_EXECUTABLE,
    };
    Failure::io(Path::new(program).display(), error).code(code)
}

/// What a run does for its programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Pool,
    Mappings,
}

/// Says so if the library cannot enter the program.
pub fn warn_if_uninstrumented(program: &OsStr, seen: Seen) {
    if let Some(why) = why_uninstrumented(program) {
        let name = Path::new(program).display();
        let lost = match seen {
            Seen::Pool => "will not see the pool",
            Seen::Mappings => "maps files as without Holdfast",
        };
        eprintln!("holdfast: {name} {why} and {lost}.");
    }
}

/// Why the library cannot enter the file of a program, if so: the dynamic linker must read
/// LD_AUDIT in it, and the program make its calls through the C library.
pub fn why_uninstrumented(program: &OsStr) -> Option<&'static str> {
    let path = find(program)?;
    let bytes = head(&path)?;
    if bytes.starts_with(b"#!") {
        let line = bytes.split(|b| *b == b'\n').next()?;
        let interpreter = line
            .get(2..)?
            .split(|b| *b == b' ')
            .find(|w| !w.is_empty())?;
        return why_uninstrumented(OsStr::from_bytes(interpreter));
    }
    if !bytes.starts_with(b"\x7fELF") {
        return None;
    }
    if let Some(why) = closed(&bytes, |_, _| 0) {
        return Some(why.text());
    }
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).ok()?);
    let root = rustix::process::geteuid().is_root();
    (mode & 0o6000 != 0 && !root).then_some("changes its user or group")
}

fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

fn head(path: &Path) -> Option<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .ok()?
        .take(HEAD)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_the_pool_are_started_by_env() {
        let words = |w: &[&str]| w.iter().map(OsString::from).collect::<Vec<_>>();
        let at = Path::new("/hf");
        let inside = command(&words(&["/hf/bin/x", "1"]), at).unwrap();
        assert_eq!(inside.get_args().next().unwrap(), INSIDE);
        let outside = command(&words(&["/bin/ls", "/hf"]), at).unwrap();
        assert_eq!(outside.get_program(), "/bin/ls");
        assert!(command(&words(&[""]), at).is_err());
    }

    #[test]
    fn ordinary_programs_can_be_instrumented() {
        assert_eq!(why_uninstrumented(OsStr::new("/bin/sh")), None);
        assert_eq!(why_uninstrumented(OsStr::new("no-such-program")), None);
    }
}
