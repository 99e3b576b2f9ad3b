//! File systems on disks of ours: a loop device over the exported file, and its mount.
//!
//! A mount and its loop device end with the value that stands for them.

use crate::disk::Image;
use crate::export::{Export, SharedDisk};
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
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

/// A loop device over a disk.
struct Loop<'a> {
    export: &'a Export,
    file: PathBuf,
    device: PathBuf,
}

impl<'a> Loop<'a> {
    fn attach(export: &'a Export, disk: SharedDisk) -> Result<Loop<'a>, String> {
        let file = export.add(disk);
        let mut command = Command::new("losetup");
        command
            .args(["--find", "--show", "--direct-io=on"])
            .arg(&file);
        match tool(&mut command) {
            Ok(said) => Ok(Loop {
                export,
                file,
                device: said.trim().into(),
            }),
            Err(e) => {
                export.remove(&file);
                Err(e)
            }
        }
    }
}

impl Drop for Loop<'_> {
    fn drop(&mut self) {
        if let Err(e) = tool(Command::new("losetup").arg("--detach").arg(&self.device)) {
            eprintln!("cuts: {e}");
        }
        self.export.remove(&self.file);
    }
}

/// A mounted file system.
pub struct Mount<'a> {
    pub dir: PathBuf,
    _device: Loop<'a>,
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
        let device = Loop::attach(export, disk)?;
        let options = CString::new(options).map_err(|e| e.to_string())?;
        let flags = MountFlags::empty();
        rustix::mount::mount(&device.device, dir, kind.name(), flags, &*options)
            .map_err(|e| format!("mounting {}: {e}", kind.name()))?;
        Ok(Mount {
            dir: dir.into(),
            _device: device,
        })
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        // The service of a pool may be on its way out.
        let end = Instant::now() + Duration::from_secs(10);
        while let Err(e) = rustix::mount::unmount(&self.dir, UnmountFlags::empty()) {
            if Instant::now() > end {
                eprintln!("cuts: unmounting {}: {e}", self.dir.display());
                let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
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
    let device = Loop::attach(export, disk.clone())?;
    tool(&mut kind.make(&device.device))?;
    drop(device);
    let image = crate::export::lock(&disk).image.clone();
    Ok(image)
}
