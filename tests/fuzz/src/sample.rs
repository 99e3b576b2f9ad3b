//! A small pool with something of each kind, the same one each time.
//!
//! Invariant: nothing in it comes from a clock or from chance, so that an input means the same
//! tomorrow.

use crate::journal::Piece;
use holdfast_pmem::{Medium, Region};
use holdfast_pool::apply::{Applier, Grants, Outcome, PoolStore, make_pool_root};
use holdfast_pool::check::{Report, check};
use holdfast_pool::checksum::crc32c;
use holdfast_pool::format::PAGE;
use holdfast_pool::format::superblock::Consistency;
use holdfast_pool::journal::{Change, Header, KEEP_ORPHAN, MarkLanes, Naming, Op, Promote};
use holdfast_pool::journal::{PROJECT_SHIFT, Record, SET_PROJECT, peek};
use holdfast_pool::layout::BlockAddr;
use holdfast_pool::layout::value::{InBlocks, ValueRun};
use holdfast_pool::quota::{QUOTAS_PER_PAGE, Quota, Subject, encode_page, page_name};
use holdfast_pool::segment::Sizes;
use holdfast_pool::space::Run;
use holdfast_pool::{Params, Pool, WriteToken};
use std::collections::BTreeSet;
use std::sync::OnceLock;

/// Bytes of the sample's `meta.seg`: as few as records are still applied with.
pub const META_LEN: u64 = 8 << 20;
/// Bytes of its file data.
pub const DATA_LEN: u64 = 16 << 20;
/// Blocks that a session of it has been granted.
pub const GRANTED: u64 = 400;

pub const DIR: u64 = 2;
pub const FILE: u64 = 4;
pub const ORPHAN: u64 = 8;
pub const KEYSPACE: u64 = 10;
/// In 1970, and in 2200.
const PAST: i64 = 5;
const LATE: i64 = 7_258_118_400_000_000_000;
const FIRST_OF_MANY: u64 = 20;
const MANY: u64 = 200;

/// Granted blocks that are free.
#[derive(Clone, Default)]
pub struct Free(pub BTreeSet<u64>);

impl Grants for Free {
    fn holds(&self, block: BlockAddr, len: u64) -> bool {
        let (first, end) = (block.word(), block.end(len).word());
        len <= GRANTED && (first..end).all(|b| self.0.contains(&b))
    }

    fn take(&mut self, block: BlockAddr, len: u64) {
        (block.word()..block.end(len).word()).for_each(|b| _ = self.0.remove(&b));
    }
}

/// The sample as bytes.
pub struct Sample {
    /// Pages of `meta.seg` that are not zero.
    pub pages: Vec<(u64, [u8; PAGE])>,
    pub free: Free,
    /// The first block that was granted.
    pub first_block: u64,
    /// Number of the last record that it knows.
    pub applied: u64,
}

/// The sample, which is made once.
pub fn sample() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(make)
}

pub fn token() -> WriteToken {
    WriteToken::for_offline_tool()
}

impl Sample {
    /// Its `meta.seg` in memory of its own.
    pub fn meta(&self) -> Region {
        let meta = Region::in_memory(META_LEN as usize).expect("memory");
        for (page, bytes) in &self.pages {
            meta.store(page * PAGE as u64, bytes).expect("inside");
        }
        meta
    }

    pub fn pool(&self) -> Pool {
        Pool::open(self.meta(), &token()).expect("sound")
    }

    /// The free blocks, as far as `pool` can grant them.
    pub fn grant(&self, pool: &mut Pool) -> Free {
        let granted = |block: &u64| pool.grant_again(Run::new(*block, 1)).is_ok();
        Free(self.free.0.iter().copied().filter(granted).collect())
    }
}

pub fn is_clean(report: &Report) -> bool {
    report.damage().next().is_none()
}

pub fn check_meta(meta: &Region) -> Report {
    check(meta, DATA_LEN, None)
}

