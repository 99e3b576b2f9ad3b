//! Links that are appended to committed inner nodes.
//!
//! The pool of most tests: some hundred pairs in a tree of two levels, and every commit changes
//! few of them.

use super::tests::{Dice, MIB, all_of, pool, reopened, token};
use super::{Reader, Verified, check};
use crate::error::Error;
use crate::format::appends::{appends_of, page_of};
use crate::format::links::{LINKS_MAX, Links};
use crate::format::node;
use crate::format::{PAGE, PAGE_LEN};
use crate::layout::{VALUES, value};
use crate::pool::Pool;
use alloc::vec::Vec;
use holdfast_pmem::{Medium, Recorder, Region, record::Event};

const KEYS: u64 = 900;

fn key(i: u64) -> Vec<u8> {
    alloc::format!("key:{i:08}").into_bytes()
}

/// A value of 60 bytes, the last of which are these.
fn of(byte: u8) -> [u8; 60] {
    let (mtime, inline) = (0, true);
    let mut value = [byte; 60];
    value[..value::HEAD].copy_from_slice(&value::Head::lasting(mtime, inline).encode());
    value
}

fn put_values(pool: &mut Pool, changes: &[(u64, &[u8])]) {
    let mut batch = pool.begin(&token());
    for (i, value) in changes {
        batch.put(VALUES, &key(*i), value).unwrap();
    }
    batch.commit(|_| {}).unwrap();
}

fn put(pool: &mut Pool, changes: &[(u64, u8)]) {
    let values: Vec<_> = changes.iter().map(|(i, byte)| (*i, of(*byte))).collect();
    let changes: Vec<_> = values.iter().map(|(i, value)| (*i, &value[..])).collect();
    put_values(pool, &changes);
}

/// Its leaves have room.
fn filled() -> Pool {
    let mut pool = pool(MIB);
    let scattered: Vec<_> = (0..KEYS).map(|i| (i * 577 % KEYS, 1)).collect();
    scattered.chunks(100).for_each(|some| put(&mut pool, some));
    let mut batch = pool.begin(&token());
    batch.erase(VALUES, &key(0)).unwrap();
    batch.erase(VALUES, &key(KEYS / 2)).unwrap();
    batch.commit(|_| {}).unwrap();
    put(&mut pool, &[(0, 1), (KEYS / 2, 1)]);
    let mut next = Vec::new();
    let mut batch = pool.begin(&token());
    batch.compact(VALUES, &[], &mut next).unwrap();
    batch.commit(|_| {}).unwrap();
    pool
}

fn root(pool: &Pool) -> u64 {
    pool.superblock().roots[usize::from(VALUES)].addr
}

fn get(reader: &Reader<'_>, i: u64) -> Result<Option<u8>, Error> {
    let mut value = [0; 60];
    let found = reader.get(VALUES, &key(i), &mut value)?;
    Ok(found.map(|_| value[59]))
}

fn value(pool: &Pool, i: u64) -> Option<u8> {
    get(&pool.reader(), i).unwrap()
}

fn assert_sound(pool: &Pool) {
    let used = pool.meta_space().count_used();
    assert_eq!(check::reachable(pool).unwrap(), used);
}

#[test]
fn a_commit_of_few_changes_copies_no_inner_node() {
    let mut pool = filled();
    let (before, used) = (root(&pool), pool.meta_space().count_used());
    assert_eq!(pool.superblock().roots[5].height, 2);
    put(&mut pool, &[(3, 2), (450, 3), (451, 4)]);
    put(&mut pool, &[(3, 5)]);
    let after = root(&pool);
    assert_eq!((page_of(after), appends_of(before)), (page_of(before), 0));
    // Two neighbours are in one leaf.
    assert_eq!(appends_of(after), 3);
    assert_eq!(pool.meta_space().count_used(), used);
    for pool in [&pool, &reopened(&pool)] {
        let found = [3, 450, 451, 452].map(|i| value(pool, i));
        assert_eq!(found, [Some(5), Some(3), Some(4), Some(1)]);
        assert!(
            all_of(pool, VALUES)
                .into_iter()
                .map(|(k, _)| k)
                .eq((0..KEYS).map(key))
        );
        assert_sound(pool);
    }
}

