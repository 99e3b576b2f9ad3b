//! Snapshots of a keyspace of which every commit changes a little, against copies of a map.
//!
//! The story: values are overwritten, put and erased, a few in each commit, so that entries are
//! appended to leaves and links to the nodes above. At random moments a snapshot is taken or one
//! is deleted, at once or in steps. After each commit each snapshot equals its copy, and the
//! checker finds nothing.

use super::tests::token;
use super::{find, list};
use crate::apply::generate::Rng;
use crate::apply::pool_tests::{assert_clean, image, new_pool};
use crate::apply::values_tests::{KEYSPACE, stage};
use crate::format::appends::{appends_of, page_of};
use crate::layout::{VALUES, value};
use crate::pool::Pool;
use crate::tree::Reader;
use core::ops::ControlFlow;
use holdfast_pmem::{Medium, Region};
use std::collections::{BTreeMap, BTreeSet};
use std::format;
use std::vec::Vec;

type Map = BTreeMap<u64, u8>;

const KEYS: u64 = 1500;

fn key(i: u64) -> Vec<u8> {
    [KEYSPACE, i].iter().flat_map(|n| n.to_be_bytes()).collect()
}

fn value(byte: u8) -> Vec<u8> {
    let (mtime, inline) = (0, true);
    let head = value::Head::lasting(mtime, inline).encode();
    [&head[..], &[byte; 60]].concat()
}

fn change(pool: &mut Pool, map: &mut Map, changes: &[(u64, Option<u8>)]) {
    let mut batch = pool.begin(&token());
    for (i, byte) in changes {
        let was = match byte {
            Some(byte) => batch.put(VALUES, &key(*i), &value(*byte)),
            None => batch.erase(VALUES, &key(*i)),
        };
        let had = match byte {
            Some(byte) => map.insert(*i, *byte),
            None => map.remove(i),
        };
        assert_eq!(was, Ok(had.is_some()));
    }
    batch.commit(|_| {}).unwrap();
}

fn assert_is(reader: &Reader<'_>, map: &Map) {
    let mut left = map.iter();
    let see = |k: &[u8], v: &[u8]| {
        let (i, byte) = left.next().expect("a value too many");
        assert_eq!((k, v), (&key(*i)[..], &value(*byte)[..]));
        ControlFlow::Continue(())
    };
    reader.scan(VALUES, &[], None, see).unwrap();
    assert_eq!(left.next(), None);
}

fn assert_all(pool: &Pool, map: &Map, kept: &BTreeMap<Vec<u8>, Map>) {
    assert_is(&pool.reader(), map);
    for (name, map) in kept {
        let snapshot = find(&pool.reader(), name).unwrap().unwrap();
        let fixed = snapshot.fixed();
        assert_is(&Reader::of_snapshot(pool.meta(), &fixed), map);
    }
    assert_eq!(list(&pool.reader()).unwrap().len(), kept.len());
    assert_clean(pool.meta());
}

/// Takes or deletes a snapshot, now and then.
fn come_and_go(pool: &mut Pool, map: &Map, kept: &mut BTreeMap<Vec<u8>, Map>, dice: &mut Rng) {
    let name = format!("s{}", dice.below(5)).into_bytes();
    if dice.below(5) > 0 {
        return;
    }
    if kept.remove(&name).is_none() {
        pool.create_snapshot(&token(), &name, 0).unwrap();
        kept.insert(name, map.clone());
        return;
    }
    let work = [3, usize::MAX][dice.below(2) as usize];
    pool.delete_snapshot(&token(), &name, work).unwrap();
}

#[test]
fn each_snapshot_keeps_its_values_while_few_change_at_a_time() {
    let mut appended = 0;
    for seed in 1..5 {
        let meta = Region::in_memory(8 << 20).unwrap();
        let (mut pool, mut grants): (Pool, BTreeSet<u64>) = new_pool(meta, 10);
        stage(&mut pool, &mut grants);
        let (mut map, mut kept, mut dice) = (Map::new(), BTreeMap::new(), Rng(seed * 7919));
        let all: Vec<_> = (0..KEYS).map(|i| (i * 7 % KEYS, Some(1))).collect();
        all.chunks(200)
            .for_each(|some| change(&mut pool, &mut map, some));
        for _ in 0..120 {
            let mut some = Vec::new();
            for _ in 0..1 + dice.below(4) {
                let erases = dice.below(20) == 0;
                let byte = (!erases).then_some(dice.below(256) as u8);
                some.push((dice.below(KEYS), byte));
            }
            let before = pool.superblock().roots[usize::from(VALUES)].addr;
            change(&mut pool, &mut map, &some);
            let after = pool.superblock().roots[usize::from(VALUES)].addr;
            let more = appends_of(after) > appends_of(before);
            appended += usize::from(more && page_of(after) == page_of(before));
            come_and_go(&mut pool, &map, &mut kept, &mut dice);
            if pool.has_cut() {
                pool.reclaim_some(&token(), 4).unwrap();
            }
            assert_all(&pool, &map, &kept);
        }
        let meta = Region::from_image(&image(pool.meta()), Medium::Memory).unwrap();
        let mut pool = Pool::open(meta, &token()).unwrap();
        for (name, _) in list(&pool.reader()).unwrap() {
            pool.delete_snapshot(&token(), &name, usize::MAX).unwrap();
        }
        while pool.has_cut() {
            pool.reclaim_some(&token(), 50).unwrap();
        }
        assert_all(&pool, &map, &BTreeMap::new());
    }
    assert!(appended > 100, "{appended} commits appended to the root");
}
