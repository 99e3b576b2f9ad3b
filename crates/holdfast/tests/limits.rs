//! Full pools and other ends of what there is: what does not fit is refused whole, the rest goes
//! on, and what is erased can be used again.

mod fixture;

use fixture::Fixture;
use holdfast::{Durability::*, Keyspace, Pool};
use holdfast_pmem::Medium;

const ENOSPC: i32 = 28;
const EBUSY: i32 = 16;

fn key(round: u64, i: u64) -> Vec<u8> {
    // In no order.
    let mixed = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{round}-{mixed:016x}").into_bytes()
}

fn value(len: usize, i: u64) -> Vec<u8> {
    let mut value = vec![i as u8; len];
    let n = len.min(8);
    value[..n].copy_from_slice(&i.to_le_bytes()[..n]);
    value
}

/// Puts until the pool is full; how many fit.
fn fill(keyspace: &Keyspace, round: u64, len: usize) -> u64 {
    for i in 0.. {
        match keyspace.put(&key(round, i), &value(len, i), Ordered) {
            Ok(()) => {}
            Err(e) if e.errno() == ENOSPC => return i,
            Err(e) => panic!("put {i} of {len} bytes: {e}"),
        }
    }
    0
}

fn all_there(keyspace: &Keyspace, round: u64, len: usize, count: u64) {
    for i in 0..count {
        let found = keyspace.get(&key(round, i)).unwrap();
        assert!(found == Some(value(len, i)), "value {i} of {count}");
    }
    assert_eq!(keyspace.get(&key(round, count)).unwrap(), None);
}

/// Fills, looks and empties again: one by one, in batches, by range.
fn rounds(fixture: Fixture, len: usize, rounds: u64) {
    let pool = fixture.open();
    let keyspace = pool.keyspace_or_create("k").unwrap();
    let mut most = 0;
    for round in 0..rounds {
        let count = fill(&keyspace, round, len);
        assert!(count > 100 && count > most * 3 / 4, "{count} of {most}");
        most = most.max(count);
        all_there(&keyspace, round, len, count);
        empty(&pool, &keyspace, round, count);
        assert_eq!(keyspace.prefix(b"").unwrap().count(), 0);
    }
}

fn empty(pool: &Pool, keyspace: &Keyspace, round: u64, count: u64) {
    match round % 3 {
        0 => (0..count).for_each(|i| keyspace.erase(&key(round, i), Ordered).unwrap()),
        1 => {
            for from in (0..count).step_by(1000) {
                let mut batch = pool.batch();
                for i in from..count.min(from + 1000) {
                    batch.erase(keyspace, &key(round, i)).unwrap();
                }
                batch.commit(Ordered).unwrap();
            }
        }
        _ => keyspace.erase_range(b"", None, Ordered).unwrap(),
    }
}

#[test]
fn a_pool_full_of_small_values_is_emptied_again() {
    rounds(Fixture::new(16 << 20), 200, 3);
}

#[test]
fn a_pool_full_of_larger_values_is_emptied_again() {
    rounds(Fixture::new(16 << 20), 1500, 3);
    rounds(Fixture::new(32 << 20), 4096, 6);
    rounds(Fixture::served(32 << 20), 4096, 3);
}

/// A batch for which there is no room changes nothing, and costs nothing.
#[test]
fn a_batch_that_finds_no_room_is_refused_whole() {
    let fixture = Fixture::new(16 << 20);
    let pool = fixture.open();
    let [small, large] = ["small", "large"].map(|name| pool.keyspace_or_create(name).unwrap());
    let most = fill(&large, 0, 4096);
    for round in 1..4 {
        // Blocks run out in the middle of the batch.
        (0..100).for_each(|i| large.erase(&key(0, i), Ordered).unwrap());
        let mut batch = pool.batch();
        batch.erase(&large, &key(0, most - 1)).unwrap();
        batch.put(&small, b"new", b"new").unwrap();
        let full = (0..200).find_map(|i| {
            let put = batch.put(&large, &key(round, i), &value(4096, i));
            put.err().map(|e| (i, e.errno()))
        });
        assert!(matches!(full, Some((99..=101, ENOSPC))), "{full:?}");
        drop(batch);
        assert_eq!(small.get(b"new").unwrap(), None);
        assert!(large.get(&key(0, most - 1)).unwrap().is_some());
        (0..100).for_each(|i| large.put(&key(0, i), &value(4096, i), Ordered).unwrap());
    }
    // Now the trees.
    let count = fill(&small, 0, 300);
    for round in 1..4 {
        for changes in [5, 300, 2000] {
            let mut batch = pool.batch();
            batch.put(&small, &key(0, 0), b"other").unwrap();
            for i in 1..changes {
                batch.put(&small, &key(round, i), &value(300, i)).unwrap();
            }
            let done = batch.commit(Durable).map_err(|e| e.errno());
            assert_eq!(done, Err(ENOSPC), "{changes} changes");
            assert_eq!(small.get(&key(0, 0)).unwrap(), Some(value(300, 0)));
            assert_eq!(small.get(&key(round, 1)).unwrap(), None);
        }
    }
    all_there(&small, 0, 300, count);
    all_there(&large, 0, 4096, most);
    // What was loaded in order fills its leaves: whatever comes between then splits one.
    small.erase_range(b"", None, Ordered).unwrap();
    let ordered = |i: u64| format!("{i:09}").into_bytes();
    let stop = |i: &u64| small.put(&ordered(*i), &value(60, *i), Ordered).is_err();
    let count = (0..).find(stop).unwrap();
    let mut more = 0;
    for i in (0..count).step_by(17) {
        (0..12).for_each(|j| small.erase(&ordered(i + j), Ordered).unwrap());
        let key = [&ordered(i)[..], b"between"].concat();
        match small.put(&key, &value(60, i), Ordered) {
            Ok(()) => more += 1,
            Err(e) => assert_eq!(e.errno(), ENOSPC),
        }
    }
    assert!(more > 100, "{more} of {count}");
}

