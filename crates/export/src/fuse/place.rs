//! The file on which the file system is mounted.
//!
//! Invariants: it is a regular file on which nothing is mounted; what was there before stays there.

use super::whole;
use crate::failure::Failure;
use rustix::fs::{AtFlags, CWD, FileType, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub struct Place {
    path: PathBuf,
    /// It was made for this and is still there.
    made: AtomicBool,
}

impl Place {
    /// The file, which is made if there is none.
    pub fn take(file: &Path) -> Result<Place, Failure> {
        let shown = file.display();
        let made = match File::create_new(file) {
            Ok(_) => true,
            Err(_) => {
                check(file)?;
                false
            }
        };
        let place = |path| Place {
            path,
            made: AtomicBool::new(made),
        };
        whole(file).map(place).map_err(|e| Failure::io(shown, &e))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file if it was made for this. Nothing is mounted on it any more.
    pub fn leave(&self) {
        if self.made.swap(false, Relaxed) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Whether a file system can be mounted on the file.
fn check(file: &Path) -> Result<(), Failure> {
    let shown = file.display();
    let found = match statx(CWD, file, AtFlags::empty(), StatxFlags::TYPE) {
        Ok(found) => found,
        Err(Errno::NOTCONN) => {
            let what = format!("{shown} is still mounted by an export that was killed");
            return Err(Failure::new(what).fix(format!("umount {shown}")));
        }
        Err(e) => return Err(Failure::io(shown, &e.into())),
    };
    if FileType::from_raw_mode(found.stx_mode.into()) != FileType::RegularFile {
        return Err(Failure::new(format!("{shown} is not a regular file"))
            .fix("name a file, or one that does not exist, in a directory that does"));
    }
    if found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return Err(Failure::new(format!("something is mounted on {shown}"))
            .fix(format!("umount {shown}, or choose another file")));
    }
    Ok(())
}
