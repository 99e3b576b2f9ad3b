//! Snapshots against copies of the model, while the present changes.
//!
//! Random records are applied and committed; at random moments a snapshot is taken and the model
//! copied, or a snapshot is deleted. At every step each snapshot equals its copy, the checker finds
//! nothing, and exactly the blocks of the present and of all copies are in use. Blocks that become
//! free are granted and used again.

use super::*;
use crate::apply::compare::{State, compare, copy_trees};
use crate::apply::generate::{Generator, Material, Rng};
use crate::apply::model::Model;
use crate::apply::pool_tests::{
    BLOCKS, ROOT_MODE, UUID, assert_clean, commit_only, commit_some, free_cuts, image, new_pool,
};
use crate::layout::value::{self, InBlocks, ValueRun};
use crate::layout::{BlockAddr, VALUES, name_seed};
use crate::space::Run;
use crate::tree::Reader;
use holdfast_pmem::{Medium, Region};
use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;
use std::{format, vec};

const MIB: usize = 1 << 20;

pub(super) fn token() -> WriteToken {
    WriteToken::for_service()
}

pub(super) fn blocks_of(model: &Model) -> BTreeSet<u64> {
    let objects = model.objects.values();
    objects.flat_map(|o| o.blocks.values().copied()).collect()
}

/// The snapshot `name` has exactly what the model had.
pub(super) fn assert_snapshot(pool: &Pool, name: &[u8], model: &Model) {
    let snapshot = find(&pool.reader(), name).unwrap().unwrap();
    let fixed = snapshot.fixed();
    let state = State {
        trees: copy_trees(&Reader::of_snapshot(pool.meta(), &fixed)),
        used: blocks_of(model),
        counts: snapshot.counts,
        next_ino: model.next_ino,
        seed: name_seed(UUID),
    };
    compare(&state, model);
}

/// Everything that must hold.
pub(super) fn assert_all(pool: &Pool, present: &Model, kept: &BTreeMap<Vec<u8>, Model>) {
    let names: Vec<_> = list(&pool.reader()).unwrap();
    assert!(names.iter().map(|(name, _)| name).eq(kept.keys()));
    let state = State {
        trees: copy_trees(&pool.reader()),
        used: blocks_of(present),
        counts: pool.superblock().counts,
        next_ino: pool.superblock().next_ino,
        seed: name_seed(UUID),
    };
    compare(&state, present);
    let mut all = blocks_of(present);
    for (name, model) in kept {
        assert_snapshot(pool, name, model);
        all.extend(blocks_of(model));
    }
    let used = |b: &u64| pool.data_space().is_used(Run::new(*b, 1));
    let used: BTreeSet<_> = (0..BLOCKS).filter(used).collect();
    match pool.has_cut() {
        // Some of what was removed is not free yet.
        true => assert!(all.is_subset(&used)),
        false => assert_eq!(used, all),
    }
    assert_clean(pool.meta());
}

/// Grants every free block of the first ones again.
fn grant_free(pool: &mut Pool, grants: &mut BTreeSet<u64>, model: &mut Model) {
    pool.reclaim().unwrap();
    for block in 0..700 {
        let run = Run::new(block, 1);
        if pool.data_space().is_free(run) {
            pool.grant_again(run).unwrap();
            grants.insert(block);
            model.granted.insert(block);
        }
    }
}

/// Back to the snapshot `name`, without those that are newer.
pub(super) fn roll_back(
    pool: &mut Pool,
    name: &[u8],
    kept: &mut BTreeMap<Vec<u8>, Model>,
    model: &mut Model,
) {
    let newer = pool.newer_snapshots(name).unwrap();
    if !newer.is_empty() || pool.has_cut() {
        assert_eq!(pool.roll_back(&token(), name), Err(Error::NotNewest));
    }
    for name in newer {
        pool.delete_snapshot(&token(), &name, 7).unwrap();
        kept.remove(&name);
    }
    free_cuts(pool);
    pool.roll_back(&token(), name).unwrap();
    let (granted, next_ino) = (model.granted.clone(), model.next_ino);
    *model = kept[name].clone();
    (model.granted, model.next_ino) = (granted, next_ino);
    assert_eq!(pool.roll_back(&token(), name), Ok(0), "it is there already");
}

