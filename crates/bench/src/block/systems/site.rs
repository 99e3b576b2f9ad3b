//! The file systems of `bench block --macro`.
//!
//! Invariant: the janitor takes away what is here, the newest first, and an export ends when its
//! file is unmounted; nothing here is taken away by its own drop.

use crate::block::{SUBJECT, peers};
use crate::error::{Error, Result};
use crate::janitor::{Janitor, Thing};
use crate::loops;
use crate::peers::{have_mkfs, holdfast, need_mounts, quiet};
use holdfast::{Pool, Sector};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const TMPFS: &str = "tmpfs";
pub const LOOP: &str = "ext4-loop";
pub const NAMES: &[&str] = &[TMPFS, LOOP, SUBJECT];
/// Bytes of each file system.
pub const SIZE: u64 = 1 << 30;
const PATIENCE: Duration = Duration::from_secs(15);
const NAP: Duration = Duration::from_millis(5);

/// A file system.
pub struct Place {
    pub name: &'static str,
    pub dir: PathBuf,
    device: Option<PathBuf>,
}

/// `holdfast export`, which outlives the places.
pub struct Export(Child);

impl Drop for Export {
    fn drop(&mut self) {
        // It has ended by itself unless it failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes the file system of this name.
pub fn make(
    name: &'static str,
    base: &Path,
    janitor: &mut Janitor,
    exports: &mut Vec<Export>,
) -> Result<Place> {
    let dir = base.join(name);
    fs::create_dir(&dir).map_err(Error::io(dir.display()))?;
    if name == TMPFS {
        let device = None;
        return Ok(Place { name, dir, device });
    }
    need_mounts()?;
    have_mkfs("ext4")?;
    let disk = base.join(format!("disk-{name}"));
    match name {
        LOOP => {
            let made = File::create(&disk).and_then(|file| file.set_len(SIZE));
            made.map_err(Error::io(disk.display()))?;
        }
        _ => exports.push(export(base, &disk, janitor)?),
    }
    let device = loops::attach(janitor, &disk)?;
    // The kernel would initialize the rest later, while something is timed.
    let at_once = "lazy_itable_init=0,lazy_journal_init=0";
    let mut mkfs = Command::new("mkfs.ext4");
    quiet(mkfs.args(["-q", "-F", "-E", at_once]).arg(&device))?;
    janitor.note(Thing::Mount(dir.clone()))?;
    let place = Place {
        name,
        dir,
        device: Some(device),
    };
    place.mount()?;
    Ok(place)
}

/// Shows a new volume as a file.
fn export(base: &Path, file: &Path, janitor: &mut Janitor) -> Result<Export> {
    let pool = base.join("pool");
    crate::peers::create_pool(&pool, SIZE + SIZE / 2)?;
    let open = Pool::open(&pool).map_err(peers::failed)?;
    let made = open.volume_create("disk", SIZE, Sector::Small);
    made.map_err(peers::failed)?;
    drop(open);
    janitor.note(Thing::Mount(file.to_owned()))?;
    let mut command = holdfast()?;
    command
        .arg("export")
        .arg(&pool)
        .args(["disk", "--fuse"])
        .arg(file);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(Error::io("holdfast export"))?;
    let said = child.stdout.take();
    let export = Export(child);
    let mut line = String::new();
    if let Some(said) = said {
        let read = BufReader::new(said).read_line(&mut line);
        read.map_err(Error::io("holdfast export"))?;
    }
    match line.is_empty() {
        true => Err(Error::Failed("the export ended".into())),
        false => Ok(export),
    }
}

impl Place {
    fn mount(&self) -> Result<()> {
        let Some(device) = &self.device else {
            return Ok(());
        };
        mount(device, &self.dir, "ext4", MountFlags::empty(), None)
            .map_err(|error| Error::Io("mount ext4".into(), error.into()))
    }

    /// Mounts it again, so that nothing of it is in memory, but for what tmpfs keeps there.
    pub fn forget(&self) -> Result<()> {
        if self.device.is_none() {
            return Ok(());
        }
        let begun = Instant::now();
        loop {
            match unmount(&self.dir, UnmountFlags::empty()) {
                Ok(()) => break,
                Err(Errno::BUSY) if begun.elapsed() < PATIENCE => std::thread::sleep(NAP),
                Err(error) => return Err(Error::Io("unmount ext4".into(), error.into())),
            }
        }
        self.mount()
    }

    /// Has all of it on its device.
    pub fn sync(&self) -> Result<()> {
        let dir = File::open(&self.dir).map_err(Error::io(self.dir.display()))?;
        rustix::fs::syncfs(dir).map_err(|error| Error::Io("syncfs".into(), error.into()))
    }
}
