//! Streams of pools that were filled entry by entry, against a map of what the pool holds.
//!
//! The map shares no code with what saves and restores: it is kept beside the pool as it is
//! changed, and compared with what `Reader` finds in the pool that was made from the stream.

use crate::chunk::{ChunkReader, ChunkWriter};
use crate::record::{BLOCK, Record};
use crate::{Base, Begun, Error, Head, Restored, Restorer, Sink, Source, State, Stored, Target};
use crate::{save, save_after};
use holdfast_pmem::{Medium, Region};
use holdfast_pool::format::superblock::Consistency;
use holdfast_pool::layout::extent::{self, Extent};
use holdfast_pool::layout::value::{self, Head as ValueHead, InBlocks, ValueRun};
use holdfast_pool::layout::{BlockAddr, EXTENTS, ORPHANS, VALUES, name_seed};
use holdfast_pool::segment::Sizes;
use holdfast_pool::snapshot::{self, Snapshot};
use holdfast_pool::space::Run;
use holdfast_pool::{Batch, Params, Pool, Reader, WriteToken};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::ControlFlow;

mod interrupted;

const MIB: u64 = 1 << 20;
const DATA: u64 = 64 * MIB;
const KEYSPACE: u64 = 7;

/// When a value of such bytes expires.
fn expiry(byte: u8) -> i64 {
    [value::NEVER, 1 << 60][usize::from(byte % 2)]
}

/// What a pool holds: blocks of files by number, values by key, each with the time at which it
/// expires behind it, and entries of another tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    blocks: BTreeMap<(u64, u64), u8>,
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    others: BTreeMap<u64, ()>,
}

struct Made {
    pool: Pool,
    data: Region,
    token: WriteToken,
    model: Model,
    kept: Vec<(String, Model)>,
}

fn new_pool(uuid: [u8; 16]) -> Pool {
    let meta = Region::in_memory(64 * MIB as usize).unwrap();
    let params = Params {
        uuid,
        boot_id: [2; 16],
        medium: Medium::Memory,
        consistency: Consistency::Posix,
        sizes: Sizes {
            meta_len: 64 * MIB,
            meta_len_max: 64 * MIB,
            data_len: DATA,
            data_len_max: DATA,
        },
        next_ino: 2,
        journal_segment: 0,
        lane_len: 1 << 20,
    };
    Pool::create(meta, &params, &WriteToken::for_offline_tool()).unwrap()
}

/// Xorshift.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

fn value_key(n: u64) -> Vec<u8> {
    let mut key = KEYSPACE.to_be_bytes().to_vec();
    key.extend(format!("key {n}").bytes());
    key
}

impl Made {
    fn new() -> Made {
        Made {
            pool: new_pool([9; 16]),
            data: Region::in_memory(DATA as usize).unwrap(),
            token: WriteToken::for_offline_tool(),
            model: Model::default(),
            kept: Vec::new(),
        }
    }

    fn change(&mut self, dice: &mut Dice) {
        let epoch = self.pool.superblock().epoch;
        let mut batch = self.pool.begin(&self.token);
        for _ in 0..dice.roll(30) {
            let (ino, at, len) = (2 + dice.roll(4), dice.roll(3000), 1 + dice.roll(700));
            let byte = dice.roll(3) as u8;
            match dice.roll(6) {
                5 => {
                    let place = self.model.values.keys().nth(at as usize % 7).cloned();
                    if let Some(key) = place {
                        become_file(&mut batch, &mut self.model, &key, dice.roll(1 << 40));
                    }
                }
                0 => {
                    clear(&mut batch, ino, at, at + len);
                    self.model
                        .blocks
                        .retain(|(i, b), _| *i != ino || *b < at || *b >= at + len);
                }
                1 => {
                    let (key, long) = (value_key(at), len * 13);
                    put_value(&mut batch, &self.data, &key, long, byte, epoch);
                    let mut value = vec![byte; long as usize];
                    value.extend(expiry(byte).to_le_bytes());
                    self.model.values.insert(key, value);
                }
                2 => {
                    let key = value_key(at);
                    erase_value(&mut batch, &key);
                    self.model.values.remove(&key);
                }
                3 => {
                    batch.put(ORPHANS, &at.to_be_bytes(), &[]).unwrap();
                    self.model.others.insert(at, ());
                }
                _ => {
                    let len = len.min(40);
                    clear(&mut batch, ino, at, at + len);
                    let run = batch.alloc_data(len, 1).unwrap();
                    batch.use_data(run).unwrap();
                    let e = Extent {
                        file_block: at,
                        block: BlockAddr::new(0, run.start),
                        len: run.len as u32,
                        epoch,
                    };
                    batch
                        .put(EXTENTS, &extent::key(ino, at), &e.encode())
                        .unwrap();
                    for n in 0..run.len {
                        let bytes = [byte; BLOCK];
                        self.data
                            .write_nt((run.start + n) * BLOCK as u64, &bytes)
                            .unwrap();
                        self.model.blocks.insert((ino, at + n), byte);
                    }
                }
            }
        }
        batch.commit(|_| {}).unwrap();
    }

