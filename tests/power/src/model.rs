//! What must be in a pool, in the plainest words: names, objects, bytes.
//!
//! Invariant: `versions` of a file are all contents that it had since they were last made sure
//! of, oldest first; the last is what programs see.

use crate::values::{self, Change, Values};
use std::collections::BTreeMap;

/// When a write is safe; the pool's consistency mode as its specification says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Names and attributes at return, data at fsync.
    Posix,
    /// Everything at return.
    Sync,
    /// Also, a write happens as a whole or not at all.
    Strict,
}

/// One call of a program.
#[derive(Clone, Debug)]
pub enum Op {
    Mkdir(&'static str),
    Create(&'static str),
    Symlink(&'static str, &'static str),
    Link(&'static str, &'static str),
    Rename(&'static str, &'static str),
    Exchange(&'static str, &'static str),
    Unlink(&'static str),
    Rmdir(&'static str),
    Chmod(&'static str, u32),
    /// So many bytes at an offset, all of a value.
    Write(&'static str, usize, usize, u8),
    Append(&'static str, usize, u8),
    Truncate(&'static str, usize),
    Fsync(&'static str),
    /// Opens a file until `Release`; operations in between go to the open file.
    Hold(&'static str),
    Release(&'static str),
    /// Makes a directory that is a keyspace.
    Keyspace(&'static str),
    /// Changes values, all at once.
    Change(&'static [Change]),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    Dir,
    Link(String),
    File { versions: Vec<Vec<u8>> },
}

#[derive(Clone, Debug)]
pub struct Model {
    mode: Mode,
    next: u32,
    pub names: BTreeMap<String, u32>,
    pub nodes: BTreeMap<u32, (Node, u32)>,
    pub values: Values,
    /// Open files by the path under which they were opened.
    held: BTreeMap<String, u32>,
}

impl Model {
    pub fn new(mode: Mode) -> Model {
        let (names, nodes, held) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let values = Values::new();
        Model {
            mode,
            next: 1,
            names,
            nodes,
            values,
            held,
        }
    }

    fn add(&mut self, path: &str, node: Node, mode: u32) {
        self.names.insert(path.into(), self.next);
        self.nodes.insert(self.next, (node, mode));
        self.next += 1;
    }

    fn versions(&mut self, path: &str) -> &mut Vec<Vec<u8>> {
        let id = self.held.get(path).unwrap_or_else(|| &self.names[path]);
        match &mut self.nodes.get_mut(id).unwrap().0 {
            Node::File { versions } => versions,
            _ => panic!("{path} is no file"),
        }
    }

    fn write(&mut self, path: &str, at: Option<usize>, len: usize, value: u8) {
        let lazy = self.mode == Mode::Posix;
        let versions = self.versions(path);
        let mut new = versions.last().unwrap().clone();
        let at = at.unwrap_or(new.len());
        new.resize(new.len().max(at + len), 0);
        new[at..at + len].fill(value);
        if !lazy {
            versions.clear();
        }
        versions.push(new);
    }

    /// Moves a name and, when it is a directory, all names below it.
    fn rename(&mut self, from: &str, to: &str) {
        self.names.remove(to);
        let below = format!("{from}/");
        let moved = |name: &String| name == from || name.starts_with(&below);
        let old: Vec<String> = self.names.keys().filter(|n| moved(n)).cloned().collect();
        for name in old {
            let id = self.names.remove(&name).unwrap();
            self.names
                .insert(format!("{to}{}", &name[from.len()..]), id);
        }
    }

    pub fn apply(&mut self, op: &Op) {
        match *op {
            Op::Mkdir(path) => self.add(path, Node::Dir, 0o755),
            Op::Create(path) => {
                let versions = vec![Vec::new()];
                self.add(path, Node::File { versions }, 0o644);
            }
            Op::Symlink(target, path) => self.add(path, Node::Link(target.into()), 0o777),
            Op::Link(old, new) => {
                let id = self.names[old];
                self.names.insert(new.into(), id);
            }
            Op::Rename(from, to) => self.rename(from, to),
            Op::Exchange(a, b) => {
                self.rename(a, "~");
                self.rename(b, a);
                self.rename("~", b);
            }
            Op::Unlink(path) | Op::Rmdir(path) => {
                self.names.remove(path).unwrap();
            }
            Op::Chmod(path, mode) => {
                let id = self.names[path];
                self.nodes.get_mut(&id).unwrap().1 = mode;
            }
            Op::Write(path, at, len, value) => self.write(path, Some(at), len, value),
            Op::Append(path, len, value) => self.write(path, None, len, value),
            Op::Truncate(path, len) => {
                self.versions(path)
                    .iter_mut()
                    .for_each(|v| v.resize(len, 0));
            }
            Op::Fsync(path) => {
                let versions = self.versions(path);
                versions.drain(..versions.len() - 1);
            }
            Op::Hold(path) => {
                self.held.insert(path.into(), self.names[path]);
            }
            Op::Release(path) => {
                self.held.remove(path);
            }
            Op::Keyspace(path) => self.add(path, Node::Dir, 0o755),
            Op::Change(changes) => {
                let values = &mut self.values;
                changes.iter().for_each(|c| values::apply(values, c));
            }
        }
    }

    /// Where a write under way may be half done: both contents, before and after.
    pub fn during(&self, op: &Op) -> Option<Model> {
        let (Op::Write(path, ..) | Op::Append(path, ..)) = *op else {
            return None;
        };
        if self.mode == Mode::Strict {
            return None;
        }
        let mut both = self.clone();
        let before = both.versions(path).clone();
        both.apply(op);
        let after = both.versions(path);
        *after = [before, after.clone()].concat();
        Some(both)
    }

    /// Names of an object; of a directory, as stat(2) counts them.
    pub fn links(&self, path: &str) -> u32 {
        let id = self.names[path];
        if self.nodes[&id].0 != Node::Dir {
            return self.names.values().filter(|i| **i == id).count() as u32;
        }
        let below = |(name, id): &(&String, &u32)| {
            let parent = name.rsplit_once('/').map(|(parent, _)| parent);
            parent == Some(path) && self.nodes[*id].0 == Node::Dir
        };
        2 + self.names.iter().filter(below).count() as u32
    }
}
