//! Random changes of two keyspaces, compared all the time with maps of the standard library.

mod fixture;

use fixture::{Fixture, Rng};
use holdfast::{Durability, Keyspace, Pool};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::os::unix::fs::FileExt;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

struct Both {
    keyspaces: [Keyspace; 2],
    maps: [Map; 2],
}

impl Both {
    fn open(pool: &Pool, maps: [Map; 2]) -> Both {
        let keyspaces = ["first", "second"].map(|name| pool.keyspace_or_create(name).unwrap());
        Both { keyspaces, maps }
    }
}

fn some_key(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.roll(30) {
        0 => 1024,
        1 => rng.roll(1024) as usize + 1,
        n => n as usize % 6 + 1,
    };
    // Few different bytes, so that keys meet again; zeroes and highest bytes among them.
    (0..len)
        .map(|_| [0, 1, b'a', 255][rng.roll(4) as usize])
        .collect()
}

fn some_value(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.roll(20) {
        0 => rng.roll(300_000),
        1..4 => rng.roll(10_000),
        4 => 4096,
        5..8 => rng.roll(2100),
        _ => rng.roll(200),
    };
    let byte = rng.roll(256) as u8;
    let mut value = vec![byte; len as usize];
    let n = value.len().min(16);
    value[..n].copy_from_slice(&rng.bytes(16)[..n]);
    value
}

fn change(both: &mut Both, pool: &Pool, rng: &mut Rng) {
    let i = rng.roll(2) as usize;
    let durability = [Durability::Durable, Durability::Ordered][rng.roll(2) as usize];
    let (keyspace, map) = (&both.keyspaces[i], &mut both.maps[i]);
    let key = some_key(rng);
    match rng.roll(42) {
        40 => whole(both, pool, rng),
        41 => {
            let expected = match rng.roll(2) {
                0 => map.get(&key).cloned(),
                _ => Some(some_value(rng)),
            };
            let value = some_value(rng);
            let swap = keyspace.put_if(&key, expected.as_deref(), &value, durability);
            let swap = swap.unwrap();
            assert_eq!(swap.done, map.get(&key) == expected.as_ref());
            if swap.done {
                map.insert(key.clone(), value);
            }
            assert_eq!(swap.present.as_ref(), map.get(&key));
        }
        0 => {
            let (a, b) = (some_key(rng), some_key(rng));
            let (from, to) = (a.clone().min(b.clone()), a.max(b));
            keyspace.erase_range(&from, Some(&to), durability).unwrap();
            map.retain(|k, _| *k < from || *k >= to);
        }
        1..8 => {
            keyspace.erase(&key, durability).unwrap();
            map.remove(&key);
        }
        8..12 => batch(both, pool, rng, durability),
        _ => {
            let value = some_value(rng);
            keyspace.put(&key, &value, durability).unwrap();
            map.insert(key, value);
        }
    }
}

/// Drops a keyspace, or has one replace the other.
fn whole(both: &mut Both, pool: &Pool, rng: &mut Rng) {
    let i = rng.roll(2) as usize;
    let names = ["first", "second"];
    if rng.roll(2) == 0 {
        pool.keyspace_drop(names[i]).unwrap();
        both.maps[i].clear();
    } else {
        let replaced = pool.keyspace_rename(names[1 - i], names[i], false);
        assert_eq!(replaced.map_err(|e| e.errno()), Err(17));
        pool.keyspace_rename(names[1 - i], names[i], true).unwrap();
        both.maps[i] = std::mem::take(&mut both.maps[1 - i]);
    }
    *both = Both::open(pool, std::mem::take(&mut both.maps));
    for (keyspace, map) in both.keyspaces.iter().zip(&both.maps) {
        assert_eq!(keyspace.count().unwrap(), map.len() as u64);
    }
}

fn batch(both: &mut Both, pool: &Pool, rng: &mut Rng, durability: Durability) {
    let mut batch = pool.batch();
    let mut maps = both.maps.clone();
    let most = [10, 300, 3000][rng.roll(3) as usize];
    for _ in 0..rng.roll(most) {
        let i = rng.roll(2) as usize;
        let key = some_key(rng);
        if rng.roll(4) == 0 {
            batch.erase(&both.keyspaces[i], &key).unwrap();
            maps[i].remove(&key);
        } else {
            let len = rng.roll(150) as usize;
            let value = rng.bytes(len);
            batch.put(&both.keyspaces[i], &key, &value).unwrap();
            maps[i].insert(key, value);
        }
    }
    if rng.roll(5) == 0 {
        drop(batch);
    } else {
        batch.commit(durability).unwrap();
        both.maps = maps;
    }
}

