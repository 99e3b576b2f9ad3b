//! The paths of files whose numbers are known.
//!
//! Invariants: a cached name is as of now; the trees may be older, and have what no cache has; no
//! chain of directories is followed for longer than one can be.

use crate::kv::escape;
use crate::lsof::look::Open;
use crate::lsof::memory::{Description, Memory, Object};
use holdfast_pool::Reader;
use holdfast_pool::layout::inode::InodeRecord;
use holdfast_pool::layout::{DIRENTS, INODES, ROOT_INO, dirent, ino_key};
use holdfast_pool::session::{INODE_ORPHAN, INODE_VALUE};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::rc::Rc;

/// Deeper than any path is.
const DEPTH_MAX: usize = 1 << 14;
/// Kind of a directory as in dirent(5).
const DIRECTORY: u8 = 4;
/// As much of a record is read as its end, which is a name.
const RECORD: usize = 2048;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    directory: u64,
    name: Vec<u8>,
}

/// A path without a slash at its end, if it leads to the root.
type Known = Option<Rc<Vec<u8>>>;

pub struct Names<'a> {
    memory: &'a Memory,
    trees: Reader<'a>,
    /// `Link`s of the cached names of directories.
    directories: HashMap<u64, u32>,
    names: HashMap<u64, Vec<Name>>,
    known: RefCell<HashMap<u64, Known>>,
}

impl<'a> Names<'a> {
    /// Those of the files whose numbers are `wanted`.
    pub fn of(memory: &'a Memory, trees: Reader<'a>, wanted: &HashSet<u64>) -> Names<'a> {
        let mut names = Names {
            memory,
            trees,
            directories: HashMap::new(),
            names: HashMap::new(),
            known: RefCell::default(),
        };
        let links = if wanted.is_empty() { 0 } else { usize::MAX };
        for link in memory.names().take(links) {
            match memory.leads_to(link) {
                Some((DIRECTORY, ino)) => drop(names.directories.insert(ino, link)),
                Some((_, ino)) if wanted.contains(&ino) => names.add_cached(link, ino),
                _ => {}
            }
        }
        names
    }

    fn add_cached(&mut self, link: u32, ino: u64) {
        if let Some((directory, name)) = self.memory.name(link, ino) {
            self.add(ino, Name { directory, name });
        }
    }

    fn add(&mut self, ino: u64, name: Name) {
        let all = self.names.entry(ino).or_default();
        if !all.contains(&name) {
            all.push(name);
        }
    }

    /// Looks at all names in the trees for those files of which too few names are known, if there
    /// are any. `all`: each name of a file is of interest.
    pub fn complete(&mut self, open: &[Open], all: bool) {
        let mut missing = HashSet::new();
        for open in open {
            let object = &open.object;
            if is_removed(object) || object.state & INODE_VALUE != 0 || is_directory(object) {
                continue;
            }
            if let Some(name) = open.description.as_ref().and_then(|d| self.opened_as(d)) {
                self.add(object.ino, name);
            }
            let known = self.names.get(&object.ino).map_or(0, Vec::len);
            if known == 0 || all && known < object.nlink as usize {
                missing.insert(object.ino);
            }
        }
        if !missing.is_empty() {
            self.add_stored(&missing);
        }
    }

    /// The name by which it was opened, if that leads to it.
    fn opened_as(&self, description: &Description) -> Option<Name> {
        let (directory, name) = (description.parent, description.name.clone());
        let found = dirent::find(&self.trees, directory, &name).ok()??;
        (found.ino == description.ino).then_some(Name { directory, name })
    }

    fn add_stored(&mut self, wanted: &HashSet<u64>) {
        let trees = self.trees;
        let see = |key: &[u8], bytes: &[u8]| {
            let entry = dirent::Dirent::decode(bytes);
            let entry = entry.ok().filter(|entry| wanted.contains(&entry.ino));
            if let (Some(entry), Ok((directory, _))) = (entry, dirent::parse_key(key)) {
                let name = entry.name.to_vec();
                self.add(entry.ino, Name { directory, name });
            }
            ControlFlow::Continue(())
        };
        // Names in a tree that cannot be read are not known.
        let _ = trees.scan(DIRENTS, &[], None, see);
    }

    /// All paths of a file, as people see them; one that lost its last name has that by which it
    /// was opened.
    pub fn paths(&self, object: &Object, opened: Option<&Description>) -> Vec<Vec<u8>> {
        if is_directory(object) {
            return self.directory(object.ino).into_iter().collect();
        }
        if object.state & INODE_VALUE != 0 {
            let value = self.memory.value(object);
            let path = value.and_then(|(keyspace, key)| {
                let key = escape::shown(&key).into_bytes();
                self.below(keyspace, &key)
            });
            return path.into_iter().collect();
        }
        let opened = opened.filter(|opened| !opened.name.is_empty());
        if let Some(opened) = opened.filter(|_| is_removed(object)) {
            return self
                .below(opened.parent, &opened.name)
                .into_iter()
                .collect();
        }
        let names = self.names.get(&object.ino).into_iter().flatten();
        let paths = names.filter_map(|name| self.below(name.directory, &name.name));
        let mut paths: Vec<_> = paths.collect();
        // The one by which it was opened, or the first of all.
        let first = |path: &Vec<u8>| {
            let opened = opened.and_then(|opened| self.below(opened.parent, &opened.name));
            (opened.as_ref() != Some(path), path.clone())
        };
        paths.sort_by_cached_key(first);
        paths
    }

    fn below(&self, directory: u64, name: &[u8]) -> Option<Vec<u8>> {
        let directory = self.known(directory)?;
        Some([&directory, b"/".as_slice(), name].concat())
    }

    fn directory(&self, ino: u64) -> Option<Vec<u8>> {
        let path = self.known(ino)?;
        Some(if path.is_empty() {
            b"/".to_vec()
        } else {
            path.to_vec()
        })
    }

    fn known(&self, ino: u64) -> Known {
        if let Some(known) = self.known.borrow().get(&ino) {
            return known.clone();
        }
        let found = self.walk(ino).map(Rc::new);
        self.known.borrow_mut().insert(ino, found.clone());
        found
    }

    fn walk(&self, ino: u64) -> Option<Vec<u8>> {
        path_from(ino, |ino| {
            self.cached(ino).or_else(|| stored(&self.trees, ino, false))
        })
    }

    fn cached(&self, ino: u64) -> Option<Name> {
        let link = self.directories.get(&ino)?;
        let (directory, name) = self.memory.name(*link, ino)?;
        Some(Name { directory, name })
    }
}

