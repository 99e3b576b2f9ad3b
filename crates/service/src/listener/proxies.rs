//! Proxies: processes that make the calls of users who do not own the pool, one for each user.
//!
//! Invariants: nothing is received from such a user here; a connection goes to the proxy as it
//! came, and with the proxy it stays. A proxy outlives its service, as all programs on the pool do,
//! and ends by itself.

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, IoSlice};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

const ROOT: u32 = 0;
/// Users at a time.
const USERS_MAX: usize = 64;

/// The command that is the proxy of one user of the pool in a directory; `true`: of root, who is
/// nobody there. Its standard input is a socket by which it gets connections.
pub type Launcher = fn(&Path, bool) -> Command;

#[derive(Debug)]
struct Proxy {
    child: Child,
    control: OwnedFd,
}

/// The proxies of a service.
#[derive(Debug)]
pub struct Proxies {
    launcher: Option<Launcher>,
    directory: PathBuf,
    running: Mutex<HashMap<u32, Proxy>>,
}

impl Proxies {
    /// Those of the pool in `directory`; without a launcher nobody is served.
    pub fn new(launcher: Option<Launcher>, directory: &Path) -> Proxies {
        Proxies {
            launcher,
            directory: directory.into(),
            running: Mutex::default(),
        }
    }

    /// Hands a connection of `user` to that user's proxy, which is started if there is none; or
    /// says why not.
    pub fn hand(&self, user: u32, socket: &OwnedFd) -> Result<(), String> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(proxy) = running.get(&user) {
            match send(&proxy.control, socket) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => return Err("too many of your programs begin at once".into()),
                // It has ended, or is about to.
                Err(_) => drop(running.remove(&user).map(reap)),
            }
        }
        if running.len() >= USERS_MAX {
            return Err(format!("{USERS_MAX} other users are on the pool"));
        }
        let proxy = self.launch(user == ROOT)?;
        send(&proxy.control, socket).map_err(|e| format!("your proxy takes nothing: {e}"))?;
        running.insert(user, proxy);
        Ok(())
    }

    fn launch(&self, squash: bool) -> Result<Proxy, String> {
        let launcher = self.launcher.ok_or("the pool is its owner's alone")?;
        let flags = SocketFlags::CLOEXEC;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (control, theirs) = pair.map_err(|e| format!("a proxy cannot be had: {e}"))?;
        let mut command = launcher(&self.directory, squash);
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null());
        let child = command
            .spawn()
            .map_err(|e| format!("a proxy cannot be started: {e}"))?;
        Ok(Proxy { child, control })
    }

    /// Proxies that have ended are waited for.
    pub fn tend(&self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|user, proxy| match proxy.child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                if !status.success() {
                    tracing::error!("the proxy of user {user} ended with {status}");
                }
                false
            }
            Err(_) => false,
        });
    }
}

/// It has closed its end: waiting for it takes no time to speak of.
fn reap(mut proxy: Proxy) {
    let _ = proxy.child.wait();
}

fn send(control: &OwnedFd, socket: &OwnedFd) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [socket.as_fd()];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(control, &[IoSlice::new(&[0])], &mut ancillary, flags).map(drop)
}