fn compare(both: &Both, rng: &mut Rng) {
    for (keyspace, map) in both.keyspaces.iter().zip(&both.maps) {
        for _ in 0..3 {
            let key = some_key(rng);
            assert_eq!(
                keyspace.get(&key).unwrap().as_ref(),
                map.get(&key),
                "{key:?}"
            );
        }
        if rng.roll(20) == 0 {
            let (a, b) = (some_key(rng), some_key(rng));
            let (from, to) = (a.clone().min(b.clone()), a.max(b));
            let bounds = (Bound::Excluded(&from[..]), Bound::Included(&to[..]));
            let want: Vec<_> = if from == to {
                Vec::new()
            } else {
                map.range::<[u8], _>(bounds).map(own).collect()
            };
            let found: Vec<_> = keyspace.scan(bounds.0, bounds.1).unwrap().collect();
            let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
            assert_eq!(found, want);
        }
        if rng.roll(40) == 0 {
            let scan = keyspace.scan(Bound::Unbounded, Bound::Unbounded).unwrap();
            let found: Vec<_> = scan.backward().map(Result::unwrap).collect();
            let want: Vec<_> = map.iter().rev().map(own).collect();
            assert_eq!(found, want);
            let prefix = some_key(rng)[..1].to_vec();
            let found: Vec<_> = keyspace
                .prefix(&prefix)
                .unwrap()
                .map(Result::unwrap)
                .collect();
            let starts = map.iter().filter(|(k, _)| k.starts_with(&prefix));
            assert_eq!(found, starts.map(own).collect::<Vec<_>>());
        }
    }
}

fn own((k, v): (&Vec<u8>, &Vec<u8>)) -> (Vec<u8>, Vec<u8>) {
    (k.clone(), v.clone())
}

fn story(mut fixture: Fixture, seed: u64, steps: usize) {
    let mut rng = Rng(seed);
    let mut maps = [Map::new(), Map::new()];
    for _ in 0..3 {
        let pool = fixture.open();
        let mut both = Both::open(&pool, maps);
        let mut view = None;
        for _ in 0..steps {
            change(&mut both, &pool, &mut rng);
            compare(&both, &mut rng);
            if rng.roll(50) == 0 {
                let now = pool.read().unwrap().keyspace("first").unwrap();
                view = Some((now, both.maps.clone()));
            }
            if let Some((old, maps)) = &view {
                let key = some_key(&mut rng);
                assert_eq!(old.get(&key).unwrap().as_ref(), maps[0].get(&key));
            }
        }
        maps = both.maps;
        drop((view, both.keyspaces, pool));
        fixture.stop();
        fixture.check();
        fixture.start();
    }
}

#[test]
fn random_changes_are_those_of_a_map() {
    for seed in 1..6 {
        story(Fixture::new(256 << 20), seed, 400);
    }
}

#[test]
fn random_changes_by_a_proxy_are_those_of_a_map() {
    for seed in 6..9 {
        story(Fixture::served(256 << 20), seed, 400);
    }
}

#[test]
fn a_lent_value_is_where_it_lies_until_its_view_is_given_up() {
    let fixture = Fixture::new(64 << 20);
    let pool = fixture.open();
    let keyspace = pool.keyspace_or_create("lent").unwrap();
    let value: Vec<u8> = (0..10_000u32).map(|i| i as u8).collect();
    for (key, value) in [(b"small", &value[..100]), (b"large", &value[..])] {
        keyspace.put(key, value, Durability::Durable).unwrap();
    }
    let view = pool.read().unwrap().keyspace("lent").unwrap();
    let small = view.borrow(b"small").unwrap().unwrap();
    assert!(!small.is_zero_copy() && small.is_intact().unwrap());
    let large = view.borrow(b"large").unwrap().unwrap();
    assert!(large.is_zero_copy() && large.len() == value.len());
    assert!(view.borrow(b"none").unwrap().is_none());
    let seen = |lent: &holdfast::Borrowed| {
        let mut bytes = vec![0; lent.len()];
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        memory
            .read_exact_at(&mut bytes, lent.as_ptr() as u64)
            .unwrap();
        bytes
    };
    keyspace
        .put(b"large", b"another", Durability::Durable)
        .unwrap();
    assert_eq!(seen(&large), value);
    assert!(large.is_intact().unwrap());
    // More than a quarter of the pool is changed: nothing is held back for the view any more.
    for i in 0..60_000u32 {
        keyspace
            .put(&i.to_be_bytes(), &[7; 600], Durability::Ordered)
            .unwrap();
        keyspace
            .put(
                &(i % 500).to_le_bytes(),
                &value[..8192],
                Durability::Ordered,
            )
            .unwrap();
    }
    drop(pool.read().unwrap());
    assert!(!large.is_intact().unwrap());
    assert_eq!(view.get(b"small").unwrap_err().errno(), 116);
    assert_eq!(keyspace.get(b"large").unwrap().unwrap(), b"another");
}
