//! Finding or starting the service of a pool.
//!
//! Invariants: before this returns, a service that was started here is ready or has said why not;
//! it belongs to no terminal and to no process group of ours; if several processes start one at
//! once, the pool's lock admits one of them, and the others attach to that one.

use crate::failure::Failure;
use crate::{log, owner};
use holdfast_client::attach::rejoin;
use holdfast_client::attach::{self, AttachError, Attachment, Joined};
use holdfast_pool::directory::LOG;
use std::io::{BufRead, BufReader};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long another service may take to open or to close the pool.
const PATIENCE: Duration = Duration::from_secs(20);

const AGAIN: i32 = 11;
const NOENT: i32 = 2;

/// A place in the session of the pool, from the service that is there or from a new one.
pub fn join(pool: &Path) -> Result<Attachment, Failure> {
    insist(pool, |path| attach::attach(path, None))
}

/// As `join`; a proxy answers where the pool is another user's.
pub fn join_or_be_served(pool: &Path) -> Result<Joined, Failure> {
    insist(pool, |pool| attach::join(pool, None))
}

/// As `join` with the session memory that this run was using when its service went away.
pub fn join_again(pool: &Path, memory: BorrowedFd<'_>) -> Result<Attachment, Failure> {
    insist(pool, |path| rejoin(path, memory))
}

/// As `join`, a session on a snapshot.
pub fn join_snapshot(pool: &Path, name: &str) -> Result<Joined, Failure> {
    let joined = insist(pool, |path| {
        match attach::join_snapshot(path, name.as_bytes()) {
            Err(AttachError::Refused { errno: NOENT, .. }) => Ok(None),
            joined => joined.map(Some),
        }
    })?;
    joined.ok_or_else(|| {
        let fix = format!("holdfast snapshot {} list", pool.display());
        Failure::new(format!("there is no snapshot {name:?}")).fix(fix)
    })
}

/// Asks until there is a service that answers.
fn insist<T>(pool: &Path, ask: impl Fn(&[u8]) -> Result<T, AttachError>) -> Result<T, Failure> {
    let begun = Instant::now();
    loop {
        match ask(pool.as_os_str().as_bytes()) {
            Ok(attachment) => return Ok(attachment),
            Err(AttachError::NoService) => {}
            // The service is ending.
            Err(e @ AttachError::Refused { .. }) if e.errno() == AGAIN => {
                if begun.elapsed() > PATIENCE {
                    return Err(Failure::new(e.to_string()));
                }
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            Err(AttachError::Silent) => {
                let failure = silent(pool);
                if failure.1 || begun.elapsed() > PATIENCE {
                    return Err(failure.0);
                }
                continue;
            }
            Err(AttachError::Os { errno: 2 | 20, .. }) => {
                return Err(holdfast_service::Error::Missing { path: pool.into() }.into());
            }
            Err(e) => return Err(e.into()),
        }
        match launch(pool)? {
            Launched::Ready => {}
            Launched::Failed(failure) if begun.elapsed() > PATIENCE => return Err(failure),
            // Another one has the pool: it is opening it, or closing it.
            Launched::Failed(failure) if is_busy(&failure) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Launched::Failed(failure) => return Err(failure),
        }
    }
}

/// A service that took a connection and did not answer, and whether it is stopped for sure.
pub fn silent(pool: &Path) -> (Failure, bool) {
    let pid = holdfast_service::PoolLock::holder(pool).flatten();
    let stopped = pid.is_some_and(is_stopped);
    let who = pid.map_or(String::new(), |pid| format!(" (process {pid})"));
    let how = if stopped {
        "is stopped"
    } else {
        "does not answer"
    };
    let failure = Failure::new(format!("the service of {}{who} {how}", pool.display()));
    match (stopped, pid) {
        (true, Some(pid)) => (failure.fix(format!("kill -CONT {pid}")), true),
        _ => (failure, false),
    }
}

/// By a signal or a debugger, as the kernel says.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| state.starts_with(['T', 't']))
}

enum Launched {
    Ready,
    Failed(Failure),
}

fn is_busy(failure: &Failure) -> bool {
    failure.to_string().contains(" is in use")
}

fn launch(pool: &Path) -> Result<Launched, Failure> {
    // A pool that cannot be opened is told apart before anything is started or written. Root leaves
    // the files of others alone.
    if !owner::is_foreign(pool) {
        holdfast_service::Files::open_read_only(pool)?.check_owner()?;
    }
    let program = std::env::current_exe().map_err(|e| Failure::io("the holdfast program", &e))?;
    let mut child = Command::new(program)
        .arg0("holdfast")
        .args(["serve", "--ending", "--"])
        .arg(pool)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .env_remove("LD_AUDIT")
        .env_remove(holdfast_client::env::VARIABLE)
        .spawn()
        .map_err(|e| Failure::io("the service cannot be started", &e))?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        let _ = BufReader::new(out).read_line(&mut line);
    }
    if line.trim_end() == "ready" {
        return Ok(Launched::Ready);
    }
    let ended = child.wait().map(|status| status.to_string());
    Ok(Launched::Failed(match line.trim_end() {
        "" => {
            let how = ended.unwrap_or_default();
            let what = format!("the service ended before it was ready ({how})");
            Failure::new(what).fix(format!("see {}", pool.join(LOG).display()))
        }
        said => quoted(said),
    }))
}

/// What a service said, in one line.
fn quoted(said: &str) -> Failure {
    let said = said.trim_start_matches("holdfast: ");
    let (sentence, fix) = match said.split_once("\tFix: ") {
        Some((sentence, fix)) => (sentence, Some(fix)),
        None => (said, None),
    };
    let failure = Failure::new(sentence.trim_end_matches('.'));
    match fix {
        Some(fix) => failure.fix(fix),
        None => failure,
    }
}

/// The service of the pool ended soon after it was started again.
pub fn ended_again(pool: &Path) -> Failure {
    let log = pool.join(LOG);
    let is_file = std::fs::symlink_metadata(&log).is_ok_and(|found| found.is_file());
    let said = match is_file {
        true => std::fs::read(&log).unwrap_or_default(),
        false => Vec::new(),
    };
    let said = String::from_utf8_lossy(&said);
    let last = said.lines().rev().find_map(log::error_in);
    let last = last.map_or(String::new(), |why| format!(": {why}"));
    let what = format!(
        "the service of {} ends soon after it starts",
        pool.display()
    );
    Failure::new(what + &last).fix(format!("see {}", log.display()))
}
