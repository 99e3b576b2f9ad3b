//! One look at a session: who has what open, who has what locked, and who waits for whom.
//!
//! Invariant: every line names a process that lived when it was looked at.

use crate::lsof::memory::{Description, Kind, Lock, Memory, Object, Process, is_word_of};
use holdfast_pool::session::{OFDS, OWNER_WAITERS};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// Through what a process has a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handle {
    Directory,
    Descriptor(u32),
    /// A program that uses the library has it.
    Library,
    Mapping,
}

/// A file that a process has.
#[derive(Clone, Debug)]
pub struct Open {
    /// Its place in `Look::processes`.
    pub process: usize,
    pub handle: Handle,
    pub description: Option<Rc<Description>>,
    link: u32,
    pub object: Object,
}

/// What a process has locked, or waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub process: usize,
    /// `None`: the file itself, amid a call for which others wait.
    pub lock: Option<Lock>,
    pub ino: u64,
    /// The process waits for the lock that this one has, if that is known.
    pub waits_for: Option<Option<usize>>,
}

#[derive(Debug, Default)]
pub struct Look {
    pub processes: Vec<Process>,
    pub open: Vec<Open>,
    pub held: Vec<Held>,
}

/// A session has no more descriptions; who shows more lines than this lies.
const LINES_MAX: usize = OFDS;

impl Look {
    pub fn at(memory: &Memory) -> Look {
        let mut look = Look {
            processes: memory.processes(),
            ..Look::default()
        };
        look.processes.sort_by_key(|process| process.pid);
        let bound = look.find_descriptors(memory);
        look.find_library(memory, &bound);
        look.find_objects(memory);
        look.find_locks(memory);
        look
    }

    fn add(&mut self, process: usize, handle: Handle, link: u32, ino: u64) {
        if self.open.len() < LINES_MAX {
            let object = Object {
                ino,
                ..Object::default()
            };
            self.open.push(Open {
                process,
                handle,
                description: None,
                link,
                object,
            });
        }
    }

    fn add_description(&mut self, process: usize, handle: Handle, found: &Rc<Description>) {
        self.add(process, handle, found.inode, found.ino);
        if let Some(open) = self.open.last_mut() {
            open.description = Some(found.clone());
        }
    }

    /// What all processes have but by the library; all descriptions that have descriptors.
    fn find_descriptors(&mut self, memory: &Memory) -> HashSet<u32> {
        let (mut pages, mut tables) = (HashSet::new(), HashMap::new());
        let mut descriptions = HashMap::new();
        for (n, process) in self.processes.clone().iter().enumerate() {
            if let Some(ino) = memory.working_directory(process) {
                self.add(n, Handle::Directory, 0, ino);
            }
            // Several processes may use one table.
            let table = tables
                .entry(process.table.0)
                .or_insert_with(|| memory.descriptors(process.table.0, &mut pages));
            for (fd, link) in table.iter() {
                let found = descriptions
                    .entry(*link)
                    .or_insert_with(|| memory.description(*link).map(Rc::new));
                if let Some(found) = found {
                    self.add_description(n, Handle::Descriptor(*fd), found);
                }
            }
            for (link, ino) in memory.mappings(process) {
                self.add(n, Handle::Mapping, link, ino);
            }
        }
        descriptions.into_keys().collect()
    }

    fn find_library(&mut self, memory: &Memory, bound: &HashSet<u32>) {
        for link in memory.descriptions().filter(|link| !bound.contains(link)) {
            let Some(found) = memory.description(link).map(Rc::new) else {
                continue;
            };
            let mut processes = self.processes.iter();
            if let Some(n) = processes.position(|process| memory.has(process, &found)) {
                self.add_description(n, Handle::Library, &found);
            }
        }
    }

    /// What the inode entries say. What has none any more was closed meanwhile.
    fn find_objects(&mut self, memory: &Memory) {
        let directories = self.open.iter().filter(|open| open.link == 0);
        let directories = directories.map(|open| open.object.ino).collect();
        let directories = memory.objects(&directories).into_iter();
        let directories: HashMap<_, _> = directories.map(|found| (found.ino, found)).collect();
        self.open.retain_mut(|open| {
            let found = match open.link {
                0 => directories.get(&open.object.ino).copied(),
                link => memory.object(link, open.object.ino),
            };
            found.inspect(|found| open.object = *found).is_some()
        });
        self.open.sort_by_key(|open| open.process);
    }

    fn find_locks(&mut self, memory: &Memory) {
        let holders = self.holders();
        let holder = |lock: &Lock| match lock.kind {
            Kind::Posix => holders.tables.get(&lock.table).copied(),
            _ => holders.descriptions.get(&lock.description).copied(),
        };
        let mut held = Vec::new();
        for lock in memory.locks() {
            let ino = lock.ino;
            held.extend(holder(&lock).map(|process| Held {
                process,
                lock: Some(lock),
                ino,
                waits_for: None,
            }));
        }
        for (process, waits) in self.processes.iter().enumerate() {
            held.extend(memory.waits_for(waits).map(|lock| Held {
                process,
                lock: Some(lock),
                ino: lock.ino,
                waits_for: Some(holder(&lock)),
            }));
        }
        held.extend(self.amid_calls());
        held.sort_by_key(|held| (held.ino, held.waits_for.is_some(), held.process));
        self.held = held;
    }

    /// Who changes a file for which others wait.
    fn amid_calls(&self) -> Vec<Held> {
        let mut seen = HashSet::new();
        let waited = self
            .open
            .iter()
            .map(|open| open.object)
            .filter(|object| object.lock & OWNER_WAITERS != 0 && seen.insert(object.ino));
        let holder = |object: Object| {
            let mut all = self.processes.iter();
            let process = all.position(|process| is_word_of(process, object.lock))?;
            Some(Held {
                process,
                lock: None,
                ino: object.ino,
                waits_for: None,
            })
        };
        waited.filter_map(holder).collect()
    }

    fn holders(&self) -> Holders {
        let mut holders = Holders::default();
        for (n, process) in self.processes.iter().enumerate() {
            holders.tables.entry(process.table).or_insert(n);
        }
        for open in &self.open {
            if let Some(description) = &open.description {
                let entry = holders.descriptions.entry(description.link);
                entry.or_insert(open.process);
            }
        }
        holders
    }
}

/// One process for each of those that have locks.
#[derive(Default)]
struct Holders {
    tables: HashMap<(u32, u32), usize>,
    descriptions: HashMap<u32, usize>,
}