/// What the pool is to be.
pub fn params() -> Params {
    Params {
        uuid: *b"a pool to fuzz!!",
        boot_id: [2; 16],
        medium: Medium::Memory,
        consistency: Consistency::Posix,
        sizes: Sizes {
            meta_len: META_LEN,
            meta_len_max: META_LEN,
            data_len: DATA_LEN,
            data_len_max: DATA_LEN,
        },
        next_ino: 2,
        journal_segment: 0,
        lane_len: 1 << 20,
    }
}

fn make() -> Sample {
    let meta = Region::in_memory(META_LEN as usize).expect("memory");
    let mut pool = Pool::create(meta, &params(), &token()).expect("a pool");
    make_pool_root(&mut pool, &token(), [0, 0], 0o040_777, 0).expect("a root");
    let run = pool.grant(GRANTED, 1).expect("blocks");
    let mut free = Free((run.start..run.end()).collect());
    let mut seq = 0;
    commit(&mut pool, &mut free, &mut seq, &first_records(run.start));
    pool.create_snapshot(&token(), b"snapshot", 7)
        .expect("a snapshot");
    commit(&mut pool, &mut free, &mut seq, &later_records(run.start));
    // Blocks that are granted only in this session are free on the medium.
    assert!(
        is_clean(&check_meta(pool.meta())),
        "{:?}",
        check_meta(pool.meta())
    );
    let mut pages = Vec::new();
    for page in 0..META_LEN / PAGE as u64 {
        let mut bytes = [0; PAGE];
        pool.meta()
            .read(page * PAGE as u64, &mut bytes)
            .expect("inside");
        if bytes.iter().any(|byte| *byte != 0) {
            pages.push((page, bytes));
        }
    }
    Sample {
        pages,
        free,
        first_block: run.start,
        applied: seq,
    }
}

fn commit(pool: &mut Pool, free: &mut Free, seq: &mut u64, records: &[Vec<u8>]) {
    let lanes = pool.superblock().lanes;
    let mut store = PoolStore::begin(pool, &token());
    let mut applier = Applier::keeping(&mut store, free, lanes.map(|lane| lane.applied));
    for bytes in records {
        *seq += 1;
        let (header, record) = holdfast_pool::journal::decode(bytes).expect("a record");
        let header = Header {
            seq: *seq,
            ..header
        };
        let outcome = applier.apply(&header, &record);
        assert!(
            matches!(outcome, Ok(Outcome::Applied)),
            "{record:?}: {outcome:?}"
        );
    }
    applier.settle().expect("room");
    let applied = applier.applied();
    let last = *seq;
    let done = store.commit(|superblock| {
        for (lane, applied) in superblock.lanes.iter_mut().zip(applied) {
            lane.applied = applied;
        }
        superblock.applied_seq = last;
    });
    done.expect("room");
}

fn encoded(record: &Record<'_>) -> Vec<u8> {
    let encoded = record.encode(1, 0);
    let mut bytes = vec![0; encoded.padded_len()];
    encoded.copy_to(&mut bytes);
    bytes
}

fn create(parent: u64, ino: u64, mode: u32, name: &[u8], target: &[u8]) -> Vec<u8> {
    encoded(&Record::Create {
        parent,
        ino,
        mode,
        uid: 1,
        gid: 2,
        flags: 0,
        rdev: u64::from(mode == 0o020_600) * 5,
        time: 3,
        name,
        target,
    })
}

fn extent(ino: u64, file_block: u64, block: u64, len: u32) -> Vec<u8> {
    encoded(&Record::Extent {
        ino,
        file_block,
        block: BlockAddr::new(0, block),
        len,
        size: 40_000,
        mtime: 1,
        ctime: 1,
        flags: 0,
    })
}

