//! The rules of `docs/spec/objects.md`.
//!
//! Invariants: trees are visited in the order of their numbers, so inodes are known before names,
//! extents, attributes and orphans; and each in the order of its keys, so the index of expiry is
//! known before the values.

use super::bits::Set;
use super::facts::{Fact, Facts};
use super::media::{Super, TREES, le16, le32, le64};
use super::report::Log;
use alloc::format;
use alloc::vec::Vec;

const INLINE: u32 = 1;
const TARGET_IN_XATTRS: u32 = 2;
const HAS_XATTRS: u32 = 4;
const KEYSPACE: u32 = 8;
const SIZE_MAX: u64 = i64::MAX as u64;
const FILE_BLOCKS: u64 = SIZE_MAX / 4096 + 1;
const CHUNK: usize = 1020;
const XATTR_VALUE_MAX: usize = 8192;
const XATTRS_MAX: u32 = 256;
const LINK_MAX: u32 = 65_000;
const PROJECT_MAX: usize = 1024;
/// Numbers of files that were values.
const VALUE_NUMBERS: core::ops::Range<u64> = 1 << 56..1 << 57;

/// An attribute whose chunks are being read.
#[derive(Default)]
struct Attribute {
    ino: u64,
    name: Vec<u8>,
    total: usize,
    chunks: usize,
}

/// Takes the entries of one tree.
pub(super) struct Visitor<'a> {
    tree: usize,
    data_blocks: u64,
    epoch: u32,
    next_ino: u64,
    seed: u64,
    facts: &'a mut Facts,
    blocks: &'a mut Set,
    /// File and end of the extent before.
    last_extent: (u64, u64),
    /// Directory and hash of the entry before, and the names seen of them.
    last_hash: (u64, u64),
    same_hash: Vec<Vec<u8>>,
    attribute: Attribute,
    /// Hashes of what the index of expiry has.
    index: Vec<u64>,
    index_sorted: bool,
    /// Values that expire and are not in it.
    not_indexed: u64,
}

/// The runs of a value in blocks, if it is one.
pub(super) fn runs_of_value(value: &[u8]) -> Option<&[u8]> {
    let runs = match value.first()? {
        2 => value.get(15..)?,
        4 => value.get(23..)?,
        _ => return None,
    };
    (runs.len() >= 16).then_some(runs)
}

fn be64(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).fold(0, |n, b| n << 8 | u64::from(*b))
}

/// As `docs/spec/objects.md` says.
pub(super) fn name_hash(seed: u64, name: &[u8]) -> u64 {
    const START: u64 = 0x9e37_79b9_7f4a_7c15;
    const WORD: u64 = 0xa076_1d64_78bd_642f;
    const END: u64 = 0xe703_7ed1_a0b4_28db;
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        (product as u64) ^ ((product >> 64) as u64)
    };
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    let whole = name.len() / 8 * 8;
    let mut h = START ^ seed ^ name.len() as u64;
    for eight in name[..whole].chunks(8) {
        h = fold(h ^ word(eight), WORD);
    }
    h = fold(h ^ word(&name[whole..]), WORD);
    fold(h ^ START, END) >> 10
}

fn legal_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() < 256
        && name != b"."
        && name != b".."
        && !name.contains(&b'/')
        && !name.contains(&0)
}

impl<'a> Visitor<'a> {
    pub fn new(tree: usize, sb: &Super, facts: &'a mut Facts, blocks: &'a mut Set) -> Self {
        Visitor {
            tree,
            data_blocks: sb.data_blocks,
            epoch: sb.epoch,
            next_ino: sb.next_ino,
            seed: sb.seed,
            facts,
            blocks,
            last_extent: (0, 0),
            last_hash: (0, 0),
            same_hash: Vec::new(),
            attribute: Attribute::default(),
            index: Vec::new(),
            index_sorted: false,
            not_indexed: 0,
        }
    }

    pub fn entry(&mut self, log: &mut Log, key: &[u8], value: &[u8], page: u64) {
        match self.tree {
            0 => self.inode(log, key, value, page),
            1 => self.name(log, key, value, page),
            2 => self.extent(log, key, value, page),
            3 => self.xattr(log, key, value, page),
            4 => self.orphan(log, key, value, page),
            5 => self.value(log, key, value, page),
            6..TREES => log.damage(None, Some(page), "a tree without use has entries"),
            _ => {}
        }
    }

