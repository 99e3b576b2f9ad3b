//! Removes what a benchmark set up, however the benchmark ends.
//!
//! Invariants: the janitor is a process in a process group of its own, so that neither Ctrl-C nor a
//! kill of the benchmark reaches it; it starts when the pipe from the benchmark closes, removes the
//! newest thing first, and touches nothing but what it was told.

use crate::error::{Error, Result};
use crate::loops;
use std::fs;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// How long something busy is waited for.
const PATIENCE: Duration = Duration::from_secs(15);

/// Something to take away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thing {
    /// A directory with all that is in it; file systems mounted in it are left alone.
    Dir(PathBuf),
    /// A mounted file system.
    Mount(PathBuf),
    /// The loop devices over a file.
    Loop(PathBuf),
    /// A zram device, by its number.
    Zram(u32),
}

impl Thing {
    fn line(&self) -> String {
        match self {
            Thing::Dir(path) => format!("dir {}", path.display()),
            Thing::Mount(path) => format!("mount {}", path.display()),
            Thing::Loop(file) => format!("loop {}", file.display()),
            Thing::Zram(number) => format!("zram {number}"),
        }
    }

    fn parse(line: &str) -> Option<Thing> {
        let (word, rest) = line.split_once(' ')?;
        match word {
            "dir" => Some(Thing::Dir(rest.into())),
            "mount" => Some(Thing::Mount(rest.into())),
            "loop" => Some(Thing::Loop(rest.into())),
            "zram" => Some(Thing::Zram(rest.parse().ok()?)),
            _ => None,
        }
    }

    fn remove(&self) -> io::Result<()> {
        match self {
            Thing::Dir(path) => match remove_tree(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                done => done,
            },
            Thing::Mount(path) => unmount(path),
            Thing::Loop(file) => loops::detach(file),
            Thing::Zram(number) => remove_zram(*number),
        }
    }
}

/// The benchmark's side. Dropping it waits until everything is gone.
pub struct Janitor {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Janitor {
    /// Starts the janitor from this very program.
    pub fn start() -> Result<Janitor> {
        let exe = crate::paths::own()?;
        let mut command = Command::new(exe);
        command
            .arg(crate::JANITOR)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0);
        let mut child = command.spawn().map_err(Error::io("start the janitor"))?;
        let pipe = child.stdin.take();
        Ok(Janitor { child, pipe })
    }

    /// Notes what is to be taken away; called before it exists where that is possible.
    pub fn note(&mut self, thing: Thing) -> Result<()> {
        let line = thing.line();
        if line.contains('\n') {
            return Err(Error::Usage(
                "a path with a line break cannot be used".into(),
            ));
        }
        let pipe = self
            .pipe
            .as_mut()
            .ok_or_else(|| Error::Failed("the janitor is gone".into()))?;
        writeln!(pipe, "{line}")
            .and_then(|()| pipe.flush())
            .map_err(Error::io("tell the janitor"))
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        self.pipe = None;
        let _ = self.child.wait();
    }
}

/// The hidden command. Returns the exit status.
pub fn main() -> u8 {
    let mut things: Vec<Thing> = Vec::new();
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        match Thing::parse(&line) {
            Some(thing) => things.push(thing),
            None => eprintln!("{}: not understood: {line}", crate::JANITOR),
        }
    }
    let mut status = 0;
    for thing in things.iter().rev() {
        if let Err(error) = patiently(|| thing.remove()) {
            eprintln!("{}: {} stays: {error}", crate::JANITOR, thing.line());
            status = 1;
        }
    }
    status
}

/// Repeats what fails for a while: workers and services need a moment to end.
fn patiently(mut step: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match step() {
            Err(_) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(50)),
            done => return done,
        }
    }
}

/// Removes a directory, without entering other file systems.
fn remove_tree(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let own = fs::symlink_metadata(path)?.dev();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        if !meta.is_dir() {
            fs::remove_file(entry.path())?;
        } else if meta.dev() == own {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

fn unmount(path: &Path) -> io::Result<()> {
    use rustix::io::Errno;
    match rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()) {
        // Not mounted, or the directory is not there: it never came to be.
        Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        done => Ok(done?),
    }
}

fn remove_zram(number: u32) -> io::Result<()> {
    let device = PathBuf::from(format!("/sys/block/zram{number}"));
    if !device.exists() {
        return Ok(());
    }
    fs::write(device.join("reset"), "1")?;
    fs::write("/sys/class/zram-control/hot_remove", number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_they_said() {
        for thing in [
            Thing::Dir("/a b".into()),
            Thing::Mount("/x".into()),
            Thing::Loop("/x y".into()),
            Thing::Zram(3),
        ] {
            assert_eq!(Thing::parse(&thing.line()), Some(thing));
        }
        assert_eq!(Thing::parse("zram x"), None);
        assert_eq!(Thing::parse("all /"), None);
    }

    #[test]
    fn a_tree_is_removed_and_a_missing_one_is_no_error() {
        let dir = std::env::temp_dir().join(format!("holdfast-janitor.{}", std::process::id()));
        fs::create_dir_all(dir.join("a/b")).unwrap();
        fs::write(dir.join("a/b/c"), "x").unwrap();
        std::os::unix::fs::symlink("/", dir.join("root")).unwrap();
        assert!(Thing::Dir(dir.clone()).remove().is_ok());
        assert!(!dir.exists() && Path::new("/").exists());
        assert!(Thing::Dir(dir.clone()).remove().is_ok());
        assert!(Thing::Loop(dir.clone()).remove().is_ok());
        assert!(Thing::Mount(dir).remove().is_ok());
    }
}
