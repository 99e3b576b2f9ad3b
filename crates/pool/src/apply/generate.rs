//! Random records for tests: mostly ones that fit the model's state, some that do not.
//!
//! Invariant: the same seed gives the same records.

use super::model::Model;
use crate::journal::Record;
use crate::layout::BlockAddr;
use std::string::String;
use std::vec;
use std::vec::Vec;

/// A reproducible source of numbers.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 8) % n.max(1)
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

const MODES: [u32; 9] = [
    0o100_644, 0o100_600, 0o100_755, 0o040_755, 0o040_700, 0o120_777, 0o020_600, 0o010_600,
    0o140_777,
];
const EXTREME: [u64; 8] = [
    0,
    1,
    u64::MAX,
    1 << 63,
    i64::MAX as u64,
    1 << 51,
    1 << 52,
    4096,
];

/// Bytes that records borrow.
pub struct Material {
    pub names: Vec<Vec<u8>>,
    pub targets: Vec<Vec<u8>>,
    pub xattr_names: Vec<Vec<u8>>,
    pub bytes: Vec<u8>,
}

impl Material {
    pub fn new() -> Self {
        let mut names: Vec<Vec<u8>> = (0..24).map(|i| std::format!("name{i}").into()).collect();
        names.push(vec![b'x'; 255]);
        for bad in ["", ".", "..", "a/b", "zero\0"] {
            names.push(bad.into());
        }
        names.push(vec![b'y'; 256]);
        let target = |n: usize| String::from("t").repeat(n).into_bytes();
        let targets = [1, 5, 512, 513, 1020, 4095, 0, 4096].map(target).to_vec();
        let mut xattr_names: Vec<Vec<u8>> =
            (0..6).map(|i| std::format!("user.{i}").into()).collect();
        xattr_names.extend([vec![b'u'; 255], vec![], vec![b'u'; 256], b"a\0b".to_vec()]);
        Material {
            names,
            targets,
            xattr_names,
            bytes: (0..9000).map(|i| (i * 31) as u8).collect(),
        }
    }
}

/// Makes records.
pub struct Generator<'m> {
    pub rng: Rng,
    pub material: &'m Material,
    pub blocks: u64,
    time: i64,
}

impl<'m> Generator<'m> {
    pub fn new(seed: u64, material: &'m Material, blocks: u64) -> Self {
        Generator {
            rng: Rng(seed | 1),
            material,
            blocks,
            time: 0,
        }
    }

