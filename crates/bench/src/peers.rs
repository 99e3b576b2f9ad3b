//! What Holdfast is compared with, and how each peer is set up.
//!
//! Invariants: all peers keep their data in memory of this machine; a peer that cannot be set up is
//! skipped by name with the reason; all are registered with the janitor before they exist.

use crate::error::{Error, Result};
use crate::janitor::{Janitor, Thing};
use crate::options::Options;
use rustix::mount::{MountFlags, mount};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The peer to which all others are compared.
pub const BASE: &str = "tmpfs";
/// Holdfast in its modes, as `--consistency` names them.
pub const MODES: [&str; 3] = ["posix", "sync", "strict"];
/// Bytes of each peer's storage.
const SIZE: u64 = 1 << 30;

/// How the worker of a peer is started.
#[derive(Clone, Debug)]
pub enum Launch {
    Plain,
    /// Under `holdfast run`, on this pool and in this mode.
    Holdfast {
        pool: PathBuf,
        mode: &'static str,
    },
}

/// Something that is measured.
#[derive(Clone, Debug)]
pub struct Peer {
    pub name: &'static str,
    /// Where the worker works.
    pub dir: PathBuf,
    pub launch: Launch,
}

/// All that was set up.
pub struct Site {
    janitor: Janitor,
    /// A directory in memory.
    base: PathBuf,
    pub peers: Vec<Peer>,
    /// Name and reason.
    pub skipped: Vec<(&'static str, String)>,
}

impl Site {
    /// Sets up what the options want.
    pub fn new(options: &Options) -> Result<Site> {
        let mut janitor = Janitor::start()?;
        let base = memory_directory(&mut janitor, 6 * SIZE)?;
        let mut site = Site {
            janitor,
            base,
            peers: Vec::new(),
            skipped: Vec::new(),
        };
        site.add(BASE, |site| site.tmpfs("tmpfs", "never"))?;
        if site.peers.is_empty() {
            return Err(Error::Failed(format!(
                "tmpfs cannot be used: {}",
                site.skipped[0].1
            )));
        }
        if options.wants_peer("tmpfs-again", true) {
            site.add("tmpfs-again", |site| site.tmpfs("again", "never"))?;
        }
        for mode in MODES {
            let name = holdfast_name(mode);
            if options.wants_peer(name, false) {
                site.add(name, |site| site.holdfast(mode))?;
            }
        }
        if options.wants_peer("tmpfs-huge", false) {
            site.add("tmpfs-huge", |site| site.tmpfs("huge", "always"))?;
        }
        for (name, kind) in [("ext4-zram", "ext4"), ("xfs-zram", "xfs")] {
            if options.wants_peer(name, false) && !options.quick {
                site.add(name, |site| site.zram(kind))?;
            }
        }
        Ok(site)
    }

    fn add(
        &mut self,
        name: &'static str,
        set_up: impl FnOnce(&mut Site) -> Result<(PathBuf, Launch)>,
    ) -> Result<()> {
        match set_up(self) {
            Ok((dir, launch)) => self.peers.push(Peer { name, dir, launch }),
            Err(error) => self.skipped.push((name, error.to_string())),
        }
        Ok(())
    }

    /// A directory of this site for the output of a worker.
    pub fn log(&self, name: &str) -> PathBuf {
        self.base.join(format!("{name}.log"))
    }

    fn tmpfs(&mut self, name: &str, huge: &str) -> Result<(PathBuf, Launch)> {
        let dir = self.base.join(name);
        if !root() && huge == "never" {
            fs::create_dir(&dir).map_err(Error::io(dir.display()))?;
            return Ok((dir, Launch::Plain));
        }
        need_root()?;
        self.mounted(&dir, "tmpfs", "tmpfs", &format!("size={SIZE},huge={huge}"))?;
        Ok((dir, Launch::Plain))
    }

    fn mounted(&mut self, dir: &Path, what: &str, kind: &str, data: &str) -> Result<()> {
        fs::create_dir(dir).map_err(Error::io(dir.display()))?;
        self.janitor.note(Thing::Mount(dir.to_owned()))?;
        let data = std::ffi::CString::new(data).unwrap_or_default();
        mount(what, dir, kind, MountFlags::empty(), data.as_c_str())
            .map_err(|e| Error::Io(format!("mount {kind}"), e.into()))
    }

    fn holdfast(&mut self, mode: &'static str) -> Result<(PathBuf, Launch)> {
        let pool = self.pool(mode)?;
        Ok((self.base.join("hf"), Launch::Holdfast { pool, mode }))
    }

    /// A new pool in memory.
    pub fn pool(&mut self, name: &str) -> Result<PathBuf> {
        let pool = self.base.join(format!("pool-{name}"));
        create_pool(&pool, SIZE)?;
        Ok(pool)
    }

