//! What `bench disk` sets up in its directory, and how workers are started there.
//!
//! Invariants: everything is in one directory, which the janitor knows before it exists; a pool is
//! made once, and each round is a new session of it.

use super::device::{Under, word};
use super::rows::{FS, SUBJECT};
use crate::error::{Error, Result};
use crate::janitor::{Janitor, Thing};
use crate::link::Worker;
use crate::options::Options;
use crate::peers::{holdfast, itself, quiet, served};
use crate::worker::disk::counter::Counter;
use rustix::fs::{Advice, fadvise, syncfs};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The longest that a worker may take for one answer.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// Bytes of a pool, when there is room, beside its largest file.
const SIZE: u64 = 4 << 30;
/// Users that a database server may run as.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// A directory of files that is measured.
#[derive(Clone, Debug)]
pub struct Peer {
    pub name: &'static str,
    /// Where the worker works.
    dir: PathBuf,
    /// The pool whose files appear there, and the mode.
    pool: Option<(PathBuf, &'static str)>,
    /// Who runs the worker, if not this user.
    user: Option<User>,
}

#[derive(Clone, Copy, Debug)]
struct User {
    name: &'static str,
    group: u32,
}

pub struct Site {
    pub base: PathBuf,
    pub under: Under,
    pub counter: Counter,
    /// No device counts flushes; calls are counted in their place.
    pub traced: bool,
    pub peers: Vec<Peer>,
    quick: bool,
    large: u64,
    dense: bool,
    size: u64,
    _janitor: Janitor,
}

impl Site {
    pub fn new(options: &Options) -> Result<Site> {
        let dir = options.dir.as_ref().ok_or_else(|| {
            Error::Usage("bench disk needs a directory on the file system to measure".into())
        })?;
        if !dir.is_dir() {
            let dir = dir.display();
            return Err(Error::Usage(format!("{dir} is no directory")));
        }
        let dir = fs::canonicalize(dir).map_err(Error::io(dir.display()))?;
        let under = Under::of(&dir)?;
        let mut janitor = Janitor::start()?;
        let base = dir.join(format!("holdfast-bench.{}", std::process::id()));
        janitor.note(Thing::Dir(base.clone()))?;
        fs::create_dir(&base).map_err(Error::io(base.display()))?;
        let counter = under.counter();
        let traced = counter == Counter::Nothing && super::trace::available();
        let large = match (options.quick, options.large) {
            (true, _) => 64 << 20,
            (_, 0) => 10 << 30,
            (_, n) => n >> 20 << 20,
        };
        let mut site = Site {
            under,
            counter: match traced {
                true => Counter::Trace(base.join("calls")),
                false => counter,
            },
            traced,
            peers: Vec::new(),
            quick: options.quick,
            large,
            dense: options.dense,
            size: 0,
            base,
            _janitor: janitor,
        };
        site.size = site.pool_size()?;
        for peer in site.known() {
            let hidden = ![FS, SUBJECT].contains(&peer.name);
            if peer.name == FS || options.wants_peer(peer.name, hidden) {
                site.set_up(&peer)?;
                site.peers.push(peer);
            }
        }
        Ok(site)
    }

    fn known(&self) -> Vec<Peer> {
        let plain = |name| Peer {
            name,
            dir: self.base.join(name),
            pool: None,
            user: None,
        };
        let pool = |name: &'static str, mode| Peer {
            dir: self.base.join(format!("at-{name}")),
            pool: Some((self.base.join(format!("pool-{name}")), mode)),
            ..plain(name)
        };
        vec![
            plain(FS),
            plain("fs-again"),
            pool(SUBJECT, "posix"),
            pool("holdfast-sync", "sync"),
            pool("holdfast-strict", "strict"),
        ]
    }

    /// Bytes of a pool: a quarter of what is free where that is less.
    fn pool_size(&self) -> Result<u64> {
        let free =
            rustix::fs::statvfs(&self.base).map_err(|e| Error::Io("statvfs".into(), e.into()))?;
        let large = if self.dense { self.large } else { 0 };
        Ok((SIZE + large).min(free.f_bavail * free.f_frsize / 4) >> 20 << 20)
    }

    fn set_up(&self, peer: &Peer) -> Result<()> {
        match &peer.pool {
            None => fs::create_dir(&peer.dir).map_err(Error::io(peer.dir.display())),
            Some((pool, _)) => {
                let mut command = peer.command(&mut holdfast()?);
                command.args(["pool", "create", "--size", &self.size.to_string()]);
                quiet(command.arg(pool)).map(|_| ())
            }
        }
    }