    fn snapshot(&mut self, name: &str, time: i64) {
        self.pool
            .create_snapshot(&self.token, name.as_bytes(), time)
            .unwrap();
        self.kept.push((name.into(), self.model.clone()));
    }

    fn stream(&self, since: Option<&str>, stored: Stored<'_>, until: &[&str]) -> Vec<u8> {
        self.with_source(since, stored, until, |source| {
            let hold = &mut |_: &State| Ok(());
            save(&source, Vec::new(), hold, &mut |_| {}).unwrap().0
        })
    }

    fn with_source<T>(
        &self,
        since: Option<&str>,
        stored: Stored<'_>,
        until: &[&str],
        then: impl FnOnce(Source<'_>) -> T,
    ) -> T {
        let find = |name: &str| {
            snapshot::find(&self.pool.reader(), name.as_bytes())
                .unwrap()
                .unwrap()
        };
        let base = since.map(|name| (name, find(name)));
        let mut states: Vec<State> = until
            .iter()
            .map(|name| State {
                name: name.as_bytes().to_vec(),
                snapshot: find(name),
            })
            .collect();
        if until.is_empty() {
            let snapshot = Snapshot::of(self.pool.superblock(), 0);
            states.push(State {
                name: Vec::new(),
                snapshot,
            });
        }
        let source = Source {
            meta: self.pool.meta(),
            data: &self.data,
            head: Head {
                seed: name_seed(self.pool.superblock().uuid),
                consistency: Consistency::Posix,
                size: DATA,
                next_ino: 100,
                time: 5,
                base: base.map(|(name, s)| Base {
                    name: name.into(),
                    time: s.time,
                }),
            },
            base: base.map(|(_, snapshot)| snapshot),
            stored,
            states: &states,
        };
        then(source)
    }

    /// All of the pool, where this much is there already: how much of it was kept. `None`: it
    /// cannot be gone on with.
    fn go_on(&self, part: &[u8], until: &[&str]) -> Option<(Vec<u8>, u64)> {
        type Out = io::Cursor<Vec<u8>>;
        self.with_source(None, NONE, until, |mut source| {
            // Other files were made meanwhile.
            (source.head.time, source.head.next_ino) = (77, 200);
            let cut = |out: &mut Out, len| {
                out.get_mut().truncate(len as usize);
                out.set_position(len);
                Ok(())
            };
            let begun = Begun::open(io::Cursor::new(part.to_vec()), cut)?;
            source.go_on(&begun).then_some(())?;
            let out = ChunkWriter::after(begun, Out::new(part.to_vec()));
            let hold = &mut |_: &State| Ok(());
            let (out, saved) = save_after(&source, out, hold, &mut |_| {}).unwrap();
            Some((out.into_inner(), saved.kept))
        })
    }
}

fn clear(batch: &mut Batch<'_>, ino: u64, from: u64, to: u64) {
    for block in from..to {
        let Some(e) = extent::covering(&*batch, ino, block).unwrap() else {
            continue;
        };
        batch
            .erase(EXTENTS, &extent::key(ino, e.file_block))
            .unwrap();
        for (start, end) in [(e.file_block, block), (block + 1, e.end())] {
            if start < end {
                let part = Extent {
                    file_block: start,
                    block: e.block + (start - e.file_block),
                    len: (end - start) as u32,
                    epoch: e.epoch,
                };
                batch
                    .put(EXTENTS, &extent::key(ino, start), &part.encode())
                    .unwrap();
            }
        }
        batch
            .drop_data(Run::of_data(e.block + (block - e.file_block), 1), e.epoch)
            .unwrap();
    }
}

/// A value whose blocks are a file's from now on; its epochs stay.
fn become_file(batch: &mut Batch<'_>, model: &mut Model, key: &[u8], n: u64) {
    let mut old = Vec::new();
    batch
        .take_out(VALUES, key, &mut |value| old = value.to_vec())
        .unwrap();
    let (ino, mut file_block) = (1000 + n, 0);
    let bytes = model.values.remove(key).unwrap();
    for run in value::blocks_of(&old)
        .unwrap()
        .iter()
        .flat_map(InBlocks::runs)
    {
        let e = Extent {
            file_block,
            block: run.block,
            len: run.len,
            epoch: run.epoch,
        };
        batch
            .put(EXTENTS, &extent::key(ino, file_block), &e.encode())
            .unwrap();
        for block in file_block..e.end() {
            model.blocks.insert((ino, block), bytes[0]);
        }
        file_block = e.end();
    }
}

fn erase_value(batch: &mut Batch<'_>, key: &[u8]) {
    let mut old = Vec::new();
    batch
        .take_out(VALUES, key, &mut |value| old = value.to_vec())
        .unwrap();
    drop_runs(batch, &old);
}

fn drop_runs(batch: &mut Batch<'_>, old: &[u8]) {
    let blocks = if old.is_empty() {
        None
    } else {
        value::blocks_of(old).unwrap()
    };
    for run in blocks.iter().flat_map(InBlocks::runs) {
        batch
            .drop_data(Run::of_data(run.block, run.len.into()), run.epoch)
            .unwrap();
    }
}

fn put_value(batch: &mut Batch<'_>, data: &Region, key: &[u8], len: u64, byte: u8, epoch: u32) {
    let inline = value::fits_entry(key.len(), len as usize);
    let expires = expiry(byte);
    let head = ValueHead {
        mtime: 1 << 30,
        inline,
        expires,
    };
    if expires != value::NEVER {
        let index = value::TreeKey::in_index(expires, key);
        batch
            .put(VALUES, index.as_slice(), &value::in_index())
            .unwrap();
    }
    let mut entry = head.encode().to_vec();
    if inline {
        entry.extend(vec![byte; len as usize]);
    } else {
        let mut blocks = InBlocks::new(len);
        let mut left = len.div_ceil(BLOCK as u64);
        while left > 0 {
            let run = batch.alloc_data(left, 1).unwrap();
            batch.use_data(run).unwrap();
            for n in 0..run.len {
                data.write_nt((run.start + n) * BLOCK as u64, &[byte; BLOCK])
                    .unwrap();
            }
            let block = BlockAddr::new(0, run.start);
            assert!(blocks.push(ValueRun {
                block,
                len: run.len as u32,
                epoch
            }));
            left -= run.len;
        }
        let mut out = [0; 2048];
        let n = blocks.encode(&mut out);
        entry.extend(&out[..n]);
    }
    let mut old = Vec::new();
    batch
        .replace(VALUES, key, &entry, &mut |value| old = value.to_vec())
        .unwrap();
    drop_runs(batch, &old);
}

/// A sink in memory, which can be full, and says when it was made durable.
struct Memory {
    data: Region,
    room: u64,
}

impl Sink for Memory {
    fn write(&mut self, block: BlockAddr, bytes: &[u8]) -> io::Result<()> {
        self.room = self
            .room
            .checked_sub(bytes.len() as u64)
            .ok_or(io::ErrorKind::StorageFull)?;
        self.data
            .write_nt(block.offset(), bytes)
            .map_err(io::Error::other)
    }

