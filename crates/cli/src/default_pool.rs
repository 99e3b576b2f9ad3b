//! The pool of a user who names none.
//!
//! Invariant: it is a directory that belongs to the user alone; if somebody else's directory is in
//! its place, it is refused and never used.

use crate::failure::Failure;
use holdfast_pool::format::superblock::Consistency;
use holdfast_service::{CreateOptions, Error};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where the pool is or will be: memory if there is some, else with the user's run-time files,
/// else at home.
pub fn path() -> Result<PathBuf, Failure> {
    let uid = rustix::process::geteuid().as_raw();
    let mut places = vec![PathBuf::from(format!("/dev/shm/holdfast-{uid}"))];
    if let Some(dir) = std::env::var_os("XDG_RUNTIME_DIR") {
        places.push(Path::new(&dir).join("holdfast"));
    }
    if let Some(home) = std::env::var_os("HOME") {
        places.push(Path::new(&home).join(".local/share/holdfast"));
    }
    let usable = |place: &&PathBuf| place.exists() || place.parent().is_some_and(is_writable);
    let place = places.iter().find(usable).cloned();
    place.ok_or_else(|| {
        Failure::new("there is no place for a pool of your own").fix("holdfast run --pool POOL")
    })
}

fn is_writable(directory: &Path) -> bool {
    rustix::fs::access(
        directory,
        rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
    )
    .is_ok()
}

/// Makes the pool if it is not there, and makes sure that it is the user's.
pub fn ensure(path: &Path) -> Result<(), Failure> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return make(path),
        Err(e) => return Err(Failure::io(path.display(), &e)),
        Ok(found) => {
            let mine = found.uid() == rustix::process::geteuid().as_raw();
            if !found.is_dir() || !mine {
                let what = format!("{} is not a directory of yours", path.display());
                return Err(Failure::new(what).fix("holdfast run --pool POOL"));
            }
        }
    }
    // Somebody may be making it now, or was interrupted before there was anything in it.
    match path.join(holdfast_pool::segment::META).exists() {
        true => Ok(()),
        false => make(path),
    }
}

fn make(path: &Path) -> Result<(), Failure> {
    let options = CreateOptions {
        size: None,
        medium: None,
        consistency: Consistency::Posix,
    };
    match holdfast_service::create(path, &options) {
        Err(Error::NotEmpty { .. }) | Err(Error::InUse { .. }) => Ok(()),
        done => Ok(done?),
    }
}
