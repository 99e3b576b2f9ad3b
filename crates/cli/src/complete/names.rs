//! Names that are in a pool, as its trees have them.
//!
//! Invariants: the trees are read as they are on the medium: nobody is asked, nothing is started,
//! and names that the service has not applied yet are missed. What takes long is given up, and what
//! cannot be read is not there.

use crate::states::TEMPORARY;
use holdfast_client::trees::Trees;
use holdfast_pmem::{Access, Region};
use holdfast_pool::layout::{ROOT_INO, VALUES, is_legal_name, value};
use holdfast_service::Files;
use rustix::fd::AsFd;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

/// Nobody waits longer for an answer.
const PATIENCE: Duration = Duration::from_millis(50);
/// Nobody reads more.
const NAMES_MAX: usize = 1000;
const DIRECTORY: u8 = 4;
const REGULAR: u8 = 8;
const VOLUME: &[u8] = b"user.holdfast.volume";

/// The names of a pool.
pub struct Names {
    trees: Trees,
    until: Instant,
}

/// Which files are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    All,
    /// Volumes, and directories, which may have some.
    Volumes,
}

impl Names {
    /// Its owner and root read them.
    pub fn open(pool: &Path) -> Option<Names> {
        let until = Instant::now() + PATIENCE;
        // Memory that the host has none for is no end of the shell's question.
        holdfast_pmem::fault::install();
        let files = Files::open_read_only(pool).ok()?;
        let len = usize::try_from(files.superblock.meta_len).ok()?;
        let (meta, medium) = (files.meta.as_fd(), files.medium);
        let meta = Region::map(meta, 0, len, Access::ReadOnly, medium).ok()?;
        let trees = Trees::new(meta);
        Some(Names { trees, until })
    }

    fn is_enough(&self, found: &[Vec<u8>]) -> bool {
        found.len() >= NAMES_MAX || Instant::now() > self.until
    }

    pub fn keyspaces(&self) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let _ = self.trees.each_dirent(ROOT_INO, 0, &mut |_, entry, name| {
            if entry.kind == DIRECTORY && self.is_keyspace(entry.ino) {
                found.push(name.to_vec());
            }
            Ok(!self.is_enough(&found))
        });
        found
    }

    fn is_keyspace(&self, ino: u64) -> bool {
        let inode = self.trees.inode(ino);
        inode.is_ok_and(|inode| inode.is_some_and(|inode| inode.keyspace))
    }

    pub fn snapshots(&self) -> Vec<Vec<u8>> {
        let all = self.trees.snapshots().unwrap_or_default().into_iter();
        let names = all.map(|(name, _)| name);
        names
            .filter(|name| !name.starts_with(TEMPORARY.as_bytes()))
            .collect()
    }

    /// Paths that begin so, as far as the next slash.
    pub fn paths(&self, begun: &[u8], wanted: Wanted) -> Vec<Vec<u8>> {
        let at = begun.iter().rposition(|byte| *byte == b'/');
        let (above, prefix) = begun.split_at(at.map_or(0, |at| at + 1));
        let Some(dir) = self.directory(above) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        let _ = self.trees.each_dirent(dir, 0, &mut |_, entry, name| {
            let slash: &[u8] = if entry.kind == DIRECTORY { b"/" } else { b"" };
            let fits = match (wanted, entry.kind) {
                (Wanted::All, _) | (_, DIRECTORY) => true,
                (Wanted::Volumes, REGULAR) => self.is_volume(entry.ino),
                (Wanted::Volumes, _) => false,
            };
            if name.starts_with(prefix) && fits {
                found.push([above, name, slash].concat());
            }
            Ok(!self.is_enough(&found))
        });
        if wanted == Wanted::All && self.is_keyspace(dir) {
            self.keys(dir, (above, prefix), &mut found);
        }
        found
    }

    /// By names alone: no link is followed.
    fn directory(&self, path: &[u8]) -> Option<u64> {
        let names = path.split(|byte| *byte == b'/');
        let names = names.filter(|name| !name.is_empty() && *name != b".");
        names.fold(Some(ROOT_INO), |dir, name| {
            let found = self.trees.dirent(dir?, name).ok()??;
            (found.kind == DIRECTORY).then_some(found.ino)
        })
    }

    fn is_volume(&self, ino: u64) -> bool {
        matches!(self.trees.xattr(ino, VOLUME), Ok(Some(_)))
    }

    /// Keys that are names of files, too.
    fn keys(&self, keyspace: u64, (above, prefix): (&[u8], &[u8]), found: &mut Vec<Vec<u8>>) {
        let first = [&keyspace.to_be_bytes(), prefix].concat();
        let _ = self.trees.reader().scan(VALUES, &first, None, |key, _| {
            match value::parse_key(key) {
                Ok((of, key)) if of == keyspace && key.starts_with(prefix) => {
                    if is_legal_name(key) {
                        found.push([above, key].concat());
                    }
                }
                _ => return ControlFlow::Break(()),
            }
            match self.is_enough(found) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
    }
}
