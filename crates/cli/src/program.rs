//! The program that `run` starts.
//!
//! Invariants: the program is searched for as in execvp(3); a program in the pool is started by a
//! second process of this command, which is instrumented and so can see it.

use crate::failure::{self, Failure};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The hidden command that runs a program of the pool.
const INSIDE: &str = "run-inside";

/// A command that will run `words` when the pool appears at `at`.
pub fn command(words: &[OsString], at: &Path) -> Result<Command, Failure> {
    let Some((program, arguments)) = words.split_first() else {
        return Err(Failure::new("no program was named"));
    };
    if program.is_empty() {
        return Err(Failure::new("the program's name is empty").code(127));
    }
    let inside = crate::paths::absolute(Path::new(program)).is_ok_and(|p| p.starts_with(at));
    let named = program.as_bytes().contains(&b'/');
    let mut command = if named && inside {
        let me = std::env::current_exe().map_err(|e| Failure::io("the holdfast program", &e))?;
        let mut inside = Command::new(me);
        inside.arg(INSIDE).arg(program);
        inside
    } else {
        Command::new(program)
    };
    command.args(arguments);
    Ok(command)
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

/// Says so if the program will see the host's files only.
pub fn warn_if_uninstrumented(program: &OsStr) {
    if let Some(why) = why_uninstrumented(program) {
        let name = Path::new(program).display();
        eprintln!("holdfast: {name} {why} and will not see the pool.");
    }
}

/// Why the file of a program cannot be instrumented, if so: the dynamic linker must read
/// LD_AUDIT in it.
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
    if has_interpreter(&bytes) == Some(false) {
        return Some("is statically linked");
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
        .take(4096)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(bytes)
}

/// Whether the program headers of a 64-bit ELF file name an interpreter.
fn has_interpreter(elf: &[u8]) -> Option<bool> {
    let u16_at = |at: usize| Some(u16::from_le_bytes(*elf.get(at..)?.first_chunk()?));
    let u32_at = |at: usize| Some(u32::from_le_bytes(*elf.get(at..)?.first_chunk()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(*elf.get(at..)?.first_chunk()?));
    let start = usize::try_from(u64_at(32)?).ok()?;
    let (size, count) = (usize::from(u16_at(54)?), usize::from(u16_at(56)?));
    for index in 0..count {
        if u32_at(start.checked_add(index * size)?)? == 3 {
            return Some(true);
        }
    }
    Some(false)
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
        assert_eq!(has_interpreter(b"\x7fELF"), None);
    }
}
