//! A file system in sorted maps, written from `docs/spec/journal.md` alone, that says what each
//! record must do.
//!
//! Invariant: it shares no code with what it judges; the content of a block is its number on the
//! medium.

use crate::journal::Record;
use std::collections::{BTreeMap, BTreeSet};
use std::string::String;
use std::vec::Vec;

const DIR: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// An object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub project: u32,
    pub rdev: u64,
    pub size: u64,
    /// atime, mtime, ctime, btime.
    pub times: [i64; 4],
    pub target: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// File block -> block on the medium.
    pub blocks: BTreeMap<u64, u64>,
    /// What is inline, of block 0.
    pub inline: Vec<u8>,
    /// Directories: where the name is.
    pub parent: u64,
}

/// All objects and names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    pub objects: BTreeMap<u64, Object>,
    pub names: BTreeMap<(u64, Vec<u8>), u64>,
    pub orphans: BTreeSet<u64>,
    /// Blocks that the session may use.
    pub granted: BTreeSet<u64>,
    pub next_ino: u64,
}

fn kind(o: &Object) -> u32 {
    o.mode & 0o170_000
}

fn legal(name: &[u8]) -> bool {
    let plain = String::from_utf8_lossy(name);
    let dots = plain == "." || plain == "..";
    (1..256).contains(&name.len()) && !dots && !plain.contains(['/', '\0'])
}

impl Model {
    /// A pool with a root directory.
    pub fn new(root_mode: u32, granted: impl Iterator<Item = u64>) -> Self {
        let root = Object {
            mode: root_mode,
            parent: 1,
            ..Object::default()
        };
        Model {
            objects: BTreeMap::from([(1, root)]),
            names: BTreeMap::new(),
            orphans: BTreeSet::new(),
            granted: granted.collect(),
            next_ino: 2,
        }
    }

    pub fn entries(&self, dir: u64) -> impl Iterator<Item = (&[u8], u64)> {
        let all = self.names.range((dir, Vec::new())..(dir + 1, Vec::new()));
        all.map(|((_, name), ino)| (&name[..], *ino))
    }

    pub fn is_dir(&self, ino: u64) -> bool {
        self.objects.get(&ino).is_some_and(|o| kind(o) == DIR)
    }

    fn is_named_dir(&self, ino: u64) -> bool {
        self.is_dir(ino) && !self.orphans.contains(&ino)
    }

    pub fn nlink(&self, ino: u64) -> u32 {
        if self.orphans.contains(&ino) {
            return 0;
        }
        if self.is_dir(ino) {
            return 2 + self.entries(ino).filter(|(_, i)| self.is_dir(*i)).count() as u32;
        }
        self.names.values().filter(|i| **i == ino).count() as u32
    }

    fn find(&self, dir: u64, name: &[u8]) -> Option<u64> {
        self.names.get(&(dir, name.to_vec())).copied()
    }

    fn below(&self, dir: u64, top: u64) -> bool {
        dir == top || (dir != 1 && self.below(self.objects[&dir].parent, top))
    }

    /// Applies the record if it is right; whether it was.
    pub fn apply(&mut self, record: &Record<'_>) -> bool {
        match *record {
            Record::Create { .. } => self.create(record),
            Record::Link {
                parent,
                ino,
                time,
                name,
            } => self.link(parent, ino, time, name),
            Record::Unlink {
                parent,
                ino,
                flags,
                time,
                name,
            } => self.unlink(parent, ino, flags, time, name),
            Record::Rename { .. } => self.rename(record),
            Record::SetAttr { .. } => self.set_attr(record),
            Record::SetXattr {
                ino,
                time,
                name,
                value,
            } => self.set_xattr(ino, time, name, value),
            Record::RemoveXattr { ino, time, name } => {
                let Some(o) = self.objects.get_mut(&ino) else {
                    return false;
                };
                let removed = o.xattrs.remove(name).is_some();
                o.times[2] = if removed { time } else { o.times[2] };
                removed
            }
            Record::Release { ino } => {
                let removed = self.orphans.remove(&ino);
                if removed {
                    self.objects.remove(&ino);
                }
                removed
            }
            _ if record.is_about_durability() => true,
            _ => self.content(record),
        }
    }

