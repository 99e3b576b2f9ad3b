//! Opening what should be an ordinary file of a pool and may be anything.
//!
//! Invariants: no open waits for anybody, whatever is at the path; the result is a regular file;
//! symbolic links are not followed.

use crate::base::error::{Error, Result};
use holdfast_pool::{directory, segment};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// Opens the file at `path`; `None` where it is something else than a regular file.
pub fn open(path: &Path, flags: OFlags) -> rustix::io::Result<Option<OwnedFd>> {
    let wanted = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // A FIFO would be waited for, and so would some devices.
    let file = rustix::fs::open(path, wanted | OFlags::NONBLOCK, Mode::RUSR | Mode::WUSR);
    let file = match file {
        Ok(file) => file,
        // A socket, a FIFO without a reader, a device without a driver; a directory.
        Err(Errno::NXIO | Errno::NODEV | Errno::ISDIR) => return Ok(None),
        Err(e) => return Err(e),
    };
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    let flags = rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(&file, flags)?;
    Ok(Some(file))
}

/// As `open`, with an error that says what is wrong.
pub fn open_or_say(path: &Path, flags: OFlags) -> Result<OwnedFd> {
    let file = open(path, flags).map_err(Error::os(path.display().to_string()))?;
    file.ok_or_else(|| Error::NotOrdinary { path: path.into() })
}

/// Refuses a pool in whose directory something else stands where a file belongs that is not a
/// segment, or a directory, so that nobody comes upon it later.
pub fn check(pool: &Path) -> Result<()> {
    let kind = |name: &str| {
        let path = pool.join(name);
        let stat = rustix::fs::statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW);
        let kind = stat.map(|stat| FileType::from_raw_mode(stat.st_mode));
        (path, kind.ok())
    };
    let files = [segment::LOCK, directory::GRANTS, directory::BASE].map(|n| (n, true));
    let directories = [segment::EMPTY_DIR, directory::SPECIAL].map(|n| (n, false));
    for (name, file) in files.into_iter().chain(directories) {
        let (path, kind) = kind(name);
        match kind {
            Some(FileType::RegularFile) if file => {}
            Some(FileType::Directory) if !file => {}
            Some(_) => return Err(Error::NotOrdinary { path }),
            None => {}
        }
    }
    match kind(segment::SOCKET) {
        (path, Some(FileType::Directory)) => Err(Error::NotOrdinary { path }),
        _ => Ok(()),
    }
}
