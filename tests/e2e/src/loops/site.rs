//! A pool whose volumes are exported, and what stands on them.
//!
//! Invariant: when it ends, nothing is left of it: no process, no mount, no loop device.

use crate::bad_input::{Fixture, Stop, wrong};
use crate::process;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);

pub struct Site<'a> {
    pub fixture: &'a Fixture,
    pub pool: String,
}

/// An export that runs.
pub struct Export {
    child: Child,
    /// What it said on standard error.
    said: PathBuf,
}

impl<'a> Site<'a> {
    /// A pool of `size`, if there can be loop devices and FUSE here.
    pub fn new(fixture: &'a Fixture, size: &str, tools: &[&str]) -> Result<Site<'a>, Stop> {
        fixture.need_root()?;
        if let Some(tool) = tools.iter().find(|tool| !process::on_path(tool)) {
            return Err(Stop::Skip(format!("needs {tool}")));
        }
        for device in ["/dev/fuse", "/dev/loop-control"] {
            if File::options().read(true).write(true).open(device).is_err() {
                return Err(Stop::Skip(format!("cannot use {device}")));
            }
        }
        let pool = fixture.path("pool").to_string_lossy().into_owned();
        fixture.done(&["pool", "create", &pool, "--size", size])?;
        Ok(Site { fixture, pool })
    }

    pub fn create(&self, volume: &str, size: &str, sector: &str) -> Result<(), Stop> {
        let words = ["volume", &self.pool, "create", volume, "--size", size];
        let words = [words.as_slice(), &["--sector", sector]].concat();
        self.fixture.done(&words).map(drop)
    }

    /// `holdfast export POOL WORDS...`, once it says that it is ready.
    pub fn export(&self, words: &[&str]) -> Result<Export, Stop> {
        let (ready, said) = (self.fixture.path("ready"), self.fixture.path("said"));
        let mut command = Command::new(&self.fixture.holdfast);
        process::clean(&mut command, &self.fixture.dir);
        command.current_dir(&self.fixture.dir);
        command.args(["export", &self.pool]).args(words);
        command.stdout(File::create(&ready)?);
        command.stderr(File::create(&said)?);
        let mut export = Export {
            child: command.spawn()?,
            said,
        };
        let end = Instant::now() + LIMIT;
        while !std::fs::read_to_string(&ready)?.ends_with('\n') {
            let ended = export.child.try_wait()?;
            if ended.is_some() || Instant::now() > end {
                return wrong(format!("no export: {ended:?} {}", export.said()?));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(export)
    }

    /// A script in the site's directory, with `$hf`, `$pool` and what `PRELUDE` has, where the
    /// first failure ends it; its standard output.
    pub fn bash(&self, text: &str) -> Result<String, Stop> {
        let mut command = Command::new("env");
        command.arg(format!("hf={}", self.fixture.holdfast.display()));
        command.arg(format!("pool={}", self.pool));
        command.args(["bash", "-euo", "pipefail", "-c"]);
        let ended = self
            .fixture
            .end_of(arg(command, &format!("{PRELUDE}\n{text}")))?;
        match ended.code() {
            Some(0) => Ok(ended.out),
            _ => wrong(format!("{}: {}", ended.how(), ended.tail().join("; "))),
        }
    }

    /// Everything that is mounted in the site's directory, the last one first.
    fn mounts(&self) -> Vec<PathBuf> {
        let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let points = table.lines().filter_map(|line| line.split(' ').nth(1));
        let mine = points.map(PathBuf::from);
        let mine = mine.filter(|point| point.starts_with(&self.fixture.dir));
        mine.collect::<Vec<_>>().into_iter().rev().collect()
    }
}

fn arg(mut command: Command, word: &str) -> Command {
    command.arg(word);
    command
}

/// `attach FILE [OPTIONS...]` prints a loop device over FILE.
const PRELUDE: &str = r#"
attach() { losetup --find --show --direct-io=on "${@:2}" "$1"; }
files() { python3 "$PWD/files.py" "$@"; }
blocks() { stat --printf %b "$1"; }
"#;

impl Drop for Site<'_> {
    fn drop(&mut self) {
        let dir = self.fixture.dir.to_string_lossy().into_owned();
        let quiet = |name: &str, args: &[&str]| {
            let ended = Command::new(name).args(args).output();
            ended.map_or(String::new(), |e| {
                String::from_utf8_lossy(&e.stdout).into_owned()
            })
        };
        let loops = quiet(
            "losetup",
            &["--list", "--noheadings", "-O", "NAME,BACK-FILE"],
        );
        // Nothing is found by its path any more behind this.
        for point in self.mounts() {
            quiet("umount", &["--lazy", &point.to_string_lossy()]);
        }
        for line in loops.lines().filter(|line| line.contains(&dir)) {
            let name = line.split_whitespace().next().unwrap_or_default();
            quiet("losetup", &["--detach", name]);
        }
    }
}

impl Export {
    pub fn said(&self) -> Result<String, Stop> {
        let mut text = String::new();
        File::open(&self.said)?.read_to_string(&mut text)?;
        Ok(text)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL.
    pub fn kill(mut self) -> Result<(), Stop> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    pub fn signal(&self) -> Result<(), Stop> {
        let pid = rustix::process::Pid::from_child(&self.child);
        let sent = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        sent.map_err(|e| Stop::Wrong(e.to_string()))
    }

    /// Its exit status, once it has ended.
    pub fn ended(&mut self) -> Result<Option<i32>, Stop> {
        let Some(status) = process::wait(&mut self.child, LIMIT)? else {
            return wrong("the export does not end");
        };
        Ok(status.code())
    }

    /// SIGTERM, after which it ends without a complaint, and a file that it made is gone.
    pub fn end(mut self, file: &Path) -> Result<(), Stop> {
        self.signal()?;
        let code = self.ended()?;
        let said = self.said()?;
        match code == Some(0) && said.is_empty() && !file.exists() {
            true => Ok(()),
            false => wrong(format!("the end of an export: {code:?}, {said:?}")),
        }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