    fn zram(&mut self, kind: &str) -> Result<(PathBuf, Launch)> {
        need_root()?;
        let control = Path::new("/sys/class/zram-control/hot_add");
        if !control.exists() {
            return Err(Error::Failed("this kernel offers no zram".into()));
        }
        have_mkfs(kind)?;
        let number = fs::read_to_string(control).map_err(Error::io("add a zram device"))?;
        let number = number
            .trim()
            .parse()
            .map_err(|_| Error::Failed("odd zram number".into()))?;
        self.janitor.note(Thing::Zram(number))?;
        let size = PathBuf::from(format!("/sys/block/zram{number}/disksize"));
        fs::write(&size, SIZE.to_string()).map_err(Error::io("size a zram device"))?;
        let device = format!("/dev/zram{number}");
        let force = if kind == "xfs" { "-f" } else { "-F" };
        quiet(Command::new(format!("mkfs.{kind}")).args(["-q", force, &device]))?;
        let dir = self.base.join(kind);
        self.mounted(&dir, &device, kind, "")?;
        Ok((dir, Launch::Plain))
    }
}

impl Peer {
    /// The command that runs a worker of this peer.
    pub fn worker(&self, quick: bool) -> Result<Command> {
        let mut command = match &self.launch {
            Launch::Plain => itself()?,
            Launch::Holdfast { pool, mode } => run_in(pool, &self.dir, mode)?,
        };
        command.arg(crate::WORKER).arg("files").arg(&self.dir);
        if quick {
            command.arg("--quick");
        }
        Ok(command)
    }
}

/// The name of Holdfast in a mode.
pub fn holdfast_name(mode: &str) -> &'static str {
    match mode {
        "posix" => "holdfast-posix",
        "sync" => "holdfast-sync",
        _ => "holdfast-strict",
    }
}

/// The `holdfast` that is measured.
pub fn holdfast() -> Result<Command> {
    Ok(Command::new(crate::programs::holdfast()?))
}

/// This very program.
pub fn itself() -> Result<Command> {
    Ok(Command::new(crate::programs::own()?))
}

/// This very program, run by `holdfast` on a pool, which appears at `at`.
pub fn run_in(pool: &Path, at: &Path, mode: &str) -> Result<Command> {
    let mut command = holdfast()?;
    command.arg("run").arg("--pool").arg(pool);
    command
        .arg("--at")
        .arg(at)
        .args(["--consistency", mode, "--"]);
    command.arg(crate::programs::own()?);
    Ok(command)
}

/// Makes a pool in memory.
pub fn create_pool(pool: &Path, bytes: u64) -> Result<()> {
    let mut command = holdfast()?;
    command.args(["pool", "create", "--medium", "memory", "--size"]);
    quiet(command.arg(bytes.to_string()).arg(pool)).map(|_| ())
}

/// Runs a command to its end; its error output is the reason when it fails.
pub fn quiet(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command
        .stdin(Stdio::null())
        .output()
        .map_err(Error::io(&name))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&done.stderr).replace('\n', " ");
    Err(Error::Failed(format!(
        "{name} failed ({}): {}",
        done.status,
        text.trim()
    )))
}

fn root() -> bool {
    rustix::process::geteuid().is_root()
}

fn need_root() -> Result<()> {
    if root() {
        Ok(())
    } else {
        Err(Error::Failed("only root may mount".into()))
    }
}

/// Installs what makes the file system when it is missing and Debian has it.
fn have_mkfs(kind: &str) -> Result<()> {
    let there = || {
        let dirs = ["/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"];
        dirs.iter()
            .any(|dir| Path::new(dir).join(format!("mkfs.{kind}")).exists())
    };
    if there() {
        return Ok(());
    }
    let package = if kind == "xfs" {
        "xfsprogs"
    } else {
        "e2fsprogs"
    };
    let mut apt = Command::new("apt-get");
    apt.args(["install", "-y", "-q", "--no-install-recommends", package]);
    quiet(apt.env("DEBIAN_FRONTEND", "noninteractive"))?;
    if there() {
        Ok(())
    } else {
        Err(Error::Failed(format!("mkfs.{kind} is not installed")))
    }
}

/// A new directory in memory: on a tmpfs of its own of that many bytes for root, else in /dev/shm.
pub fn memory_directory(janitor: &mut Janitor, bytes: u64) -> Result<PathBuf> {
    let parent = if root() {
        std::env::temp_dir()
    } else {
        "/dev/shm".into()
    };
    let base = parent.join(format!("holdfast-bench.{}", std::process::id()));
    janitor.note(Thing::Dir(base.clone()))?;
    fs::create_dir(&base).map_err(Error::io(base.display()))?;
    if root() {
        janitor.note(Thing::Mount(base.clone()))?;
        let size = std::ffi::CString::new(format!("size={bytes},huge=never"));
        let size = size.unwrap_or_default();
        mount(
            "tmpfs",
            &base,
            "tmpfs",
            MountFlags::empty(),
            size.as_c_str(),
        )
        .map_err(|e| Error::Io("mount tmpfs".into(), e.into()))?;
    }
    Ok(base)
}
