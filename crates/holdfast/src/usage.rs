//! What takes the space of a pool.
//!
//! Invariants: each file counts once, under the first of its names that is met; only numbers of
//! files with several names are kept, and names of directories that are still to come on the way
//! down. What this user may not see is not counted, and how much of that there was is told.

use crate::error::{Error, Result};
use crate::file::{self, File, call};
use crate::inner::Reach;
use crate::kv::{self, Found};
use crate::pool::Pool;
use crate::view::{View, ViewOf};
use crate::volume::{NAME, ROOM};
use crate::walk;
use holdfast_client::{Base, Stat, Target, abi};
use holdfast_pool::layout::value;
use std::collections::HashSet;

const BLOCK: u64 = 4096;
/// The unit of `Stat::blocks`.
const SECTOR: u64 = 512;

/// Space, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// What is taken of the pool: blocks, those without content yet among them and no holes; and
    /// keys, and values that are small enough to lie in the trees.
    pub taken: u64,
    /// How long files and values are, and keys.
    pub size: u64,
}

/// What a part of a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// A directory, with all below it.
    Directory,
    /// The directory of a keyspace, with its keys and values.
    Keyspace,
    /// The file of a volume.
    Volume,
    /// Anything else.
    File,
}

/// A part of a pool, and what it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// From the pool's root, without a slash at its end; empty: the root.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: PartKind,
    /// How far below the path that was asked for.
    pub depth: usize,
    /// What it takes.
    pub space: Space,
}

impl Pool {
    /// Shows `each` what everything at and below `path` takes, a directory after what is in it.
    /// How much this user may not see.
    pub fn usage(&self, path: &[u8], each: &mut dyn FnMut(Part) -> Result<()>) -> Result<u64> {
        let keyspaces = self.keyspaces()?.into_iter().map(String::into_bytes);
        let mut walk = Walk {
            pool: self,
            keyspaces: keyspaces.collect(),
            counted: HashSet::new(),
            unseen: 0,
            each,
        };
        let path = normal(path);
        let stat = stat(self, &path)?;
        match stat.mode & abi::S_IFMT == abi::S_IFDIR {
            true => walk.directories(path)?,
            false => drop(walk.file(path, 0, &stat)?),
        }
        Ok(walk.unseen)
    }
}

impl View {
    /// As [`Pool::usage`], of files as the view's snapshot has them; a view of the present shows
    /// present files.
    pub fn usage(&self, path: &[u8], each: &mut dyn FnMut(Part) -> Result<()>) -> Result<u64> {
        self.pinned.pool().usage(path, each)
    }
}

/// With a slash before each name.
fn normal(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|byte| *byte == b'/');
    let parts = parts.filter(|part| !part.is_empty() && *part != b".");
    parts.flat_map(|part| [b"/", part].concat()).collect()
}

fn stat(pool: &Pool, path: &[u8]) -> Result<Stat> {
    let path = if path.is_empty() { b"/" } else { path };
    call!(pool.inner.reach()?, calls => pool.as_caller(|caller| {
        calls.stat(caller, Base::Root, path, abi::AT_SYMLINK_NOFOLLOW)
    }))
}

struct Walk<'a> {
    pool: &'a Pool,
    /// Their names, which are in the root.
    keyspaces: HashSet<Vec<u8>>,
    /// Files with several names.
    counted: HashSet<u64>,
    unseen: u64,
    each: &'a mut dyn FnMut(Part) -> Result<()>,
}

/// A directory on the way down.
struct Level {
    path: Vec<u8>,
    /// Names of directories in it, the next one last.
    below: Vec<Vec<u8>>,
    is_keyspace: bool,
    space: Space,
}

