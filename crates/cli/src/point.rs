//! The directory that a pool appears as.
//!
//! Invariants: on the host it is missing or empty. Where it is missing, a symbolic link that leads
//! nowhere stands there while a program runs: what a program that does not see the pool would write
//! under its name fails (ENOTDIR), also for root, and lands nowhere.

use crate::failure::Failure;
use crate::paths;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Names nothing, and nothing can be made there, since /dev/null is no directory.
const NOWHERE: &str = "/dev/null/holdfast";

/// Keeps the host's files out of the directory, until it is dropped.
pub struct Stop {
    at: PathBuf,
}

impl Stop {
    /// `None` where nothing can be put, or a directory is: then nobody can make one, or what is
    /// written there is where the user said that the pool appears.
    pub fn put(at: &Path) -> Option<Stop> {
        let made = symlink(NOWHERE, at).is_ok();
        (made || is_stop(at)).then(|| Stop { at: at.into() })
    }
}

impl Drop for Stop {
    /// Another run with this directory that has not ended loses it, too.
    fn drop(&mut self) {
        if is_stop(&self.at) {
            let _ = std::fs::remove_file(&self.at);
        }
    }
}

fn is_stop(at: &Path) -> bool {
    std::fs::read_link(at).is_ok_and(|to| to == Path::new(NOWHERE))
}

fn is_missing(at: &Path) -> bool {
    at.symlink_metadata()
        .is_err_and(|e| e.kind() == ErrorKind::NotFound)
}

/// Where the pool appears, if it can appear at `at`.
pub fn check(at: &Path) -> Result<PathBuf, Failure> {
    let fix = "choose another directory with --at";
    if !at.is_absolute() {
        let what = format!(
            "the pool cannot appear at '{}', which is not an absolute path",
            at.display()
        );
        return Err(Failure::new(what).fix(fix));
    }
    let at = paths::absolute(at).map_err(|e| Failure::io(at.display(), &e))?;
    if at == Path::new("/") {
        return Err(Failure::new("the pool cannot appear at /").fix(fix));
    }
    if let Some(real) = real_place(&at).filter(|real| *real != at) {
        let what = format!("the path {} contains a symbolic link", at.display());
        return Err(Failure::new(what).fix(format!("use --at {}", real.display())));
    }
    let mut entries = match std::fs::read_dir(&at) {
        Ok(entries) => entries,
        // Another run may just put or take away what stands there.
        Err(e) if e.kind() == ErrorKind::NotFound || is_stop(&at) => return Ok(at),
        Err(e) if e.kind() == ErrorKind::NotADirectory && is_missing(&at) => return Ok(at),
        Err(e) => return Err(Failure::io(at.display(), &e).fix(fix)),
    };
    match entries.next() {
        None => Ok(at),
        Some(_) => Err(Failure::new(format!(
            "the pool cannot appear at {}: it is not empty",
            at.display()
        ))
        .fix(fix)),
    }
}

/// Where the pool would appear without symbolic links, which programs that ask for real paths see.
fn real_place(at: &Path) -> Option<PathBuf> {
    match at.canonicalize() {
        Ok(real) => Some(real),
        Err(_) => Some(at.parent()?.canonicalize().ok()?.join(at.file_name()?)),
    }
}