    fn inode(&mut self, log: &mut Log, key: &[u8], value: &[u8], page: u64) {
        let ino = be64(key);
        let of_a_value = VALUE_NUMBERS.contains(&ino);
        if key.len() != 8 || ino == 0 || ino >= self.next_ino && !of_a_value {
            log.damage(Some(ino), Some(page), "an inode number is impossible");
            return;
        }
        if value.len() < 96 || value.len() != 96 + le16(value, 76) {
            log.damage(Some(ino), Some(page), "an inode record has a wrong length");
            return;
        }
        let mode = le32(value, 0);
        let tail = &value[96..];
        let fact = Fact {
            ino,
            mode: mode as u16,
            nlink: le32(value, 12),
            size: le64(value, 16),
            blocks: le64(value, 24),
            flags: le32(value, 72),
            parent: le64(value, 80),
            entries: le64(value, 88),
            tail_len: tail.len() as u16,
            tail_hash: name_hash(self.seed, tail),
            ..Fact::default()
        };
        let mut wrong = |what: &str| log.damage(Some(ino), Some(page), what);
        if mode > 0o177_777 || !matches!(mode >> 12, 0o1 | 0o2 | 0o4 | 0o6 | 0o10 | 0o12 | 0o14) {
            wrong("the file type is unknown");
        }
        if le16(value, 78) > PROJECT_MAX {
            wrong("an object counts for a quota that there cannot be");
        }
        if le64(value, 64) != 0 && !matches!(mode >> 12, 0o2 | 0o6) {
            wrong("an object that is no device has a device number");
        }
        if mode >> 12 == 0o12 && tail.contains(&0) {
            wrong("a symlink target has a zero byte");
        }
        if mode >> 12 == 0o4 && ino != 1 && !legal_name(tail) {
            wrong("a directory's own name is illegal");
        }
        check_form(&fact, &mut wrong);
        self.facts.all.push(fact);
    }

    fn name(&mut self, log: &mut Log, key: &[u8], value: &[u8], page: u64) {
        if key.len() != 16 || value.len() < 11 || value.len() != 10 + usize::from(value[9]) {
            log.damage(None, Some(page), "a directory entry has a wrong length");
            return;
        }
        let (dir, cookie) = (be64(key), be64(&key[8..]));
        let (ino, kind, name) = (le64(value, 0), value[8], &value[10..]);
        if !legal_name(name) {
            log.damage(
                Some(ino),
                Some(page),
                format!("directory {dir} has an illegal name"),
            );
        }
        if cookie >> 8 != name_hash(self.seed, name) {
            log.damage(Some(ino), Some(page), "a cookie is not that of its name");
        }
        if self.last_hash != (dir, cookie >> 8) {
            self.last_hash = (dir, cookie >> 8);
            self.same_hash.clear();
        }
        if self.same_hash.iter().any(|other| other == name) {
            log.damage(
                Some(ino),
                Some(page),
                format!("directory {dir} has a name twice"),
            );
        }
        self.same_hash.push(name.to_vec());
        match self.target(log, dir, ino, kind, name, page) {
            Some(is_dir) => self.holder(log, dir, is_dir, page),
            None => self.holder(log, dir, false, page),
        }
    }

    /// What the entry refers to; whether that is a directory.
    fn target(
        &mut self,
        log: &mut Log,
        dir: u64,
        ino: u64,
        kind: u8,
        name: &[u8],
        page: u64,
    ) -> Option<bool> {
        let own = (name_hash(self.seed, name), name.len() as u16);
        let Some(fact) = self.facts.get_mut(ino) else {
            let name = alloc::string::String::from_utf8_lossy(name);
            let what =
                format!("directory {dir} has a name {name:?} of an object that is not there");
            log.damage(Some(ino), Some(page), what);
            return None;
        };
        fact.names = fact.names.saturating_add(1);
        if fact.dir == 0 {
            fact.dir = dir;
        }
        let mut wrong = |what: &str| log.damage(Some(ino), Some(page), what);
        if u16::from(kind) != fact.mode >> 12 {
            wrong("a directory entry has another kind than its object");
        }
        if fact.is_dir() && fact.parent != dir {
            wrong("a directory's parent is not the directory that has its name");
        }
        if fact.is_dir() && (fact.tail_hash, fact.tail_len) != own {
            wrong("a directory's own name is not the name of its entry");
        }
        if ino == 1 {
            wrong("the root directory has a name");
        }
        Some(fact.is_dir())
    }

    /// The directory that has the entry.
    fn holder(&mut self, log: &mut Log, dir: u64, subdir: bool, page: u64) {
        match self.facts.get_mut(dir) {
            Some(fact) if fact.is_dir() => {
                fact.entries_found += 1;
                fact.subdirs = fact.subdirs.saturating_add(u32::from(subdir));
            }
            _ => log.damage(
                Some(dir),
                Some(page),
                "names are in what is not a directory",
            ),
        }
    }

