//! Session memory as somebody sees it who only looks.
//!
//! Invariants: all processes of the session write it, and no lock is taken: every number is copied
//! and bounded before it is used, and a loop ends where the table ends. Nothing is changed, but
//! that a slot is noted as seen without its process, as everybody does who looks who lives. What
//! was read at one moment may not fit what was read at the next one.

use crate::failure::Failure;
use crate::session;
use holdfast_client::live;
use holdfast_pmem::atomic::{AtomicU8, AtomicU32};
use holdfast_pmem::{RecordLocks, Shared, SharedMem};
use holdfast_pool::session::*;
use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::*;

/// Index of the first of the locks that are reserved.
const RESERVED_FROM: u32 = (LOCKS - LOCKS_RESERVED) as u32;

pub struct Memory {
    memory: SharedMem,
    locks: RecordLocks,
}

/// A process that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number here; 0: it has none in this PID namespace.
    pub pid: u32,
    slot: u32,
    epoch: u32,
    /// The slot whose descriptor table it uses, and how often that slot was taken.
    pub table: (u32, u32),
    directory: u32,
}

/// An open file description.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// Its own `Link`.
    pub link: u32,
    /// `Link` of the inode entry.
    pub inode: u32,
    pub ino: u64,
    pub flags: u32,
    pub offset: u64,
    /// The directory and the name by which it was opened; no name: not known.
    pub parent: u64,
    pub name: Vec<u8>,
    /// As a lock word names it, who has the description without a descriptor.
    holder: u32,
}

/// A file as its inode entry has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Object {
    pub ino: u64,
    pub mode: u32,
    pub size: u64,
    pub nlink: u32,
    pub state: u32,
    /// Of a value: the `Link` of its copy.
    pub entries: u64,
    /// Who changes it, and whether others wait for that.
    pub lock: u32,
}

/// A lock of a file or of a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    pub kind: Kind,
    pub exclusive: bool,
    pub first: u64,
    pub last: u64,
    pub ino: u64,
    /// The table of descriptors of the process that took it, as `Process::table`.
    pub table: (u32, u32),
    /// `Link` of the description that has it, unless a process does.
    pub description: u32,
}

/// Of what kind a lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Posix,
    Description,
    Whole,
}

impl Memory {
    pub fn map(session: BorrowedFd<'_>) -> Result<Memory, Failure> {
        let (memory, locks) = session::map(session)?;
        Ok(Memory { memory, locks })
    }

    fn entry<T: Shared>(&self, base: usize, index: u32) -> Option<&T> {
        self.memory
            .at((base + index as usize * size_of::<T>()) as u64)
    }

    /// The entry to which `link` refers in a table of `count`.
    fn linked<T: Shared>(&self, base: usize, count: usize, link: u32) -> Option<&T> {
        let index = link.checked_sub(1)?;
        self.entry(base, index).filter(|_| (index as usize) < count)
    }

    /// How many entries of a table of `count` were used.
    fn used(&self, of: impl Fn(&Header) -> &AtomicU32, count: usize) -> u32 {
        let header = self.entry::<Header>(HEADER_AT, 0);
        header.map_or(0, |header| of(header).load(Acquire).min(count as u32))
    }

    /// The quota at a place of the table.
    pub fn quota(&self, place: usize) -> Option<&Quota> {
        let place = u32::try_from(place).ok()?;
        self.entry(QUOTAS_AT, place)
            .filter(|_| (place as usize) < QUOTAS)
    }

    fn slot(&self, index: u32) -> Option<&Slot> {
        self.linked(SLOTS_AT, SERVICE_SLOT, index.checked_add(1)?)
    }

    /// All processes of the session but its helper.
    pub fn processes(&self) -> Vec<Process> {
        let used = self.used(|header| &header.slots_used, SERVICE_SLOT);
        (0..used).filter_map(|slot| self.process(slot)).collect()
    }

    fn process(&self, index: u32) -> Option<Process> {
        let slot = self.slot(index)?;
        let generation = slot.generation.load(Acquire);
        let is_one =
            slot.state.load(Acquire) == live::SLOT_LIVE && slot.run.load(Relaxed) != RUN_OF_HELPER;
        if !is_one || !live::is_alive(&self.locks, index, slot) {
            return None;
        }
        let shown = slot.shown.load(Relaxed) as u32;
        let pid = match shown {
            0 => live::shown_pid(&self.locks, index, slot),
            shown => shown,
        };
        let of = |word: &AtomicU32| word.load(Acquire).checked_sub(1).unwrap_or(index);
        let (files, directory) = (of(&slot.files), of(&slot.directory));
        let files_slot = self.slot(files);
        let files_generation = files_slot.map_or(0, |slot| slot.generation.load(Acquire));
        let process = Process {
            pid,
            slot: index,
            epoch: slot.epoch.load(Relaxed),
            table: (files, files_generation),
            directory,
        };
        // Else it was another process's while it was read.
        (slot.generation.load(Acquire) == generation).then_some(process)
    }

