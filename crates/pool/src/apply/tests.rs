//! Random records against the model, on trees in memory: the same verdicts and the same objects.

use super::compare::{State, compare};
use super::generate::{Generator, Material};
use super::model::Model;
use super::*;
use crate::layout::extent;
use crate::layout::testing::MapTrees;
use crate::layout::{BadValue, BlockAddr, ReadTrees, TreeId, VALUES};
use std::collections::BTreeSet;
use std::vec::Vec;

const BLOCKS: u64 = 4000;
const ROOT_MODE: u32 = 0o040_755;

/// A store in memory that counts its changes.
#[derive(Default)]
struct MemStore {
    trees: MapTrees,
    used: BTreeSet<u64>,
    freed: BTreeSet<u64>,
    counts: [i64; 8],
    next_ino: u64,
    changes: usize,
    room: u64,
}

impl MemStore {
    fn state(&self) -> State {
        State {
            trees: self.trees.clone(),
            used: self.used.clone(),
            counts: self.counts.map(|n| n as u64),
            next_ino: self.next_ino,
            seed: self.name_seed().unwrap(),
        }
    }
}

impl ReadTrees for MemStore {
    type Error = BadValue;

    fn name_seed(&self) -> core::result::Result<u64, BadValue> {
        self.trees.name_seed()
    }

    fn get(
        &self,
        tree: TreeId,
        key: &[u8],
        value: &mut [u8],
    ) -> core::result::Result<Option<usize>, BadValue> {
        self.trees.get(tree, key, value)
    }

    fn at_or_after(
        &self,
        tree: TreeId,
        from: &[u8],
        key: &mut [u8],
        value: &mut [u8],
    ) -> core::result::Result<Option<(usize, usize)>, BadValue> {
        self.trees.at_or_after(tree, from, key, value)
    }

    fn at_or_before(
        &self,
        tree: TreeId,
        to: &[u8],
        key: &mut [u8],
        value: &mut [u8],
    ) -> core::result::Result<Option<(usize, usize)>, BadValue> {
        self.trees.at_or_before(tree, to, key, value)
    }
}

type Done = core::result::Result<(), BadValue>;

impl Store for MemStore {
    fn put(&mut self, tree: TreeId, key: &[u8], value: &[u8]) -> Done {
        self.changes += 1;
        self.trees.put(tree, key, value);
        Ok(())
    }

    fn put_index(&mut self, key: &[u8], value: &[u8]) -> Done {
        if !self.trees.0.contains_key(&(VALUES, key.to_vec())) {
            self.add_count(count::INDEX, 1);
        }
        self.put(VALUES, key, value)
    }

    fn erase_index(&mut self, key: &[u8]) -> Done {
        if self.trees.0.contains_key(&(VALUES, key.to_vec())) {
            self.add_count(count::INDEX, -1);
        }
        self.erase(VALUES, key)
    }

    fn show_all(&mut self, _all: bool) {}

    fn replace(
        &mut self,
        tree: TreeId,
        key: &[u8],
        value: &[u8],
        see: &mut dyn FnMut(&[u8]),
    ) -> Done {
        if let Some(old) = self.trees.0.get(&(tree, key.to_vec())) {
            see(old);
        }
        self.put(tree, key, value)
    }

