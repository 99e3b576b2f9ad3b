//! Joining the session of a pool; starting its service where none runs.
//!
//! Invariants: a service that was started here is ready, or said why not, before this returns;
//! however many start one at once, the pool's lock lets one of them be it, and the others join
//! that one. What was not there before is made by the `holdfast` command, in a process of its own.

use crate::error::{Error, Result};
use holdfast_client::attach::{AttachError, Attachment, attach};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long another service may take to open or to close the pool.
const PATIENCE: Duration = Duration::from_secs(20);
const NAP: Duration = Duration::from_millis(5);
const EAGAIN: i32 = 11;

static PROGRAM: Mutex<Option<PathBuf>> = Mutex::new(None);

/// From now on this is the `holdfast` command that starts services and makes pools.
pub fn use_program(path: impl Into<PathBuf>) {
    if let Ok(mut program) = PROGRAM.lock() {
        *program = Some(path.into());
    }
}

/// The command: as told, as `HOLDFAST` says, beside the running program, or on the PATH.
fn program() -> PathBuf {
    let told = PROGRAM.lock().ok().and_then(|program| program.clone());
    let said = || std::env::var_os("HOLDFAST").map(PathBuf::from);
    let beside = || {
        let beside = std::env::current_exe().ok()?.with_file_name("holdfast");
        beside.is_file().then_some(beside)
    };
    told.or_else(said)
        .or_else(beside)
        .unwrap_or_else(|| "holdfast".into())
}

/// A place in the session of the pool, from the service that is there or from a new one. `adopt`
/// is the session memory that this process was using when its service went away.
pub(crate) fn join(pool: &Path, adopt: Option<BorrowedFd<'_>>) -> Result<Attachment> {
    let begun = Instant::now();
    loop {
        let late = begun.elapsed() > PATIENCE;
        match attach(pool.as_os_str().as_bytes(), adopt) {
            Ok(attachment) => return Ok(attachment),
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
            Err(e) => return Err(e),
        }
    }
}

fn no_pool(pool: &Path) -> Error {
    Error::Start {
        why: format!("there is no pool at {}", pool.display()),
        fix: Some(format!("holdfast pool create {}", pool.display())),
    }
}

fn launch(pool: &Path) -> Result<()> {
    if !pool.join(holdfast_pool::segment::META).exists() {
        return Err(no_pool(pool));
    }
    let mut command = command();
    command.args(["serve", "--ending", "--"]).arg(pool);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log(pool))
        .spawn()
        .map_err(|e| cannot_run(&e))?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        let _ = BufReader::new(out).read_line(&mut line);
    }
    if line.trim_end() == "ready" {
        // Its end is nobody's business here, but somebody must ask for it.
        std::thread::spawn(move || child.wait());
        return Ok(());
    }
    let _ = child.wait();
    Err(said(&line))
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
            "the holdfast command {} cannot be run: {e}",
            program().display()
        ),
        fix: Some("put it on the PATH, or name it in the environment variable HOLDFAST".into()),
    }
}

/// What the command said when it failed.
fn said(line: &str) -> Error {
    let said = line.trim_end().trim_start_matches("holdfast: ");
    let (why, fix) = match said.split_once("\tFix: ") {
        Some((why, fix)) => (why, Some(fix.to_string())),
        None if said.is_empty() => ("the service ended before it was ready", None),
        None => (said, None),
    };
    Error::Start {
        why: why.trim_end_matches('.').into(),
        fix,
    }
}

/// The service's messages go to a file in the pool; on a full or read-only file system, nowhere.
fn log(pool: &Path) -> Stdio {
    let file = File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(pool.join(holdfast_pool::directory::LOG));
    file.map_or_else(|_| Stdio::null(), Stdio::from)
}

/// Makes a pool in a directory that is new or empty.
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
