//! Joining the session of a pool; starting its service if none runs.
//!
//! Invariants: before this returns, a service that was started here is ready or has said why not;
//! if several processes start one at once, the pool's lock admits one of them, and the others join
//! that one. A new pool is made by the `holdfast` command, in a separate process.

use crate::error::{Error, Result};
use holdfast_client::attach::{self, AttachError, Attachment, Joined, rejoin};
use std::io::{BufRead, BufReader};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long another service may take to open or to close the pool.
const PATIENCE: Duration = Duration::from_secs(20);
const NAP: Duration = Duration::from_millis(5);
const EAGAIN: i32 = 11;
/// A service that said nothing.
const KILLED: &str = "the service ended before it was ready";
/// This many of them in a row are retried.
const KILLED_MAX: u32 = 3;

static PROGRAM: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Sets the `holdfast` command that starts services and creates pools from now on.
pub fn use_program(path: impl Into<PathBuf>) {
    if let Ok(mut program) = PROGRAM.lock() {
        *program = Some(path.into());
    }
}

/// The command: as set by [`use_program`], beside the library that contains this code (`../bin`),
/// as `HOLDFAST` says, beside the running program, or on the PATH.
fn program() -> PathBuf {
    let told = PROGRAM.lock().ok().and_then(|program| program.clone());
    let installed = || {
        let library = library()?;
        let prefix = library.parent()?.parent()?;
        Some(prefix.join("bin/holdfast")).filter(|path| path.is_file())
    };
    let said = || std::env::var_os("HOLDFAST").map(PathBuf::from);
    let beside = || {
        let beside = std::env::current_exe().ok()?.with_file_name("holdfast");
        beside.is_file().then_some(beside)
    };
    told.or_else(installed)
        .or_else(said)
        .or_else(beside)
        .unwrap_or_else(|| "holdfast".into())
}

/// The file that contains this code: a library, or the program itself.
fn library() -> Option<PathBuf> {
    let here = library as *const () as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines()
        .find_map(|line| mapped_at(line, here))
        .map(PathBuf::from)
}

/// The file of a line of `/proc/PID/maps` that has the address in its range.
fn mapped_at(line: &str, address: usize) -> Option<&str> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let within = (number(start)?..number(end)?).contains(&address);
    let path = rest.find('/').map(|at| &rest[at..]);
    path.filter(|_| within)
}

/// Joins the session of the pool, through its running service or a new one. `known` is session
/// memory that this process already has.
pub(crate) fn join(pool: &Path, known: Option<BorrowedFd<'_>>) -> Result<Joined> {
    insist(pool, |path| attach::join(path, known))
}

/// As `join`, with the session memory that this process was using when its service died.
pub(crate) fn join_again(pool: &Path, memory: BorrowedFd<'_>) -> Result<Attachment> {
    insist(pool, |path| rejoin(path, memory))
}

fn insist<T>(pool: &Path, ask: impl Fn(&[u8]) -> std::result::Result<T, AttachError>) -> Result<T> {
    let (begun, mut killed) = (Instant::now(), 0);
    loop {
        let late = begun.elapsed() > PATIENCE;
        match ask(pool.as_os_str().as_bytes()) {
            Ok(joined) => return Ok(joined),
            Err(AttachError::NoService) => {}
            // The service is ending.
            Err(AttachError::Refused { errno: EAGAIN, .. }) if !late => {
                std::thread::sleep(NAP);
                continue;
            }
            Err(AttachError::Silent) if !late => continue,
            Err(AttachError::Os { errno: 2 | 20, .. }) => return Err(no_pool(pool)),
            Err(e) => return Err(Error::Attach(e)),
        }
        match launch(pool) {
            Ok(()) => {}
            // Another one has the pool: it is opening it, or closing it.
            Err(Error::Start { why, .. }) if why.contains(" is in use") && !late => {
                std::thread::sleep(NAP);
            }
            // It was killed: the next one may live.
            Err(Error::Start { why, .. }) if why == KILLED && killed < KILLED_MAX => killed += 1,
            Err(e) => return Err(e),
        }
    }
}

fn no_pool(pool: &Path) -> Error {
    Error::NoPool { path: pool.into() }
}

fn launch(pool: &Path) -> Result<()> {
    if !pool.join(holdfast_pool::segment::META).exists() {
        return Err(no_pool(pool));
    }
    let mut command = command();
    // The service is no child of ours: a program that waits for its children has none but its own.
    command
        .args(["serve", "--ending", "--apart", "--"])
        .arg(pool);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| cannot_run(&e))?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        let _ = BufReader::new(out).read_line(&mut line);
    }
    let _ = child.wait();
    match line.trim_end() {
        "ready" => Ok(()),
        _ => Err(said(&line)),
    }
}

fn command() -> Command {
    let mut command = Command::new(program());
    command
        .env_remove("LD_AUDIT")
        .env_remove(holdfast_client::env::VARIABLE);
    command
}

fn cannot_run(e: &std::io::Error) -> Error {
    Error::Start {
        why: format!(
            "the holdfast command {} cannot be run: {}",
            program().display(),
            crate::error::plain(e)
        ),
        fix: Some("put it on the PATH, or name it in the environment variable HOLDFAST".into()),
    }
}

/// The error that the command printed when it failed.
fn said(line: &str) -> Error {
    let said = line.trim_end().trim_start_matches("holdfast: ");
    let (why, fix) = match said.split_once("\tFix: ") {
        Some((why, fix)) => (why, Some(fix.to_string())),
        None if said.is_empty() => (KILLED, None),
        None => (said, None),
    };
    Error::Start {
        why: why.trim_end_matches('.').into(),
        fix,
    }
}

/// Creates a pool in a directory that is new or empty.
pub(crate) fn create(pool: &Path) -> Result<()> {
    let mut command = command();
    command.args(["pool", "create", "--"]).arg(pool);
    let done = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| cannot_run(&e))?;
    match done.status.success() {
        true => Ok(()),
        false => {
            let text = String::from_utf8_lossy(&done.stderr);
            let text = text.trim_end().replace("\nFix: ", "\tFix: ");
            Err(said(&text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_is_found_in_its_file() {
        assert_eq!(library(), std::env::current_exe().ok());
        let line = "7f00-7f80 r-xp 00001000 fd:00 42   /opt/a dir/lib/libholdfast.so";
        let path = Some("/opt/a dir/lib/libholdfast.so");
        for (address, found) in [
            (0x7eff, None),
            (0x7f00, path),
            (0x7f7f, path),
            (0x7f80, None),
        ] {
            assert_eq!(mapped_at(line, address), found, "{address:x}");
        }
        for line in [
            "",
            "7f00",
            "7f00-7f80 r-xp 0 00:00 0",
            "x-y r /a",
            "7f00-7f80 r [heap]",
        ] {
            assert_eq!(mapped_at(line, 0x7f00), None, "{line}");
        }
    }
}
