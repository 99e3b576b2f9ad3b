//! Keyspaces as a whole, and changes that depend on a value, by the owner's way and by a proxy's.

mod fixture;

use fixture::{Fixture, Rng};
use holdfast::{Durability::*, Error, Keyspace, Pool};
use std::thread::{scope, spawn};

const SIZE: u64 = 256 << 20;

/// The same for both ways to a pool.
fn both_ways(test: fn(&Fixture)) {
    test(&Fixture::new(SIZE));
    test(&Fixture::served(SIZE));
}

fn keys(keyspace: &Keyspace) -> Vec<Vec<u8>> {
    let pairs = keyspace.prefix(b"").unwrap();
    pairs.map(|pair| pair.unwrap().0).collect()
}

fn is_missing(e: &Error) -> bool {
    matches!(e, Error::Missing { what, .. } if *what == "keyspace")
}

fn fill(keyspace: &Keyspace, n: u32) {
    for i in 0..n {
        let value = vec![i as u8; [10, 3000, 70_000][i as usize % 3]];
        keyspace.put(&i.to_be_bytes(), &value, Ordered).unwrap();
    }
}

#[test]
fn a_dropped_keyspace_is_gone_for_all_that_have_it_open() {
    both_ways(|fixture| {
        let (pool, other) = (fixture.open(), fixture.open());
        let keyspace = pool.keyspace_or_create("k").unwrap();
        fill(&keyspace, 200);
        let theirs = other.keyspace("k").unwrap();
        let before = other.read().unwrap();
        let then = before.keyspace("k").unwrap();
        pool.keyspace_drop("k").unwrap();
        for handle in [&keyspace, &theirs] {
            assert_eq!(handle.get(&5u32.to_be_bytes()).unwrap(), None);
            assert_eq!((handle.count().unwrap(), keys(handle)), (0, vec![]));
            assert!(is_missing(&handle.put(b"a", b"b", Durable).unwrap_err()));
            assert!(is_missing(&handle.erase(b"a", Durable).unwrap_err()));
            let swapped = handle.put_if(b"a", None, b"b", Durable);
            assert!(is_missing(&swapped.unwrap_err()));
        }
        assert_eq!(then.count().unwrap(), 200);
        assert_eq!(then.get(&0u32.to_be_bytes()).unwrap(), Some(vec![0; 10]));
        assert!(other.keyspaces().unwrap().is_empty());
        assert!(is_missing(&pool.keyspace_drop("k").unwrap_err()));
        // The next one of this name has nothing of it.
        let again = other.keyspace_or_create("k").unwrap();
        assert_eq!(again.count().unwrap(), 0);
        again.put(b"new", b"1", Durable).unwrap();
        assert_eq!(keyspace.get(b"new").unwrap(), None);
        assert_eq!(keys(&pool.keyspace("k").unwrap()), [b"new"]);
    });
}

#[test]
fn a_drop_survives_a_restart_and_gives_space_back() {
    let mut fixture = Fixture::new(64 << 20);
    for round in 0..6u8 {
        let pool = fixture.open();
        let keyspace = pool.keyspace_or_create("k").unwrap();
        // Half of the pool each time.
        for i in 0..40u8 {
            keyspace
                .put(&[i + 1], &vec![round; 800_000], Ordered)
                .unwrap();
        }
        pool.keyspace_drop("k").unwrap();
        drop((keyspace, pool));
        fixture.stop();
        fixture.start();
        assert!(fixture.open().keyspaces().unwrap().is_empty());
    }
}

#[test]
fn renaming_keeps_handles_and_replaces_only_when_told() {
    both_ways(|fixture| {
        let pool = fixture.open();
        let [a, b] = ["a", "b"].map(|name| pool.keyspace_or_create(name).unwrap());
        fill(&a, 30);
        fill(&b, 70);
        let taken = pool.keyspace_rename("a", "b", false).unwrap_err();
        assert!(matches!(taken, Error::Exists { .. }), "{taken:?}");
        assert!(is_missing(
            &pool.keyspace_rename("x", "b", true).unwrap_err()
        ));
        assert_eq!((a.count().unwrap(), b.count().unwrap()), (30, 70));
        pool.keyspace_rename("a", "b", true).unwrap();
        assert_eq!(pool.keyspaces().unwrap(), ["b"]);
        assert_eq!((a.count().unwrap(), b.count().unwrap()), (30, 0));
        assert_eq!(pool.keyspace("b").unwrap().count().unwrap(), 30);
        assert!(is_missing(&b.put(b"x", b"y", Durable).unwrap_err()));
        a.put(b"x", b"y", Durable).unwrap();
        pool.keyspace_rename("b", "b", true).unwrap();
        pool.keyspace_rename("b", "c", false).unwrap();
        assert_eq!(
            pool.keyspace("c").unwrap().get(b"x").unwrap(),
            Some(b"y".to_vec())
        );
        assert!(matches!(
            pool.keyspace_rename("c", "a/b", true),
            Err(Error::Name { .. })
        ));
    });
}

