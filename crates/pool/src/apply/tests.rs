//! Random records against the model, on trees in memory: the same verdicts and the same objects.

use super::generate::{Generator, Material};
use super::model::{Model, Object, is_link};
use super::*;
use crate::layout::dirent::{self, Dirent};
use crate::layout::extent::{self, Extent};
use crate::layout::testing::MapTrees;
use crate::layout::{BadValue, DIRENTS, EXTENTS, ORPHANS, ReadTrees, TreeId, XATTRS, xattr};
use std::collections::{BTreeMap, BTreeSet};
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
}

impl ReadTrees for MemStore {
    type Error = BadValue;

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

    fn is_unused(&self, block: u64, len: u64) -> bool {
        let inside = block.checked_add(len).is_some_and(|end| end <= BLOCKS);
        inside && (block..block + len).all(|b| !self.used.contains(&b))
    }

    fn mark_used(&mut self, block: u64, len: u64) -> Done {
        self.changes += 1;
        (block..block + len).for_each(|b| assert!(self.used.insert(b)));
        Ok(())
    }

    fn mark_unused(&mut self, block: u64, len: u64) -> Done {
        self.changes += 1;
        for b in block..block + len {
            assert!(self.used.remove(&b) && self.freed.insert(b));
        }
        Ok(())
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

impl Grants for BTreeSet<u64> {
    fn holds(&self, block: u64, len: u64) -> bool {
        let inside = block.checked_add(len).is_some_and(|end| end <= BLOCKS);
        inside && (block..block + len).all(|b| self.contains(&b))
    }

    fn take(&mut self, block: u64, len: u64) {
        (block..block + len).for_each(|b| assert!(self.remove(&b)));
    }
}

fn new_store() -> MemStore {
    let mut store = MemStore {
        next_ino: 2,
        ..MemStore::default()
    };
    make_root(&mut store, ROOT_MODE, 0, 0, 0).unwrap();
    store
}

/// What the trees say about an object, in the model's terms.
fn object(store: &MemStore, ino: u64) -> (Object, u32, u64) {
    let mut buf = [0; inode::ENCODED_MAX];
    let r = inode::find(store, ino, &mut buf).unwrap().unwrap();
    let mut o = Object {
        mode: r.mode,
        uid: r.uid,
        gid: r.gid,
        rdev: r.rdev,
        size: r.size,
        times: [r.atime, r.mtime, r.ctime, r.btime],
        parent: r.parent,
        ..Object::default()
    };
    if r.is_file() {
        o.inline = r.tail.to_vec();
        assert_eq!(r.flags & inode::INLINE != 0, !r.tail.is_empty());
    }
    if r.is_symlink() {
        o.target = r.tail.to_vec();
        if r.flags & inode::TARGET_IN_XATTRS != 0 {
            o.target.resize(r.size as usize, 0);
            let n = xattr::find(store, ino, b"", &mut o.target).unwrap();
            assert_eq!(n, Some(o.target.len()));
        }
    }
    let mut name = [0; 255];
    let mut last = Vec::new();
    while let Some(n) = xattr::next_name(store, ino, &last, &mut name).unwrap() {
        let mut value = std::vec![0; 8192];
        let len = xattr::find(store, ino, &name[..n], &mut value)
            .unwrap()
            .unwrap();
        value.truncate(len);
        last = name[..n].to_vec();
        o.xattrs.insert(last.clone(), value);
    }
    assert_eq!(r.flags & inode::HAS_XATTRS != 0, !o.xattrs.is_empty());
    let mut at = 0;
    while let Some(e) = extent::next(store, ino, at).unwrap() {
        for i in 0..u64::from(e.len) {
            assert_eq!(o.blocks.insert(e.file_block + i, e.block + i), None);
        }
        at = e.end();
    }
    assert_eq!(r.blocks, o.blocks.len() as u64);
    (o, r.nlink, r.entries)
}

fn compare(store: &MemStore, model: &Model) {
    let of_tree = |tree| store.trees.0.iter().filter(move |((t, _), _)| *t == tree);
    let inos: Vec<u64> = of_tree(INODES)
        .map(|((_, k), _)| u64::from_be_bytes(k[..].try_into().unwrap()))
        .collect();
    assert_eq!(inos, model.objects.keys().copied().collect::<Vec<_>>());
    for (&ino, expected) in &model.objects {
        let (found, nlink, entries) = object(store, ino);
        assert_eq!(&found, expected, "object {ino}");
        assert_eq!(nlink, model.nlink(ino), "nlink of {ino}");
        assert_eq!(
            entries,
            model.entries(ino).count() as u64,
            "entries of {ino}"
        );
        assert!(is_link(expected) || expected.target.is_empty());
    }
    let mut names = BTreeMap::new();
    for ((_, k), v) in of_tree(DIRENTS) {
        let (dir, cookie) = dirent::parse_key(k).unwrap();
        let entry = Dirent::decode(v).unwrap();
        assert_eq!(cookie >> 8, dirent::name_hash(entry.name));
        assert_eq!(u32::from(entry.kind), model.objects[&entry.ino].mode >> 12);
        names.insert((dir, entry.name.to_vec()), entry.ino);
    }
    assert_eq!(names, model.names);
    let orphans: BTreeSet<u64> = of_tree(ORPHANS)
        .map(|((_, k), _)| u64::from_be_bytes(k[..].try_into().unwrap()))
        .collect();
    assert_eq!(orphans, model.orphans);
    compare_space(store, model);
}

fn compare_space(store: &MemStore, model: &Model) {
    let used: BTreeSet<u64> = model
        .objects
        .values()
        .flat_map(|o| o.blocks.values().copied())
        .collect();
    assert_eq!(used, store.used);
    let of_tree = |tree| store.trees.0.iter().filter(move |((t, _), _)| *t == tree);
    for ((_, k), v) in of_tree(EXTENTS) {
        let (ino, at) = extent::parse_key(k).unwrap();
        assert!(model.objects.contains_key(&ino));
        Extent::decode(at, v).unwrap();
    }
    for ((_, k), _) in of_tree(XATTRS) {
        assert!(model.objects.contains_key(&xattr::parse_key(k).unwrap().0));
    }
    assert_eq!(store.counts.iter().sum::<i64>(), model.objects.len() as i64);
    let dirs = model.objects.keys().filter(|i| model.is_dir(**i)).count();
    assert_eq!(store.counts[count::DIRS], dirs as i64);
    assert_eq!(store.next_ino, model.next_ino);
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
                compare(&store, &model);
                assert_eq!(grants, model.granted);
            }
        }
        compare(&store, &model);
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
    compare(store, model);
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
            block,
            len,
            size: 9,
            mtime: 0,
            ctime: 0,
        });
    }
    let first = extent::next(&store, 2, 0).unwrap().unwrap();
    assert_eq!((first.block, first.len), (10, 6));
    assert_eq!(extent::next(&store, 2, 1).unwrap().unwrap().block, 50);
    assert_eq!(store.used.len(), 8);
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
        block,
        len: 1,
        size: 8192,
        mtime: 0,
        ctime: 0,
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
        .map(|p| (p.block, p.offset_in_block, p.data.len()))
        .collect();
    assert_eq!(pieces, [(30, 4000, 96), (20, 0, 204)]);
    assert!(applier.redo(&create).unwrap().is_empty());
}