    fn create(&mut self, record: &Record<'_>) -> bool {
        let Record::Create {
            parent,
            ino,
            mode,
            uid,
            gid,
            flags,
            rdev,
            time,
            name,
            target,
        } = *record
        else {
            return false;
        };
        let types = [0o1, 0o2, 0o4, 0o6, 0o10, 0o12, 0o14];
        let device = matches!(mode >> 12, 0o2 | 0o6);
        let link = mode >> 12 == 0o12;
        let good = types.contains(&(mode >> 12))
            && (rdev == 0 || device)
            && (target.is_empty() != link && target.len() < 4096 && !target.contains(&0))
            && ino > 1
            && ino < self.next_ino + (1 << 20)
            && ino < 1 << 56
            && !self.objects.contains_key(&ino);
        let (flags, project) = (flags & 0xffff, flags >> 16);
        if !good || flags & !4 != 0 || project > 1024 {
            return false;
        }
        if flags == 4 {
            if mode >> 12 != 0o10 || !name.is_empty() {
                return false;
            }
            self.orphans.insert(ino);
        } else {
            let free = self.find(parent, name).is_none();
            if !self.is_named_dir(parent) || !legal(name) || !free {
                return false;
            }
            self.names.insert((parent, name.to_vec()), ino);
            self.touch(parent, time);
        }
        let (size, target) = (target.len() as u64, target.to_vec());
        let parent = if mode >> 12 == 0o4 { parent } else { 0 };
        let times = [time; 4];
        let o = Object {
            mode,
            uid,
            gid,
            project,
            rdev,
            size,
            times,
            target,
            parent,
            ..Object::default()
        };
        self.objects.insert(ino, o);
        self.next_ino = self.next_ino.max(ino + 1);
        true
    }

    fn touch(&mut self, dir: u64, time: i64) {
        let o = self.objects.get_mut(&dir).unwrap();
        (o.times[1], o.times[2]) = (time, time);
    }

    fn link(&mut self, parent: u64, ino: u64, time: i64, name: &[u8]) -> bool {
        let good = self.objects.contains_key(&ino)
            && !self.is_dir(ino)
            && self.is_named_dir(parent)
            && legal(name)
            && self.find(parent, name).is_none();
        if good {
            self.orphans.remove(&ino);
            self.names.insert((parent, name.to_vec()), ino);
            self.touch(parent, time);
            self.objects.get_mut(&ino).unwrap().times[2] = time;
        }
        good
    }

    fn unlink(&mut self, parent: u64, ino: u64, flags: u32, time: i64, name: &[u8]) -> bool {
        let good = flags & !2 == 0
            && self.is_named_dir(parent)
            && self.find(parent, name) == Some(ino)
            && self.entries(ino).next().is_none();
        if good {
            self.names.remove(&(parent, name.to_vec()));
            self.touch(parent, time);
            self.lost_name(ino, flags == 2, time);
        }
        good
    }

    fn lost_name(&mut self, ino: u64, keep: bool, time: i64) {
        if self.names.values().any(|i| *i == ino) {
            self.objects.get_mut(&ino).unwrap().times[2] = time;
        } else if keep {
            self.objects.get_mut(&ino).unwrap().times[2] = time;
            self.orphans.insert(ino);
        } else {
            self.objects.remove(&ino);
        }
    }

    fn rename(&mut self, record: &Record<'_>) -> bool {
        let Record::Rename {
            old_parent,
            new_parent,
            ino,
            replaced,
            flags,
            time,
            old_name,
            new_name,
        } = *record
        else {
            return false;
        };
        let there = self.find(new_parent, new_name);
        let good = flags & !3 == 0
            && legal(new_name)
            && self.is_named_dir(old_parent)
            && self.is_named_dir(new_parent)
            && ino != replaced
            && self.find(old_parent, old_name) == Some(ino)
            && there.unwrap_or(0) == replaced
            && !(self.is_dir(ino) && self.below(new_parent, ino));
        if !good {
            return false;
        }
        let old_key = (old_parent, old_name.to_vec());
        if flags & 1 != 0 {
            if replaced == 0 || (self.is_dir(replaced) && self.below(old_parent, replaced)) {
                return false;
            }
            self.names.insert(old_key, replaced);
            self.moved(replaced, old_parent, time);
        } else {
            if replaced != 0
                && (self.is_dir(ino) != self.is_dir(replaced)
                    || self.entries(replaced).next().is_some())
            {
                return false;
            }
            self.names.remove(&old_key);
        }
        self.names.insert((new_parent, new_name.to_vec()), ino);
        self.moved(ino, new_parent, time);
        self.touch(old_parent, time);
        self.touch(new_parent, time);
        if flags & 1 == 0 && replaced != 0 {
            self.lost_name(replaced, flags & 2 != 0, time);
        }
        true
    }

    fn moved(&mut self, ino: u64, parent: u64, time: i64) {
        let dir = self.is_dir(ino);
        let o = self.objects.get_mut(&ino).unwrap();
        o.times[2] = time;
        o.parent = if dir { parent } else { 0 };
    }

    fn set_attr(&mut self, record: &Record<'_>) -> bool {
        let Record::SetAttr {
            ino,
            mask,
            mode,
            uid,
            gid,
            atime,
            mtime,
            ctime,
        } = *record
        else {
            return false;
        };
        let Some(o) = self.objects.get_mut(&ino) else {
            return false;
        };
        let bits = if mask & 64 != 0 {
            mask & 0xffff & !64
        } else {
            mask
        };
        let known = bits <= 63 && (mask & 64 == 0 || mask >> 16 <= 1024);
        if !known || (mask & 1 != 0 && mode >> 12 != o.mode >> 12) {
            return false;
        }
        if mask & 64 != 0 {
            o.project = mask >> 16;
        }
        let new = [u64::from(mode), u64::from(uid), u64::from(gid)];
        for (bit, to) in [&mut o.mode, &mut o.uid, &mut o.gid]
            .into_iter()
            .enumerate()
        {
            if mask >> bit & 1 != 0 {
                *to = new[bit] as u32;
            }
        }
        for (bit, time) in [atime, mtime, ctime].into_iter().enumerate() {
            if mask >> (3 + bit) & 1 != 0 {
                o.times[bit] = time;
            }
        }
        true
    }