#[test]
fn each_snapshot_equals_a_copy_of_the_model() {
    let material = Material::new();
    for seed in 1..5 {
        let meta = Region::in_memory(8 * MIB).unwrap();
        let (mut pool, mut grants) = new_pool(meta, 700);
        let mut model = Model::new(ROOT_MODE, grants.iter().copied());
        let mut generator = Generator::new(seed * 7919, &material, BLOCKS);
        let mut rng = Rng(seed * 31 + 5);
        let mut kept = BTreeMap::new();
        let (mut created, mut deleted, mut rolled, mut reused, mut halfway) = (0, 0, 0, false, 0);
        for round in 0..60u64 {
            commit_only(&mut pool, &mut grants, &mut model, &mut generator, 25);
            for _ in 0..rng.below(3) {
                pool.reclaim_some(&token(), 1 + rng.below(12) as usize)
                    .unwrap();
                assert_all(&pool, &model, &kept);
            }
            halfway += u64::from(pool.has_cut());
            if round % 20 == 19 {
                free_cuts(&mut pool);
                assert_all(&pool, &model, &kept);
            }
            if rng.below(2) == 0 {
                let name = format!("s{}", (round * 37) % 64).into_bytes();
                pool.create_snapshot(&token(), &name, round as i64).unwrap();
                kept.insert(name, model.clone());
                created += 1;
            }
            if rng.below(3) == 0 && !kept.is_empty() {
                let at = rng.below(kept.len() as u64) as usize;
                let name = kept.keys().nth(at).unwrap().clone();
                let work = rng.below(20) as usize;
                pool.delete_snapshot(&token(), &name, work).unwrap();
                kept.remove(&name);
                deleted += 1;
            }
            if rng.below(5) == 0 && !kept.is_empty() {
                let at = rng.below(kept.len() as u64) as usize;
                let name = kept.keys().nth(at).unwrap().clone();
                roll_back(&mut pool, &name, &mut kept, &mut model);
                rolled += 1;
                assert_all(&pool, &model, &kept);
            }
            let before = grants.len();
            grant_free(&mut pool, &mut grants, &mut model);
            reused |= grants.len() > before && deleted > 0;
            assert_all(&pool, &model, &kept);
            if round % 16 == 15 {
                let copy = image(pool.meta());
                let meta = Region::from_image(&copy, Medium::Memory).unwrap();
                pool = Pool::open(meta, &token()).unwrap();
                for block in &grants {
                    pool.grant_again(Run::new(*block, 1)).unwrap();
                }
            }
        }
        assert!(deleted > 5 && reused && halfway > 8, "{halfway} of 60");
        assert!(rolled > 5, "{rolled}");
        let kept_presents = u64::from(pool.superblock().epoch) - created;
        assert!(kept_presents > 1, "{kept_presents}");
        while let Some((name, _)) = kept.pop_first() {
            let work = rng.below(9) as usize;
            pool.delete_snapshot(&token(), &name, work).unwrap();
            assert_all(&pool, &model, &kept);
        }
        free_cuts(&mut pool);
        assert_all(&pool, &model, &kept);
        assert!(!pool.has_snapshots() && pool.find_newest().unwrap().is_none());
    }
}

#[test]
fn names_are_kept_apart_and_bad_ones_refused() {
    let meta = Region::in_memory(8 * MIB).unwrap();
    let (mut pool, _) = new_pool(meta, 10);
    let long = [b'x'; 256];
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\nb", b"\x7f", &long] {
        let refused = pool.create_snapshot(&token(), bad, 0);
        assert_eq!(refused, Err(Error::SnapshotName));
    }
    for good in [
        &b"a"[..],
        b"a b",
        "\u{fc}".as_bytes(),
        &long[1..],
        &[255; 255],
    ] {
        pool.create_snapshot(&token(), good, 7).unwrap();
        let again = pool.create_snapshot(&token(), good, 8);
        assert_eq!(again, Err(Error::SnapshotExists));
        assert_eq!(find(&pool.reader(), good).unwrap().unwrap().time, 7);
    }
    assert_eq!(list(&pool.reader()).unwrap().len(), 5);
    let mut rename = |from: &[u8], to: &[u8]| pool.rename_snapshot(&token(), from, to);
    assert_eq!(rename(b"a", b"b/c"), Err(Error::SnapshotName));
    assert_eq!(rename(b"a", b"a b"), Err(Error::SnapshotExists));
    assert_eq!(rename(b"b", b"c"), Err(Error::NoSnapshot));
    assert_eq!(rename(b"a", b"a"), Ok(()));
    assert_eq!(rename(b"a", &long[1..]), Err(Error::SnapshotExists));
    assert_eq!(rename(b"a", b"z"), Ok(()));
    assert_eq!(find(&pool.reader(), b"z").unwrap().unwrap().time, 7);
    assert_eq!(find(&pool.reader(), b"a").unwrap(), None);
    assert_eq!(list(&pool.reader()).unwrap().len(), 5);
    let missing = pool.delete_snapshot(&token(), b"missing", usize::MAX);
    assert_eq!(missing, Err(Error::NoSnapshot));
    assert_clean(pool.meta());
}