    fn extent(&mut self, log: &mut Log, key: &[u8], value: &[u8], page: u64) {
        if key.len() != 16 || value.len() != 16 {
            log.damage(None, Some(page), "an extent has a wrong length");
            return;
        }
        let (ino, at) = (be64(key), be64(&key[8..]));
        let (block, len) = (le64(value, 0), u64::from(le32(value, 8)));
        let mut wrong = |what: &str| log.damage(Some(ino), Some(page), what);
        let end = at.saturating_add(len);
        if len == 0 || end > FILE_BLOCKS {
            wrong("an extent is impossible");
        }
        if self.last_extent.0 == ino && at < self.last_extent.1 {
            wrong("extents of a file overlap");
        }
        if le32(value, 12) > self.epoch {
            wrong("an extent is younger than the pool");
        }
        self.last_extent = (ino, end);
        if block >> 40 != 0 {
            wrong("an extent is in a data segment that does not exist");
        } else if block.saturating_add(len) > self.data_blocks {
            wrong("an extent reaches beyond the data segment");
        } else if let Some(twice) = self.blocks.add(block, len) {
            wrong(&format!("data block {twice} is used twice"));
        }
        match self.facts.get_mut(ino) {
            Some(fact) if fact.is_file() => {
                fact.blocks_found += len;
                fact.maps_block_0 |= at == 0;
            }
            _ => wrong("extents belong to what is not a file"),
        }
    }

    fn value(&mut self, log: &mut Log, key: &[u8], value: &[u8], page: u64) {
        let ino = be64(key);
        if key.len() >= 8 && ino == 0 {
            return self.in_index(log, key, value, page);
        }
        let mut wrong = |what: &str| log.damage(Some(ino), Some(page), what);
        if !(9..=8 + 1024).contains(&key.len()) || value.len() < 7 {
            wrong("a value of a keyspace has a wrong length");
            return;
        }
        let keyspace = |f: &Fact| f.is_dir() && f.flags & KEYSPACE != 0 && f.nlink > 0;
        if !self.facts.get(ino).is_some_and(keyspace) {
            wrong("values belong to what is not a keyspace");
        }
        let runs = |at: usize| value.len() >= at + 24 && (value.len() - at - 8).is_multiple_of(16);
        match value[0] {
            1 if key.len() - 8 + value.len() - 7 <= 1920 => {}
            2 if runs(7) => self.value_blocks(log, ino, &value[7..], page),
            3 if value.len() >= 15 && key.len() - 8 + value.len() - 15 <= 1920 => {
                self.expires(log, key, value, page);
            }
            4 if runs(15) => {
                self.expires(log, key, value, page);
                self.value_blocks(log, ino, &value[15..], page);
            }
            _ => wrong("a value of a keyspace is of an unknown kind"),
        }
    }

    /// An entry of the index of expiry: time, keyspace, key.
    fn in_index(&mut self, log: &mut Log, key: &[u8], value: &[u8], page: u64) {
        let lengths = (25..=24 + 1024).contains(&key.len()) && value == [1, 0, 0, 0, 0, 0, 0];
        if !lengths || !(1..1 << 63).contains(&be64(&key[8..])) || be64(&key[16..]) == 0 {
            log.damage(
                None,
                Some(page),
                "an entry of the index of expiry is impossible",
            );
            return;
        }
        self.index.push(name_hash(self.seed, &key[8..]));
    }

    /// A value that expires: the index has it.
    fn expires(&mut self, log: &mut Log, key: &[u8], value: &[u8], page: u64) {
        let expires = le64(value, 7);
        if !(1..1 << 63).contains(&expires) {
            let what = "a value of a keyspace expires at an impossible time";
            log.damage(Some(be64(key)), Some(page), what);
        }
        if !self.index_sorted {
            self.index.sort_unstable();
            self.index_sorted = true;
        }
        let wanted = [&expires.to_be_bytes()[..], key].concat();
        let found = self.index.binary_search(&name_hash(self.seed, &wanted));
        self.not_indexed += u64::from(found.is_err());
    }

    fn value_blocks(&mut self, log: &mut Log, ino: u64, bytes: &[u8], page: u64) {
        let mut wrong = |what: &str| log.damage(Some(ino), Some(page), what);
        let (size, mut blocks) = (le64(bytes, 0), 0u64);
        for run in bytes[8..].chunks_exact(16) {
            let (block, len) = (le64(run, 0), u64::from(le32(run, 8)));
            blocks = blocks.saturating_add(len);
            if len == 0 || le32(run, 12) > self.epoch {
                wrong("blocks of a value are impossible");
            } else if block >> 40 != 0 {
                wrong("blocks of a value are in a data segment that does not exist");
            } else if block.saturating_add(len) > self.data_blocks {
                wrong("blocks of a value reach beyond the data segment");
            } else if let Some(twice) = self.blocks.add(block, len) {
                wrong(&format!("data block {twice} is used twice"));
            }
        }
        if blocks != size.div_ceil(4096) || bytes.len() > 8 + 32 * 16 {
            wrong("a value of a keyspace has another length than its blocks");
        }
    }

