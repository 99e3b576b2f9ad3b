//! File systems on disks of ours: a loop device over the exported file, and its mount.
//!
//! A mount and its loop device end with the value that stands for them. This process serves the
//! disks, so it leaves to others whatever waits for one: a thread of it that waits for a disk
//! cannot end, and so nor could what serves it, if the process is killed.

use crate::disk::Image;
use crate::export::{Export, SharedDisk};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ext4,
    Xfs,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
        }
    }

    pub fn maker(self) -> &'static str {
        match self {
            Kind::Ext4 => "mkfs.ext4",
            Kind::Xfs => "mkfs.xfs",
        }
    }

    /// The size of a disk for a pool of 64 MiB; mkfs.xfs makes nothing below 300 MiB.
    fn bytes(self) -> u64 {
        match self {
            Kind::Ext4 => 256 << 20,
            Kind::Xfs => 320 << 20,
        }
    }

    fn make(self, device: &Path) -> Command {
        let mut command = Command::new(self.maker());
        match self {
            Kind::Ext4 => command.args([
                "-q",
                "-F",
                "-m0",
                "-E",
                "nodiscard,lazy_itable_init=1,lazy_journal_init=1",
            ]),
            Kind::Xfs => command.args(["-q", "-f", "-K"]),
        };
        command.arg(device);
        command
    }
}

/// Runs a tool that must succeed and gives its output.
pub fn tool(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ended = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{name}: {e}"))?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        return Err(format!("{name}: {}: {}", ended.status, said.trim()));
    }
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}

/// The file of a disk, while somebody uses it.
struct Shown<'a> {
    export: &'a Export,
    file: PathBuf,
}

impl<'a> Shown<'a> {
    fn new(export: &'a Export, disk: SharedDisk) -> Shown<'a> {
        let file = export.add(disk);
        Shown { export, file }
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.export.remove(&self.file);
    }
}

/// A mounted file system on a loop device that ends with it.
pub struct Mount<'a> {
    pub dir: PathBuf,
    _file: Shown<'a>,
}

impl<'a> Mount<'a> {
    pub fn new(
        export: &'a Export,
        disk: SharedDisk,
        kind: Kind,
        options: &str,
        dir: &Path,
    ) -> Result<Mount<'a>, String> {
        std::fs::create_dir_all(dir).map_err(|e| e.to_string())?;
        let file = Shown::new(export, disk);
        let options = format!("loop,{options}");
        let mut command = Command::new("mount");
        command.args(["-t", kind.name(), "-o", &options]);
        tool(command.arg(&file.file).arg(dir))?;
        Ok(Mount {
            dir: dir.into(),
            _file: file,
        })
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        // The service of a pool may be on its way out.
        let end = Instant::now() + Duration::from_secs(10);
        while let Err(e) = tool(Command::new("umount").arg(&self.dir)) {
            if Instant::now() > end {
                eprintln!("cuts: {e}");
                let _ = tool(Command::new("umount").arg("--lazy").arg(&self.dir));
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// A disk with an empty file system.
pub fn fresh(export: &Export, kind: Kind) -> Result<Image, String> {
    let disk = crate::disk::Disk::new(Image::new(kind.bytes()), false);
    let disk: SharedDisk = std::sync::Arc::new(std::sync::Mutex::new(disk));
    let file = Shown::new(export, disk.clone());
    let mut command = Command::new("losetup");
    let said = tool(command.args(["--find", "--show"]).arg(&file.file))?;
    let device = Path::new(said.trim());
    let made = tool(&mut kind.make(device));
    tool(Command::new("losetup").arg("--detach").arg(device))?;
    made?;
    drop(file);
    let image = crate::export::lock(&disk).image.clone();
    Ok(image)
}
