//! What must be in a pool, in the plainest words: names, objects, bytes.
//!
//! Invariant: `versions` of a file are all contents that it had since they were last made sure
//! of, oldest first; the last is what programs see. `later` is what was written after the moment
//! that the model is about: on an ordinary file it may be in its place though no record says so.

use crate::values::{self, Change, Values};
use holdfast_pmem::Medium;
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

/// Whom a quota limits.
#[derive(Clone, Copy, Debug)]
pub enum Whose {
    User(u32),
    Directory(&'static str),
}

/// The same, whatever its name is by then: a directory's number in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    User(u32),
    Directory(u32),
}

/// What a quota says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub partial: bool,
    pub bytes: u64,
    pub files: u64,
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
    /// Says anew when a key expires, which is there.
    Expire(&'static str, &'static str, i64),
    /// Removes what has expired from the trees, as the service's helper does.
    RemoveExpired,
    /// Everybody leaves; the service does it alone; and a new session begins.
    RemoveAlone,
    Chown(&'static str, u32),
    /// Limits bytes and files.
    Quota(Whose, u64, u64),
    QuotaRemove(Whose),
    /// Opens a file that is cut to nothing, writes so many bytes, and closes it.
    Replace(&'static str, usize, u8),
    /// sync(2).
    SyncAll,
    /// The service makes all that it has durable.
    Checkpoint,
    /// The same after its helper wrote back what the session alone had of open files.
    WriteBack,
    /// Everybody leaves, and a new session begins.
    Rejoin,
    /// All processes die; a new service recovers the pool, and a new session begins.
    Die,
    /// What nothing uses leaves the memory of the session.
    Evict,
    /// Keeps all that there is under a name.
    Snapshot(&'static str),
    /// A fault for the stories to find: no block counts as dirty any more.
    ForgetDirty,
}

impl Op {
    /// Whether everything that was done before is durable when it returns, but for what files have
    /// in them, on a medium where changes wait for that.
    pub fn flushes(&self) -> bool {
        matches!(self, Op::Fsync(_) | Op::Change(_) | Op::Expire(..)) || self.settles()
    }

    /// Whether also what files have in them is durable then.
    fn settles(&self) -> bool {
        use Op::*;
        matches!(
            self,
            Quota(..)
                | QuotaRemove(_)
                | SyncAll
                | Checkpoint
                | WriteBack
                | Rejoin
                | RemoveAlone
                | Die
                | Snapshot(_)
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    Dir,
    Link(String),
    File {
        versions: Vec<Vec<u8>>,
        later: Vec<Vec<u8>>,
    },
}

fn file(versions: Vec<Vec<u8>>) -> Node {
    let later = Vec::new();
    Node::File { versions, later }
}

/// Names and values that a snapshot keeps.
pub type Snapshots = BTreeMap<String, Model>;

#[derive(Clone, Debug)]
pub struct Model {
    mode: Mode,
    medium: Medium,
    next: u32,
    pub names: BTreeMap<String, u32>,
    pub nodes: BTreeMap<u32, (Node, u32)>,
    pub values: Values,
    /// Of objects that root does not own.
    pub owners: BTreeMap<u32, u32>,
    pub quotas: BTreeMap<Subject, Limits>,
    /// Open files by the path under which they were opened.
    held: BTreeMap<String, u32>,
    pub snapshots: Snapshots,
}

impl Model {
    pub fn new(mode: Mode, medium: Medium) -> Model {
        let (names, nodes, held) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (values, snapshots) = (Values::new(), Snapshots::new());
        Model {
            mode,
            medium,
            next: 1,
            names,
            nodes,
            values,
            owners: BTreeMap::new(),
            quotas: BTreeMap::new(),
            held,
            snapshots,
        }
    }

    /// Whether changes wait for an fsync, all together.
    pub fn is_lazy(&self) -> bool {
        (self.mode, self.medium) == (Mode::Posix, Medium::File)
    }

    fn add(&mut self, path: &str, node: Node, mode: u32) {
        self.names.insert(path.into(), self.next);
        self.nodes.insert(self.next, (node, mode));
        self.next += 1;
    }

    /// Of the open file, or the name.
    fn id(&self, path: &str) -> u32 {
        *self.held.get(path).unwrap_or_else(|| &self.names[path])
    }

    pub fn subject(&self, whose: Whose) -> Subject {
        match whose {
            Whose::User(uid) => Subject::User(uid),
            Whose::Directory(path) => Subject::Directory(self.names[path]),
        }
    }

    fn is_file(&self, path: &str) -> bool {
        matches!(self.nodes[&self.names[path]].0, Node::File { .. })
    }

    /// What a file has in it is durable.
    fn settle(&mut self, id: u32) {
        if let Node::File { versions, .. } = &mut self.nodes.get_mut(&id).unwrap().0 {
            versions.drain(..versions.len() - 1);
        }
    }

    /// All files that nobody has open: of the others something may be known to the session alone.
    fn settle_all(&mut self) {
        let open = |id: &u32| self.held.values().any(|held| held == id);
        let closed: Vec<u32> = self.nodes.keys().filter(|id| !open(id)).copied().collect();
        closed.into_iter().for_each(|id| self.settle(id));
    }

    fn replace(&mut self, path: &str, len: usize, value: u8) {
        let versions = self.versions(path);
        versions.iter_mut().for_each(Vec::clear);
        self.write(path, Some(0), len, value);
        // It is in the journal when the file is closed, in the order of the changes.
        if self.is_lazy() {
            let id = self.id(path);
            self.settle(id);
        }
    }

    fn versions(&mut self, path: &str) -> &mut Vec<Vec<u8>> {
        let id = self.id(path);
        match &mut self.nodes.get_mut(&id).unwrap().0 {
            Node::File { versions, .. } => versions,
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
                self.add(path, file(vec![Vec::new()]), 0o644);
            }
            Op::Symlink(target, path) => self.add(path, Node::Link(target.into()), 0o777),
            Op::Link(old, new) => {
                let id = self.names[old];
                self.names.insert(new.into(), id);
            }
            Op::Rename(from, to) => {
                // What takes the place of a file has its content there.
                if self.is_lazy() && self.is_file(from) && self.names.contains_key(to) {
                    self.settle(self.names[from]);
                }
                self.rename(from, to);
            }
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
                let id = self.id(path);
                self.settle(id);
            }
            Op::Hold(path) => {
                self.held.insert(path.into(), self.names[path]);
            }
            Op::Release(path) => {
                self.held.remove(path);
            }
            Op::Chown(path, uid) => {
                let id = self.names[path];
                self.owners.insert(id, uid);
            }
            Op::Replace(path, len, value) => self.replace(path, len, value),
            Op::Keyspace(path) => self.add(path, Node::Dir, 0o755),
            _ => self.apply_to_whole(op),
        }
    }

    /// What is about keyspaces, quotas and the whole pool.
    fn apply_to_whole(&mut self, op: &Op) {
        match *op {
            Op::Change(changes) => {
                let values = &mut self.values;
                changes.iter().for_each(|c| values::apply(values, c));
            }
            Op::Expire(k, key, until) => values::expire(&mut self.values, k, key, until),
            Op::Quota(whose, bytes, files) => {
                let limits = Limits {
                    partial: false,
                    bytes,
                    files,
                };
                self.quotas.insert(self.subject(whose), limits);
                self.settle_all();
            }
            Op::QuotaRemove(whose) => {
                self.quotas.remove(&self.subject(whose)).unwrap();
                self.settle_all();
            }
            Op::Snapshot(name) => {
                self.settle_all();
                let mut kept = self.clone();
                kept.snapshots.clear();
                self.snapshots.insert(name.into(), kept);
            }
            Op::WriteBack => {
                let all: Vec<u32> = self.nodes.keys().copied().collect();
                all.into_iter().for_each(|id| self.settle(id));
            }
            Op::SyncAll | Op::Checkpoint | Op::Rejoin | Op::RemoveAlone | Op::Die => {
                self.settle_all();
            }
            // Programs see nothing of it.
            _ => {}
        }
    }

    /// Adds what `after`, a state that came after this one, has in the same files.
    pub fn add_later(&mut self, after: &Model) {
        for (id, (node, _)) in &mut self.nodes {
            let (Node::File { later, .. }, Some((Node::File { versions, .. }, _))) =
                (node, after.nodes.get(id))
            else {
                continue;
            };
            let new = versions.iter().filter(|v| !later.contains(v));
            let new: Vec<_> = new.cloned().collect();
            later.extend(new);
        }
    }

    /// A quota that is set or taken away, while what files have in them is not durable yet; before
    /// that a directory only some of whose content counts, as it is about to have it or to lose it.
    fn limiting(&self, whose: Whose, limits: Option<Limits>) -> Vec<Model> {
        let subject = self.subject(whose);
        let old = self.quotas.get(&subject).copied();
        let is_marked = matches!(whose, Whose::Directory(_)) && old.is_some() == limits.is_none();
        let with = |limits: Option<Limits>| {
            let mut during = self.clone();
            match limits {
                Some(limits) => drop(during.quotas.insert(subject, limits)),
                None => drop(during.quotas.remove(&subject)),
            }
            during
        };
        let partial = |limits| Limits {
            partial: true,
            ..limits
        };
        let marked = is_marked.then(|| with(limits.or(old).map(partial)));
        marked.into_iter().chain([with(limits)]).collect()
    }

    /// States in which a write under way may be half done: both contents, before and after.
    pub fn during(&self, op: &Op) -> Vec<Model> {
        let mut start = self.clone();
        match *op {
            Op::Quota(whose, bytes, files) => {
                let limits = Limits {
                    partial: false,
                    bytes,
                    files,
                };
                return self.limiting(whose, Some(limits));
            }
            Op::QuotaRemove(whose) => return self.limiting(whose, None),
            _ => {}
        }
        let path = match *op {
            Op::Write(path, ..) | Op::Append(path, ..) => path,
            Op::Replace(path, ..) => {
                *start.versions(path) = vec![Vec::new()];
                path
            }
            _ => return Vec::new(),
        };
        let cut = matches!(op, Op::Replace(..)).then(|| start.clone());
        if self.mode == Mode::Strict {
            return cut.into_iter().collect();
        }
        let before = start.versions(path).clone();
        start.apply(op);
        let after = start.versions(path);
        *after = [before, after.clone()].concat();
        cut.into_iter().chain([start]).collect()
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