    fn xattr(&mut self, log: &mut Log, key: &[u8], value: &[u8], page: u64) {
        let form = key.len() >= 11 && key[key.len() - 3] == 0 && value.len() >= 4;
        let name = if form { &key[8..key.len() - 3] } else { &[] };
        if !form || name.len() > 255 || name.contains(&0) {
            log.damage(None, Some(page), "the key of an attribute has a wrong form");
            return;
        }
        let ino = be64(key);
        let chunk = usize::from(key[key.len() - 2]) << 8 | usize::from(key[key.len() - 1]);
        let total = le32(value, 0) as usize;
        if (self.attribute.ino, &self.attribute.name[..]) != (ino, name) {
            self.end_attribute(log);
            self.attribute = Attribute {
                ino,
                name: name.to_vec(),
                total,
                chunks: 0,
            };
            self.new_attribute(log, ino, name, total, page);
        }
        let expected = total.saturating_sub(chunk * CHUNK).min(CHUNK);
        let good = chunk == self.attribute.chunks
            && total == self.attribute.total
            && total <= XATTR_VALUE_MAX
            && value.len() == 4 + expected
            && (expected > 0 || chunk == 0);
        if !good {
            log.damage(
                Some(ino),
                Some(page),
                "a piece of an attribute is not the one expected",
            );
        }
        if name.is_empty() && value[4..].contains(&0) {
            log.damage(Some(ino), Some(page), "a symlink target has a zero byte");
        }
        self.attribute.chunks += 1;
    }

    fn new_attribute(&mut self, log: &mut Log, ino: u64, name: &[u8], total: usize, page: u64) {
        match self.facts.get_mut(ino) {
            Some(fact) if name.is_empty() => fact.target_found = Some(total as u32),
            Some(fact) => fact.xattrs += 1,
            None => log.damage(
                Some(ino),
                Some(page),
                "attributes of an object that is not there",
            ),
        }
    }

    fn end_attribute(&mut self, log: &mut Log) {
        let a = &self.attribute;
        if a.ino != 0 && a.chunks != a.total.div_ceil(CHUNK).max(1) {
            log.damage(Some(a.ino), None, "an attribute lacks a piece of its value");
        }
    }

    fn orphan(&mut self, log: &mut Log, key: &[u8], value: &[u8], page: u64) {
        let ino = be64(key);
        if key.len() != 8 || !value.is_empty() {
            log.damage(Some(ino), Some(page), "an orphan entry has a wrong length");
        }
        match self.facts.get_mut(ino) {
            Some(fact) => fact.orphan = true,
            None => log.damage(Some(ino), Some(page), "an orphan is not there"),
        }
    }

    /// After the last entry.
    pub fn finish(mut self, log: &mut Log) {
        if self.not_indexed > 0 {
            let n = self.not_indexed;
            let what = format!("the index of expiry lacks {n} of the values that expire");
            log.damage(None, None, what);
        }
        self.facts.indexed += self.index.len();
        self.end_attribute(log);
        self.attribute = Attribute::default();
    }
}

/// What an inode record says must agree with its type.
fn check_form(fact: &Fact, wrong: &mut dyn FnMut(&str)) {
    let tail = u64::from(fact.tail_len);
    let form = match (fact.mode >> 12, fact.flags & !HAS_XATTRS) {
        (0o10, 0) => tail == 0,
        (0o10, INLINE) => (1..=512).contains(&tail) && tail <= fact.size,
        (0o4, 0 | KEYSPACE) => tail < 256 && fact.size == 0 && (fact.ino != 1 || tail == 0),
        (0o12, 0) => (1..=512).contains(&tail) && tail == fact.size,
        (0o12, TARGET_IN_XATTRS) => tail == 0 && (513..4096).contains(&fact.size),
        (0o1 | 0o2 | 0o6 | 0o14, 0) => tail == 0 && fact.size == 0,
        _ => false,
    };
    if !form {
        wrong("flags, size and tail of an inode do not fit its type");
    }
    if fact.size > SIZE_MAX {
        wrong("the size is too large");
    }
    if fact.blocks > 0 && !fact.is_file() {
        wrong("an object that is no file has blocks");
    }
    if fact.is_dir() != (fact.parent != 0) || (fact.entries != 0 && !fact.is_dir()) {
        wrong("parent or entries do not fit the type");
    }
}

