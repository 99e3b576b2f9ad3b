//! Files that rows overwrite or read, and the offsets in them.
//!
//! Invariants: a complete file is left as it is, so that a later session overwrites what an earlier
//! one wrote; each file is synced before it counts as complete; a chosen page was written before.

use super::super::content::{Random, fill};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

pub const PAGE: u64 = 4096;
pub const MIB: u64 = 1 << 20;
/// Distance between two runs of a file that has many.
const STRIDE: u64 = 64 << 10;
/// The written part at the start and at the end of a sparse file.
const END: u64 = 32 * MIB;

/// A mebibyte of random bytes.
pub fn mebibyte() -> Vec<u8> {
    let mut bytes = vec![0; MIB as usize];
    fill(77, &mut bytes);
    bytes
}

/// Makes a file under another name and renames it when `write` has filled it.
fn make(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    if fs::metadata(path).is_ok() {
        return Ok(());
    }
    let part = path.with_extension("part");
    let mut file = File::create(&part)?;
    write(&mut file)?;
    file.sync_all()?;
    fs::rename(part, path)
}

/// A file of `len` written bytes.
pub fn whole(path: &Path, len: u64) -> io::Result<()> {
    make(path, |file| write(file, len))
}

/// A file whose every mebibyte begins with its number.
pub fn numbered(path: &Path, len: u64) -> io::Result<()> {
    make(path, |file| write_numbered(file, len))
}

/// A large file: written at its ends, or all of it.
pub fn large(path: &Path, len: u64, dense: bool) -> io::Result<()> {
    make(path, |file| {
        if dense {
            return write(file, len);
        }
        file.set_len(len)?;
        let bytes = mebibyte();
        let part = END.min(len / 2);
        for at in (0..part).step_by(bytes.len()) {
            file.write_all_at(&bytes, at)?;
            file.write_all_at(&bytes, len - part + at)?;
        }
        Ok(())
    })
}

/// A file of single pages with holes between them.
pub fn runs(path: &Path, runs: u64) -> io::Result<()> {
    make(path, |file| {
        let bytes = mebibyte();
        (0..runs).try_for_each(|n| file.write_all_at(&bytes[..PAGE as usize], n * STRIDE))
    })
}

fn write(file: &mut File, len: u64) -> io::Result<()> {
    let bytes = mebibyte();
    (0..len / MIB).try_for_each(|_| file.write_all(&bytes))
}

pub fn write_numbered(file: &mut File, len: u64) -> io::Result<()> {
    let mut bytes = mebibyte();
    for n in 0..len / MIB {
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        file.write_all(&bytes)?;
    }
    Ok(())
}

/// Chooses a page of a file of a length.
pub type Place = fn(u64, &mut Random) -> u64;

/// Any page.
pub fn anywhere(len: u64, random: &mut Random) -> u64 {
    random.below((len / PAGE) as usize) as u64 * PAGE
}

/// A page in the written ends of a sparse file.
pub fn at_the_ends(len: u64, random: &mut Random) -> u64 {
    let part = END.min(len / 2);
    let at = anywhere(part * 2, random);
    if at < part { at } else { len - 2 * part + at }
}

/// One of the runs.
pub fn in_runs(len: u64, random: &mut Random) -> u64 {
    random.below((len / STRIDE + 1) as usize) as u64 * STRIDE
}

/// Makes a directory; one that a failed row left is emptied.
pub fn fresh(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::create_dir(dir),
    }
}

/// Removes a file that a failed row may have left.
pub fn without(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Opens a file to overwrite it.
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_pages_were_written() {
        let mut random = Random::new(1);
        for _ in 0..1000 {
            assert!(anywhere(5 * PAGE, &mut random) <= 4 * PAGE);
            let at = at_the_ends(1 << 30, &mut random);
            let ends = at < END || ((1 << 30) - END..1 << 30).contains(&at);
            assert!(at.is_multiple_of(PAGE) && ends);
            let at = in_runs(2 * STRIDE + PAGE, &mut random);
            assert!(at.is_multiple_of(STRIDE) && at <= 2 * STRIDE);
        }
    }
}
