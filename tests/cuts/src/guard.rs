//! What surrounds a campaign: namespaces that end with everything in them, and the kernel's
//! write-back, which is held and let go again however the campaign ends.

use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

const WRITE_BACK: &str = "/proc/sys/vm/dirty_writeback_centisecs";
/// Where nobody but root can put a link.
const TURN: &str = "/run/holdfast-cuts.lock";
const OUTER: &str = "HF_CUTS_OUTER";
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// Whether a program is there.
pub fn has(program: &str) -> bool {
    PATH.split(':')
        .any(|dir| Path::new(dir).join(program).exists())
}

/// The process that made the namespaces, by its number outside of them.
pub fn outer_pid() -> String {
    std::env::var(OUTER).unwrap_or_else(|_| std::process::id().to_string())
}

/// The directory of this campaign, for all that is written aside.
pub fn scratch() -> PathBuf {
    let parent = std::env::var_os("HF_WORK").map_or("/dev/shm".into(), PathBuf::from);
    parent.join(format!("cuts.{}", outer_pid()))
}

/// Runs this program again with these arguments, in namespaces of its own.
pub fn inside(args: &[String]) -> ExitCode {
    if let Some(why) = missing() {
        println!("skipped cuts ({why})\n0 passed, 0 failed, 1 skipped");
        return ExitCode::SUCCESS;
    }
    match run(args) {
        Ok(code) => code,
        Err(e) => {
            println!("FAILED cuts: {e}\n0 passed, 1 failed, 0 skipped");
            ExitCode::FAILURE
        }
    }
}

/// Why there can be no cuts here.
fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".into());
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        if let Err(e) = File::options().read(true).write(true).open(device) {
            return Some(format!("{device}: {e}"));
        }
    }
    let programs = ["setpriv", "unshare", "losetup", "mount", "python3"];
    let missing = programs.into_iter().find(|program| !has(program));
    missing.map(|program| format!("needs {program}"))
}

fn run(args: &[String]) -> io::Result<ExitCode> {
    let own = std::env::current_exe()?;
    let mut guard = start_guard(&own)?;
    let status = Command::new("setpriv")
        .args([
            "--pdeathsig",
            "KILL",
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .arg(&own)
        .arg("inside")
        .args(args)
        .env("PATH", PATH)
        .env(OUTER, std::process::id().to_string())
        .stdin(Stdio::null())
        .status()?;
    drop(guard.stdin.take());
    guard.wait()?;
    Ok(match status.code() {
        Some(code) => ExitCode::from(code.clamp(0, 255) as u8),
        None => ExitCode::FAILURE,
    })
}

/// A process in a group of its own, so that what ends this one leaves it to put things right.
fn start_guard(own: &PathBuf) -> io::Result<Child> {
    let mut guard = Command::new(own)
        .arg("guard")
        .env(OUTER, std::process::id().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let mut line = String::new();
    if let Some(out) = guard.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    Ok(guard)
}

/// `hf-cuts guard`: no write-back until the end of its input. One at a time, so that each finds
/// the value that it has to put back.
pub fn main() -> ExitCode {
    match hold() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("cuts: the kernel's write-back stays as it is: {e}");
            ExitCode::FAILURE
        }
    }
}

fn hold() -> io::Result<()> {
    let turn = File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(TURN)?;
    flock(&turn, FlockOperation::LockExclusive)?;
    let before = std::fs::read_to_string(WRITE_BACK)?;
    std::fs::write(WRITE_BACK, "0")?;
    println!("held");
    io::stdout().flush()?;
    let waited = io::stdin().read_to_end(&mut Vec::new());
    std::fs::write(WRITE_BACK, before.trim())?;
    let _ = std::fs::remove_dir_all(scratch());
    waited.map(drop)
}