    fn name(&mut self) -> &'m [u8] {
        let legal = self.rng.below(12) != 0;
        let n = if legal {
            25
        } else {
            self.material.names.len() as u64
        };
        &self.material.names[self.rng.below(n) as usize]
    }

    fn ino(&mut self, model: &Model) -> u64 {
        if self.rng.below(20) == 0 {
            return self.rng.pick(&EXTREME);
        }
        let nth = self.rng.below(model.objects.len() as u64) as usize;
        model.objects.keys().nth(nth).copied().unwrap_or(1)
    }

    fn dir(&mut self, model: &Model) -> u64 {
        for _ in 0..8 {
            let ino = self.ino(model);
            if model.is_dir(ino) {
                return ino;
            }
        }
        if self.rng.below(4) == 0 {
            self.ino(model)
        } else {
            1
        }
    }

    fn file(&mut self, model: &Model) -> u64 {
        for _ in 0..8 {
            let ino = self.ino(model);
            if model
                .objects
                .get(&ino)
                .is_some_and(|o| o.mode >> 12 == 0o10)
            {
                return ino;
            }
        }
        self.ino(model)
    }

    /// An entry that exists, mostly.
    fn entry(&mut self, model: &Model) -> (u64, Vec<u8>, u64) {
        if model.names.is_empty() || self.rng.below(12) == 0 {
            return (self.dir(model), self.name().to_vec(), self.ino(model));
        }
        let nth = self.rng.below(model.names.len() as u64) as usize;
        let ((dir, name), ino) = model.names.iter().nth(nth).unwrap();
        (*dir, name.clone(), *ino)
    }

    fn size(&mut self) -> u64 {
        match self.rng.below(24) {
            0 => self.rng.pick(&EXTREME),
            1..6 => self.rng.below(600),
            _ => self.rng.below(40 * 4096),
        }
    }

    fn bytes(&mut self, max: u64) -> &'m [u8] {
        let n = self.rng.below(max) as usize;
        &self.material.bytes[..n]
    }

    /// Names in records come from the material, so that records can outlive the entry found.
    fn interned(&mut self, name: &[u8]) -> &'m [u8] {
        let found = self.material.names.iter().find(|n| &n[..] == name);
        found.map_or(&[], |n| &n[..])
    }

    /// The next record for a pool that looks like the model.
    pub fn record(&mut self, model: &Model) -> Record<'m> {
        self.time += 1;
        let time = self.time;
        match self.rng.below(20) {
            0..5 => self.create(model),
            5 => Record::Link {
                parent: self.dir(model),
                ino: self.file(model),
                time,
                name: self.name(),
            },
            6 => {
                let (parent, name, ino) = self.entry(model);
                let flags = self.rng.pick(&[0, 2, 2, 0, 1]);
                Record::Unlink {
                    parent,
                    ino,
                    flags,
                    time,
                    name: self.interned(&name),
                }
            }
            7 | 8 => self.rename(model),
            9 => self.set_attr(model),
            10 => self.xattr(model),
            11 => {
                let orphan = model.orphans.iter().next().copied();
                let ino = if self.rng.below(3) > 0 { orphan } else { None };
                Record::Release {
                    ino: ino.unwrap_or_else(|| self.ino(model)),
                }
            }
            12..16 => self.extent(model),
            _ => self.content(model),
        }
    }

    fn create(&mut self, model: &Model) -> Record<'m> {
        let mode = match self.rng.below(30) {
            0 => self.rng.next() as u32,
            _ => self.rng.pick(&MODES),
        };
        let link = mode >> 12 == 0o12;
        let n = if self.rng.below(10) == 0 { 8 } else { 6 };
        let target = match link || self.rng.below(40) == 0 {
            true => &self.material.targets[self.rng.below(n) as usize][..],
            false => &[],
        };
        let orphan = self.rng.below(10) == 0;
        let ino = match self.rng.below(30) {
            0 => self.ino(model),
            _ => model.next_ino + self.rng.below(2),
        };
        Record::Create {
            parent: self.dir(model),
            ino,
            mode,
            uid: self.rng.below(3) as u32,
            gid: self.rng.below(3) as u32,
            flags: if orphan {
                4
            } else {
                u32::from(self.rng.below(60) == 0) | (self.rng.below(3) as u32) << 16
            },
            rdev: u64::from(mode >> 12 == 2 || self.rng.below(60) == 0),
            time: self.time,
            name: if orphan { &[] } else { self.name() },
            target,
        }
    }

    fn rename(&mut self, model: &Model) -> Record<'m> {
        let (old_parent, old, ino) = self.entry(model);
        let mut new_parent = self.dir(model);
        let mut new_name = self.name();
        if self.rng.below(2) == 0 {
            let (dir, name, _) = self.entry(model);
            (new_parent, new_name) = (dir, self.interned(&name));
        }
        let there = model
            .names
            .get(&(new_parent, new_name.to_vec()))
            .copied()
            .unwrap_or(0);
        let replaced = if self.rng.below(20) == 0 {
            self.ino(model)
        } else {
            there
        };
        Record::Rename {
            old_parent,
            new_parent,
            ino,
            replaced,
            flags: self.rng.pick(&[0, 0, 1, 2, 2, 4, 3]),
            time: self.time,
            old_name: self.interned(&old),
            new_name,
        }
    }

    fn set_attr(&mut self, model: &Model) -> Record<'m> {
        let ino = self.ino(model);
        let file_type = model.objects.get(&ino).map_or(0, |o| o.mode & 0o170_000);
        let bad = self.rng.below(20) == 0;
        Record::SetAttr {
            ino,
            mask: if bad {
                self.rng.next() as u32
            } else {
                let project = self.rng.below(3) as u32;
                let sets = self.rng.below(4) == 0;
                self.rng.below(64) as u32 | if sets { project << 16 | 64 } else { 0 }
            },
            mode: if bad {
                0o644
            } else {
                file_type | self.rng.below(0o10000) as u32
            },
            uid: self.rng.next() as u32,
            gid: self.rng.next() as u32,
            atime: self.rng.next() as i64,
            mtime: i64::MIN,
            ctime: self.time,
        }
    }

    fn xattr(&mut self, model: &Model) -> Record<'m> {
        let (ino, time) = (self.ino(model), self.time);
        let n = if self.rng.below(8) == 0 { 10 } else { 7 };
        let name = &self.material.xattr_names[self.rng.below(n) as usize][..];
        if self.rng.below(3) == 0 {
            return Record::RemoveXattr { ino, time, name };
        }
        let max = self.rng.pick(&[20, 2000, 8400]);
        Record::SetXattr {
            ino,
            time,
            name,
            value: self.bytes(max),
        }
    }

    fn extent(&mut self, model: &Model) -> Record<'m> {
        let len = 1 + self.rng.below(9);
        let nth = self.rng.below(model.granted.len() as u64) as usize;
        let block = match self.rng.below(16) {
            0 => self.rng.below(self.blocks + 4),
            1 => self.rng.pick(&EXTREME),
            _ => model.granted.iter().nth(nth).copied().unwrap_or(0),
        };
        let room = (1..=len).take_while(|i| model.granted.contains(&(block.wrapping_add(i - 1))));
        let len = if self.rng.below(12) == 0 {
            len
        } else {
            room.count().max(1) as u64
        };
        let file_block = match self.rng.below(30) {
            0 => self.rng.pick(&EXTREME),
            1 => (1 << 51) - self.rng.below(6),
            _ => self.rng.below(40),
        };
        Record::Extent {
            ino: self.file(model),
            file_block,
            block: BlockAddr::from_word(block),
            len: if self.rng.below(40) == 0 {
                u32::MAX
            } else {
                len as u32
            },
            size: self.size(),
            mtime: self.time,
            ctime: -self.time,
            flags: 0,
        }
    }

    fn content(&mut self, model: &Model) -> Record<'m> {
        let (ino, time, size) = (self.file(model), self.time, self.size());
        let (mtime, ctime) = (time, time + 1);
        match self.rng.below(6) {
            0 => Record::Size {
                ino,
                size,
                atime: -1,
                mtime,
                ctime,
            },
            1 => Record::Truncate { ino, size, time },
            2 => {
                let len = if self.rng.below(9) == 0 {
                    u64::MAX
                } else {
                    self.rng.below(12)
                };
                Record::Punch {
                    ino,
                    file_block: self.rng.below(40),
                    len,
                    size,
                    time,
                }
            }
            3 => Record::Inline {
                ino,
                mtime,
                ctime,
                data: self.bytes(530),
            },
            4 => Record::SyncMark {
                seq: 7,
                acked: 5,
                lanes: &[],
            },
            _ => {
                let data = self.bytes(5000);
                let offset = self.size();
                let end = offset.wrapping_add(data.len() as u64);
                let size = if self.rng.below(9) == 0 {
                    size
                } else {
                    size.max(end)
                };
                Record::Write {
                    ino,
                    offset,
                    size,
                    mtime,
                    data,
                }
            }
        }
    }
}
