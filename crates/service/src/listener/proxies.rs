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
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Users at a time.
const USERS_MAX: usize = 64;

/// The command that is the proxy of a user of the pool in a directory; root is nobody there. Its
/// standard input is a socket by which it gets connections.
pub type Launcher = fn(&Path, u32) -> Command;

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
    /// Those that take no more connections: they end when those they have do.
    ending: Mutex<Vec<Child>>,
}

impl Proxies {
    /// Those of the pool in `directory`; without a launcher nobody is served.
    pub fn new(launcher: Option<Launcher>, directory: &Path) -> Proxies {
        Proxies {
            launcher,
            directory: directory.into(),
            running: Mutex::default(),
            ending: Mutex::default(),
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
                Err(_) => self
                    .ending()
                    .extend(running.remove(&user).map(|proxy| proxy.child)),
            }
        }
        if running.len() >= USERS_MAX {
            return Err(format!("{USERS_MAX} other users are on the pool"));
        }
        let proxy = self.launch(user)?;
        send(&proxy.control, socket).map_err(|e| format!("your proxy takes nothing: {e}"))?;
        running.insert(user, proxy);
        Ok(())
    }

    fn launch(&self, user: u32) -> Result<Proxy, String> {
        let launcher = self.launcher.ok_or("the pool is its owner's alone")?;
        let flags = SocketFlags::CLOEXEC;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (control, theirs) = pair.map_err(|e| format!("a proxy cannot be had: {e}"))?;
        let mut command = launcher(&self.directory, user);
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null());
        let child = command
            .spawn()
            .map_err(|e| format!("a proxy cannot be started: {e}"))?;
        Ok(Proxy { child, control })
    }

    /// Proxies that have ended are waited for; how many users have one.
    pub fn tend(&self) -> usize {
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
        self.ending()
            .retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        running.len()
    }

    fn ending(&self) -> MutexGuard<'_, Vec<Child>> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Soon takes no connection any more, and stays.
    fn stays(_: &Path, _: u32) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 0.2; exec sleep 60 <&-"]);
        command
    }

    fn socket() -> OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .unwrap()
            .0
    }

    /// The listener waits for no proxy, however long one that takes no more connections lives.
    #[test]
    fn one_that_takes_no_more_is_replaced_at_once() {
        let proxies = Proxies::new(Some(stays), Path::new("/"));
        let begun = Instant::now();
        while proxies.ending().len() < 2 {
            proxies.hand(7, &socket()).unwrap();
            proxies.tend();
            std::thread::sleep(Duration::from_millis(5));
            assert!(begun.elapsed() < Duration::from_secs(20));
        }
        for child in proxies.ending().iter_mut() {
            assert!(matches!(child.try_wait(), Ok(None)));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        for proxy in proxies.running.lock().unwrap().values_mut() {
            proxy.child.kill().unwrap();
            proxy.child.wait().unwrap();
        }
    }

    #[test]
    fn without_a_launcher_the_pool_is_its_owners() {
        let proxies = Proxies::new(None, Path::new("/"));
        assert!(proxies.hand(7, &socket()).is_err());
    }
}
