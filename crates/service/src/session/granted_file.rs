//! The file of grants: what the session was handed out, for a service that takes it over.
//!
//! Invariants: what is handed out is in the file before a client can see it. What came into use
//! since may be in it, too: it is written anew now and then, so that it stays in proportion.

use crate::base::error::{Error, Result};
use crate::base::ordinary;
use crate::journal::engine::Engine;
use holdfast_pool::directory;
use holdfast_pool::space::Run;
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// So many extents, or blocks, are added before the file is written anew; of extents also as many
/// as it had.
const ADDED_EXTENTS: u64 = 1024;
const ADDED_BLOCKS: u64 = 4096;
/// Bytes of one extent in the file.
const LINE: usize = 16;

/// The file, and what was added since it was written anew.
pub struct GrantedFile {
    file: File,
    extents: u64,
    blocks: u64,
    /// Extents that it had then.
    had: u64,
}

impl GrantedFile {
    /// The file of a new session, which is empty.
    pub fn begin(engine: &Engine) -> Result<GrantedFile> {
        let new = GrantedFile::open(engine)?;
        let what = path(engine).display().to_string();
        new.file.set_len(0).map_err(Error::io(what))?;
        Ok(new)
    }

    /// The file of a session that lived on without its service: what it names is granted again.
    pub fn resume(engine: &mut Engine) -> Result<GrantedFile> {
        for extent in decode(&read(&path(engine))) {
            engine.grant_again(extent.start, extent.len);
        }
        GrantedFile::open(engine)
    }

    fn open(engine: &Engine) -> Result<GrantedFile> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
        let file = ordinary::open_or_say(&path(engine), flags)?;
        Ok(GrantedFile {
            file: File::from(file),
            extents: 0,
            // An old one names too much.
            blocks: ADDED_BLOCKS,
            had: 0,
        })
    }

    /// Names these extents, in one write; says whether that is done.
    pub fn add(&mut self, engine: &Engine, extents: &[Run]) -> bool {
        let lines: Vec<u8> = extents.iter().flat_map(|extent| line(*extent)).collect();
        if self.file.write_all(&lines).is_err() {
            return false;
        }
        self.extents += extents.len() as u64;
        self.blocks += extents.iter().map(|extent| extent.len).sum::<u64>();
        let long = self.extents >= ADDED_EXTENTS.max(self.had);
        if long || self.extents < ADDED_EXTENTS && self.blocks >= ADDED_BLOCKS {
            (self.extents, self.blocks) = (0, 0);
            // If it cannot be written, what is there is still right.
            if let Some((file, had)) = rewrite(engine) {
                (self.file, self.had) = (file, had);
            }
        }
        true
    }
}

fn path(engine: &Engine) -> std::path::PathBuf {
    engine.store.files.directory.join(directory::GRANTS)
}

/// Puts a file that names only what is granted now in the place of the old one, which also names
/// what came into use since and is free again: the next service would keep that from use until the
/// session ends. Also says how many extents it names.
fn rewrite(engine: &Engine) -> Option<(File, u64)> {
    let new = engine.store.files.directory.join(directory::GRANTS_NEW);
    let granted = engine.journal.granted.iter();
    let all: Vec<u8> = granted.flat_map(|(b, n)| line(Run::new(b, n))).collect();
    let _ = std::fs::remove_file(&new);
    let mut options = File::options();
    let file = options.create_new(true).append(true).mode(0o600).open(&new);
    let mut file = file.ok()?;
    let written = file.write_all(&all);
    if written
        .and_then(|()| std::fs::rename(&new, path(engine)))
        .is_err()
    {
        let _ = std::fs::remove_file(&new);
        return None;
    }
    Some((file, (all.len() / LINE) as u64))
}

fn line(extent: Run) -> [u8; LINE] {
    let mut line = [0; LINE];
    line[..8].copy_from_slice(&extent.start.to_le_bytes());
    line[8..].copy_from_slice(&extent.len.to_le_bytes());
    line
}

/// What there is to read of the file.
fn read(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(Some(file)) = ordinary::open(path, OFlags::RDONLY) {
        let _ = File::from(file).read_to_end(&mut bytes);
    }
    bytes
}

fn decode(bytes: &[u8]) -> impl Iterator<Item = Run> + '_ {
    bytes.chunks_exact(LINE).filter_map(|line| {
        let block = u64::from_le_bytes(*line.first_chunk()?);
        let len = u64::from_le_bytes(*line.last_chunk()?);
        Some(Run::new(block, len.min(1 << 20)))
    })
}