    fn zero(&mut self, block: BlockAddr, blocks: u64, is_new: bool) -> io::Result<()> {
        if is_new {
            return Ok(());
        }
        let len = blocks as usize * BLOCK;
        self.data
            .zero_nt(block.offset(), len)
            .map_err(io::Error::other)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Copy {
    pool: Pool,
    sink: Memory,
}

impl Copy {
    fn new(seed: u64) -> Copy {
        let mut uuid = [3; 16];
        uuid[8..].copy_from_slice(&(u64::from_le_bytes([3; 8]) ^ seed).to_le_bytes());
        Copy {
            pool: new_pool(uuid),
            sink: Memory {
                data: Region::in_memory(DATA as usize).unwrap(),
                room: u64::MAX,
            },
        }
    }

    fn take(&mut self, stream: &[u8], goes_on: bool) -> Result<Restored, Error> {
        let restorer = Restorer::begin(io::Cursor::new(stream.to_vec()))?;
        let target = Target {
            pool: &mut self.pool,
            token: &WriteToken::for_offline_tool(),
            sink: &mut self.sink,
        };
        match goes_on {
            true => restorer.go_on(target, &mut |_| {}),
            false => restorer.fill(target, &mut |_| {}),
        }
    }

    fn model(&self, name: Option<&str>) -> Model {
        let state = match name {
            Some(name) => snapshot::find(&self.pool.reader(), name.as_bytes())
                .unwrap()
                .unwrap(),
            None => Snapshot::of(self.pool.superblock(), 0),
        };
        model_of(&self.pool, &self.sink.data, &state)
    }
}

fn model_of(pool: &Pool, data: &Region, state: &Snapshot) -> Model {
    let (fixed, mut model) = (state.fixed(), Model::default());
    let reader = Reader::of_snapshot(pool.meta(), &fixed);
    let (mut entries, mut index) = (Vec::new(), BTreeSet::new());
    for tree in [EXTENTS, VALUES, ORPHANS] {
        let see = |key: &[u8], value: &[u8]| {
            entries.push((tree, key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        reader.scan(tree, &[], None, see).unwrap();
    }
    let block = |number: u64| {
        let mut bytes = [0; BLOCK];
        data.read(number * BLOCK as u64, &mut bytes).unwrap();
        bytes
    };
    let byte = |number: u64| {
        let bytes = block(number);
        assert_eq!(bytes, [bytes[0]; BLOCK], "a torn block");
        bytes[0]
    };
    for (tree, key, value) in entries {
        match tree {
            EXTENTS => {
                let (ino, at) = extent::parse_key(&key).unwrap();
                let e = Extent::decode(at, &value).unwrap();
                for n in 0..u64::from(e.len) {
                    let old = model
                        .blocks
                        .insert((ino, at + n), byte(e.block.number() + n));
                    assert!(old.is_none(), "extents overlap");
                }
            }
            VALUES if value::is_in_index(&key) => assert!(index.insert(key)),
            VALUES => {
                let expires = value::expiry_of(&value);
                if expires != value::NEVER {
                    let indexed = value::TreeKey::in_index(expires, &key);
                    assert!(index.contains(indexed.as_slice()), "a value is not indexed");
                }
                let mut bytes = match value::blocks_of(&value).unwrap() {
                    None => value::body(&value).to_vec(),
                    Some(blocks) => {
                        let all = blocks.runs().iter().flat_map(|run| {
                            (0..u64::from(run.len)).flat_map(|n| block(run.block.number() + n))
                        });
                        let mut all: Vec<u8> = all.collect();
                        all.truncate(blocks.len as usize);
                        all
                    }
                };
                bytes.extend(expires.to_le_bytes());
                model.values.insert(key, bytes);
            }
            _ => drop(
                model
                    .others
                    .insert(u64::from_be_bytes(key.try_into().unwrap()), ()),
            ),
        }
    }
    model
}

fn filled(seed: u64, snapshots: usize) -> (Made, Dice) {
    let (mut made, mut dice) = (Made::new(), Dice(seed));
    for n in 0..snapshots {
        made.change(&mut dice);
        made.change(&mut dice);
        made.snapshot(&format!("s{n}"), n as i64);
    }
    made.change(&mut dice);
    (made, dice)
}

const NONE: Stored<'_> = Stored::Files(&[]);

#[test]
fn a_pool_made_from_a_stream_has_what_the_saved_one_has() {
    for seed in 1..30 {
        let (made, _) = filled(seed, 4);
        let names = ["s0", "s1", "s2", "s3"];
        // The states are the snapshots, and behind them the present.
        let (whole, last) = (
            made.stream(None, NONE, &names),
            made.stream(None, NONE, &[]),
        );
        let mut copy = Copy::new(name_seed(made.pool.superblock().uuid));
        assert_eq!(copy.take(&whole, false).unwrap().snapshots, 4);
        for (name, model) in &made.kept {
            assert!(
                copy.model(Some(name)) == *model,
                "seed {seed}, snapshot {name}"
            );
        }
        let mut copy = Copy::new(0);
        copy.take(&last, false).unwrap();
        assert!(copy.model(None) == made.model, "seed {seed}, the present");
        assert_eq!(copy.pool.superblock().next_ino, 100);
    }
}

#[test]
fn streams_of_what_changed_follow_each_other() {
    for seed in 1..30 {
        let (mut made, mut dice) = filled(seed, 2);
        let mut copy = Copy::new(name_seed(made.pool.superblock().uuid));
        copy.take(&made.stream(None, NONE, &["s0"]), false).unwrap();
        copy.take(&made.stream(Some("s0"), NONE, &["s1"]), true)
            .unwrap();
        made.change(&mut dice);
        made.snapshot("s2", 2);
        made.change(&mut dice);
        made.snapshot("s3", 3);
        let both = made.stream(Some("s1"), NONE, &["s2", "s3"]);
        copy.take(&both, true).unwrap();
        // It is there already: nothing is to be done.
        let again = copy.take(&both, true).unwrap();
        assert_eq!((again.snapshots, again.skipped), (2, 2));
        for (name, model) in &made.kept {
            assert!(
                copy.model(Some(name)) == *model,
                "seed {seed}, snapshot {name}"
            );
        }
        assert!(copy.model(None) == made.kept[3].1);
    }
}

#[test]
fn what_was_stored_to_blocks_of_the_base_is_sent_again() {
    let (mut made, _) = filled(5, 1);
    let seed = name_seed(made.pool.superblock().uuid);
    let whole = made.stream(None, NONE, &["s0"]);
    // Stores through a mapping that is older than the snapshot.
    let base = snapshot::find(&made.pool.reader(), b"s0").unwrap().unwrap();
    let mut extents = made.model.blocks.keys().map(|(ino, at)| {
        let e = extent::covering(&made.pool.reader(), *ino, *at);
        (*ino, *at, e.unwrap().unwrap())
    });
    let (ino, at, e) = extents.find(|(_, _, e)| e.epoch <= base.epoch).unwrap();
    let block = (e.block.number() + at - e.file_block) * BLOCK as u64;
    made.data.write_nt(block, &[77; BLOCK]).unwrap();
    made.model.blocks.insert((ino, at), 77);
    made.snapshot("s1", 1);
    for (stored, is_sent) in [
        (Stored::Any, true),
        (Stored::Files(&[ino]), true),
        (NONE, false),
    ] {
        let mut copy = Copy::new(seed);
        copy.take(&whole, false).unwrap();
        let since = made.stream(Some("s0"), stored, &["s1"]);
        copy.take(&since, true).unwrap();
        assert_eq!(copy.model(None) == made.model, is_sent, "{stored:?}");
    }
}

#[test]
fn a_stream_that_continues_another_pool_is_refused() {
    let (mut made, mut dice) = filled(3, 2);
    let seed = name_seed(made.pool.superblock().uuid);
    let whole = made.stream(None, NONE, &["s0"]);
    let since = made.stream(Some("s0"), NONE, &["s1"]);
    let mut copy = Copy::new(seed);
    assert!(matches!(
        copy.take(&since, false),
        Err(Error::NoBase { .. })
    ));
    assert!(matches!(copy.take(&since, true), Err(Error::NoBase { .. })));
    copy.take(&whole, false).unwrap();
    assert!(matches!(copy.take(&whole, true), Err(Error::Whole)));
    let mut other = Copy::new(seed ^ 1);
    other.take(&whole, false).unwrap();
    assert!(matches!(
        other.take(&since, true),
        Err(Error::OtherBase { .. })
    ));
    // One that was changed since.
    let token = WriteToken::for_offline_tool();
    let mut batch = copy.pool.begin(&token);
    batch.put(ORPHANS, &[1; 8], &[]).unwrap();
    batch.commit(|_| {}).unwrap();
    assert!(matches!(
        copy.take(&since, true),
        Err(Error::Changed { .. })
    ));
    made.change(&mut dice);
}

#[test]
fn a_stream_that_is_cut_or_changed_anywhere_is_refused_and_leaves_whole_states() {
    let (made, mut dice) = filled(8, 3);
    let seed = name_seed(made.pool.superblock().uuid);
    let first = made.stream(None, NONE, &["s0"]);
    let rest = made.stream(Some("s0"), NONE, &["s1", "s2"]);
    for round in 0..300 {
        let mut copy = Copy::new(seed);
        copy.take(&first, false).unwrap();
        let mut bad = rest.clone();
        let at = dice.roll(bad.len() as u64) as usize;
        match round % 2 {
            0 => bad.truncate(at),
            _ => bad[at] ^= 1 << dice.roll(8),
        }
        let error = copy.take(&bad, true).unwrap_err();
        let known = matches!(
            error,
            Error::NotAStream | Error::Damaged { .. } | Error::Ends { .. } | Error::Version { .. }
        );
        assert!(known, "{error:?}");
        // Whatever came through is whole, and the same stream goes on behind it.
        let there = snapshot::list(&copy.pool.reader()).unwrap().len();
        assert!(copy.model(None) == made.kept[there - 1].1, "at {at}");
        copy.take(&rest, true).unwrap();
        assert!(copy.model(Some("s1")) == made.kept[1].1);
        assert!(copy.model(None) == made.kept[2].1);
    }
}

/// Where its chunks begin.
fn chunks_of(stream: &[u8]) -> Vec<usize> {
    let (mut all, mut at) = (Vec::new(), 0);
    while at < stream.len() {
        all.push(at);
        at += 32 + u32::from_le_bytes(stream[at + 16..at + 20].try_into().unwrap()) as usize;
    }
    all
}

#[test]
fn a_stream_that_was_begun_becomes_what_it_would_have_been() {
    let (mut made, mut dice) = filled(11, 0);
    let names = ["s0", "s1", "s2", "s3"];
    for name in names {
        (0..30).for_each(|_| made.change(&mut dice));
        made.snapshot(name, 9);
    }
    let whole = made.stream(None, NONE, &names);
    let chunks = chunks_of(&whole);
    assert!(chunks.len() > 3, "{} chunks", chunks.len());
    let behind = |at: usize| chunks.iter().rfind(|chunk| **chunk <= at).copied().unwrap();
    for round in 0..120 {
        let mut part = whole.clone();
        let at = match round {
            // Just where a chunk ends, or amid one.
            0..60 => chunks[dice.roll(chunks.len() as u64) as usize],
            _ => dice.roll(whole.len() as u64) as usize,
        };
        match round % 3 {
            0 => part.truncate(at),
            1 => part[at] ^= 1 << dice.roll(8),
            _ => {
                part.truncate(at);
                part.extend([round as u8; 100]);
            }
        }
        match made.go_on(&part, &names) {
            Some((stream, kept)) => {
                assert!(stream == whole, "round {round}, at {at}");
                assert_eq!(kept, behind(at) as u64, "round {round}, at {at}");
            }
            None => assert_eq!(behind(at), 0, "round {round}, at {at}"),
        }
    }
    for rest in [&b""[..], b"more"] {
        let (stream, _) = made.go_on(&[&whole, rest].concat(), &names).unwrap();
        assert!(stream == whole);
    }
}

#[test]
fn a_stream_of_something_else_is_not_gone_on_with() {
    let (made, _) = filled(12, 3);
    let names = ["s0", "s1", "s2"];
    let whole = made.stream(None, NONE, &names);
    for other in [
        filled(13, 3).0.stream(None, NONE, &["s1", "s2"]),
        made.stream(None, NONE, &["s1", "s2"]),
        made.stream(Some("s0"), NONE, &["s1", "s2"]),
        made.stream(None, NONE, &[]),
        crate::chunk::tests::of_version(9),
        Vec::new(),
        vec![7; 10_000],
    ] {
        assert!(made.go_on(&other, &names).is_none());
    }
    // Another pool of which the first state looks the same, and one that ends elsewhere: what is
    // not the same is not kept.
    let shorter = made.stream(None, NONE, &names[..2]);
    assert!(made.go_on(&shorter, &names).unwrap().0 == whole);
    // Stored to through a mapping, for instance.
    made.data.zero_nt(0, DATA as usize).unwrap();
    let other = made.stream(None, NONE, &names);
    let (stream, kept) = made.go_on(&whole, &names).unwrap();
    assert!(stream == other && other != whole && kept < whole.len() as u64);
}

#[test]
fn a_target_that_is_full_says_so() {
    let (made, _) = filled(4, 1);
    let whole = made.stream(None, NONE, &["s0"]);
    let mut copy = Copy::new(0);
    copy.sink.room = 64 * BLOCK as u64;
    let error = copy.take(&whole, false).unwrap_err();
    assert!(matches!(error, Error::Data(e) if e.kind() == io::ErrorKind::StorageFull));
}

#[test]
fn records_come_back_and_nothing_else_does() {
    let bytes = [7; 2 * BLOCK];
    let all = [
        Record::State {
            name: b"name",
            time: -3,
            counts: [1, 2, 3, 4, 5, 6, 7, 8],
        },
        Record::Put {
            tree: 3,
            key: b"key",
            value: b"value",
        },
        Record::Erase {
            tree: 5,
            key: b"another",
        },
        Record::Data {
            ino: 3,
            file_block: 9,
            bytes: &bytes,
        },
        Record::Zeroes {
            ino: 3,
            file_block: 11,
            blocks: 1 << 40,
        },
        Record::Unmap {
            ino: 3,
            file_block: 0,
            blocks: 9,
        },
        Record::Value {
            key: b"k",
            mtime: 1 << 40,
            expires: 1 << 50,
            len: 5,
        },
        Record::ValueData { bytes: b"abcde" },
        Record::StateEnd,
        Record::End,
    ];
    let mut out = Vec::new();
    all.iter().for_each(|record| record.encode(&mut out));
    let mut rest = &out[..];
    for record in &all {
        assert_eq!(Record::decode(&mut rest).as_ref(), Ok(record));
    }
    assert!(rest.is_empty());
    for record in &all {
        let mut one = Vec::new();
        record.encode(&mut one);
        for len in 0..one.len() {
            let cut = Record::decode(&mut &one[..len]);
            assert!(cut.is_err(), "{record:?} cut at {len}");
        }
    }
}

#[test]
fn another_version_is_named() {
    let mut writer = ChunkWriter::new(Vec::new()).unwrap();
    let head = Head {
        seed: 1,
        consistency: Consistency::Sync,
        size: 1 << 30,
        next_ino: 9,
        time: 4,
        base: None,
    };
    writer.put(&Record::Head(head.clone())).unwrap();
    let bytes = writer.finish().unwrap();
    let mut reader = ChunkReader::new(io::Cursor::new(bytes.clone())).unwrap();
    assert_eq!(reader.next_record().unwrap(), Record::Head(head));
    assert!(matches!(
        reader.next_record(),
        Err(Error::Ends { chunks: 1 })
    ));
    assert!(matches!(
        ChunkReader::new(&b"#!/bin/sh\n"[..]),
        Err(Error::NotAStream)
    ));
    assert!(matches!(ChunkReader::new(&b""[..]), Err(Error::NotAStream)));
    let next = crate::chunk::tests::of_version(2);
    assert!(matches!(
        ChunkReader::new(io::Cursor::new(next)),
        Err(Error::Version { found: 2 })
    ));
}
