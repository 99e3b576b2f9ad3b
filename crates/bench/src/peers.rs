//! What Holdfast is compared with, and how each peer is set up.
//!
//! Invariants: all peers keep their data in memory of this machine; a peer that cannot be set up is
//! skipped by name with the reason; all are registered with the janitor before they exist.

use crate::error::{Error, Result};
use crate::janitor::{Janitor, Thing};
use crate::link::Worker;
use crate::options::Options;
use rustix::mount::{MountFlags, mount};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The peer to which all others are compared.
pub const BASE: &str = "tmpfs";
/// Holdfast in its modes, as `--consistency` names them.
pub const MODES: [&str; 3] = ["posix", "sync", "strict"];
/// Programs of users who do not own the pool.
pub const OTHERS: &str = "holdfast-users";
/// The user of whole programs, of which some want to have a name: nobody.
const USER: u32 = 65_534;
/// Bytes of each peer's storage.
const SIZE: u64 = 1 << 30;
/// How long a pool's service may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the worker of a peer is started.
#[derive(Clone, Debug)]
pub enum Launch {
    Plain,
    /// Under `holdfast run`, on this pool and in this mode.
    Holdfast {
        pool: PathBuf,
        mode: &'static str,
    },
    /// Under `holdfast run` by a user who does not own the pool, which somebody serves already.
    Users {
        pool: PathBuf,
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
    /// They keep the services running that their peers' users cannot start.
    keepers: Vec<Worker>,
    janitor: Janitor,
    /// A directory in memory.
    base: PathBuf,
    pub peers: Vec<Peer>,
    /// Name and reason.
    pub skipped: Vec<(&'static str, String)>,
}

impl Site {
    /// Sets up what the options want; peers that are not in `shown` must be asked for by name.
    pub fn new(options: &Options, shown: &[&str]) -> Result<Site> {
        let mut janitor = Janitor::start()?;
        let base = memory_directory(&mut janitor, 6 * SIZE)?;
        let wants = |name: &str| options.wants_peer(name, !shown.contains(&name));
        let mut site = Site {
            janitor,
            base,
            peers: Vec::new(),
            keepers: Vec::new(),
            skipped: Vec::new(),
        };
        site.add(BASE, |site| site.tmpfs("tmpfs", "never"))?;
        if site.peers.is_empty() {
            return Err(Error::Failed(format!(
                "tmpfs cannot be used: {}",
                site.skipped[0].1
            )));
        }
        if wants("tmpfs-again") {
            site.add("tmpfs-again", |site| site.tmpfs("again", "never"))?;
        }
        for mode in MODES {
            let name = holdfast_name(mode);
            if wants(name) {
                site.add(name, |site| site.holdfast(mode))?;
            }
        }
        if wants(OTHERS) {
            site.add(OTHERS, Site::users)?;
        }
        if wants("tmpfs-huge") {
            site.add("tmpfs-huge", |site| site.tmpfs("huge", "always"))?;
        }
        for (name, kind) in [("ext4-zram", "ext4"), ("xfs-zram", "xfs")] {
            if wants(name) && !options.quick {
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
        if !may_mount() && huge == "never" {
            fs::create_dir(&dir).map_err(Error::io(dir.display()))?;
            return Ok((dir, Launch::Plain));
        }
        need_mounts()?;
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

    /// A pool of root's, in which every user may make files.
    fn users(&mut self) -> Result<(PathBuf, Launch)> {
        check_others()?;
        let (pool, dir) = (self.pool("users")?, self.base.join("users"));
        let report = report(&pool);
        fs::File::create(&report).map_err(Error::io(report.display()))?;
        std::os::unix::fs::chown(&report, Some(USER), Some(USER))
            .map_err(Error::io(report.display()))?;
        let mut keeper = run_at(&pool, &dir)?;
        keeper.args([
            "--",
            "sh",
            "-c",
            "read -r _; chmod 1777 \"$0\"; echo ok .; cat",
        ]);
        keeper.arg(&dir);
        let mut keeper = Worker::start(keeper, self.log("keeper"), PATIENCE)?;
        keeper.ask("")?;
        self.keepers.push(keeper);
        Ok((dir, Launch::Users { pool }))
    }

    /// A new pool in memory.
    pub fn pool(&mut self, name: &str) -> Result<PathBuf> {
        let pool = self.base.join(format!("pool-{name}"));
        create_pool(&pool, SIZE)?;
        Ok(pool)
    }

    fn zram(&mut self, kind: &str) -> Result<(PathBuf, Launch)> {
        need_mounts()?;
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

impl Drop for Site {
    fn drop(&mut self) {
        // Before what the services use goes.
        for keeper in self.keepers.drain(..) {
            let _ = keeper.end();
        }
    }
}

impl Peer {
    /// The command that runs a worker of a kind.
    pub fn worker(&self, kind: &str, quick: bool) -> Result<Command> {
        let mut command = self.command(&crate::paths::own()?)?;
        command.arg(crate::WORKER).arg(kind).arg(&self.dir);
        if quick {
            command.arg("--quick");
        }
        Ok(command)
    }

    /// A program that works for this peer, in a session of its own where there is a pool.
    pub fn command(&self, program: &Path) -> Result<Command> {
        let (pool, mut command) = match &self.launch {
            Launch::Plain => return Ok(Command::new(program)),
            Launch::Holdfast { pool, mode } => (pool, run_in(pool, &self.dir, mode)?),
            Launch::Users { pool } => (pool, run_at(pool, &self.dir)?),
        };
        if let Launch::Users { .. } = self.launch {
            as_user(&mut command, USER);
        }
        command
            .arg("--report")
            .arg(report(pool))
            .arg("--")
            .arg(program);
        Ok(command)
    }

    /// Waits for the end of its session; how many calls that served, where there is a pool.
    pub fn served(&self) -> Result<Option<u64>> {
        match &self.launch {
            Launch::Plain => Ok(None),
            Launch::Holdfast { pool, .. } => served(pool, &report(pool)).map(Some),
            Launch::Users { pool } => count(&report(pool)).map(Some),
        }
    }

    /// The pool, if it has one.
    pub fn pool(&self) -> Option<&Path> {
        match &self.launch {
            Launch::Plain => None,
            Launch::Holdfast { pool, .. } | Launch::Users { pool } => Some(pool),
        }
    }

    /// Whether its user may execute a file.
    pub fn may_execute(&self, file: &Path) -> bool {
        let Launch::Users { .. } = self.launch else {
            return true;
        };
        let mut test = Command::new("test");
        quiet(as_user(test.arg("-x").arg(file), USER)).is_ok()
    }
}

/// Whether programs can be started as other users.
pub fn check_others() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        let why = "only root can start programs of other users";
        return Err(Error::Failed(why.into()));
    }
    let mut command = holdfast()?;
    quiet(as_user(command.arg("--version"), USER)).map(drop)
}

/// Makes it a command of the user, who has nothing.
pub fn as_user(command: &mut Command, user: u32) -> &mut Command {
    command
        .uid(user)
        .gid(user)
        .current_dir("/")
        .env("HOME", "/")
}

fn report(pool: &Path) -> PathBuf {
    pool.with_extension("report")
}

/// Waits until nobody uses the pool; how many calls its last session served, by its report, which
/// is removed. None is an error: then nothing of the pool was measured.
pub fn served(pool: &Path, report: &Path) -> Result<u64> {
    let start = Instant::now();
    while !crate::space::users(pool).is_empty() && start.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let counted = count(report);
    fs::remove_file(report).map_err(Error::io(report.display()))?;
    counted
}

/// How many calls were served, by a report. None is an error.
fn count(report: &Path) -> Result<u64> {
    let text = fs::read_to_string(report).map_err(Error::io(report.display()))?;
    let value: Option<serde_json::Value> = serde_json::from_str(&text).ok();
    let served = value.as_ref().and_then(|v| v["served"].as_u64());
    let unreadable = || Error::Failed(format!("an unreadable report: {text}"));
    match served.ok_or_else(unreadable)? {
        0 => Err(Error::Failed("no call reached the pool".into())),
        n => Ok(n),
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
    Ok(Command::new(crate::paths::holdfast()?))
}

/// This very program.
pub fn itself() -> Result<Command> {
    Ok(Command::new(crate::paths::own()?))
}

/// `holdfast run` on a pool, which appears at `at`; the program is still to be named.
pub fn run_in(pool: &Path, at: &Path, mode: &str) -> Result<Command> {
    let mut command = run_at(pool, at)?;
    command.args(["--consistency", mode]);
    Ok(command)
}

/// The same in the mode of the pool.
pub fn run_at(pool: &Path, at: &Path) -> Result<Command> {
    let mut command = holdfast()?;
    command
        .arg("run")
        .arg("--pool")
        .arg(pool)
        .arg("--at")
        .arg(at);
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

/// Whether this process may mount: root, but not in every container.
pub fn may_mount() -> bool {
    const SYS_ADMIN: u64 = 1 << 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let effective = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    bits.is_some_and(|bits| bits & SYS_ADMIN != 0)
}

pub fn need_mounts() -> Result<()> {
    match may_mount() {
        true => Ok(()),
        false => Err(Error::Failed("only root may mount".into())),
    }
}

/// Installs what makes the file system when it is missing and Debian has it.
pub fn have_mkfs(kind: &str) -> Result<()> {
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

/// A new directory in memory: on a tmpfs of its own of that many bytes for root, else in
/// /dev/shm.
pub fn memory_directory(janitor: &mut Janitor, bytes: u64) -> Result<PathBuf> {
    let parent = if may_mount() {
        std::env::temp_dir()
    } else {
        "/dev/shm".into()
    };
    let base = parent.join(format!("holdfast-bench.{}", std::process::id()));
    janitor.note(Thing::Dir(base.clone()))?;
    fs::create_dir(&base).map_err(Error::io(base.display()))?;
    if may_mount() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_served_nothing_is_noticed() {
        let dir = std::env::temp_dir().join(format!("holdfast-peers.{}", std::process::id()));
        let pool = dir.join("pool");
        fs::create_dir_all(&pool).unwrap();
        let plain = Peer {
            name: BASE,
            dir: dir.clone(),
            launch: Launch::Plain,
        };
        let mode = "posix";
        let peer = Peer {
            launch: Launch::Holdfast {
                pool: pool.clone(),
                mode,
            },
            ..plain.clone()
        };
        assert!(peer.served().is_err(), "there is no report");
        let write = |text: &str| fs::write(report(&pool), text).unwrap();
        write("{\"served\":0,\"passed\":9}");
        assert!(peer.served().is_err(), "everything went past the pool");
        write("not JSON");
        assert!(peer.served().is_err());
        write("{\"served\":7}");
        assert_eq!(peer.served().unwrap(), Some(7));
        assert!(peer.served().is_err(), "a report counts once");
        assert_eq!(plain.served().unwrap(), None);
        fs::remove_dir_all(&dir).unwrap();
    }
}
