//! The scripts as a user who does not own the pool: the pool's service runs as root, and what
//! nobody but its owner has is left out.

use crate::process;
use crate::users::as_user;
use std::io;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Who runs the scripts.
const USER: &str = "3009";
const NUMBER: u32 = 3009;

/// Why nobody can be another user here.
pub fn impossible() -> Option<&'static str> {
    let is_root = rustix::process::geteuid().is_root();
    (!is_root).then_some("only root can be another user")
}

/// A command of the user.
pub fn command(program: &Path) -> Command {
    let mut command = as_user(USER);
    command.arg(program);
    command
}

/// What the user's sockets leave behind goes.
pub fn clean_up() {
    let _ = std::fs::remove_dir_all(format!("/tmp/.holdfast-{USER}"));
}

/// The user owns a file of the host.
pub fn give(path: &Path) -> io::Result<()> {
    chown(path, Some(NUMBER), Some(NUMBER))
}

/// A service of a pool whose root directory is the user's; it runs until the value is dropped.
pub struct Service(Child);

impl Service {
    pub fn start(holdfast: &Path, pool: &Path, dir: &Path) -> io::Result<Service> {
        let mut give = Command::new(holdfast);
        process::clean(&mut give, dir);
        give.args(["run", "--pool"]).arg(pool);
        give.args(["--", "chown", &format!("{USER}:{USER}"), "/hf"]);
        let given = process::run(&mut give, Duration::from_secs(60), dir)?;
        if given.code() != Some(0) {
            return Err(io::Error::other(given.err));
        }
        let mut serve = Command::new(holdfast);
        process::clean(&mut serve, dir);
        serve.arg("serve").arg(pool).stderr(Stdio::null());
        let service = Service(serve.spawn()?);
        for _ in 0..1000 {
            if pool.join("sock").exists() {
                return Ok(service);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(io::Error::other("no service within 10 s"))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}