#[test]
fn a_change_that_depends_on_a_value_says_what_there_is() {
    both_ways(|fixture| {
        let k = fixture.open().keyspace_or_create("k").unwrap();
        for long in [20, 5000, 400_000] {
            let [one, two] = [1, 2].map(|byte| vec![byte; long]);
            assert!(k.put_if(b"a", None, &one, Durable).unwrap().done);
            let again = k.put_if(b"a", None, &two, Durable).unwrap();
            assert_eq!((again.done, again.present.as_ref()), (false, Some(&one)));
            let other = k.put_if(b"a", Some(&two), &two, Ordered).unwrap();
            assert_eq!((other.done, other.present.as_ref()), (false, Some(&one)));
            let swapped = k.put_if(b"a", Some(&one), &two, Ordered).unwrap();
            assert_eq!((swapped.done, swapped.present.as_ref()), (true, Some(&two)));
            assert!(!k.erase_if(b"a", &one, Durable).unwrap().done);
            let erased = k.erase_if(b"a", &two, Durable).unwrap();
            assert_eq!((erased.done, erased.present), (true, None));
            let none = k.erase_if(b"a", &two, Durable).unwrap();
            assert_eq!((none.done, none.present), (false, None));
        }
        assert!(k.put_if(b"", None, b"x", Durable).is_err());
        assert_eq!(k.modified_ns(b"a").unwrap(), None);
        k.put(b"a", b"1", Durable).unwrap();
        let first = k.modified_ns(b"a").unwrap();
        assert!(first > Some(1 << 60), "{first:?}");
        let then = fixture.open().read().unwrap().keyspace("k").unwrap();
        // Longer than a tick of the clock.
        std::thread::sleep(std::time::Duration::from_millis(20));
        k.put(b"a", b"1", Durable).unwrap();
        assert!(k.modified_ns(b"a").unwrap() > first);
        assert_eq!(then.modified_ns(b"a").unwrap(), first);
    });
}

fn count_up(keyspace: &Keyspace, times: u32) {
    for _ in 0..times {
        let mut now = keyspace.get(b"n").unwrap();
        loop {
            let n = now
                .as_ref()
                .map_or(0, |n| String::from_utf8_lossy(n).parse::<u32>().unwrap());
            let next = (n + 1).to_string();
            let swapped = keyspace.put_if(b"n", now.as_deref(), next.as_bytes(), Ordered);
            match swapped.unwrap() {
                swap if swap.done => break,
                swap => now = swap.present,
            }
        }
    }
}

#[test]
fn many_count_one_number_up_and_none_is_lost() {
    both_ways(|fixture| {
        let (pool, each) = (fixture.open(), 200);
        pool.keyspace_or_create("k").unwrap();
        let place = fixture.place().to_path_buf();
        let all = (0..6).map(|_| {
            let place = place.clone();
            spawn(move || count_up(&Pool::open(place).unwrap().keyspace("k").unwrap(), each))
        });
        let all: Vec<_> = all.collect();
        all.into_iter().for_each(|thread| thread.join().unwrap());
        let n = pool.keyspace("k").unwrap().get(b"n").unwrap();
        assert_eq!(n, Some((6 * each).to_string().into_bytes()));
    });
}

/// Writers, and one who drops: what was put by a put that succeeded after the drop began is never
/// in a keyspace that is there, without what was put before it.
#[test]
fn drops_and_changes_at_the_same_time() {
    let fixture = Fixture::new(SIZE);
    let pool = fixture.open();
    let mut rng = Rng(7);
    for round in 0..30 {
        let keyspace = pool.keyspace_or_create("k").unwrap();
        fill(&keyspace, 20);
        let pause = std::time::Duration::from_micros(rng.roll(3000));
        scope(|threads| {
            for n in 0..3u8 {
                let keyspace = fixture.open().keyspace("k").unwrap();
                threads.spawn(move || {
                    for i in 0..=u32::MAX {
                        let key = [&[n][..], &i.to_be_bytes()].concat();
                        match keyspace.put(&key, &[n; 100], Ordered) {
                            Ok(()) => {}
                            Err(e) => return assert!(is_missing(&e), "{e:?}"),
                        }
                        let seen = keyspace.get(&0u32.to_be_bytes()).unwrap().is_some();
                        assert!(seen || keyspace.count().unwrap() == 0, "round {round}");
                    }
                });
            }
            std::thread::sleep(pause);
            pool.keyspace_drop("k").unwrap();
            assert_eq!(keyspace.count().unwrap(), 0);
        });
    }
}

#[test]
fn a_snapshot_keeps_keyspaces_as_they_were() {
    let fixture = Fixture::new(SIZE);
    let pool = fixture.open();
    fill(&pool.keyspace_or_create("k").unwrap(), 50);
    pool.snapshot_create("s").unwrap();
    pool.keyspace_rename("k", "new", false).unwrap();
    pool.keyspace_drop("new").unwrap();
    let then = pool.snapshot("s").unwrap().keyspace("k").unwrap();
    assert_eq!(then.count().unwrap(), 50);
    drop(then);
    pool.snapshot_delete("s").unwrap();
}