fn batch(changes: &[(&[u8], Change<'_>)]) -> Vec<u8> {
    let mut ops = Vec::new();
    for (key, change) in changes {
        let (keyspace, key, change) = (KEYSPACE, *key, *change);
        Op {
            keyspace,
            key,
            change,
        }
        .push(&mut ops);
    }
    encoded(&Record::Batch { time: 5, ops: &ops })
}

fn value_in_blocks(block: u64, len: u32) -> Vec<u8> {
    let mut value = InBlocks::new(u64::from(len) * 4096 - 100);
    let (block, epoch) = (BlockAddr::new(0, block), 0);
    assert!(value.push(ValueRun { block, len, epoch }));
    let mut out = [0; 64];
    let len = value.encode(&mut out);
    out[..len].to_vec()
}

/// Objects: a directory, a file of two extents with two names, one whose content is in its inode,
/// symbolic links, an orphan, a device, a keyspace with values, and many small files.
fn first_records(first: u64) -> Vec<Vec<u8>> {
    let long = [b't'; 2000];
    let mut all = vec![
        create(1, DIR, 0o040_777, b"dir", b""),
        create(DIR, 3, 0o040_755, b"subdir", b""),
        create(3, FILE, 0o100_666, b"file", b""),
        create(DIR, 5, 0o100_600, b"inline", b""),
        create(1, 6, 0o120_777, b"symlink", b"dir/subdir/file"),
        create(1, 7, 0o120_777, b"long", &long),
        create(1, ORPHAN, 0o100_644, b"orphan", b""),
        create(1, 9, 0o020_600, b"device", b""),
        create(1, KEYSPACE, 0o040_777, b"keyspace", b""),
        encoded(&Record::Keyspace {
            ino: KEYSPACE,
            time: 4,
        }),
        encoded(&Record::Link {
            parent: 1,
            ino: FILE,
            time: 9,
            name: b"second name",
        }),
        extent(FILE, 0, first, 2),
        extent(FILE, 4, first + 10, 3),
        encoded(&Record::Inline {
            ino: 5,
            mtime: 1,
            ctime: 1,
            data: b"small",
        }),
        encoded(&Record::SetXattr {
            ino: FILE,
            time: 5,
            name: b"user.big",
            value: &[7; 3000],
        }),
        encoded(&Record::SetXattr {
            ino: DIR,
            time: 5,
            name: b"user.small",
            value: b"v",
        }),
        encoded(&Record::Unlink {
            parent: 1,
            ino: ORPHAN,
            flags: KEEP_ORPHAN,
            time: 4,
            name: b"orphan",
        }),
    ];
    all.extend(first_values(first));
    all.extend(quotas());
    for i in 0..MANY {
        let name = format!("many {i}");
        all.push(create(
            DIR,
            FIRST_OF_MANY + i,
            0o100_644,
            name.as_bytes(),
            b"",
        ));
    }
    all
}

/// Values of the keyspace, one of them in blocks.
fn first_values(first: u64) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let runs = value_in_blocks(first + 20, 3);
    let key = |i: u8| [b'k', i];
    for i in 0..60 {
        all.push(batch(&[(&key(i), Change::Put(&[i; 100]))]));
    }
    all.push(batch(&[
        (b"blocks", Change::PutBlocks(&runs)),
        (b"long", Change::Put(&[b't'; 1800])),
    ]));
    let runs = value_in_blocks(first + 90, 2);
    all.push(batch(&[
        (b"brief", Change::PutUntil(PAST, b"gone")),
        (b"brief blocks", Change::PutBlocksUntil(PAST, &runs)),
        (b"later", Change::PutUntil(LATE, &[b'u'; 1700])),
        (b"mended", Change::PutUntil(LATE, b"expires")),
    ]));
    all
}

/// A user and the directory have a quota, and what is below the directory counts.
fn quotas() -> Vec<Vec<u8>> {
    let counts = |ino| set_project(ino, 2);
    let mut all: Vec<_> = [DIR, 3, FILE, 5].into_iter().map(counts).collect();
    all.push(quota_table(false));
    all
}

/// The second quota's project is 2.
fn quota_table(partial: bool) -> Vec<u8> {
    let mut page = [None; QUOTAS_PER_PAGE];
    for (place, subject) in [(0, Subject::User(1)), (1, Subject::Directory(DIR))] {
        page[place] = Some(Quota {
            subject,
            partial: partial && place == 1,
            bytes: 1 << 20,
            files: 300,
        });
    }
    encoded(&Record::SetXattr {
        ino: 1,
        time: 5,
        name: &page_name(0),
        value: &encode_page(&page),
    })
}

fn set_project(ino: u64, project: u32) -> Vec<u8> {
    encoded(&Record::SetAttr {
        ino,
        mask: SET_PROJECT | project << PROJECT_SHIFT,
        mode: 0,
        uid: 0,
        gid: 0,
        atime: 0,
        mtime: 0,
        ctime: 0,
    })
}

/// What makes the present differ from the snapshot.
fn later_records(first: u64) -> Vec<Vec<u8>> {
    let runs = value_in_blocks(first + 30, 2);
    vec![
        extent(FILE, 0, first + 40, 1),
        encoded(&Record::Unlink {
            parent: DIR,
            ino: 5,
            flags: 0,
            time: 8,
            name: b"inline",
        }),
        batch(&[
            (b"blocks", Change::PutBlocks(&runs)),
            (b"k\x07", Change::Erase),
        ]),
        batch(&[(b"k\x08", Change::EraseRange(b"k\x10"))]),
        batch(&[
            (b"mended", Change::Put(b"stays")),
            (b"k\x05", Change::PutUntil(LATE, b"expires now")),
        ]),
        create(1, FIRST_OF_MANY + MANY, 0o100_666, b"later", b""),
    ]
}

/// Records that the pool can take next, some of each kind; an input changes bytes of them.
pub fn candidates() -> Vec<Piece> {
    let first = sample().first_block;
    let spilled = spilled_changes();
    let mut all: Vec<Piece> = names()
        .into_iter()
        .chain(contents(first))
        .chain(marks(first))
        .chain(values(first))
        .chain([quota_table(true), set_project(5, 0), set_project(ORPHAN, 1)])
        .map(|record| Piece {
            record,
            spilled: Vec::new(),
        })
        .collect();
    let runs = value_in_blocks(first + 70, 1);
    all.push(Piece {
        record: encoded(&Record::Spilled {
            time: 9,
            len: spilled.len() as u64,
            sum: crc32c(&spilled),
            runs: &runs,
        }),
        spilled,
    });
    all.iter_mut()
        .for_each(|piece| cut_padding(&mut piece.record));
    all
}

fn cut_padding(record: &mut Vec<u8>) {
    let len = peek(record).expect("a record").len;
    record.truncate(len);
}

fn spilled_changes() -> Vec<u8> {
    let mut ops = Vec::new();
    for i in 0..20 {
        let (key, value) = ([b's', i], [i; 200]);
        let change = Change::Put(&value);
        Op {
            keyspace: KEYSPACE,
            key: &key,
            change,
        }
        .push(&mut ops);
    }
    ops
}

fn names() -> Vec<Vec<u8>> {
    let (ino, time) = (FILE, 11);
    let next = FIRST_OF_MANY + MANY + 1;
    vec![
        create(DIR, next, 0o100_644, b"new", b""),
        create(1, next + 1, 0o040_755, b"new dir", b""),
        create(1, next + 2, 0o120_777, b"new link", b"target"),
        encoded(&Record::Link {
            parent: 1,
            ino: ORPHAN,
            time,
            name: b"found again",
        }),
        encoded(&Record::Unlink {
            parent: 3,
            ino,
            flags: 0,
            time,
            name: b"file",
        }),
        encoded(&Record::Rename {
            old_parent: DIR,
            new_parent: 1,
            ino: 3,
            replaced: 0,
            flags: 0,
            time,
            old_name: b"subdir",
            new_name: b"moved",
        }),
    ]
}

/// Records about the contents and attributes of a file.
fn contents(first: u64) -> Vec<Vec<u8>> {
    let (ino, time) = (FILE, 11);
    let (mtime, ctime, atime) = (12, 13, 14);
    vec![
        encoded(&Record::SetAttr {
            ino,
            mask: 63,
            mode: 0o100_600,
            uid: 5,
            gid: 6,
            atime,
            mtime,
            ctime,
        }),
        extent(ino, 2, first + 50, 4),
        extent(FIRST_OF_MANY, 100, first + 60, 2),
        encoded(&Record::Size {
            ino,
            size: 30_000,
            atime,
            mtime,
            ctime,
        }),
        encoded(&Record::Truncate {
            ino,
            size: 5000,
            time,
        }),
        encoded(&Record::Punch {
            ino,
            file_block: 1,
            len: 4,
            size: 40_000,
            time,
        }),
        encoded(&Record::Inline {
            ino: FIRST_OF_MANY + 1,
            mtime,
            ctime,
            data: b"content",
        }),
        encoded(&Record::SetXattr {
            ino,
            time,
            name: b"user.new",
            value: &[3; 2500],
        }),
        encoded(&Record::RemoveXattr {
            ino,
            time,
            name: b"user.big",
        }),
    ]
}

/// Records that recovery reads more from than others, and the last ones of objects.
fn marks(first: u64) -> Vec<Vec<u8>> {
    let (ino, time, mtime) = (FILE, 11, 12);
    vec![
        encoded(&Record::Release { ino: ORPHAN }),
        encoded(&Record::Write {
            ino,
            offset: 100,
            size: 40_000,
            mtime,
            data: &[9; 300],
        }),
        encoded(&Record::SyncMark {
            seq: 7,
            acked: 5,
            lanes: &MarkLanes::default().encode(),
        }),
        encoded(&Record::Data {
            block: BlockAddr::new(0, first + 60),
            bytes: &[1; 100],
        }),
        encoded(&Record::InPlace {
            before: 3,
            runs: &[1; 32],
        }),
        encoded(&Record::Keyspace { ino: 3, time }),
    ]
}

/// Changes of the keyspace, some of which concern files.
fn values(first: u64) -> Vec<Vec<u8>> {
    let runs = value_in_blocks(first + 80, 2);
    let late = value_in_blocks(first + 84, 1);
    let promote = Promote {
        ino: FIRST_OF_MANY + MANY + 5,
        size: 100,
        mtime: 5,
        shadow: 0,
        mode: 0o100_644,
        uid: 1,
        gid: 2,
        runs: &[],
    };
    let promote = promote.encode();
    let naming = Naming {
        ino: ORPHAN,
        replaced: 0,
        flags: 0,
    }
    .encode();
    vec![
        batch(&[
            (b"k\x01", Change::Put(b"short")),
            (b"new", Change::Put(&[4; 1000])),
        ]),
        batch(&[
            (b"blocks", Change::Erase),
            (b"more", Change::PutBlocks(&runs)),
        ]),
        batch(&[(b"k", Change::EraseRange(b"k\x20"))]),
        batch(&[(b"k\x21", Change::Promote(&promote))]),
        batch(&[(b"named", Change::Name(&naming))]),
        batch(&[
            (b"k\x02", Change::PutUntil(LATE, b"expires")),
            (b"later", Change::PutBlocksUntil(LATE, &late)),
            (b"brief", Change::Erase),
        ]),
        batch(&[(b"brief", Change::EraseRange(b"later"))]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_the_same_each_time() {
        let (one, other) = (make(), make());
        assert!(
            one.pages == other.pages,
            "something in it comes from chance"
        );
        assert!(
            one.pages.len() > 30 && one.pages.len() < 250,
            "{}",
            one.pages.len()
        );
    }
}
