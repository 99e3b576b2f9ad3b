//! Loop devices.
//!
//! Invariant: the janitor knows the file under a device before there is one.

use crate::error::{Error, Result};
use crate::janitor::{Janitor, Thing};
use crate::peers::quiet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const CONTROL: &str = "/dev/loop-control";

/// Puts a loop device over a file, past the cache of pages; the device.
pub fn attach(janitor: &mut Janitor, file: &Path) -> Result<PathBuf> {
    let control = File::options().read(true).write(true).open(CONTROL);
    control.map_err(Error::io(CONTROL))?;
    janitor.note(Thing::Loop(file.to_owned()))?;
    let mut losetup = Command::new("losetup");
    losetup.args(["--find", "--show", "--direct-io=on"]);
    let said = quiet(losetup.arg(file))?;
    Ok(PathBuf::from(said.trim()))
}

/// Takes away every device over a file. One that is still in use is an error: it would go later.
pub fn detach(file: &Path) -> io::Result<()> {
    for device in devices(file)? {
        let done = Command::new("losetup")
            .arg("--detach")
            .arg(&device)
            .status()?;
        if !done.success() {
            return Err(io::Error::other(format!("losetup ended with {done}")));
        }
    }
    match devices(file)?.is_empty() {
        true => Ok(()),
        false => Err(io::ErrorKind::ResourceBusy.into()),
    }
}

fn devices(file: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for block in fs::read_dir("/sys/block")? {
        let block = block?;
        // Only a loop device has this.
        let under = fs::read_to_string(block.path().join("loop/backing_file"));
        if under.is_ok_and(|under| Path::new(under.trim_end_matches('\n')) == file) {
            found.push(Path::new("/dev").join(block.file_name()));
        }
    }
    Ok(found)
}