#[test]
fn an_older_root_does_not_see_them_and_a_batch_that_is_dropped_leaves_none() {
    let mut pool = filled();
    put(&mut pool, &[(3, 2)]);
    let old = pool.reader().root(VALUES).unwrap();
    put(&mut pool, &[(3, 4), (450, 5)]);
    let see = |pool: &Pool, i| {
        let mut value = [0; 60];
        let found = pool
            .reader()
            .get_split(VALUES, &old, &key(i), &mut [], &mut value);
        found.unwrap().map(|_| value[59])
    };
    assert_eq!([3, 450].map(|i| see(&pool, i)), [Some(2), Some(1)]);
    let now = root(&pool);
    let mut batch = pool.begin(&token());
    batch.put(VALUES, &key(700), &of(9)).unwrap();
    drop(batch);
    assert_eq!(root(&pool), now);
    assert_eq!(
        [3, 450, 700].map(|i| value(&pool, i)),
        [Some(4), Some(5), Some(1)]
    );
    assert_sound(&pool);
    // What a commit that never happened left behind them is written over.
    let mut again = reopened(&pool);
    write_link(&again, appends_of(now), 2, 9);
    assert_sound(&again);
    put(&mut again, &[(700, 6)]);
    assert_eq!(appends_of(root(&again)), appends_of(now) + 1);
    assert_eq!(
        [3, 450, 700].map(|i| value(&again, i)),
        [Some(4), Some(5), Some(6)]
    );
}

#[test]
fn a_batch_that_changes_nothing_writes_no_node() {
    let mut pool = filled();
    put(&mut pool, &[(3, 2)]);
    let before = (root(&pool), pool.meta_space().count_used());
    let mut batch = pool.begin(&token());
    // The nodes above are copied to look for it.
    assert_eq!(
        batch.erase_range(VALUES, &key(5000), Some(&key(6000))),
        Ok(0)
    );
    batch.commit(|_| {}).unwrap();
    assert_eq!((root(&pool), pool.meta_space().count_used()), before);
    assert_sound(&pool);
}

#[test]
fn a_node_without_room_is_copied_with_all_of_them() {
    let mut pool = filled();
    let (mut dice, mut want) = (Dice(9), alloc::vec![1; KEYS as usize]);
    let (mut copies, mut most) = (0, 0);
    for round in 0..400 {
        let before = root(&pool);
        let some: Vec<_> = (0..1 + round % 3)
            .map(|_| (dice.roll(KEYS), dice.roll(250) as u8))
            .collect();
        put(&mut pool, &some);
        some.iter().for_each(|(i, byte)| want[*i as usize] = *byte);
        let after = root(&pool);
        copies += usize::from(page_of(after) != page_of(before));
        most = most.max(appends_of(after));
        assert!(appends_of(after) <= LINKS_MAX);
    }
    assert_eq!(most, LINKS_MAX);
    assert!((20..100).contains(&copies), "{copies} copies");
    for pool in [&pool, &reopened(&pool)] {
        let found = all_of(pool, VALUES).into_iter().map(|(_, value)| value[59]);
        assert!(found.eq(want.iter().copied()));
        assert_sound(pool);
    }
    let mut batch = pool.begin(&token());
    assert_eq!(
        batch.erase_range(VALUES, &key(1), Some(&key(899))).unwrap(),
        KEYS - 2
    );
    batch.commit(|_| {}).unwrap();
    assert_eq!(all_of(&pool, VALUES).len(), 2);
    assert_sound(&pool);
}

/// Inner nodes that a load in the order of keys makes have room for links. Its leaves, of a few
/// pairs each, have none, so each change copies one.
#[test]
fn inner_nodes_have_room_after_a_load_in_order() {
    let (log, keys, changes) = (Recorder::new(), 15_000, 300);
    let meta = Region::in_memory_as(16 * MIB as usize, Medium::Memory);
    let params = super::tests::params(16 * MIB);
    let mut pool = Pool::create(meta.unwrap().recorded(&log), &params, &token()).unwrap();
    let all: Vec<_> = (0..keys).map(|i| (i, &[1; 600][..])).collect();
    put_values(&mut pool, &all);
    assert_eq!(pool.superblock().roots[5].height, 3);
    let mut dice = Dice(21);
    log.take();
    for _ in 0..changes {
        put_values(&mut pool, &[(dice.roll(keys), &[7; 600])]);
    }
    let len = |event: &Event| match event {
        Event::Store { data, .. } => data.len(),
        _ => 0,
    };
    let each = log.take().iter().map(len).sum::<usize>() / changes;
    // A leaf and a page of the bitmap.
    assert!((2 * 4096..3 * 4096).contains(&each), "{each} bytes");
    assert_sound(&pool);
}