/// As the record of a directory has it; with `linked`, only of one that is not removed.
fn stored(trees: &Reader<'_>, ino: u64, linked: bool) -> Option<Name> {
    let mut bytes = [0; RECORD];
    let len = trees.get(INODES, &ino_key(ino), &mut bytes).ok()??;
    let record = InodeRecord::decode(bytes.get(..len)?).ok()?;
    let is_it = record.is_dir() && (record.nlink > 0 || !linked);
    is_it.then(|| Name {
        directory: record.parent,
        name: record.tail.to_vec(),
    })
}

/// The path of a directory as the trees have it; `None`: it is gone.
pub fn stored_path(trees: &Reader<'_>, directory: u64) -> Option<Vec<u8>> {
    path_from(directory, |ino| stored(trees, ino, true))
}

/// From a directory up to the root, without a slash at the end.
fn path_from(directory: u64, name_of: impl Fn(u64) -> Option<Name>) -> Option<Vec<u8>> {
    let (mut names, mut at) = (Vec::<Vec<u8>>::new(), directory);
    for _ in 0..DEPTH_MAX {
        if at == ROOT_INO {
            let names = names.iter().rev();
            return Some(names.flat_map(|name| [b"/", &name[..]].concat()).collect());
        }
        let name = name_of(at)?;
        names.push(name.name);
        at = name.directory;
    }
    None
}

pub fn is_removed(object: &Object) -> bool {
    object.nlink == 0 || object.state & INODE_ORPHAN != 0
}

fn is_directory(object: &Object) -> bool {
    object.mode & holdfast_pool::layout::inode::TYPE_MASK == holdfast_pool::layout::inode::TYPE_DIR
}
