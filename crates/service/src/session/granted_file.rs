//! The file of grants: what the session was handed out, for a service that takes it over.
//!
//! Invariants: what is handed out is in the file before a client can see it. What came into use
//! since may be in it, too: it is written anew now and then, so that it stays in proportion.

use crate::base::error::{Error, Result};
use crate::base::ordinary;
use crate::journal::engine::Engine;
use crate::session::granted_lines::{self, Lines};
use holdfast_pool::directory;
use holdfast_pool::space::Run;
use rustix::fs::OFlags;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

/// So many extents, or blocks, are added before the file is written anew; of extents also as many
/// as it had.
const ADDED_EXTENTS: u64 = 1024;
const ADDED_BLOCKS: u64 = 4096;

/// The file, and what was added since it was written anew.
pub struct GrantedFile {
    lines: Lines,
    extents: u64,
    blocks: u64,
    /// Extents that it had then.
    had: u64,
}

impl GrantedFile {
    /// The file of a new session, which is empty.
    pub fn begin(engine: &Engine) -> Result<GrantedFile> {
        let mut new = GrantedFile::of(open(engine)?)?;
        new.lines.clear()?;
        Ok(new)
    }

    /// The file of a session that lived on without its service: what it names is granted again.
    pub fn resume(engine: &mut Engine) -> Result<GrantedFile> {
        if let Ok(Some(file)) = ordinary::open(&path(engine), OFlags::RDONLY) {
            for extent in granted_lines::read(file) {
                engine.grant_again(extent.start, extent.len);
            }
        }
        GrantedFile::of(open(engine)?)
    }

    fn of(file: OwnedFd) -> Result<GrantedFile> {
        Ok(GrantedFile {
            lines: Lines::of(file)?,
            extents: 0,
            // An old one names too much.
            blocks: ADDED_BLOCKS,
            had: 0,
        })
    }

    /// Names these extents, in one write; says whether that is done.
    pub fn add(&mut self, engine: &Engine, extents: &[Run]) -> bool {
        if self.lines.add(extents.iter().copied()).is_err() {
            return false;
        }
        self.extents += extents.len() as u64;
        self.blocks += extents.iter().map(|extent| extent.len).sum::<u64>();
        let long = self.extents >= ADDED_EXTENTS.max(self.had);
        if long || self.extents < ADDED_EXTENTS && self.blocks >= ADDED_BLOCKS {
            (self.extents, self.blocks) = (0, 0);
            // If it cannot be written, what is there is still right.
            if let Some((lines, had)) = rewrite(engine) {
                (self.lines, self.had) = (lines, had);
            }
        }
        true
    }
}

fn path(engine: &Engine) -> std::path::PathBuf {
    engine.store.files.directory.join(directory::GRANTS)
}

fn open(engine: &Engine) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND;
    ordinary::open_or_say(&path(engine), flags)
}

/// Puts a file that names only what is granted now in the place of the old one, which also names
/// what came into use since and is free again: the next service would keep that from use until the
/// session ends. Also says how many extents it names.
fn rewrite(engine: &Engine) -> Option<(Lines, u64)> {
    let new = engine.store.files.directory.join(directory::GRANTS_NEW);
    let _ = std::fs::remove_file(&new);
    let mut options = File::options();
    let file = options
        .create_new(true)
        .read(true)
        .append(true)
        .mode(0o600)
        .open(&new);
    let file = OwnedFd::from(file.ok()?);
    let mut had = 0;
    let granted = engine.journal.granted.iter().inspect(|_| had += 1);
    let mut granted = granted.map(|(block, len)| Run::new(block, len));
    let written = Lines::of(file).and_then(|mut lines| {
        lines.add(&mut granted)?;
        std::fs::rename(&new, path(engine)).map_err(Error::io("the file of grants"))?;
        Ok(lines)
    });
    match written {
        Ok(lines) => Some((lines, had)),
        Err(_) => {
            let _ = std::fs::remove_file(&new);
            None
        }
    }
}
