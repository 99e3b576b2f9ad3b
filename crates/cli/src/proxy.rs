//! The process that makes the calls of users who do not own the pool; the service starts it.
//!
//! Invariants: it joins the session that is there, as any client of the pool's user does; when the
//! service dies, it sees to it that there is another one, as `holdfast run` does.

use crate::failure::{self, Failure};
use crate::restart::Restarts;
use crate::{session, start};
use holdfast_pmem::process;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The hidden command.
const NAME: &str = "proxy";
/// Its name among processes.
const COMM: &CStr = c"holdfast-proxy";
const ROOT: u32 = 0;
/// Where it gets connections from: its standard input.
const CONTROL: i32 = 0;

/// The proxy of a user of the pool in `directory`. Root, if it has one, is nobody there.
pub fn command(directory: &Path, user: u32) -> Command {
    // This program, also after its file was replaced.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("holdfast").arg(NAME);
    command.arg("--user").arg(user.to_string());
    command.arg("--").arg(directory);
    command
}

/// `proxy`.
pub fn proxy(pool: &Path, user: u32) -> Result<u8, Failure> {
    // Else it would be the name of the link by which it was started.
    let _ = rustix::thread::set_name(COMM);
    let failed = |e: rustix::io::Errno| Failure::io("the proxy's socket", &e.into());
    let control = process::inherited(CONTROL).map_err(failed)?;
    let attachment = start::join(pool)?;
    let memory = session::memory(&attachment)?
        .try_clone_to_owned()
        .map_err(|e| Failure::io("session memory", &e))?;
    let (directory, mut restarts) = (pool.to_path_buf(), Restarts::new());
    // Called again and again while there is no service.
    let revive = move || -> Option<OwnedFd> {
        if restarts.wait().is_none() {
            restarts.lost(&directory);
        }
        if restarts.wait().is_some_and(|wait| wait > Duration::ZERO) {
            return None;
        }
        match start::join_again(&directory, std::os::fd::AsFd::as_fd(&memory)) {
            Ok(attachment) => {
                restarts.found();
                // What else came with it we have already, and keep.
                Some(attachment.connection)
            }
            Err(failure) => {
                restarts.failed(failure);
                None
            }
        }
    };
    holdfast_proxy::serve((pool, &control), attachment, user == ROOT, revive).map_err(failed)?;
    Ok(failure::OK)
}