    /// What descriptors of a table refer to, each with the `Link` of its description. `seen` has
    /// the pages that were looked at: each belongs to one table.
    pub fn descriptors(&self, table: u32, seen: &mut HashSet<u32>) -> Vec<(u32, u32)> {
        let mut found = Vec::new();
        let Some(slot) = self.slot(table) else {
            return found;
        };
        let limit = slot.fd_limit.load(Acquire).min(FDS as u32);
        let page = |link| self.linked::<FdPage>(FD_PAGES_AT, FD_PAGES, link);
        let directory = page(slot.fd_directory.load(Acquire));
        for number in 0..limit.div_ceil(FD_PAGE as u32) {
            let of_page = match number {
                0 => self.linked::<FdPage>(FD_TABLES_AT, SLOTS, table + 1),
                _ => directory
                    .and_then(|pages| pages.entries.get(number as usize))
                    .map(|link| link.load(Acquire))
                    .filter(|link| *link != 0 && seen.insert(*link))
                    .and_then(page),
            };
            let entries = of_page.map_or(&[][..], |page| &page.entries);
            let entries = entries.iter().map(|entry| entry.load(Acquire));
            let from = number * FD_PAGE as u32;
            found.extend((from..limit).zip(entries).filter(|(_, link)| *link != 0));
        }
        found
    }

    /// Inode number of a process's working directory, if that is in the pool.
    pub fn working_directory(&self, process: &Process) -> Option<u64> {
        let ino = self.slot(process.directory)?.cwd.load(Acquire);
        (ino != 0).then_some(ino)
    }

    /// The files that a process has mapped: `Link` of the inode entry, and number.
    pub fn mappings(&self, process: &Process) -> Vec<(u32, u64)> {
        let table = self.linked::<PinTable>(PIN_TABLES_AT, SLOTS, process.slot + 1);
        let pins = table.map_or(&[][..], |table| &table.entries);
        let pins = pins.iter().filter(|pin| pin.count.load(Acquire) != 0);
        pins.map(|pin| (pin.inode.load(Relaxed), pin.ino.load(Relaxed)))
            .collect()
    }

    /// `None`: nobody has it.
    pub fn description(&self, link: u32) -> Option<Description> {
        let ofd = self.linked::<Ofd>(OFDS_AT, OFDS, link)?;
        let generation = ofd.generation.load(Acquire);
        let name_len = (ofd.name_len.load(Relaxed) as usize).min(ofd.name.len());
        let description = Description {
            link,
            inode: ofd.inode.load(Acquire),
            ino: ofd.ino.load(Relaxed),
            flags: ofd.flags.load(Relaxed),
            offset: ofd.offset.load(Relaxed),
            parent: ofd.parent.load(Relaxed),
            name: copied(&ofd.name, name_len),
            holder: ofd.spare.load(Relaxed),
        };
        let in_use = description.inode != 0 && ofd.refs.load(Acquire) != 0;
        (in_use && ofd.generation.load(Acquire) == generation).then_some(description)
    }

    /// `Link`s of all descriptions that were ever used.
    pub fn descriptions(&self) -> std::ops::RangeInclusive<u32> {
        1..=self.used(|header| &header.ofd_used, OFDS)
    }

    /// The process that has a description without a descriptor: a library's.
    pub fn has(&self, process: &Process, description: &Description) -> bool {
        is_word_of(process, description.holder)
    }

    /// The file `ino` if it is in this inode entry.
    pub fn object(&self, link: u32, ino: u64) -> Option<Object> {
        let e = self.linked::<Inode>(INODES_AT, INODES, link)?;
        let is_it = |e: &Inode| e.ino.load(Acquire) == ino && ino != 0;
        if !is_it(e) {
            return None;
        }
        let object = Object {
            ino,
            mode: e.mode.load(Relaxed),
            size: e.size.load(Relaxed),
            nlink: e.nlink.load(Relaxed),
            state: e.state.load(Relaxed),
            entries: e.entries.load(Relaxed),
            lock: e.lock.load(Relaxed),
        };
        is_it(e).then_some(object)
    }

    /// Those of the files whose numbers are `wanted` that have an entry.
    pub fn objects(&self, wanted: &HashSet<u64>) -> Vec<Object> {
        let used = self.used(|header| &header.inode_used, INODES);
        let links = if wanted.is_empty() { 0 } else { used };
        let number = |link| self.linked::<Inode>(INODES_AT, INODES, link);
        let is_wanted = |ino: &u64| wanted.contains(ino);
        (1..=links)
            .filter_map(|link| Some((link, number(link)?.ino.load(Relaxed))))
            .filter(|(_, ino)| is_wanted(ino))
            .filter_map(|(link, ino)| self.object(link, ino))
            .collect()
    }