    /// The peers of a server, in a directory that an ordinary user owns.
    pub fn server_peers(&self) -> Result<Vec<Peer>> {
        let home = self.base.join("server");
        let user = match rustix::process::geteuid().is_root() {
            true => Some(ordinary_user()?),
            false => None,
        };
        let there = home.exists();
        if !there {
            fs::create_dir(&home).map_err(Error::io(home.display()))?;
        }
        if let (Some(user), false) = (user, there) {
            quiet(Command::new("chown").arg(user.name).arg(&home))?;
            let own = holdfast()?;
            let mut reach = Command::new("setpriv");
            as_user(&mut reach, user)
                .args(["test", "-x"])
                .arg(own.get_program());
            let reached = quiet(reach.args(["-a", "-w"]).arg(&home));
            reached.map_err(|_| {
                Error::Failed({
                    let (name, home) = (user.name, home.display());
                    format!("{name} cannot reach this program and {home}")
                })
            })?;
        }
        let mut peers = Vec::new();
        for mut peer in self.peers.iter().cloned() {
            peer.user = user;
            peer.dir = home.join(peer.dir.file_name().unwrap_or_default());
            if let Some((pool, _)) = &mut peer.pool {
                *pool = home.join(pool.file_name().unwrap_or_default());
            }
            if !there {
                self.set_up(&peer)?;
                if let (Some(user), None) = (user, &peer.pool) {
                    quiet(Command::new("chown").arg(user.name).arg(&peer.dir))?;
                }
            }
            peers.push(peer);
        }
        Ok(peers)
    }

    /// A worker of a kind.
    pub fn start(&self, peer: &Peer, kind: &str) -> Result<Worker> {
        let mut own = itself()?;
        let mut command = match &peer.pool {
            None => peer.command(&mut own),
            Some(_) => peer.command(&mut holdfast()?),
        };
        if let Some((pool, mode)) = &peer.pool {
            command
                .arg("run")
                .arg("--pool")
                .arg(pool)
                .arg("--at")
                .arg(&peer.dir);
            command.arg("--report").arg(peer.report());
            command
                .args(["--consistency", mode, "--"])
                .arg(own.get_program());
        }
        command.args([crate::WORKER, kind]).arg(&peer.dir);
        command.args(["--flushes", &word(&self.counter)]);
        command.args(["--large", &self.large.to_string()]);
        command.args(self.quick.then_some("--quick"));
        command.args(self.dense.then_some("--dense"));
        let log = self.base.join(format!("{}-{kind}.log", peer.name));
        Worker::start(command, log, PATIENCE)
    }

    /// Writes out what earlier work left, so that nobody else pays for it.
    pub fn settle(&self) -> Result<()> {
        let dir = fs::File::open(&self.base).map_err(Error::io(self.base.display()))?;
        syncfs(&dir).map_err(|e| Error::Io("syncfs".into(), e.into()))?;
        std::thread::sleep(Duration::from_millis(20));
        Ok(())
    }

    /// Drops what is cached of a peer that has no worker.
    pub fn drop_cache(&self, peer: &Peer) -> Result<()> {
        self.settle()?;
        match &peer.pool {
            Some((pool, _)) => drop_cache(pool),
            None => drop_cache(&peer.dir),
        }
    }
}

impl Peer {
    /// What starts this program for the peer: the program, or something that changes the user.
    fn command(&self, own: &mut Command) -> Command {
        let Some(user) = self.user else {
            return Command::new(own.get_program());
        };
        let mut command = Command::new("setpriv");
        as_user(&mut command, user).arg(own.get_program());
        command.env_remove("XDG_RUNTIME_DIR").env("HOME", "/");
        command.current_dir("/");
        command
    }

    fn report(&self) -> PathBuf {
        let pool = self.pool.as_ref().map_or(&self.dir, |(pool, _)| pool);
        pool.with_extension("report")
    }

    /// Waits for the end of the session; how many calls it served, where there is a pool.
    pub fn served(&self) -> Result<Option<u64>> {
        let Some((pool, _)) = &self.pool else {
            return Ok(None);
        };
        served(pool, &self.report()).map(Some)
    }

    /// Where processes that work for the peer have files mapped.
    pub fn pool(&self) -> Option<&Path> {
        self.pool.as_ref().map(|(pool, _)| pool.as_path())
    }
}

fn as_user(setpriv: &mut Command, user: User) -> &mut Command {
    setpriv.arg(format!("--reuid={}", user.name));
    setpriv.arg(format!("--regid={}", user.group));
    setpriv.args(["--init-groups", "--"])
}

fn ordinary_user() -> Result<User> {
    let text = fs::read_to_string("/etc/passwd").map_err(Error::io("/etc/passwd"))?;
    let found = USERS.into_iter().find_map(|name| {
        let line = text
            .lines()
            .find(|line| line.split(':').next() == Some(name))?;
        let group = line.split(':').nth(3)?.parse().ok()?;
        Some(User { name, group })
    });
    found.ok_or_else(|| Error::Failed("there is no user postgres or nobody".into()))
}

fn drop_cache(path: &Path) -> Result<()> {
    let meta = fs::symlink_metadata(path).map_err(Error::io(path.display()))?;
    if meta.is_dir() {
        for entry in fs::read_dir(path).map_err(Error::io(path.display()))? {
            drop_cache(&entry.map_err(Error::io(path.display()))?.path())?;
        }
    } else if meta.is_file() {
        let file = fs::File::open(path).map_err(Error::io(path.display()))?;
        fadvise(&file, 0, None, Advice::DontNeed)
            .map_err(|e| Error::Io("posix_fadvise".into(), e.into()))?;
    }
    Ok(())
}
