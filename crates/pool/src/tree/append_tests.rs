//! Entries that are appended to committed leaves.

use super::tests::{MIB, all_of, pool, reopened, token};
use crate::error::Error;
use crate::format::PAGE_LEN;
use crate::format::appends::{APPENDS_MAX, appends_of, page_of};
use crate::layout::VALUES;
use crate::pool::Pool;
use alloc::vec::Vec;

const KEYS: u64 = 20;

fn key(i: u64) -> [u8; 16] {
    let mut key = *b"prefix..........";
    key[8..].copy_from_slice(&i.to_be_bytes());
    key
}

fn put(pool: &mut Pool, changes: &[(u64, u8)]) -> usize {
    let mut batch = pool.begin(&token());
    for (i, byte) in changes {
        batch.put(VALUES, &key(*i), &[*byte; 60]).unwrap();
    }
    let nodes = batch.dirty_nodes();
    batch.commit(|_| {}).unwrap();
    nodes
}

fn filled() -> Pool {
    let mut pool = pool(MIB);
    let all: Vec<_> = (0..KEYS).map(|i| (i, 1)).collect();
    put(&mut pool, &all);
    pool
}

fn root(pool: &Pool) -> u64 {
    pool.superblock().roots[usize::from(VALUES)].addr
}

fn value(pool: &Pool, i: u64) -> Option<u8> {
    let mut value = [0; 100];
    let found = pool.reader().get(VALUES, &key(i), &mut value).unwrap();
    found.map(|len| {
        assert_eq!(len, 60);
        value[0]
    })
}

#[test]
fn a_put_into_a_leaf_with_room_copies_no_leaf() {
    let mut pool = filled();
    let before = root(&pool);
    assert_eq!(put(&mut pool, &[(3, 2), (100, 3), (3, 4)]), 0);
    let after = root(&pool);
    assert_eq!((page_of(after), appends_of(after)), (page_of(before), 3));
    for pool in [&pool, &reopened(&pool)] {
        assert_eq!(
            [3, 100, 4, 101].map(|i| value(pool, i)),
            [Some(4), Some(3), Some(1), None]
        );
        let keys = all_of(pool, VALUES).into_iter().map(|(key, _)| key);
        assert!(keys.eq((0..KEYS).chain([100]).map(|i| key(i).to_vec())));
        assert_eq!(pool.superblock().roots[5].keys, KEYS + 1);
    }
}

#[test]
fn an_older_root_does_not_see_them_and_a_batch_that_is_dropped_leaves_none() {
    let mut pool = filled();
    let old = pool.reader().root(VALUES).unwrap();
    put(&mut pool, &[(3, 2), (100, 3)]);
    let see = |pool: &Pool, i| {
        let mut value = [0; 100];
        let found = pool
            .reader()
            .get_split(VALUES, &old, &key(i), &mut [], &mut value);
        found.unwrap().map(|_| value[0])
    };
    assert_eq!([3, 100].map(|i| see(&pool, i)), [Some(1), None]);
    let mut batch = pool.begin(&token());
    batch.put(VALUES, &key(3), &[9; 60]).unwrap();
    batch.put(VALUES, &key(101), &[9; 60]).unwrap();
    drop(batch);
    assert_eq!(
        [3, 100, 101].map(|i| value(&pool, i)),
        [Some(2), Some(3), None]
    );
    // What was left behind is written over.
    put(&mut pool, &[(101, 5)]);
    let again = reopened(&pool);
    assert_eq!(
        [3, 100, 101].map(|i| value(&again, i)),
        [Some(2), Some(3), Some(5)]
    );
}

#[test]
fn a_leaf_without_room_is_copied_with_all_of_them() {
    let mut pool = filled();
    for round in 0..200u64 {
        let (i, byte) = (round * 7 % KEYS, round as u8);
        put(&mut pool, &[(i, byte)]);
        assert_eq!(value(&pool, i), Some(byte));
        assert!(appends_of(root(&pool)) <= APPENDS_MAX);
    }
    assert_eq!(all_of(&pool, VALUES).len(), KEYS as usize);
    assert_eq!(
        super::check::reachable(&pool).unwrap(),
        pool.meta_space().count_used()
    );
    let mut batch = pool.begin(&token());
    assert_eq!(batch.erase_range(VALUES, &[], None).unwrap(), KEYS);
    batch.commit(|_| {}).unwrap();
    assert!(all_of(&pool, VALUES).is_empty());
}

#[test]
fn erasing_brings_them_into_place() {
    let mut pool = filled();
    put(&mut pool, &[(3, 2), (100, 3)]);
    let mut batch = pool.begin(&token());
    assert!(batch.erase(VALUES, &key(3)).unwrap());
    assert!(!batch.erase(VALUES, &key(3)).unwrap());
    let range = (key(99), key(200));
    assert_eq!(batch.erase_range(VALUES, &range.0, Some(&range.1)), Ok(1));
    batch.commit(|_| {}).unwrap();
    assert_eq!(all_of(&pool, VALUES).len(), KEYS as usize - 1);
}

/// The pool as the next service finds it, with a byte of the leaf flipped.
fn damaged(pool: &Pool, at: u64) -> Pool {
    let again = reopened(pool);
    let at = page_of(root(pool)) * PAGE_LEN + at;
    let byte = (again.meta().load_u64(at & !7).unwrap() >> (at % 8 * 8)) as u8;
    again.meta().store(at, &[byte ^ 1]).unwrap();
    again
}

#[test]
fn one_that_was_damaged_is_not_built_on() {
    let mut pool = filled();
    put(&mut pool, &[(3, 2)]);
    let directory = 64 + 10 * KEYS;
    for at in [directory, directory + 9, directory + 12] {
        let mut again = damaged(&pool, at);
        let mut batch = again.begin(&token());
        let refused = batch.put(VALUES, &key(3), &[7; 60]);
        assert!(
            matches!(refused, Err(Error::Damaged { .. })),
            "{at}: {refused:?}"
        );
    }
}

#[test]
fn a_damaged_leaf_is_not_copied() {
    let mut again = damaged(&filled(), 4000);
    put(&mut again, &[(3, 2)]);
    let mut batch = again.begin(&token());
    let refused = batch.erase(VALUES, &key(3));
    assert!(matches!(refused, Err(Error::Damaged { .. })), "{refused:?}");
}