#[test]
fn a_snapshot_keeps_its_own() {
    let mut pool = filled();
    put(&mut pool, &[(3, 2)]);
    pool.create_snapshot(&token(), b"s", 0).unwrap();
    let kept = root(&pool);
    put(&mut pool, &[(3, 3), (450, 4)]);
    // A snapshot has the node: it is copied once.
    let now = root(&pool);
    assert_ne!(page_of(now), page_of(kept));
    put(&mut pool, &[(3, 5)]);
    assert_eq!(
        (page_of(root(&pool)), appends_of(root(&pool))),
        (page_of(now), 1)
    );
    let fixed = crate::snapshot::find(&pool.reader(), b"s")
        .unwrap()
        .unwrap();
    assert_eq!(fixed.roots[usize::from(VALUES)].addr, kept);
    let fixed = fixed.fixed();
    let reader = Reader::of_snapshot(pool.meta(), &fixed);
    assert_eq!(
        [3, 450].map(|i| get(&reader, i)),
        [Ok(Some(2)), Ok(Some(1))]
    );
    assert_eq!([3, 450].map(|i| value(&pool, i)), [Some(5), Some(4)]);
    pool.delete_snapshot(&token(), b"s", usize::MAX).unwrap();
    assert_sound(&pool);
    assert_eq!([3, 450].map(|i| value(&pool, i)), [Some(5), Some(4)]);
    put(&mut pool, &[(3, 6)]);
    assert_eq!(page_of(root(&pool)), page_of(now));
}

#[test]
fn they_are_written_ahead_of_the_commit_too() {
    let mut pool = filled();
    let before = (root(&pool), pool.meta_space().count_used());
    let mut batch = pool.begin(&token());
    batch.put(VALUES, &key(3), &of(2)).unwrap();
    batch.put(VALUES, &key(450), &of(3)).unwrap();
    assert!(batch.write_ahead(0).unwrap());
    batch.park();
    let mut batch = pool.resume(&token());
    assert!(!batch.write_ahead(1).unwrap());
    batch.park();
    // Readers do not see it.
    assert_eq!(root(&pool), before.0);
    assert_eq!([3, 450].map(|i| value(&pool, i)), [Some(1); 2]);
    pool.resume(&token()).commit(|_| {}).unwrap();
    assert_eq!([3, 450].map(|i| value(&pool, i)), [Some(2), Some(3)]);
    let after = root(&pool);
    assert_eq!((page_of(after), appends_of(after)), (page_of(before.0), 2));
    pool.reclaim().unwrap();
    assert_eq!(pool.meta_space().count_used(), before.1);
    assert_sound(&pool);
}

/// Writes a link with a right checksum behind `before` others in the root.
fn write_link(pool: &Pool, before: usize, child: usize, link: u64) {
    let page = page_of(root(pool));
    let mut node = [0; PAGE];
    pool.meta().read(page * PAGE_LEN, &mut node).unwrap();
    let h = node::Header {
        appends: before,
        ..super::page::header(&node)
    };
    let mut links = Links::new(&node, &h);
    assert!(links.push(&h, page, child, link));
    for (at, bytes) in links.parts(&h) {
        let at = page * PAGE_LEN + at as u64;
        pool.meta().store(at, bytes).unwrap();
    }
}

/// Where the numbers of the children are whose links were appended to the root.
fn numbers(pool: &Pool) -> u64 {
    let at = page_of(root(pool)) * PAGE_LEN;
    let count = pool.meta().load_u64(at + 24).unwrap() >> 16 & 0xffff;
    at + (64 + 18 * count).next_multiple_of(8)
}