/// Taking a snapshot of any pool writes the same few pages, and deleting one that nothing changed
/// after frees nothing of the trees.
#[test]
fn a_snapshot_costs_the_same_whatever_the_pool_holds() {
    let material = Material::new();
    let meta = Region::in_memory(8 * MIB).unwrap();
    let (mut pool, mut grants) = new_pool(meta, 3000);
    let mut model = Model::new(ROOT_MODE, grants.iter().copied());
    let mut generator = Generator::new(11, &material, BLOCKS);
    let mut costs = BTreeSet::new();
    for round in 0..4 {
        commit_some(&mut pool, &mut grants, &mut model, &mut generator, 200);
        let before = pool.superblock().used_pages;
        pool.create_snapshot(&token(), b"s", round).unwrap();
        costs.insert(pool.superblock().used_pages - before);
        assert_eq!(pool.delete_snapshot(&token(), b"s", usize::MAX), Ok((0, 0)));
        assert_eq!(pool.superblock().used_pages, before);
    }
    assert_eq!(costs, BTreeSet::from([1]));
}

/// A thousand snapshots make a commit write no page more than none do.
#[test]
fn many_snapshots_cost_a_commit_nothing() {
    let pages_written = |snapshots: u32| {
        let material = Material::new();
        let meta = Region::in_memory(32 * MIB).unwrap();
        let (mut pool, mut grants) = new_pool(meta, 2000);
        let mut model = Model::new(ROOT_MODE, grants.iter().copied());
        let mut generator = Generator::new(3, &material, BLOCKS);
        commit_some(&mut pool, &mut grants, &mut model, &mut generator, 300);
        for i in 0..snapshots {
            let name = format!("snapshot {i}");
            pool.create_snapshot(&token(), name.as_bytes(), 0).unwrap();
        }
        let (seq, records) = (pool.superblock().seq, 50);
        commit_some(&mut pool, &mut grants, &mut model, &mut generator, records);
        assert_clean(pool.meta());
        let word = |page: u64, at: u64| pool.meta().load_u64(page * 4096 + at).unwrap();
        let node = |page: &u64| word(*page, 0) as u32 == u32::from_le_bytes(*b"HFN1");
        let pages = (0..pool.meta_space().len()).filter(node);
        pages.filter(|page| word(*page, 16) > seq).count()
    };
    assert_eq!(pages_written(0), pages_written(1000));
}

#[test]
fn a_full_pool_gets_its_space_back_with_a_snapshot() {
    let meta = Region::in_memory(8 * MIB).unwrap();
    let (mut pool, _) = new_pool(meta, 10);
    let value = [7; 1000];
    let mut batch = pool.begin(&token());
    for i in 0..1500u64 {
        batch.put(3, &i.to_be_bytes(), &value).unwrap();
    }
    batch.commit(|_| {}).unwrap();
    pool.create_snapshot(&token(), b"s", 0).unwrap();
    let full = loop {
        let mut batch = pool.begin(&token());
        let mut put = |i: u64| batch.put(3, &i.to_be_bytes(), &[8; 1000]);
        match (0..1500).step_by(3).try_for_each(|i| put(i).map(|_| ())) {
            Ok(()) => batch.commit(|_| {}).unwrap(),
            Err(e) => break e,
        };
        let name = format!("t{}", pool.superblock().seq);
        if let Err(e) = pool.create_snapshot(&token(), name.as_bytes(), 0) {
            break e;
        }
    };
    assert_eq!(full, Error::NoSpace);
    let left = pool.pages_left();
    for (name, _) in list(&pool.reader()).unwrap() {
        pool.delete_snapshot(&token(), &name, usize::MAX).unwrap();
    }
    assert!(pool.pages_left() > left + 500);
    let mut batch = pool.begin(&token());
    assert_eq!(batch.erase_range(3, &[], None).unwrap(), 1500);
    batch.commit(|_| {}).unwrap();
}

#[test]
fn random_entries_never_panic() {
    let mut rng = Rng(99);
    let mut value = [0; record::ENCODED];
    for _ in 0..5000 {
        value.iter_mut().for_each(|b| *b = rng.next() as u8);
        let _ = Snapshot::decode(&value);
        let _ = Snapshot::decode(&value[..rng.below(256) as usize]);
    }
}