    fn set_xattr(&mut self, ino: u64, time: i64, name: &[u8], value: &[u8]) -> bool {
        let Some(o) = self.objects.get_mut(&ino) else {
            return false;
        };
        let legal = !name.is_empty() && name.len() < 256 && !name.contains(&0);
        let room = o.xattrs.len() < 256 || o.xattrs.contains_key(name);
        if !legal || value.len() > 8192 || !room {
            return false;
        }
        o.xattrs.insert(name.to_vec(), value.to_vec());
        o.times[2] = time;
        true
    }

    fn content(&mut self, record: &Record<'_>) -> bool {
        let ino = match *record {
            Record::Extent { ino, .. }
            | Record::Size { ino, .. }
            | Record::Truncate { ino, .. }
            | Record::Punch { ino, .. }
            | Record::Inline { ino, .. }
            | Record::Write { ino, .. } => ino,
            _ => return false,
        };
        let Some(o) = self.objects.get_mut(&ino) else {
            return false;
        };
        if kind(o) != FILE {
            return false;
        }
        let good = change_content(o, &mut self.granted, record);
        if good {
            let keep = o.inline.len().min(o.size.try_into().unwrap_or(usize::MAX));
            o.inline.truncate(keep);
        }
        good
    }
}

fn change_content(o: &mut Object, granted: &mut BTreeSet<u64>, record: &Record<'_>) -> bool {
    let max = i64::MAX as u64;
    match *record {
        Record::Extent { .. } => return put_blocks(o, granted, record),
        Record::Write { .. } => return write(o, record),
        Record::Size {
            size,
            atime,
            mtime,
            ctime,
            ..
        } if size <= max => {
            o.size = size;
            o.times[..3].copy_from_slice(&[atime, mtime, ctime]);
        }
        Record::Truncate { size, time, .. } if size <= max => {
            o.blocks.retain(|at, _| at * 4096 < size);
            (o.size, o.times[1], o.times[2]) = (size, time, time);
        }
        Record::Punch {
            file_block,
            len,
            size,
            time,
            ..
        } if in_file(file_block, len) && size <= max => {
            o.blocks
                .retain(|at, _| *at < file_block || *at - file_block >= len);
            if file_block == 0 {
                o.inline.clear();
            }
            (o.size, o.times[1], o.times[2]) = (size, time, time);
        }
        Record::Inline {
            mtime, ctime, data, ..
        } if data.len() <= 512 => {
            o.blocks.clear();
            o.inline = data.to_vec();
            (o.size, o.times[1], o.times[2]) = (data.len() as u64, mtime, ctime);
        }
        _ => return false,
    }
    true
}

fn in_file(file_block: u64, len: u64) -> bool {
    let last_block = i64::MAX as u64 / 4096;
    len > 0 && file_block <= last_block && last_block - file_block >= len - 1
}

fn put_blocks(o: &mut Object, granted: &mut BTreeSet<u64>, record: &Record<'_>) -> bool {
    let Record::Extent {
        file_block,
        block,
        len,
        size,
        mtime,
        ctime,
        ..
    } = *record
    else {
        return false;
    };
    let (block, len) = (block.word(), u64::from(len));
    let held = len <= granted.len() as u64
        && block < 1 << 60
        && (block..block + len).all(|b| granted.contains(&b));
    if !in_file(file_block, len) || !held || size > i64::MAX as u64 {
        return false;
    }
    for i in 0..len {
        granted.remove(&(block + i));
        o.blocks.insert(file_block + i, block + i);
    }
    if file_block == 0 {
        o.inline.clear();
    }
    (o.size, o.times[1], o.times[2]) = (size, mtime, ctime);
    true
}

fn write(o: &mut Object, record: &Record<'_>) -> bool {
    let Record::Write {
        offset,
        size,
        mtime,
        data,
        ..
    } = *record
    else {
        return false;
    };
    let n = data.len() as u64;
    if size > i64::MAX as u64 || offset > size || size - offset < n {
        return false;
    }
    let mut touched = offset / 4096..(offset + n).div_ceil(4096);
    if n > 0 && !touched.all(|b| o.blocks.contains_key(&b)) {
        return false;
    }
    (o.size, o.times[1], o.times[2]) = (size, mtime, mtime);
    true
}

/// Whether the object is a symlink.
pub fn is_link(o: &Object) -> bool {
    kind(o) == LINK
}