    fn take_out(&mut self, tree: TreeId, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Done {
        if let Some(old) = self.trees.0.get(&(tree, key.to_vec())) {
            see(old);
        }
        self.erase(tree, key)
    }

    fn each(
        &self,
        tree: TreeId,
        from: &[u8],
        to: &[u8],
        see: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> core::result::Result<bool, BadValue> {
        let range = (tree, from.to_vec())..(tree, to.to_vec());
        Ok(self.trees.0.range(range).all(|(k, v)| see(&k.1, v)))
    }

    fn erase(&mut self, tree: TreeId, key: &[u8]) -> Done {
        self.changes += 1;
        self.trees.0.remove(&(tree, key.to_vec()));
        Ok(())
    }

    fn erase_range(&mut self, tree: TreeId, from: &[u8], to: &[u8]) -> Done {
        self.changes += 1;
        let range = (tree, from.to_vec())..(tree, to.to_vec());
        let gone: Vec<_> = self.trees.0.range(range).map(|(k, _)| k.clone()).collect();
        gone.iter().for_each(|k| {
            self.trees.0.remove(k);
        });
        Ok(())
    }

    fn cut_range(
        &mut self,
        tree: TreeId,
        from: &[u8],
        to: &[u8],
        see: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Done {
        self.each(tree, from, to, &mut |key, value| {
            see(key, value);
            true
        })?;
        self.erase_range(tree, from, to)
    }

    fn is_unused(&self, block: BlockAddr, len: u64) -> bool {
        block.is_within(len, BLOCKS) && numbers(block, len).all(|b| !self.used.contains(&b))
    }

    fn mark_used(&mut self, block: BlockAddr, len: u64) -> Done {
        self.changes += 1;
        numbers(block, len).for_each(|b| assert!(self.used.insert(b)));
        Ok(())
    }

    fn mark_unused(&mut self, block: BlockAddr, len: u64, _: u32) -> Done {
        self.changes += 1;
        for b in numbers(block, len) {
            assert!(self.used.remove(&b) && self.freed.insert(b));
        }
        Ok(())
    }

    fn epoch(&self) -> u32 {
        0
    }

    fn room(&self) -> u64 {
        self.room
    }

    fn filled(&self) -> u64 {
        0
    }

    fn next_ino(&self) -> u64 {
        self.next_ino
    }

    fn set_next_ino(&mut self, ino: u64) {
        self.changes += 1;
        self.next_ino = ino;
    }

    fn add_count(&mut self, index: usize, change: i64) {
        self.changes += 1;
        self.counts[index] += change;
    }
}

fn numbers(block: BlockAddr, len: u64) -> core::ops::Range<u64> {
    block.word()..block.word() + len
}

impl Grants for BTreeSet<u64> {
    fn holds(&self, block: BlockAddr, len: u64) -> bool {
        block.is_within(len, BLOCKS) && numbers(block, len).all(|b| self.contains(&b))
    }

    fn take(&mut self, block: BlockAddr, len: u64) {
        numbers(block, len).for_each(|b| assert!(self.remove(&b)));
    }
}

fn new_store() -> MemStore {
    let mut store = MemStore {
        next_ino: 2,
        room: ROOM_TO_GROW,
        ..MemStore::default()
    };
    make_root(&mut store, ROOT_MODE, 0, 0, 0).unwrap();
    store
}

#[test]
fn random_records_do_what_the_model_does() {
    let material = Material::new();
    for seed in 1..40 {
        let mut generator = Generator::new(seed * 7919, &material, BLOCKS);
        let mut store = new_store();
        let mut grants: BTreeSet<u64> = (10..BLOCKS).filter(|b| b % 50 != 0).collect();
        let mut model = Model::new(ROOT_MODE, grants.iter().copied());
        let (mut applied, mut rejected) = (0, 0);
        for seq in 1..1500 {
            let record = generator.record(&model);
            let before = store.changes;
            let mut applier = Applier::new(&mut store, &mut grants, [0; LANES]);
            let done = applier.apply(
                &Header {
                    seq,
                    len: 64,
                    lane: 3,
                },
                &record,
            );
            let expected = model.apply(&record);
            match done {
                Ok(Outcome::Applied) => applied += 1,
                Err(Failure::Rejected(_)) => {
                    assert_eq!(store.changes, before, "{record:?}");
                    rejected += 1;
                }
                other => panic!("{other:?} for {record:?}"),
            }
            assert_eq!(done.is_ok(), expected, "{done:?}: {record:?}");
            if seq % 50 == 0 {
                compare(&store.state(), &model);
                assert_eq!(grants, model.granted);
            }
        }
        compare(&store.state(), &model);
        assert!(
            applied > 500 && rejected > 100,
            "{applied} applied, {rejected} rejected"
        );
        release_all(&mut store, &mut grants, &mut model);
    }
}

fn release_all(store: &mut MemStore, grants: &mut BTreeSet<u64>, model: &mut Model) {
    let mut applier = Applier::new(store, grants, [0; LANES]);
    while applier.free_orphans(3).unwrap() > 0 {}
    for ino in core::mem::take(&mut model.orphans) {
        model.objects.remove(&ino);
    }
    compare(&store.state(), model);
}

#[test]
fn a_record_is_applied_once() {
    let (mut store, mut grants) = (new_store(), BTreeSet::new());
    let mut applier = Applier::new(&mut store, &mut grants, [5; LANES]);
    let record = Record::Create {
        parent: 1,
        ino: 2,
        mode: 0o100_644,
        uid: 0,
        gid: 0,
        flags: 0,
        rdev: 0,
        time: 1,
        name: b"f",
        target: b"",
    };
    let header = |seq, lane| Header { seq, len: 64, lane };
    assert_eq!(applier.apply(&header(5, 2), &record), Ok(Outcome::Skipped));
    assert_eq!(applier.apply(&header(6, 2), &record), Ok(Outcome::Applied));
    assert_eq!(applier.apply(&header(6, 2), &record), Ok(Outcome::Skipped));
    let other_lane = applier.apply(&header(6, 16), &record);
    assert!(matches!(
        other_lane,
        Err(Failure::Rejected(Reject { why: Why::Lane, .. }))
    ));
    assert!(applier.apply(&header(7, 2), &record).is_err());
    applier.skip(&header(7, 2));
    assert_eq!((applier.applied()[2], applier.applied()[1]), (7, 5));
}

#[test]
fn neighbouring_extents_become_one() {
    let (mut store, mut grants) = (new_store(), (0..100).collect::<BTreeSet<u64>>());
    let mut applier = Applier::new(&mut store, &mut grants, [0; LANES]);
    let create = Record::Create {
        parent: 1,
        ino: 2,
        mode: 0o100_644,
        uid: 0,
        gid: 0,
        flags: 0,
        rdev: 0,
        time: 1,
        name: b"f",
        target: b"",
    };
    let mut seq = 0;
    let mut apply = |record: Record<'_>| {
        seq += 1;
        applier
            .apply(
                &Header {
                    seq,
                    len: 64,
                    lane: 0,
                },
                &record,
            )
            .unwrap();
    };
    apply(create);
    for (file_block, block, len) in [(0, 10, 2), (4, 14, 2), (2, 12, 2), (6, 50, 1), (7, 16, 1)] {
        apply(Record::Extent {
            ino: 2,
            file_block,
            block: BlockAddr::new(0, block),
            len,
            size: 9,
            mtime: 0,
            ctime: 0,
            flags: 0,
        });
    }
    let first = extent::next(&store, 2, 0).unwrap().unwrap();
    assert_eq!((first.block, first.len), (BlockAddr::new(0, 10), 6));
    let second = extent::next(&store, 2, 1).unwrap().unwrap();
    assert_eq!(second.block, BlockAddr::new(0, 50));
    assert_eq!(store.used.len(), 8);
}

#[test]
fn blocks_of_a_data_segment_that_does_not_exist_are_refused_by_name() {
    let (mut store, mut grants) = (new_store(), (0..100).collect::<BTreeSet<u64>>());
    let mut applier = Applier::new(&mut store, &mut grants, [0; LANES]);
    let header = |seq| Header {
        seq,
        len: 64,
        lane: 0,
    };
    applier.apply(&header(1), &file_named(2, b"f")).unwrap();
    let extent = |block, len| Record::Extent {
        ino: 2,
        file_block: 0,
        block,
        len,
        size: 9,
        mtime: 0,
        ctime: 0,
        flags: 0,
    };
    let last = BlockAddr::new(1, 0).word() - 1;
    for (block, len) in [
        (BlockAddr::new(1, 10), 1),
        (BlockAddr::new(255, 10), 1),
        (BlockAddr::from_word(last), 2),
        (BlockAddr::from_word(10 | 1 << 63), 1),
        (BlockAddr::from_word(u64::MAX), u32::MAX),
    ] {
        let refused = applier.apply(&header(2), &extent(block, len));
        let segment = Reject::new(2, Why::Segment);
        assert_eq!(refused, Err(Failure::Rejected(segment)), "{block:?}");
        assert!(std::format!("{segment}").contains("data segment that does not exist"));
    }
    let inside = extent(BlockAddr::new(0, 10), 1);
    assert_eq!(applier.apply(&header(2), &inside), Ok(Outcome::Applied));
}

#[test]
fn redo_names_the_blocks_of_a_write() {
    let (mut store, mut grants) = (new_store(), (0..100).collect::<BTreeSet<u64>>());
    let mut applier = Applier::new(&mut store, &mut grants, [0; LANES]);
    let create = Record::Create {
        parent: 1,
        ino: 2,
        mode: 0o100_644,
        uid: 0,
        gid: 0,
        flags: 0,
        rdev: 0,
        time: 1,
        name: b"f",
        target: b"",
    };
    let extent = |file_block, block| Record::Extent {
        ino: 2,
        file_block,
        block: BlockAddr::new(0, block),
        len: 1,
        size: 8192,
        mtime: 0,
        ctime: 0,
        flags: 0,
    };
    let data = [7; 300];
    let write = Record::Write {
        ino: 2,
        offset: 4000,
        size: 8192,
        mtime: 9,
        data: &data,
    };
    let all = [create, extent(0, 30), extent(1, 20), write];
    for (seq, record) in all.iter().enumerate() {
        applier
            .apply(
                &Header {
                    seq: 1 + seq as u64,
                    len: 64,
                    lane: 0,
                },
                record,
            )
            .unwrap();
    }
    let pieces: Vec<_> = applier
        .redo(&write)
        .unwrap()
        .iter()
        .map(|p| (p.block.number(), p.offset_in_block, p.data.len()))
        .collect();
    assert_eq!(pieces, [(30, 4000, 96), (20, 0, 204)]);
    assert!(applier.redo(&create).unwrap().is_empty());
}

#[test]
fn without_room_only_what_removes_is_applied() {
    let (mut store, mut grants) = (new_store(), BTreeSet::new());
    let create = |ino, name| Record::Create {
        parent: 1,
        ino,
        mode: 0o100_644,
        uid: 0,
        gid: 0,
        flags: 0,
        rdev: 0,
        time: 1,
        name,
        target: b"",
    };
    let mut seq = 0;
    let mut apply = |store: &mut MemStore, room, record: &Record<'_>| {
        (store.room, seq) = (room, seq + 1);
        let header = Header {
            seq,
            len: 64,
            lane: 0,
        };
        Applier::new(store, &mut grants, [0; LANES]).apply(&header, record)
    };
    let no_room = Err(Failure::Rejected(Reject::new(0, Why::NoRoom)));
    assert_eq!(
        apply(&mut store, ROOM_TO_GROW, &create(2, b"a")),
        Ok(Outcome::Applied)
    );
    assert_eq!(
        apply(&mut store, ROOM_TO_GROW - 1, &create(3, b"b")),
        no_room
    );
    let unlink = Record::Unlink {
        parent: 1,
        ino: 2,
        flags: 0,
        time: 2,
        name: b"a",
    };
    assert_eq!(apply(&mut store, ROOM_TO_SHRINK - 1, &unlink), no_room);
    assert_eq!(
        apply(&mut store, ROOM_TO_SHRINK, &unlink),
        Ok(Outcome::Applied)
    );
}

fn file_named(ino: u64, name: &[u8]) -> Record<'_> {
    let (parent, mode) = (1, 0o100_644);
    let (uid, gid, rdev, flags, time, target) = (0, 0, 0, 0, 1, &b""[..]);
    Record::Create {
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
    }
}