impl Walk<'_> {
    fn directories(&mut self, path: Vec<u8>) -> Result<()> {
        let mut levels = vec![self.level(path, 0)?];
        while let Some(level) = levels.last_mut() {
            if let Some(name) = level.below.pop() {
                let path = [&level.path, b"/".as_slice(), &name].concat();
                match self.level(path, levels.len()) {
                    Err(e) if walk::is_elsewhere(&e) => self.unseen += unseen(&e),
                    level => levels.push(level?),
                }
                continue;
            }
            let space = level.space;
            let kind = match level.is_keyspace {
                true => PartKind::Keyspace,
                false => PartKind::Directory,
            };
            let path = std::mem::take(&mut level.path);
            levels.pop();
            if let Some(above) = levels.last_mut() {
                above.space.add(space);
            }
            let depth = levels.len();
            (self.each)(Part {
                path,
                kind,
                depth,
                space,
            })?;
        }
        Ok(())
    }

    /// Counts all files of a directory.
    fn level(&mut self, path: Vec<u8>, depth: usize) -> Result<Level> {
        let here = if path.is_empty() { b"/" } else { &path[..] };
        let directory = File::open(self.pool, here, abi::O_DIRECTORY | abi::O_NOFOLLOW, 0)?;
        let name = path.strip_prefix(b"/").unwrap_or(&path);
        let keyspace = self.keyspaces.get(name).cloned();
        let mut level = Level {
            is_keyspace: keyspace.is_some(),
            path,
            below: Vec::new(),
            space: Space::default(),
        };
        // Values are counted from the keyspace, as far as it is to be had.
        let values = match &keyspace {
            Some(name) => self.values(name)?,
            None => Some(Space::default()),
        };
        level.space.add(values.unwrap_or_default());
        let mut room = vec![0; walk::LISTING];
        loop {
            let len = directory.entries(&mut room)?;
            let listed = room.get(..len).filter(|listed| !listed.is_empty());
            let Some(listed) = listed else { break };
            for (ino, kind, name) in walk::entries(listed) {
                match kind {
                    _ if name == b"." || name == b".." => {}
                    walk::DIRECTORY => level.below.push(name.to_vec()),
                    _ if value::is_number(ino) && values.is_some() => {}
                    _ => self.count(&mut level, name, depth)?,
                }
            }
        }
        level.below.sort_by(|a, b| b.cmp(a));
        Ok(level)
    }

    fn count(&mut self, level: &mut Level, name: &[u8], depth: usize) -> Result<()> {
        let path = [&level.path, b"/".as_slice(), name].concat();
        let counted = stat(self.pool, &path).and_then(|stat| self.file(path, depth + 1, &stat));
        match counted {
            Err(e) if walk::is_elsewhere(&e) => self.unseen += unseen(&e),
            counted => level.space.add(counted?),
        }
        Ok(())
    }

    fn file(&mut self, path: Vec<u8>, depth: usize, stat: &Stat) -> Result<Space> {
        if stat.nlink > 1 && !self.counted.insert(stat.ino) {
            return Ok(Space::default());
        }
        // A value that lies in the trees; a file without blocks is a hole.
        let inline = match value::is_number(stat.ino) && stat.blocks == 0 {
            true => stat.size,
            false => 0,
        };
        let space = Space {
            taken: stat.blocks * SECTOR + inline,
            size: stat.size,
        };
        let is_file = stat.mode & abi::S_IFMT == abi::S_IFREG;
        let kind = match is_file && self.is_volume(&path)? {
            true => PartKind::Volume,
            false => PartKind::File,
        };
        (self.each)(Part {
            path,
            kind,
            depth,
            space,
        })?;
        Ok(space)
    }

    fn is_volume(&self, path: &[u8]) -> Result<bool> {
        let (base, nofollow) = (Base::Root, true);
        let target = Target::Path {
            base,
            path,
            nofollow,
        };
        match file::attribute(self.pool, target, NAME, &mut [0; ROOM]) {
            // It may not be read, or is something else than a volume has.
            Err(_) => Ok(false),
            found => Ok(found?.is_some()),
        }
    }

    /// What a keyspace has beside files. `None`: a proxy makes the calls, and does not tell.
    fn values(&self, name: &[u8]) -> Result<Option<Space>> {
        if matches!(self.pool.inner.reach()?, Reach::Served(_)) {
            return Ok(None);
        }
        let name = String::from_utf8_lossy(name);
        let keyspace = self.pool.keyspace(&name)?;
        let view = View::begin(self.pool.clone())?;
        let ViewOf::Mapped(client, moment) = view.pinned.reach()? else {
            return Ok(None);
        };
        let mut scan = kv::Scan::new(keyspace.id, &[], None, false);
        let mut space = Space::default();
        while let Some(found) = scan.advance(client.session(), moment)? {
            let key = scan.key().len() as u64;
            let (taken, size) = match found {
                Found::Inline => (scan.value().len() as u64, scan.value().len() as u64),
                Found::Blocks(blocks) => {
                    let runs = blocks.runs().iter().map(|run| u64::from(run.len));
                    (runs.sum::<u64>() * BLOCK, blocks.len)
                }
                // It is in the listing.
                Found::File(_) => continue,
            };
            space.add(Space {
                taken: key + taken,
                size: key + size,
            });
        }
        Ok(Some(space))
    }
}

/// What went meanwhile is no loss.
fn unseen(e: &Error) -> u64 {
    u64::from(e.errno() != ENOENT)
}

impl Space {
    fn add(&mut self, other: Space) {
        self.taken = self.taken.saturating_add(other.taken);
        self.size = self.size.saturating_add(other.size);
    }
}

const ENOENT: i32 = 2;
