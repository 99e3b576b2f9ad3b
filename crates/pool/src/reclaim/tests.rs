//! Ranges that are cut out and freed in steps, with snapshots and power cuts in between.

use super::*;
use crate::apply::pool_tests::{BLOCKS, DATA_LEN, assert_clean, free_cuts, image, new_pool};
use crate::apply::{Applier, LANES, PoolStore};
use crate::journal;
use crate::layout::value::{self, Head, InBlocks, TreeKey, ValueRun};
use crate::layout::{BlockAddr, ROOT_INO, VALUES};
use crate::space::Run;
use core::ops::ControlFlow;
use holdfast_pmem::{Medium, Recorder, Region, images};
use std::collections::BTreeSet;

const MIB: usize = 1 << 20;
const KEYS: u64 = 3000;

fn token() -> WriteToken {
    WriteToken::for_service()
}

/// Some values are in blocks.
fn block_of(key: u64) -> Option<u64> {
    key.is_multiple_of(4).then_some(8 + key / 4)
}

fn entry(key: u64, byte: u8, epoch: u32) -> Vec<u8> {
    let inline = block_of(key).is_none();
    let mut bytes = Head::lasting(0, inline).encode().to_vec();
    match block_of(key) {
        None => bytes.extend_from_slice(&[byte; 60]),
        Some(block) => {
            let (mut blocks, mut runs) = (InBlocks::new(4096), [0; value::IN_BLOCKS_MAX]);
            let (block, len) = (BlockAddr::new(0, block), 1);
            assert!(blocks.push(ValueRun { block, len, epoch }));
            let len = blocks.encode(&mut runs);
            bytes.extend_from_slice(&runs[..len]);
        }
    }
    bytes
}

fn put(pool: &mut Pool, keys: impl Iterator<Item = u64>, byte: u8) {
    let mut batch = pool.begin(&token());
    for key in keys {
        let epoch = batch.superblock().epoch;
        let run = block_of(key).map(|block| Run::new(block, 1));
        if let Some(run) = run {
            batch.use_data(run).unwrap();
        }
        batch
            .put(VALUES, &key_of(key), &entry(key, byte, epoch))
            .unwrap();
    }
    batch.commit(|_| {}).unwrap();
}

fn filled(meta: Region) -> Pool {
    let (mut pool, mut grants) = new_pool(meta, 1000);
    let mut store = PoolStore::begin(&mut pool, &token());
    let mut applier = Applier::new(&mut store, &mut grants, [0; LANES]);
    let (ino, time) = (ROOT_INO, 0);
    let record = journal::Record::Keyspace { ino, time };
    let (seq, len, lane) = (1, 64, 0);
    let header = journal::Header { seq, len, lane };
    applier.apply(&header, &record).unwrap();
    store.commit(|_| {}).unwrap();
    put(&mut pool, 0..KEYS, 1);
    pool
}

/// The tree's key.
fn key_of(key: u64) -> Vec<u8> {
    TreeKey::new(ROOT_INO, &key.to_be_bytes())
        .as_slice()
        .to_vec()
}

/// Cuts a range out; how many nodes the commit wrote.
fn cut(pool: &mut Pool, from: u64, to: u64) -> usize {
    let (mut shown, mut batch) = (Vec::new(), pool.begin(&token()));
    let mut see = |_: &[u8], bytes: &[u8]| shown.extend(value::blocks_of(bytes).unwrap());
    let (from, to) = (key_of(from), key_of(to));
    batch.cut_range(VALUES, &from, Some(&to), &mut see).unwrap();
    for run in shown.iter().flat_map(InBlocks::runs) {
        let gone = Run::of_data(run.block, run.len.into());
        batch.drop_data(gone, run.epoch).unwrap();
    }
    let nodes = batch.dirty_nodes();
    batch.commit(|_| {}).unwrap();
    nodes
}

fn keys(pool: &Pool, fixed: &Fixed) -> BTreeSet<u64> {
    let mut all = BTreeSet::new();
    let see = |key: &[u8], _: &[u8]| {
        all.insert(u64::from_be_bytes(key[8..].try_into().unwrap()));
        ControlFlow::Continue(())
    };
    let reader = Reader::of_snapshot(pool.meta(), fixed);
    reader.scan(VALUES, &[], None, see).unwrap();
    all
}

fn present(pool: &Pool) -> BTreeSet<u64> {
    keys(pool, &pool.present())
}