fn directory(parent: u64, ino: u64) -> Record<'static> {
    let (mode, uid, gid, rdev, flags, time) = (ROOT_MODE, 0, 0, 0, 0, 1);
    let (name, target) = (&b"d"[..], &b""[..]);
    Record::Create {
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
    }
}

#[test]
fn a_rename_takes_bounded_work_however_deep_the_tree_is() {
    let (mut store, mut grants) = (new_store(), BTreeSet::new());
    let mut applier = Applier::new(&mut store, &mut grants, [0; LANES]);
    let header = |seq| Header {
        seq,
        len: 64,
        lane: 0,
    };
    let deepest = 4 * DEPTH_MAX as u64;
    for ino in 2..=deepest {
        let record = directory(ino - 1, ino);
        applier.apply(&header(ino), &record).unwrap();
    }
    let moved = deepest + 1;
    let mut aside = directory(1, moved);
    if let Record::Create { name, .. } = &mut aside {
        *name = b"aside";
    }
    applier.apply(&header(moved), &aside).unwrap();
    let mut into = |seq, new_parent| {
        let (old_parent, ino, replaced, flags, time) = (1, moved, 0, 0, 2);
        let (old_name, new_name) = (&b"aside"[..], &b"new"[..]);
        let record = Record::Rename {
            old_parent,
            new_parent,
            ino,
            replaced,
            flags,
            time,
            old_name,
            new_name,
        };
        let before = applier.steps();
        let done = applier.apply(&header(seq), &record);
        (done, applier.steps() - before)
    };
    let (done, steps) = into(moved + 1, deepest);
    let too_deep = Why::TooDeep;
    assert!(matches!(done, Err(Failure::Rejected(Reject { why, .. })) if why == too_deep));
    assert_eq!(steps, DEPTH_MAX as u64);
    let limit = DEPTH_MAX as u64;
    assert_eq!(into(moved + 2, limit), (Ok(Outcome::Applied), limit));
}

/// With work for each change that grows with their number, this would not end.
#[test]
fn changes_of_keyspaces_that_are_gone_take_no_longer_the_more_they_are() {
    let (mut store, mut grants) = (new_store(), BTreeSet::new());
    store.room = 1 << 40;
    let mut applier = Applier::new(&mut store, &mut grants, [0; LANES]);
    let mut ops = Vec::new();
    for keyspace in 0..1 << 20 {
        let change = match keyspace {
            0 => Change::EraseRange(b""),
            _ => Change::Erase,
        };
        let (keyspace, key) = (1000 + keyspace, &b"k"[..]);
        let op = Op {
            keyspace,
            key,
            change,
        };
        op.push(&mut ops);
    }
    let (seq, len, lane) = (1, 64, 0);
    let header = Header { seq, len, lane };
    let (time, len, sum, runs) = (1, ops.len() as u64, 0, &[][..]);
    let record = Record::Spilled {
        time,
        len,
        sum,
        runs,
    };
    let done = applier.apply_spilled(&header, &record, &ops);
    assert_eq!(done, Ok(Outcome::Applied));
}
