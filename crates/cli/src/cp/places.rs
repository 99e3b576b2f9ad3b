//! Where words of the command line lead.
//!
//! Invariant: each pool, and each snapshot, is opened once.

use super::fault::{Fault, Result};
use super::node::{Kind, Meta, Node};
use super::word::Word;
use crate::failure::Failure;
use crate::kv::open_pool;
use holdfast::Pool;
use rustix::fs::OFlags;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The host, and what is open.
pub struct Places {
    umask: u32,
    open: Vec<Open>,
}

struct Open {
    directory: PathBuf,
    snapshot: Option<String>,
    pool: Pool,
    /// Which the snapshot's files need.
    _view: Option<holdfast::View>,
}

/// The number of the host among places.
const HOST: usize = 0;

/// A directory that is there, and what a word names in it.
pub struct Located {
    pub dir: Node,
    /// `None`: the directory itself.
    pub name: Option<Vec<u8>>,
    /// A slash at the end: it has to be a directory.
    pub is_directory: bool,
    /// As the word has it.
    pub shown: Vec<u8>,
    pub place: usize,
}

impl Places {
    pub fn new() -> Places {
        // What `Places` is made in has one thread.
        let umask = rustix::process::umask(rustix::fs::Mode::empty());
        rustix::process::umask(umask);
        Places {
            umask: umask.as_raw_mode(),
            open: Vec::new(),
        }
    }

    /// The directory in which paths of a word begin, how they go on, and how the word is shown.
    fn begin(&mut self, word: &Word, snapshot: Option<&str>) -> Result<Begun, Failure> {
        match word {
            Word::Stream => Err(Failure::new("standard input and output are no directories")),
            Word::Host(path) => Ok(Begun {
                root: Node::host().map_err(|e| e.of(path))?,
                path: path.clone(),
                shown: path.clone(),
                place: HOST,
            }),
            Word::Pool { pool, path } => {
                let shown = [pool.as_os_str().as_bytes(), b":", path].concat();
                let place = self.pool(pool, snapshot)?;
                let root = self.open[place - 1].pool.root(self.umask);
                let root = root.map_err(|e| Fault::from(e).of(&shown))?;
                let path = path.iter().skip_while(|byte| **byte == b'/');
                Ok(Begun {
                    root: Node::Pool(root),
                    path: path.copied().collect(),
                    shown,
                    place,
                })
            }
        }
    }

    fn pool(&mut self, path: &Path, snapshot: Option<&str>) -> Result<usize, Failure> {
        let directory = path.canonicalize();
        let directory = directory.map_err(|e| Failure::io(path.display(), &e))?;
        let same = |open: &Open| open.directory == directory;
        let is_it = |open: &Open| same(open) && open.snapshot.as_deref() == snapshot;
        if let Some(at) = self.open.iter().position(is_it) {
            return Ok(at + 1);
        }
        let present = self
            .open
            .iter()
            .find(|open| same(open) && open.snapshot.is_none());
        let present = match present {
            Some(open) => open.pool.clone(),
            None => open_pool(path, None)?,
        };
        let view = snapshot.map(|name| present.snapshot(name)).transpose()?;
        self.open.push(Open {
            directory,
            snapshot: snapshot.map(Into::into),
            pool: view.as_ref().map_or(present, |view| view.pool().clone()),
            _view: view,
        });
        Ok(self.open.len())
    }

    /// Finds the directory of what a word names.
    pub fn locate(&mut self, word: &Word, snapshot: Option<&str>) -> Result<Located, Failure> {
        let begun = self.begin(word, snapshot)?;
        let (above, name) = split(&begun.path);
        let is_directory = begun.path.last().is_none_or(|byte| *byte == b'/') || name.is_none();
        let found = match above {
            b"" => Ok(begun.root),
            above => begun.root.open(above, OFlags::PATH | OFlags::DIRECTORY, 0),
        };
        Ok(Located {
            dir: found.map_err(|e| e.of(&begun.shown))?,
            name: name.map(<[u8]>::to_vec),
            is_directory,
            shown: begun.shown,
            place: begun.place,
        })
    }

    /// Makes everything durable that was written to pools.
    pub fn sync(&self) -> Result<(), Failure> {
        let present = self.open.iter().filter(|open| open.snapshot.is_none());
        present
            .filter(|open| open.pool.damage().is_none())
            .try_for_each(|open| Ok(open.pool.sync()?))
    }
}

struct Begun {
    root: Node,
    path: Vec<u8>,
    shown: Vec<u8>,
    place: usize,
}

impl Located {
    /// What is there, links followed.
    pub fn meta(&self) -> Result<Option<Meta>> {
        let name = self.name.as_deref().unwrap_or(b".");
        match self.dir.stat_at(name, true) {
            Err(e) if e.is(rustix::io::Errno::NOENT) => Ok(None),
            meta => meta.map(Some),
        }
    }

    /// The directory that is there.
    pub fn directory(&self) -> Result<Option<Node>> {
        match self.meta()? {
            Some(meta) if meta.kind == Kind::Directory => {
                let name = self.name.as_deref().unwrap_or(b".");
                self.dir.open_dir(name).map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// The directory of a path, and the name in it; `None`: the directory itself.
fn split(path: &[u8]) -> (&[u8], Option<&[u8]>) {
    let end = path.iter().rposition(|byte| *byte != b'/');
    let Some(end) = end else {
        // The root, or nothing.
        return (path, None);
    };
    let path = &path[..=end];
    let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (&path[..1], &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&b""[..], path),
    };
    match name {
        b"." | b".." => (path, None),
        name => (above, Some(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn names_are_split_from_their_directories() {
        let cases: [(&str, &str, Option<&str>); 10] = [
            ("a", "", Some("a")),
            ("a/b//", "a", Some("b")),
            ("/a", "/", Some("a")),
            ("/a//b", "/a/", Some("b")),
            ("", "", None),
            ("/", "/", None),
            (".", ".", None),
            ("a/..", "a/..", None),
            ("a/./", "a/.", None),
            ("...", "", Some("...")),
        ];
        for (path, above, name) in cases {
            let wanted = (above.as_bytes(), name.map(str::as_bytes));
            assert_eq!(split(path.as_bytes()), wanted, "{path}");
        }
    }
}