fn used(pool: &Pool) -> BTreeSet<u64> {
    let used = |b: &u64| pool.data_space().is_used(Run::new(*b, 1));
    (0..BLOCKS).filter(used).collect()
}

fn blocks(keys: impl Iterator<Item = u64>) -> BTreeSet<u64> {
    keys.filter_map(block_of).collect()
}

#[test]
fn a_range_goes_at_once_and_is_freed_in_steps_of_bounded_size() {
    let mut pool = filled(Region::in_memory(8 * MIB).unwrap());
    let pages = pool.meta_space().count_used();
    let nodes = cut(&mut pool, 100, 2900);
    assert!(nodes < 12, "{nodes} nodes were written");
    let left = || (0..100).chain(2900..KEYS);
    assert_eq!(present(&pool), left().collect());
    assert!(pool.has_cut() && pool.meta_space().count_used() > pages - 20);
    assert_clean(pool.meta());
    let (mut steps, mut before) = (0, pool.meta_space().count_used());
    while pool.has_cut() {
        pool.reclaim_some(&token(), 8).unwrap();
        let now = pool.meta_space().count_used();
        assert!(
            before < now + 16,
            "{before} pages before a step, {now} after"
        );
        (before, steps) = (now, steps + 1);
        assert_clean(pool.meta());
    }
    assert!(steps > 10, "{steps} steps");
    assert_eq!(used(&pool), blocks(left()));
    assert_eq!(present(&pool), left().collect());
    let root = pool.superblock().roots[usize::from(VALUES)];
    assert_eq!(root.keys, 200);
}

#[test]
fn a_tree_that_is_cut_out_as_a_whole_can_be_filled_again_meanwhile() {
    let mut pool = filled(Region::in_memory(8 * MIB).unwrap());
    cut(&mut pool, 0, u64::MAX);
    assert!(present(&pool).is_empty());
    assert_clean(pool.meta());
    pool.reclaim_some(&token(), 8).unwrap();
    put(&mut pool, (1..KEYS).step_by(2), 7);
    assert_clean(pool.meta());
    pool.reclaim_some(&token(), 8).unwrap();
    let mut batch = pool.begin(&token());
    for key in (1..KEYS).step_by(2) {
        assert!(batch.erase(VALUES, &key_of(key)).unwrap());
    }
    batch.commit(|_| {}).unwrap();
    assert_clean(pool.meta());
    free_cuts(&mut pool);
    assert_clean(pool.meta());
    assert!(used(&pool).is_empty());
    assert_eq!(
        pool.superblock().roots[usize::from(VALUES)],
        Root::default()
    );
}

#[test]
fn what_a_snapshot_had_before_the_cut_stays_its_own() {
    let mut pool = filled(Region::in_memory(8 * MIB).unwrap());
    let old = pool.create_snapshot(&token(), b"old", 0).unwrap();
    // Younger leaves, and entries that are appended to old ones.
    put(&mut pool, (KEYS..KEYS + 40).chain((1..KEYS).step_by(50)), 2);
    cut(&mut pool, 50, KEYS + 20);
    assert_clean(pool.meta());
    let new = pool.create_snapshot(&token(), b"new", 0).unwrap();
    let left = || (0..50).chain(KEYS + 20..KEYS + 40);
    while pool.has_cut() {
        assert_eq!(keys(&pool, &old.fixed()), (0..KEYS).collect());
        assert_eq!(keys(&pool, &new.fixed()), left().collect());
        pool.reclaim_some(&token(), 5).unwrap();
        assert_clean(pool.meta());
    }
    let kept = blocks((0..KEYS).chain(left()));
    assert_eq!(used(&pool), kept);
    pool.delete_snapshot(&token(), b"old", usize::MAX).unwrap();
    assert_clean(pool.meta());
    assert_eq!(used(&pool), blocks(left()));
    // Deleted while a subtree waits that hangs on its leaves.
    put(&mut pool, (0..50).filter(|key| key % 4 > 0), 3);
    cut(&mut pool, 0, u64::MAX);
    pool.delete_snapshot(&token(), b"new", usize::MAX).unwrap();
    assert_clean(pool.meta());
    free_cuts(&mut pool);
    assert_clean(pool.meta());
    assert!(used(&pool).is_empty() && !pool.has_cut());
}

