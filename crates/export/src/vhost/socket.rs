//! The socket at which front-ends connect.
//!
//! Invariants: only its owner and root can connect; nothing but a socket that nobody listens at is
//! ever replaced.

use crate::failure::Failure;
use rustix::fs::Mode;
use rustix::process::umask;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

pub struct Socket {
    path: PathBuf,
    listener: UnixListener,
    /// Device and inode.
    place: (u64, u64),
}

impl Socket {
    pub fn bind(path: &Path) -> Result<Socket, Failure> {
        let failed = |e: std::io::Error| Failure::io(path.display(), &e);
        clear(path)?;
        let before = umask(Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(path);
        umask(before);
        let listener = bound.map_err(&failed)?;
        Ok(Socket {
            path: std::path::absolute(path).map_err(&failed)?,
            place: place(path).map_err(&failed)?,
            listener,
        })
    }

    pub fn listener(&self) -> Result<UnixListener, Failure> {
        let cloned = self.listener.try_clone();
        cloned.map_err(|e| Failure::io(self.path.display(), &e))
    }

    /// Removes it, unless it is somebody else's by now.
    pub fn remove(&self) {
        if place(&self.path).is_ok_and(|place| place == self.place) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn place(path: &Path) -> std::io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Removes a socket that an export left behind when it was killed.
fn clear(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let Ok(found) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        return Err(Failure::new(format!("{shown} is there already"))
            .fix("name a path that does not exist, in a directory that does"));
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|e| Failure::io(shown, &e))
        }
        _ => Err(Failure::new(format!("somebody listens at {shown}"))
            .fix("end that export, or choose another path")),
    }
}
