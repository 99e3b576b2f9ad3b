//! Block servers of today, and the same protocol in front of a volume, asked by fio.
//!
//! Invariant: a server ends with the benchmark.

use super::SIZE;
use super::peers::{self, Disk};
use super::rows::Plan;
use crate::error::{Error, Result};
use crate::peers::{holdfast, quiet};
use holdfast::{Pool, Sector};
use serde_json::Value;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const NAMES: &[&str] = &["nbdkit-memory", "qemu-nbd", "holdfast-nbd"];
const PATIENCE: Duration = Duration::from_secs(20);
const NAP: Duration = Duration::from_millis(10);

/// A server, and where it listens.
pub struct Server {
    child: Child,
    socket: PathBuf,
}

/// Starts the server of this name.
pub fn start(name: &str, base: &Path) -> Result<Server> {
    quiet(Command::new("fio").arg("--version"))?;
    let socket = base.join(format!("{name}.sock"));
    let mut command = match name {
        "nbdkit-memory" => {
            let mut nbdkit = Command::new("nbdkit");
            nbdkit.args(["--foreground", "--unix"]).arg(&socket);
            nbdkit.args(["memory", &SIZE.to_string()]);
            nbdkit
        }
        "qemu-nbd" => {
            let file = base.join("qemu-nbd");
            let made = File::create(&file).and_then(|file| file.set_len(SIZE));
            made.map_err(Error::io(file.display()))?;
            let mut qemu = Command::new("qemu-nbd");
            qemu.args(["--format=raw", "--persistent", "--shared=8", "--socket"])
                .arg(&socket);
            qemu.arg(file);
            qemu
        }
        _ => {
            let pool = peers::pool(base)?;
            let open = Pool::open(&pool).map_err(peers::failed)?;
            open.volume_create(name, SIZE, Sector::Large)
                .map_err(peers::failed)?;
            let mut export = holdfast()?;
            export.arg("export").arg(pool).args([name, "--nbd"]);
            export.arg(format!("unix:{}", socket.display()));
            export
        }
    };
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = command.spawn().map_err(Error::io(name))?;
    let mut server = Server { child, socket };
    server.wait()?;
    let everything = Plan::everything();
    server.ask(&everything, everything.requests(false))?;
    Ok(server)
}

impl Server {
    /// Until it listens.
    fn wait(&mut self) -> Result<()> {
        let begun = Instant::now();
        while UnixStream::connect(&self.socket).is_err() {
            let ended = self.child.try_wait().map_err(Error::io("the server"))?;
            if ended.is_some() || begun.elapsed() > PATIENCE {
                return Err(Error::Failed("the server does not listen".into()));
            }
            std::thread::sleep(NAP);
        }
        Ok(())
    }

    /// Has fio make so many requests; the time of one, in ns.
    fn ask(&self, plan: &Plan, requests: usize) -> Result<f64> {
        let what = match (plan.random, plan.writes) {
            (true, true) => "randwrite",
            (true, false) => "randread",
            (false, true) => "write",
            (false, false) => "read",
        };
        let mut fio = Command::new("fio");
        fio.args(["--name=block", "--ioengine=nbd", "--output-format=json"]);
        fio.arg(format!(
            "--uri=nbd+unix:///?socket={}",
            self.socket.display()
        ));
        fio.arg(format!("--rw={what}"))
            .arg(format!("--bs={}", plan.bytes));
        fio.arg(format!("--iodepth={}", plan.depth));
        if plan.flush_every > 0 {
            fio.arg(format!("--fsync={}", plan.flush_every));
        }
        fio.arg(format!("--size={SIZE}"));
        fio.arg(format!("--number_ios={requests}"));
        let said = quiet(&mut fio)?;
        let way = if plan.writes { "write" } else { "read" };
        // It says where it is connected first.
        let json = said
            .find('{')
            .and_then(|at| said.get(at..))
            .unwrap_or_default();
        let said: Option<Value> = serde_json::from_str(json).ok();
        let rate = said.and_then(|said| said["jobs"][0][way]["iops"].as_f64());
        match rate.filter(|rate| *rate > 0.0) {
            Some(rate) => Ok(1e9 / rate),
            None => Err(Error::Failed("fio said no rate".into())),
        }
    }
}

impl Disk for Server {
    fn time(&self, plan: &Plan, quick: bool) -> Result<f64> {
        // A request takes as long as ten in this process.
        self.ask(plan, (plan.requests(quick) / 4).max(1))
    }

    /// That they keep what they are given is what tests are for.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            // If it has ended already, nothing is to be done.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}