/// Who has the pool open sees the room at once, and nothing is lost, also in the next session.
#[test]
fn a_full_pool_grows_while_it_is_in_use() {
    for medium in [Medium::Memory, Medium::File, Medium::DaxTest] {
        let mut fixture = Fixture::on(64 << 20, medium);
        let (pool, other) = (fixture.open(), fixture.open());
        let keyspace = pool.keyspace_or_create("k").unwrap();
        let theirs = other.keyspace("k").unwrap();
        let first = fill(&keyspace, 0, 50_000);
        pool.grow(200 << 20).unwrap();
        let second = fill(&theirs, 1, 50_000);
        assert!(second > first * 3 / 2, "{first} and then {second}");
        // Another page of the bitmap.
        other.grow(400 << 20).unwrap();
        let third = fill(&keyspace, 2, 50_000);
        assert!(third > second, "{second} and then {third}");
        assert_eq!(pool.grow(64 << 20).unwrap_err().errno(), EBUSY);
        let all = |keyspace: &Keyspace| {
            for (round, count) in [(0, first), (1, second), (2, third)] {
                all_there(keyspace, round, 50_000, count);
            }
        };
        all(&theirs);
        drop((pool, other, keyspace, theirs));
        fixture.stop();
        fixture.check();
        fixture.start();
        all(&fixture.open().keyspace("k").unwrap());
    }
    let served = Fixture::served(64 << 20);
    assert!(served.open().grow(128 << 20).is_err());
}

/// What was freed a moment ago is room for large values, in few pieces.
#[test]
fn large_values_that_are_overwritten_in_batches_find_room() {
    for (made, count, len) in [
        (Fixture::new as fn(u64) -> Fixture, 10, 500_000),
        (Fixture::new, 3, 3_000_000),
        (Fixture::served, 3, 3_000_000),
    ] {
        let fixture = made(192 << 20);
        let pool = fixture.open();
        let keyspaces = ["k", "l"].map(|name| pool.keyspace_or_create(name).unwrap());
        // Half of what was free is in pieces of one block.
        for i in 0..24_000 {
            let put = keyspaces[0].put(&key(1, i), &value(4096, i), Ordered);
            put.unwrap();
        }
        for i in (0..24_000).step_by(2) {
            keyspaces[0].erase(&key(1, i), Ordered).unwrap();
        }
        let rounds = 2_000_000_000 / (count * len);
        for round in 0..rounds {
            let mut batch = pool.batch();
            for i in 0..count {
                let value = value((len - i) as usize, round);
                batch
                    .put(&keyspaces[i as usize % 2], &key(0, i), &value)
                    .unwrap();
            }
            let durability = [Ordered, Ordered, Durable][round as usize % 3];
            batch.commit(durability).unwrap();
        }
        for i in 0..count {
            let found = keyspaces[i as usize % 2].get(&key(0, i)).unwrap();
            let last = value((len - i) as usize, rounds - 1);
            assert!(found == Some(last), "value {i}");
        }
    }
}

/// A value for which free blocks are in too many pieces is a file, and goes as any other.
#[test]
fn a_range_with_a_value_that_is_a_file_is_erased() {
    let fixture = Fixture::new(128 << 20);
    let pool = fixture.open();
    let [pieces, large] = ["p", "l"].map(|name| pool.keyspace_or_create(name).unwrap());
    let count = fill(&pieces, 0, 4096);
    // Now each piece that is free has one block.
    for i in (0..count).step_by(2) {
        pieces.erase(&key(0, i), Ordered).unwrap();
    }
    let long = value(30 << 20, 1);
    large.put(b"large", &long, Durable).unwrap();
    let mut batch = pool.batch();
    let refused = batch.put(&large, b"other", &long).unwrap_err();
    assert!([27, ENOSPC].contains(&refused.errno()), "{refused}");
    drop(batch);
    assert!(large.get(b"large").unwrap() == Some(long));
    large.erase_range(b"a", Some(b"z"), Durable).unwrap();
    assert_eq!(large.get(b"large").unwrap(), None);
}