/// Power cuts between the steps and in the middle of each: the next writer goes on.
#[test]
fn a_power_cut_loses_no_step_and_repeats_none() {
    for loss in [images::Model::Lines, images::Model::Words] {
        let recorder = Recorder::new();
        let mut pool = filled(Region::in_memory(8 * MIB).unwrap().recorded(&recorder));
        pool.create_snapshot(&token(), b"s", 0).unwrap();
        put(&mut pool, (1..KEYS).step_by(30), 2);
        let base = image(pool.meta());
        recorder.take();
        cut(&mut pool, 30, 2950);
        while pool.has_cut() {
            pool.reclaim_some(&token(), 100).unwrap();
            pool.reclaim().unwrap();
        }
        let pages = pool.meta_space().count_used();
        let options = images::Options {
            exhaustive: 8,
            singles: 6,
            pairs: 2,
            random: 3,
            ..images::Options::new(loss)
        };
        let (mut seen, mut halfway) = (0, 0);
        for found in images::Images::new(&[&base], &recorder.take(), options) {
            let meta = found.open(0, Medium::Memory).unwrap();
            let mut pool = Pool::open(meta, &token()).unwrap();
            assert_clean(pool.meta());
            halfway += usize::from(pool.has_cut());
            let gone = present(&pool).len() < KEYS as usize;
            free_cuts(&mut pool);
            assert_clean(pool.meta());
            if gone {
                assert_eq!(pool.meta_space().count_used(), pages, "{found:?}");
            }
            seen += 1;
        }
        assert!(halfway > 20 && seen > halfway, "{halfway} of {seen}");
    }
}

#[test]
fn random_entries_are_refused_or_read() {
    let cut = Cut {
        tree: VALUES,
        level: 1,
        link: 77,
        seq: 9,
        before: Some(Newest { seq: 3, epoch: 1 }),
    };
    let bytes = cut.encode(b"from");
    assert_eq!(Cut::decode(&bytes).unwrap(), (cut, &b"from"[..]));
    for at in 0..AT_FROM {
        let mut other = bytes.clone();
        other[at] ^= 0x80;
        assert_ne!(Cut::decode(&other).ok(), Some((cut, &b"from"[..])));
    }
    for len in 0..AT_FROM {
        assert!(Cut::decode(&bytes[..len]).is_err());
    }
    assert!(Cut::decode(&[0xff; 60]).is_err());
}

/// What the independent checker says of entries that are wrong.
#[test]
fn wrong_entries_are_found() {
    type Change = fn(&mut crate::tree::Batch<'_>, [u8; KEY], Cut, Vec<u8>);
    let cases: [(&str, Change); 5] = [
        ("not its own", |batch, key, cut, from| {
            let again = [&key[..11], &[key[11] + 100]].concat();
            batch.put(RECLAIM, &again, &cut.encode(&from)).unwrap();
        }),
        ("in use", |batch, key, _, _| {
            batch.erase(RECLAIM, &key).unwrap();
        }),
        ("tree 5 should have", |batch, _, cut, _| {
            batch.forget_keys(cut.tree, 1);
        }),
        ("not its own", |batch, key, cut, from| {
            let (seq, epoch) = (cut.seq, 0);
            let before = Some(Newest { seq, epoch });
            let cut = Cut { before, ..cut };
            batch.put(RECLAIM, &key, &cut.encode(&from)).unwrap();
        }),
        ("another form", |batch, key, cut, _| {
            let value = &cut.encode(&[])[..39];
            batch.put(RECLAIM, &key, value).unwrap();
        }),
    ];
    for (said, change) in cases {
        let mut pool = filled(Region::in_memory(8 * MIB).unwrap());
        cut(&mut pool, 100, 2900);
        assert_clean(pool.meta());
        let present = pool.present();
        let reader = Reader::of_snapshot(pool.meta(), &present);
        let (key, value) = next_entry(&reader, &[]).unwrap().unwrap();
        let (cut, from) = Cut::decode(&value).unwrap();
        let from = from.to_vec();
        let mut batch = pool.begin(&token());
        change(&mut batch, key, cut, from);
        batch.commit(|_| {}).unwrap();
        let report = crate::check::check(pool.meta(), DATA_LEN, None);
        let found: Vec<_> = report.damage().map(|f| std::format!("{f}")).collect();
        assert!(found.iter().any(|f| f.contains(said)), "{said}: {found:?}");
    }
}