/// The rules that need everything to be known.
pub(super) fn after_all(sb: &Super, facts: &mut Facts, log: &mut Log) {
    for fact in &facts.all {
        compare(fact, log);
    }
    let count = |kinds: &[u16]| {
        facts
            .all
            .iter()
            .filter(|f| kinds.contains(&(f.mode >> 12)))
            .count()
    };
    let special = count(&[0o1, 0o2, 0o6, 0o14]);
    let counts = [
        count(&[0o10]),
        count(&[0o4]),
        count(&[0o12]),
        special,
        facts.indexed,
        0,
        0,
        0,
    ];
    for (i, found) in counts.into_iter().enumerate() {
        if sb.counts[i] != found as u64 {
            let what = format!("counter {i} is {}, found {found}", sb.counts[i]);
            log.damage(None, Some(sb.page), what);
        }
    }
    if facts
        .get(1)
        .is_none_or(|root| !root.is_dir() || root.parent != 1)
    {
        let empty = facts.all.is_empty() && sb.roots[0].keys == 0;
        match empty {
            true => log.note("the pool has no root directory yet"),
            false => log.damage(Some(1), None, "the root directory is not there"),
        }
    }
    find_unrooted(facts, log);
}

fn compare(fact: &Fact, log: &mut Log) {
    let ino = Some(fact.ino);
    let mut wrong = |what: alloc::string::String| log.damage(ino, None, what);
    let orphan = fact.nlink == 0;
    if orphan != fact.orphan {
        wrong(format!(
            "nlink is {} and it is {}an orphan",
            fact.nlink,
            no(!fact.orphan)
        ));
    }
    let links = match (fact.is_dir(), orphan) {
        (true, false) => fact.subdirs.saturating_add(2),
        (true, true) => 0,
        (false, _) => fact.names,
    };
    if fact.nlink != links || (!fact.is_dir() && links > LINK_MAX) {
        wrong(format!("nlink is {}, found {links}", fact.nlink));
    }
    let names = u32::from(fact.is_dir() && fact.ino != 1 && !orphan);
    if fact.is_dir() && fact.names != names {
        wrong(format!("a directory has {} names", fact.names));
    }
    if fact.entries != fact.entries_found || (orphan && fact.entries != 0) {
        wrong(format!(
            "entries is {}, found {}",
            fact.entries, fact.entries_found
        ));
    }
    if fact.blocks != fact.blocks_found {
        wrong(format!(
            "blocks is {}, found {}",
            fact.blocks, fact.blocks_found
        ));
    }
    if fact.flags & INLINE != 0 && fact.maps_block_0 {
        wrong("inline data and an extent stand for the same block".into());
    }
    if (fact.flags & HAS_XATTRS != 0) != (fact.xattrs > 0) || fact.xattrs > XATTRS_MAX {
        wrong(format!(
            "it has {} attributes, which its flags or limits deny",
            fact.xattrs
        ));
    }
    let target = (fact.flags & TARGET_IN_XATTRS != 0).then_some(fact.size as u32);
    if fact.target_found != target {
        wrong("a long symlink target is missing, out of place, or has a wrong length".into());
    }
}

fn no(not: bool) -> &'static str {
    if not { "not " } else { "" }
}

/// Names directories from which going up does not end at the root.
fn find_unrooted(facts: &mut Facts, log: &mut Log) {
    for i in 0..facts.all.len() {
        if !facts.all[i].is_dir() || facts.all[i].nlink == 0 {
            continue;
        }
        let (rooted, way) = climb(facts, facts.all[i].ino);
        if !rooted {
            log.damage(
                Some(facts.all[i].ino),
                None,
                "a directory is not below the root",
            );
        }
        for at in way {
            if let Some(fact) = facts.get_mut(at) {
                fact.rooted = Some(rooted);
            }
        }
    }
}

/// The directories from `at` up to one of which it is known whether it is below the root. Each
/// is on one way only, so all climbs together cost no more than there are directories.
fn climb(facts: &Facts, mut at: u64) -> (bool, Vec<u64>) {
    let mut way = Vec::new();
    for _ in 0..=facts.all.len() {
        let Some(fact) = facts.get(at).filter(|f| f.is_dir()) else {
            return (false, way);
        };
        if let Some(known) = fact.rooted {
            return (known, way);
        }
        way.push(at);
        if at == 1 {
            return (true, way);
        }
        at = fact.parent;
    }
    (false, way)
}
