//! Snapshots with keys and values, compared with copies of maps of the standard library.

mod fixture;

use fixture::{Fixture, Rng};
use holdfast::{Durability, Error, Keyspace, Pool, View};
use std::collections::BTreeMap;
use std::ops::Bound;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn some_key(rng: &mut Rng) -> Vec<u8> {
    let len = 1 + rng.roll(5) as usize;
    (0..len)
        .map(|_| [0, b'a', b'b', 255][rng.roll(4) as usize])
        .collect()
}

fn some_value(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.roll(12) {
        0 => rng.roll(300_000),
        1 | 2 => rng.roll(10_000),
        3 => 4096,
        _ => rng.roll(300),
    };
    let mut value = vec![rng.roll(256) as u8; len as usize];
    let n = value.len().min(16);
    value[..n].copy_from_slice(&rng.bytes(16)[..n]);
    value
}

fn change(pool: &Pool, keyspace: &Keyspace, map: &mut Map, rng: &mut Rng) {
    let key = some_key(rng);
    match rng.roll(20) {
        0 => {
            let (a, b) = (some_key(rng), some_key(rng));
            let (from, to) = (a.clone().min(b.clone()), a.max(b));
            keyspace
                .erase_range(&from, Some(&to), Durability::Ordered)
                .unwrap();
            map.retain(|k, _| *k < from || *k >= to);
        }
        1..5 => {
            keyspace.erase(&key, Durability::Ordered).unwrap();
            map.remove(&key);
        }
        5 => {
            let mut batch = pool.batch();
            for _ in 0..rng.roll(200) {
                let (key, value) = (some_key(rng), some_value(rng));
                batch.put(keyspace, &key, &value).unwrap();
                map.insert(key, value);
            }
            batch.commit(Durability::Durable).unwrap();
        }
        _ => {
            let value = some_value(rng);
            keyspace.put(&key, &value, Durability::Ordered).unwrap();
            map.insert(key, value);
        }
    }
}

fn assert_shows(view: &View, map: &Map) {
    let keyspace = view.keyspace("keys").unwrap();
    let found = keyspace.scan(Bound::Unbounded, Bound::Unbounded).unwrap();
    let found: Vec<_> = found.map(|entry| entry.unwrap()).collect();
    assert_eq!(found.len(), map.len());
    for ((k, v), (key, value)) in found.iter().zip(map) {
        assert_eq!(k, key);
        assert!(v == value, "the value of {key:?}");
        assert!(keyspace.get(key).unwrap().as_ref() == Some(value));
    }
    assert_eq!(keyspace.get(b"not there").unwrap(), None);
}

#[test]
fn each_snapshot_shows_the_keys_of_its_moment() {
    let mut fixture = Fixture::new(256 << 20);
    let mut rng = Rng(5);
    let (mut map, mut kept): (Map, BTreeMap<String, Map>) = Default::default();
    for round in 0..3 {
        {
            let pool = fixture.open();
            let keyspace = pool.keyspace_or_create("keys").unwrap();
            for step in 0..40 {
                for _ in 0..rng.roll(60) {
                    change(&pool, &keyspace, &mut map, &mut rng);
                }
                if rng.roll(3) == 0 {
                    let name = format!("s{round}-{step}");
                    pool.snapshot_create(&name).unwrap();
                    kept.insert(name, map.clone());
                }
                if kept.len() > 5 || (rng.roll(6) == 0 && !kept.is_empty()) {
                    let at = rng.roll(kept.len() as u64) as usize;
                    let name = kept.keys().nth(at).unwrap().clone();
                    pool.snapshot_delete(&name).unwrap();
                    kept.remove(&name);
                }
                if step % 10 == 9 {
                    for (name, map) in &kept {
                        assert_shows(&pool.snapshot(name).unwrap(), map);
                    }
                    assert_shows(&pool.read().unwrap(), &map);
                }
            }
            let mut names: Vec<_> = pool.snapshot_list().unwrap();
            names.sort_by(|a, b| a.name.cmp(&b.name));
            assert!(names.iter().map(|s| &s.name).eq(kept.keys()));
        }
        fixture.stop();
        fixture.check();
        fixture.start();
    }
}

#[test]
fn a_view_of_a_snapshot_outlives_changes_and_keeps_it() {
    let fixture = Fixture::new(64 << 20);
    let pool = fixture.open();
    let keyspace = pool.keyspace_or_create("keys").unwrap();
    let put = |n: u32| {
        for i in 0..500u32 {
            let value = [n.to_le_bytes(), i.to_le_bytes()].concat().repeat(20);
            keyspace
                .put(&i.to_be_bytes(), &value, Durability::Ordered)
                .unwrap();
        }
    };
    put(1);
    pool.snapshot_create("s").unwrap();
    let view = pool.snapshot("s").unwrap();
    for n in 2..60 {
        put(n);
        pool.snapshot_create(&format!("t{n}")).unwrap();
        pool.snapshot_delete(&format!("t{n}")).unwrap();
    }
    let seen = view.keyspace("keys").unwrap();
    for i in 0..500u32 {
        let value = seen.get(&i.to_be_bytes()).unwrap().unwrap();
        assert_eq!(value[..8], [1u32.to_le_bytes(), i.to_le_bytes()].concat());
    }
    let refused = pool.snapshot_delete("s").unwrap_err();
    assert_eq!(refused.errno(), 16);
    drop((seen, view));
    pool.snapshot_delete("s").unwrap();
    for missing in [pool.snapshot_delete("s").err(), pool.snapshot("s").err()] {
        assert!(matches!(
            missing,
            Some(Error::Missing {
                what: "snapshot",
                ..
            })
        ));
    }
    assert_eq!(pool.snapshot_create("a/b").unwrap_err().errno(), 22);
    assert_eq!(pool.snapshot_create("").unwrap_err().errno(), 22);
}
