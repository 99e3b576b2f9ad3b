//! All files of a pool that a user can find.
//!
//! Invariant: what others are removing, or keep to themselves, is passed over.

use crate::error::{Error, Result};
use crate::file::File;
use crate::pool::Pool;
use holdfast_client::abi;

/// Entries of directories are read so many bytes at a time.
pub(crate) const LISTING: usize = 64 << 10;
pub(crate) const DIRECTORY: u8 = 4;
const REGULAR: u8 = 8;

/// Calls `each` with the path of every regular file, until it says that this is enough (true).
pub(crate) fn files(pool: &Pool, each: &mut dyn FnMut(&[u8]) -> Result<bool>) -> Result<()> {
    let mut directories = vec![Vec::new()];
    while let Some(path) = directories.pop() {
        let root = path.is_empty();
        let here = if root { b"/" } else { path.as_slice() };
        let directory = File::open(pool, here, abi::O_DIRECTORY | abi::O_NOFOLLOW, 0);
        match directory.and_then(|directory| look(&directory, &path, &mut directories, each)) {
            Ok(true) => return Ok(()),
            Err(e) if root || !is_elsewhere(&e) => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

/// An entry that others are removing, keep to themselves, or have put where no path leads.
pub(crate) fn is_elsewhere(e: &Error) -> bool {
    matches!(e.errno(), ENOENT | EACCES | ENOTDIR | ENAMETOOLONG | ELOOP)
}

/// Looks at what is in a directory; whether that is enough.
fn look(
    directory: &File,
    path: &[u8],
    directories: &mut Vec<Vec<u8>>,
    each: &mut dyn FnMut(&[u8]) -> Result<bool>,
) -> Result<bool> {
    let mut room = vec![0; LISTING];
    loop {
        let len = directory.entries(&mut room)?;
        if len == 0 {
            return Ok(false);
        }
        for (_, kind, name) in entries(room.get(..len).unwrap_or_default()) {
            let path = [path, if path.is_empty() { b"" } else { b"/" }, name].concat();
            match kind {
                _ if name == b"." || name == b".." => {}
                DIRECTORY => directories.push(path),
                REGULAR if each(&path)? => return Ok(true),
                _ => {}
            }
        }
    }
}

/// Number, type and name of each entry, as getdents64(2) writes them.
pub(crate) fn entries(mut rest: &[u8]) -> impl Iterator<Item = (u64, u8, &[u8])> {
    std::iter::from_fn(move || {
        let len = u16::from_ne_bytes(rest.get(16..18)?.try_into().ok()?);
        let (entry, behind) = rest.split_at_checked(len.into())?;
        rest = behind;
        let name = entry.get(19..)?.split(|byte| *byte == 0).next()?;
        let ino = u64::from_ne_bytes(*entry.first_chunk()?);
        Some((ino, *entry.get(18)?, name))
    })
}

const ENOENT: i32 = 2;
const EACCES: i32 = 13;
const ENOTDIR: i32 = 20;
const ENAMETOOLONG: i32 = 36;
const ELOOP: i32 = 40;