/// Puts a value in block `block`, and drops that of the value that it replaces.
fn put_in_block(pool: &mut Pool, key: u64, block: u64) {
    let mut batch = pool.begin(&token());
    let epoch = batch.superblock().epoch;
    let run = ValueRun {
        block: BlockAddr::new(0, block),
        len: 1,
        epoch,
    };
    let mut runs = [0; value::IN_BLOCKS_MAX];
    let mut blocks = InBlocks::new(4096);
    assert!(blocks.push(run));
    let len = blocks.encode(&mut runs);
    let (mtime, inline) = (0, false);
    let head = value::Head::lasting(mtime, inline).encode();
    let bytes = [&head[..], &runs[..len]].concat();
    batch.use_data(Run::new(block, 1)).unwrap();
    let mut old = None;
    let mut see = |bytes: &[u8]| old = value::blocks_of(bytes).unwrap();
    batch
        .replace(VALUES, &key.to_be_bytes(), &bytes, &mut see)
        .unwrap();
    for run in old.iter().flat_map(|blocks| blocks.runs()) {
        let gone = Run::of_data(run.block, run.len.into());
        batch.drop_data(gone, run.epoch).unwrap();
    }
    batch.commit(|_| {}).unwrap();
}

/// Values in blocks come back in the blocks that the snapshot has kept.
#[test]
fn values_in_blocks_come_back() {
    let meta = Region::in_memory(8 * MIB).unwrap();
    let (mut pool, _) = new_pool(meta, 700);
    let used = |pool: &Pool| {
        let used = |b: &u64| pool.data_space().is_used(Run::new(*b, 1));
        (0..BLOCKS).filter(used).collect::<Vec<_>>()
    };
    (0..3).for_each(|i| put_in_block(&mut pool, i, 20 + i));
    pool.create_snapshot(&token(), b"s", 0).unwrap();
    put_in_block(&mut pool, 1, 30);
    put_in_block(&mut pool, 7, 31);
    pool.create_snapshot(&token(), b"t", 0).unwrap();
    put_in_block(&mut pool, 1, 32);
    assert_eq!(used(&pool), [20, 21, 22, 30, 31, 32]);
    assert_eq!(pool.newer_snapshots(b"s"), Ok(vec![b"t".to_vec()]));
    assert_eq!(pool.roll_back(&token(), b"t"), Ok(1));
    assert_eq!(used(&pool), [20, 21, 22, 30, 31]);
    assert_eq!(pool.roll_back(&token(), b"s"), Err(Error::NotNewest));
    assert_eq!(pool.roll_back(&token(), b"u"), Err(Error::NoSnapshot));
    pool.delete_snapshot(&token(), b"t", usize::MAX).unwrap();
    assert_eq!(pool.roll_back(&token(), b"s"), Ok(2));
    assert_eq!(used(&pool), [20, 21, 22]);
    // What came back is the snapshot's as before, and the present's once it is gone.
    put_in_block(&mut pool, 2, 33);
    assert_eq!(used(&pool), [20, 21, 22, 33]);
    pool.delete_snapshot(&token(), b"s", usize::MAX).unwrap();
    assert_eq!(used(&pool), [20, 21, 33]);
}

/// Snapshots that differ only in what was appended to a leaf that they share.
#[test]
fn what_was_appended_to_a_shared_leaf_goes_with_its_snapshot() {
    for order in [[b"s", b"t", b"u"], [b"t", b"s", b"u"], [b"u", b"t", b"s"]] {
        let meta = Region::in_memory(8 * MIB).unwrap();
        let (mut pool, _) = new_pool(meta, 700);
        let used = |pool: &Pool| {
            let used = |b: &u64| pool.data_space().is_used(Run::new(*b, 1));
            (0..BLOCKS).filter(used).collect::<Vec<_>>()
        };
        (0..5).for_each(|i| put_in_block(&mut pool, i, 20 + i));
        pool.create_snapshot(&token(), b"s", 0).unwrap();
        put_in_block(&mut pool, 3, 30);
        put_in_block(&mut pool, 3, 31);
        pool.create_snapshot(&token(), b"t", 0).unwrap();
        put_in_block(&mut pool, 3, 32);
        pool.create_snapshot(&token(), b"u", 0).unwrap();
        put_in_block(&mut pool, 3, 33);
        let mut left = vec![20, 21, 22, 23, 24, 31, 32, 33];
        assert_eq!(used(&pool), left);
        for name in order {
            pool.delete_snapshot(&token(), name, usize::MAX).unwrap();
            let block = match name {
                b"s" => 23,
                b"t" => 31,
                _ => 32,
            };
            left.retain(|b| *b != block);
            assert_eq!(used(&pool), left, "{order:?}");
        }
    }
}
