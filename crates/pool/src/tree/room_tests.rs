//! What changes of single keys store, counted at the region: after loads in any order.

use super::tests::{Dice, MIB, all_of, params, pool, token};
use crate::format::PAGE_LEN;
use crate::layout::VALUES;
use crate::pool::Pool;
use alloc::vec::Vec;
use holdfast_pmem::record::Event;
use holdfast_pmem::{Recorder, Region};

const KEYS: u64 = 20_000;
const META: u64 = 64 * MIB;

/// The bytes stored since this was asked last.
fn stored(log: &Recorder) -> u64 {
    let len = |event: &Event| match event {
        Event::Store { data, .. } => data.len() as u64,
        _ => 0,
    };
    log.take().iter().map(len).sum()
}

fn key(i: u64) -> Vec<u8> {
    alloc::format!("key:{i:020}").into_bytes()
}

fn put(pool: &mut Pool, keys: impl Iterator<Item = u64>, byte: u8) {
    let keys: Vec<u64> = keys.collect();
    for some in keys.chunks(KEYS as usize / 16) {
        let mut batch = pool.begin(&token());
        for i in some {
            batch.put(VALUES, &key(*i), &[byte; 100]).unwrap();
        }
        batch.commit(|_| {}).unwrap();
    }
}

fn in_any_order(seed: u64) -> Vec<u64> {
    let (mut all, mut dice) = ((0..KEYS).collect::<Vec<_>>(), Dice(seed));
    for i in (1..all.len()).rev() {
        all.swap(i, dice.roll(i as u64 + 1) as usize);
    }
    all
}

/// Bytes stored for each of many overwrites far apart, after as many that bring the tree into the
/// shape that it keeps; and pages in use after the load and at the end.
fn overwriting(load: impl Iterator<Item = u64>) -> (u64, [u64; 2]) {
    let log = Recorder::new();
    let meta = Region::in_memory(META as usize).unwrap().recorded(&log);
    let mut pool = Pool::create(meta, &params(META), &token()).unwrap();
    put(&mut pool, load, 1);
    pool.reclaim().unwrap();
    let loaded = pool.meta_space().count_used();
    put(&mut pool, in_any_order(5).into_iter(), 2);
    stored(&log);
    put(&mut pool, in_any_order(6).into_iter(), 3);
    let stored = stored(&log);
    pool.reclaim().unwrap();
    let all = all_of(&pool, VALUES);
    assert!(
        all.into_iter()
            .eq((0..KEYS).map(|i| (key(i), [3; 100].to_vec())))
    );
    assert_eq!(
        super::check::reachable(&pool).unwrap(),
        pool.meta_space().count_used()
    );
    (stored / KEYS, [loaded, pool.meta_space().count_used()])
}

#[test]
fn an_overwrite_stores_as_little_after_a_load_in_key_order_as_after_any_other() {
    let (random, [_, after_random]) = overwriting(in_any_order(3).into_iter());
    let (sorted, [loaded, after_sorted]) = overwriting(0..KEYS);
    assert!(
        sorted * 5 < random * 6,
        "{sorted} bytes after a load in key order, {random} after another"
    );
    assert!(
        loaded * PAGE_LEN < KEYS * 124 * 5 / 4,
        "{loaded} pages loaded"
    );
    assert!(
        after_sorted <= after_random,
        "{after_sorted} pages, {after_random}"
    );
}

#[test]
fn leaves_that_a_snapshot_has_are_not_copied_for_room() {
    let mut pool = pool(META);
    put(&mut pool, 0..KEYS, 1);
    pool.create_snapshot(&token(), b"now", 0).unwrap();
    let mut batch = pool.begin(&token());
    let before = batch.dirty_nodes();
    batch.put(VALUES, &key(KEYS / 2), &[2; 100]).unwrap();
    let height = batch.superblock().roots[usize::from(VALUES)].height;
    assert_eq!(batch.dirty_nodes() - before, usize::from(height));
}