    /// Number of the keyspace and key of an open value.
    pub fn value(&self, object: &Object) -> Option<(u64, Vec<u8>)> {
        let link = object.entries as u32;
        let copy = self.linked::<OpenValue>(OPEN_VALUES_AT, OPEN_VALUES, link)?;
        let keyspace = copy.keyspace.load(Acquire);
        let len = usize::from(copy.key_len.load(Relaxed)).min(copy.words.len() * 8);
        let words = copy.words.iter().take(len.div_ceil(8));
        let mut key: Vec<u8> = words
            .flat_map(|word| word.load(Relaxed).to_le_bytes())
            .collect();
        key.truncate(len);
        (copy.ino.load(Acquire) == object.ino).then_some((keyspace, key))
    }

    /// All locks that anybody has taken.
    pub fn locks(&self) -> Vec<Lock> {
        let used = self.used(|header| &header.locks_used, RESERVED_FROM as usize);
        let reserved = self.used(|header| &header.reserved_locks_used, LOCKS_RESERVED);
        let all = (0..used).chain(RESERVED_FROM..RESERVED_FROM + reserved);
        all.filter_map(|index| self.lock(index + 1)).collect()
    }

    fn lock(&self, link: u32) -> Option<Lock> {
        let lock = self.linked::<RangeLock>(LOCKS_AT, LOCKS, link)?;
        let kind = match lock.kind.load(Acquire) {
            1 => Kind::Posix,
            2 => Kind::Description,
            3 => Kind::Whole,
            _ => return None,
        };
        Some(Lock {
            kind,
            exclusive: lock.mode.load(Relaxed) == 2,
            first: lock.first.load(Relaxed),
            last: lock.last.load(Relaxed),
            ino: lock.ino.load(Relaxed),
            table: (
                lock.slot.load(Relaxed).checked_sub(1)?,
                lock.slot_generation.load(Relaxed),
            ),
            description: lock.ofd.load(Relaxed),
        })
    }

    /// The lock for which a process waits.
    pub fn waits_for(&self, process: &Process) -> Option<Lock> {
        let link = self.slot(process.table.0)?.waits_for.load(Acquire);
        self.lock(u32::try_from(link).ok()?)
    }

    /// `Link`s of all cached names that were ever used.
    pub fn names(&self) -> impl Iterator<Item = u32> {
        let short = self.used(|header| &header.dentry_used, DENTRIES);
        let long = self.used(|header| &header.long_dentry_used, LONG_DENTRIES);
        let from = DENTRIES as u32;
        (1..=short).chain(from + 1..=from + long)
    }

    /// What a cached name leads to: the kind as in dirent(5), and the number.
    pub fn leads_to(&self, link: u32) -> Option<(u8, u64)> {
        let dentry = self.dentry(link)?;
        let is_name = dentry.state.load(Acquire) & DENTRY_VALID != 0;
        let ino = dentry.ino.load(Acquire);
        (is_name && ino != 0).then(|| (dentry.kind.load(Relaxed), ino))
    }

    /// The name if it leads to `ino`, and the directory that it is in.
    pub fn name(&self, link: u32, ino: u64) -> Option<(u64, Vec<u8>)> {
        let dentry = self.dentry(link)?;
        let parent = dentry.parent.load(Acquire);
        let len = usize::from(dentry.name_len.load(Relaxed));
        let name = match link as usize > DENTRIES {
            true => copied(&self.long_dentry(link)?.name, len),
            false => copied(&dentry.name, len),
        };
        let is_it = self.leads_to(link).is_some_and(|(_, found)| found == ino);
        (is_it && dentry.parent.load(Acquire) == parent).then_some((parent, name))
    }

    fn dentry(&self, link: u32) -> Option<&Dentry> {
        match link as usize > DENTRIES {
            true => self.long_dentry(link).map(|long| &long.head),
            false => self.linked(DENTRIES_AT, DENTRIES, link),
        }
    }

    fn long_dentry(&self, link: u32) -> Option<&LongDentry> {
        let link = link.checked_sub(DENTRIES as u32)?;
        self.linked(LONG_DENTRIES_AT, LONG_DENTRIES, link)
    }
}

/// Whether a lock word names the process.
pub fn is_word_of(process: &Process, word: u32) -> bool {
    let epoch = process.epoch << OWNER_SLOT.count_ones() & OWNER_EPOCH;
    word & !OWNER_WAITERS == epoch | (process.slot + 1)
}

fn copied(bytes: &[AtomicU8], len: usize) -> Vec<u8> {
    let bytes = bytes.iter().take(len);
    bytes.map(|byte| byte.load(Relaxed)).collect()
}
