//! Random changes of two keyspaces, compared all the time with maps of the standard library.

mod rig;

use holdfast::{Durability, Keyspace, Pool};
use rig::{Dice, Rig};
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

fn some_key(dice: &mut Dice) -> Vec<u8> {
    let len = match dice.roll(30) {
        0 => 1024,
        1 => dice.roll(1024) as usize + 1,
        n => n as usize % 6 + 1,
    };
    // Few different bytes, so that keys meet again; zeroes and highest bytes among them.
    (0..len)
        .map(|_| [0, 1, b'a', 255][dice.roll(4) as usize])
        .collect()
}

fn some_value(dice: &mut Dice) -> Vec<u8> {
    let len = match dice.roll(20) {
        0 => dice.roll(300_000),
        1..4 => dice.roll(10_000),
        4 => 4096,
        5..8 => dice.roll(2100),
        _ => dice.roll(200),
    };
    let byte = dice.roll(256) as u8;
    let mut value = vec![byte; len as usize];
    let n = value.len().min(16);
    value[..n].copy_from_slice(&dice.bytes(16)[..n]);
    value
}

fn change(both: &mut Both, pool: &Pool, dice: &mut Dice) {
    let i = dice.roll(2) as usize;
    let durability = [Durability::Durable, Durability::Ordered][dice.roll(2) as usize];
    let (keyspace, map) = (&both.keyspaces[i], &mut both.maps[i]);
    let key = some_key(dice);
    match dice.roll(40) {
        0 => {
            let (a, b) = (some_key(dice), some_key(dice));
            let (from, to) = (a.clone().min(b.clone()), a.max(b));
            keyspace.erase_range(&from, Some(&to), durability).unwrap();
            map.retain(|k, _| *k < from || *k >= to);
        }
        1..8 => {
            keyspace.erase(&key, durability).unwrap();
            map.remove(&key);
        }
        8..12 => batch(both, pool, dice, durability),
        _ => {
            let value = some_value(dice);
            keyspace.put(&key, &value, durability).unwrap();
            map.insert(key, value);
        }
    }
}

fn batch(both: &mut Both, pool: &Pool, dice: &mut Dice, durability: Durability) {
    let mut batch = pool.batch();
    let mut maps = both.maps.clone();
    let most = [10, 300, 3000][dice.roll(3) as usize];
    for _ in 0..dice.roll(most) {
        let i = dice.roll(2) as usize;
        let key = some_key(dice);
        if dice.roll(4) == 0 {
            batch.erase(&both.keyspaces[i], &key).unwrap();
            maps[i].remove(&key);
        } else {
            let len = dice.roll(150) as usize;
            let value = dice.bytes(len);
            batch.put(&both.keyspaces[i], &key, &value).unwrap();
            maps[i].insert(key, value);
        }
    }
    if dice.roll(5) == 0 {
        drop(batch);
    } else {
        batch.commit(durability).unwrap();
        both.maps = maps;
    }
}

fn compare(both: &Both, dice: &mut Dice) {
    for (keyspace, map) in both.keyspaces.iter().zip(&both.maps) {
        for _ in 0..3 {
            let key = some_key(dice);
            assert_eq!(
                keyspace.get(&key).unwrap().as_ref(),
                map.get(&key),
                "{key:?}"
            );
        }
        if dice.roll(20) == 0 {
            let (a, b) = (some_key(dice), some_key(dice));
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
        if dice.roll(40) == 0 {
            let scan = keyspace.scan(Bound::Unbounded, Bound::Unbounded).unwrap();
            let found: Vec<_> = scan.backward().map(Result::unwrap).collect();
            let want: Vec<_> = map.iter().rev().map(own).collect();
            assert_eq!(found, want);
            let prefix = some_key(dice)[..1].to_vec();
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

fn story(seed: u64, steps: usize) {
    let mut rig = Rig::new(256 << 20);
    let mut dice = Dice(seed);
    let mut maps = [Map::new(), Map::new()];
    for _ in 0..3 {
        let pool = rig.open();
        let mut both = Both::open(&pool, maps);
        let mut view = None;
        for _ in 0..steps {
            change(&mut both, &pool, &mut dice);
            compare(&both, &mut dice);
            if dice.roll(50) == 0 {
                view = Some((pool.read().unwrap(), both.maps.clone()));
            }
            if let Some((view, maps)) = &view {
                let old = view.keyspace("first").unwrap();
                let key = some_key(&mut dice);
                assert_eq!(old.get(&key).unwrap().as_ref(), maps[0].get(&key));
            }
        }
        maps = both.maps;
        drop((view, both.keyspaces, pool));
        rig.stop();
        rig.check();
        rig.start();
    }
}

#[test]
fn random_changes_are_those_of_a_map() {
    for seed in 1..6 {
        story(seed, 400);
    }
}

#[test]
fn a_lent_value_is_where_it_lies_until_its_view_is_given_up() {
    let rig = Rig::new(64 << 20);
    let pool = rig.open();
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
