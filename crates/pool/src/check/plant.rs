//! A small pool with one object of each kind, and ways to corrupt its bytes with correct checksums.
//!
//! Invariant: before anything is planted the pool is clean.

use crate::apply::pool_tests::{DATA_LEN, image, new_pool};
use crate::apply::{Applier, Outcome, PoolStore};
use crate::check::{Report, check};
use crate::checksum::{Crc, crc32c};
use crate::journal::{Header, KEEP_ORPHAN, Record};
use crate::layout::BlockAddr;
use crate::pool::{Pool, WriteToken};
use holdfast_pmem::Region;
use std::collections::BTreeSet;
use std::vec;
use std::vec::Vec;

pub const DIR: u64 = 2;
pub const SUBDIR: u64 = 3;
pub const FILE: u64 = 4;
pub const INLINE: u64 = 5;
pub const SYMLINK: u64 = 6;
pub const LONG_SYMLINK: u64 = 7;
pub const ORPHAN: u64 = 8;
pub const DEVICE: u64 = 9;
pub const OTHER_DIR: u64 = 10;
/// Many small files follow, so that trees have inner nodes.
pub const FIRST_MANY: u64 = 11;
pub const MANY: u64 = 600;

fn create(parent: u64, ino: u64, mode: u32, name: &'static [u8]) -> Record<'static> {
    static LONG: [u8; 2000] = [b't'; 2000];
    let target: &[u8] = match ino {
        SYMLINK => b"target",
        LONG_SYMLINK => &LONG,
        _ => b"",
    };
    let rdev = u64::from(ino == DEVICE) * 5;
    Record::Create {
        parent,
        ino,
        mode,
        uid: 1,
        gid: 2,
        flags: 0,
        rdev,
        time: 3,
        name,
        target,
    }
}

fn extent(file_block: u64, block: u64, len: u32) -> Record<'static> {
    Record::Extent {
        ino: FILE,
        file_block,
        block: BlockAddr::new(0, block),
        len,
        size: 40_000,
        mtime: 1,
        ctime: 1,
        flags: 0,
    }
}

fn records(first_block: u64) -> Vec<Record<'static>> {
    static VALUE: [u8; 3000] = [7; 3000];
    let orphan = Record::Unlink {
        parent: 1,
        ino: ORPHAN,
        flags: KEEP_ORPHAN,
        time: 4,
        name: b"orphan",
    };
    let mut all = vec![
        create(1, DIR, 0o040_755, b"dir"),
        create(DIR, SUBDIR, 0o040_755, b"subdir"),
        create(SUBDIR, FILE, 0o100_644, b"file"),
        create(DIR, INLINE, 0o100_600, b"inline"),
        create(1, SYMLINK, 0o120_777, b"symlink"),
        create(1, LONG_SYMLINK, 0o120_777, b"long"),
        create(1, ORPHAN, 0o100_644, b"orphan"),
        create(1, DEVICE, 0o020_600, b"device"),
        create(1, OTHER_DIR, 0o040_700, b"other"),
        Record::Link {
            parent: 1,
            ino: FILE,
            time: 9,
            name: b"second name",
        },
        extent(0, first_block, 2),
        extent(4, first_block + 10, 3),
        Record::Inline {
            ino: INLINE,
            mtime: 1,
            ctime: 1,
            data: b"small",
        },
        Record::SetXattr {
            ino: FILE,
            time: 5,
            name: b"user.big",
            value: &VALUE,
        },
        Record::SetXattr {
            ino: DIR,
            time: 5,
            name: b"user.small",
            value: b"v",
        },
        orphan,
    ];
    for i in 0..MANY {
        let name: &'static str = std::format!("many {i}").leak();
        all.push(create(
            OTHER_DIR,
            FIRST_MANY + i,
            0o100_644,
            name.as_bytes(),
        ));
    }
    all
}

/// The pool, and the first block that is used.
pub fn sample() -> (Pool, u64) {
    let meta = Region::in_memory(8 << 20).unwrap();
    let (mut pool, mut grants) = new_pool(meta, 100);
    let first_block = grants.first().copied().unwrap();
    let mut store = PoolStore::new(pool.begin(&WriteToken::for_service()));
    let mut applier = Applier::new(&mut store, &mut grants, [0; 16]);
    for (i, record) in records(first_block).iter().enumerate() {
        let header = Header {
            seq: 1 + i as u64,
            len: 64,
            lane: 0,
        };
        assert_eq!(
            applier.apply(&header, record),
            Ok(Outcome::Applied),
            "{record:?}"
        );
    }
    store.commit(|_| ()).unwrap();
    let _: BTreeSet<u64> = grants;
    (pool, first_block)
}

/// A pool's `meta.seg` to be broken.
pub struct Broken(pub Vec<u8>);

impl Broken {
    pub fn new(pool: &Pool) -> Self {
        Broken(image(pool.meta()))
    }

    pub fn report(&self) -> Report {
        check(&&self.0[..], DATA_LEN, None)
    }

    pub fn u64_at(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().unwrap())
    }

    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The superblock in force.
    pub fn superblock(&self) -> usize {
        let seqs = [self.u64_at(32), self.u64_at(4096 + 32)];
        if seqs[0] > seqs[1] { 0 } else { 4096 }
    }

    pub fn seal_superblock(&mut self) {
        self.seal_superblock_at(self.superblock());
    }

    pub fn seal_superblock_at(&mut self, at: usize) {
        let mut crc = Crc::new();
        crc.update(&self.0[at..at + 12]);
        crc.update(&self.0[at + 16..at + 1024]);
        self.put(at + 12, &crc.finish().to_le_bytes());
    }

    /// Byte offset of the root node of a tree.
    pub fn root(&self, tree: usize) -> usize {
        self.u64_at(self.superblock() + 192 + 24 * tree) as usize * 4096
    }

    /// Entries of the node at `at`.
    pub fn count(&self, at: usize) -> usize {
        usize::from(self.0[at + 26]) | usize::from(self.0[at + 27]) << 8
    }

    /// Byte offset of child `i` of the inner node at `at`.
    pub fn child(&self, at: usize, i: usize) -> usize {
        self.u64_at(self.child_at(at, i)) as usize * 4096
    }

    /// Where the inner node at `at` names its child `i`.
    pub fn child_at(&self, at: usize, i: usize) -> usize {
        at + 64 + 8 * (self.count(at) + i)
    }

    /// Gives the node or bitmap page at `at` the checksum of its bytes.
    pub fn seal(&mut self, at: usize) {
        let word = |i: usize| usize::from(u16::from_le_bytes([self.0[at + i], self.0[at + i + 1]]));
        let per_entry = if self.0[at + 25] == 0 { 10 } else { 18 };
        let (arrays_end, heap) = (64 + word(26) * per_entry, word(30));
        let node = &self.0[at..at + 4096];
        let summed = match arrays_end <= heap && heap <= 4096 {
            true => [&node[8..arrays_end], &node[heap..]].concat(),
            false => node[8..].to_vec(),
        };
        self.put(at + 4, &crc32c(&summed).to_le_bytes());
    }

    /// Byte offset of the bitmap page in force: 0 pages of `meta.seg`, 1 data blocks.
    pub fn bitmap(&self, kind: u64) -> usize {
        let pages = (3..2000).map(|page| page * 4096);
        let of_kind =
            |at: &usize| &self.0[*at..at + 4] == b"HFB1" && self.u64_at(at + 8) == kind << 56;
        pages
            .filter(of_kind)
            .max_by_key(|at| self.u64_at(at + 16))
            .unwrap()
    }
}