#[test]
fn one_that_was_damaged_is_named() {
    let mut pool = filled();
    put(&mut pool, &[(3, 2), (450, 3)]);
    assert_eq!(appends_of(root(&pool)), 2);
    let wrong = |found: &Result<Option<u8>, Error>| {
        let what = "checksum of an appended link";
        matches!(found, Err(Error::Damaged { what: w, page })
            if *w == what && *page == page_of(root(&pool)))
    };
    // The numbers of the children, the links and their checksums.
    for byte in [0, 1, 32, 37, 40, 43, 48, 59] {
        let mut again = reopened(&pool);
        let at = numbers(&again) + byte;
        let old = (again.meta().load_u64(at & !7).unwrap() >> (at % 8 * 8)) as u8;
        again.meta().store(at, &[old ^ 1]).unwrap();
        let meta = again.meta();
        let verified = Verified::new(meta.len() as u64, u64::MAX).unwrap();
        let found = get(&Reader::new(meta).verifying(&verified), 600);
        assert!(wrong(&found), "byte {byte}: {found:?}");
        let mut batch = again.begin(&token());
        let refused = batch.put(VALUES, &key(600), &of(7));
        assert!(wrong(&refused.map(|_| None)), "byte {byte}");
        drop(batch);
        let report = crate::check::check(again.meta(), 64 * MIB, None);
        let named = |f: &crate::check::Finding| {
            alloc::format!("{f}").contains("an appended link has a wrong checksum")
        };
        assert!(report.damage().any(named), "byte {byte}: {report:?}");
    }
}

/// A leaf may be younger than the node above it only if the link to it was appended.
#[test]
fn a_leaf_that_is_too_young_is_named() {
    let mut pool = filled();
    let node_birth = |pool: &Pool, page: u64| pool.meta().load_u64(page * PAGE_LEN + 16).unwrap();
    // An erased key makes the writer copy the leaf.
    let mut batch = pool.begin(&token());
    assert!(batch.erase(VALUES, &key(3)).unwrap());
    batch.commit(|_| {}).unwrap();
    let live = pool.reader().root(VALUES).unwrap();
    let leaf_of = |pool: &Pool, i| {
        let link = pool.reader().leaf_link(VALUES, &live, &key(i));
        page_of(link.unwrap().unwrap())
    };
    let (copied, other) = (leaf_of(&pool, 3), leaf_of(&pool, 700));
    let seq = pool.superblock().seq;
    assert_eq!(node_birth(&pool, copied), seq);
    assert!(node_birth(&pool, page_of(root(&pool))) < seq);
    let is_named = |pool: &Pool| {
        let report = crate::check::check(pool.meta(), 64 * MIB, None);
        let named = |f: &crate::check::Finding| alloc::format!("{f}").contains("is younger than");
        report.damage().any(named)
    };
    assert!(!is_named(&pool));
    for (leaf, birth) in [(copied, seq + 1), (other, seq)] {
        let again = reopened(&pool);
        let mut page = [0; PAGE];
        again.meta().read(leaf * PAGE_LEN, &mut page).unwrap();
        page[16..24].copy_from_slice(&birth.to_le_bytes());
        super::page::forge(&mut page);
        again.meta().store(leaf * PAGE_LEN, &page).unwrap();
        assert!(is_named(&again), "page {leaf}");
    }
}

/// With a right checksum, too: it leads outside, or is to no child.
#[test]
fn a_forged_one_is_named() {
    let mut pool = filled();
    put(&mut pool, &[(3, 2)]);
    let page = page_of(root(&pool));
    for (child, link, what) in [
        (0, u64::MAX, "an appended link"),
        (0, 2, "an appended link"),
        (0, 1 << 63 | 20, "an appended link"),
        (224, 20, "child of an appended link"),
        (255, 20, "child of an appended link"),
    ] {
        let mut again = reopened(&pool);
        write_link(&again, 0, child, link);
        let verified = Verified::new(MIB, u64::MAX).unwrap();
        let expected = Err(Error::Damaged { what, page });
        let reader = Reader::new(again.meta()).verifying(&verified);
        assert_eq!(get(&reader, 3), expected);
        let mut batch = again.begin(&token());
        let refused = batch.put(VALUES, &key(600), &of(7));
        assert_eq!(refused.map(|_| None), expected);
    }
}
