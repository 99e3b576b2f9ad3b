//! Quotas count the values of keyspaces: for who owns the keyspace, and for the keyspace itself.

mod common;

use common::{Fixture, ROOT, User};
use holdfast_client::abi::{O_CREAT, O_DIRECTORY, O_RDWR, O_TMPFILE_BIT};
use holdfast_client::kv::{Changes, Durability, Expected, Keyspace, NEVER, Swapped};
use holdfast_client::{Base, Error, drain};
use holdfast_pmem::ConstBuf;
use holdfast_pool::quota::{Quota, Subject};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const V: Durability = Durability::Volatile;
const BLOCK: u64 = 4096;
const POOL: u64 = 128 << 20;
/// What a directory counts for.
const DIR: (u64, u64) = (0, 1);

fn limit(user: &User, subject: Subject, bytes: u64, files: u64) {
    let partial = false;
    let quota = Quota {
        subject,
        partial,
        bytes,
        files,
    };
    user.quota_set(quota).unwrap();
}

/// Bytes and objects that are taken.
fn taken(user: &User, subject: Subject) -> (u64, u64) {
    let all = user.quotas().unwrap();
    let info = all.iter().find(|info| info.quota.subject == subject);
    let info = info.expect("the quota is there");
    (info.bytes, info.files)
}

fn keyspace(user: &User, name: &str) -> (Keyspace, Subject) {
    let k = user.keyspace(&ROOT, name.as_bytes(), true).unwrap();
    (k, Subject::Directory(k.ino()))
}

fn put(user: &User, k: Keyspace, key: &str, len: usize) -> Result<(), Error> {
    user.kv_put(k, key.as_bytes(), &vec![7; len], V)
}

fn erase(user: &User, k: Keyspace, key: &str) {
    user.kv_erase(k, key.as_bytes(), V).unwrap();
}

/// What a value counts for: what is longer than this is in blocks.
fn weight(key: &str, len: usize) -> u64 {
    let content = match len {
        0..=1800 => len as u64,
        len => (len as u64).next_multiple_of(BLOCK),
    };
    key.len() as u64 + content
}

fn settle(user: &User) {
    let taken = user.session().header().next_seq.load(SeqCst);
    drain::wait_applied(user.session(), taken - 1).unwrap();
}

/// The service agrees: it compares while nothing happens, and counts anew when it starts.
fn counted_anew(fixture: &mut Fixture, user: User, subjects: &[Subject]) -> User {
    let all = |user: &User| -> Vec<_> { subjects.iter().map(|s| taken(user, *s)).collect() };
    let before = all(&user);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(all(&user), before, "while nothing happens");
    drop(user);
    fixture.stop();
    fixture.check();
    fixture.start();
    let user = fixture.user();
    assert_eq!(all(&user), before, "counted anew");
    user
}

#[test]
fn a_keyspace_stops_at_its_limit() {
    let mut fixture = Fixture::new(POOL);
    let user = fixture.user();
    let (k, whole) = keyspace(&user, "ks");
    put(&user, k, "before", 100).unwrap();
    limit(&user, whole, 20_000, 0);
    assert_eq!(taken(&user, whole), (106, 2));
    put(&user, k, "small", 95).unwrap();
    put(&user, k, "large", 9000).unwrap();
    assert_eq!(taken(&user, whole), (106 + 100 + 5 + 3 * BLOCK, 4));
    assert_eq!(put(&user, k, "more", 9000), Err(Error::OverQuota));
    assert_eq!(put(&user, k, "more", 7000), Err(Error::OverQuota));
    assert_eq!(user.kv_get(k, b"more", &mut []).unwrap(), None);
    put(&user, k, "fill", 1700).unwrap();
    let full = taken(&user, whole);
    // What replaces, whatever was there.
    for _ in 0..50 {
        put(&user, k, "large", 12_000).unwrap();
        put(&user, k, "small", 95).unwrap();
    }
    assert_eq!(taken(&user, whole), full);
    assert_eq!(put(&user, k, "large", 20_000), Err(Error::OverQuota));
    let swap = |len: usize, old: Option<usize>| {
        let (new, old) = (vec![7; len], old.map(|len| vec![7; len]));
        user.kv_swap(
            None,
            (k, b"large"),
            Expected::Value(old.as_deref()),
            Some((&new, NEVER)),
            V,
        )
    };
    assert_eq!(swap(10_000, Some(12_000)), Ok(Swapped::Done));
    assert!(matches!(swap(10_000, None), Ok(Swapped::Other(Some(_)))));
    assert_eq!(swap(20_000, Some(10_000)), Err(Error::OverQuota));
    assert_eq!(taken(&user, whole), full);
    // Room again at once.
    erase(&user, k, "large");
    put(&user, k, "other", 12_000).unwrap();
    assert_eq!(taken(&user, whole), full);
    let user = counted_anew(&mut fixture, user, &[whole]);
    // Below what is taken: only what takes no more.
    let (k, _) = keyspace(&user, "ks");
    limit(&user, whole, 4096, 0);
    assert_eq!(put(&user, k, "new", 1), Err(Error::OverQuota));
    assert_eq!(put(&user, k, "small", 96), Err(Error::OverQuota));
    put(&user, k, "other", 11_000).unwrap();
    user.quota_remove(whole).unwrap();
    put(&user, k, "new", 100_000).unwrap();
    settle(&user);
}

#[test]
fn many_changes_are_made_or_none() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let (k, whole) = keyspace(&user, "ks");
    let (other, _) = keyspace(&user, "other");
    limit(&user, whole, 100_000, 60);
    let many = |from: usize, to: usize, len: usize| {
        let mut changes = Changes::default();
        for n in from..to {
            let key = format!("{n:04}");
            changes
                .put(&user, k, key.as_bytes(), &vec![1; len])
                .unwrap();
        }
        changes.put(&user, other, b"last", b"1").unwrap();
        user.kv_commit(changes, V)
    };
    many(0, 50, 1000).unwrap();
    assert_eq!(taken(&user, whole), (50 * 1004, 51));
    assert_eq!(many(50, 70, 100), Err(Error::OverQuota), "too many");
    assert_eq!(many(0, 5, 30_000), Err(Error::OverQuota), "too long");
    assert_eq!(taken(&user, whole), (50 * 1004, 51));
    // Some of them replace, one twice.
    for _ in 0..5 {
        many(0, 50, 1500).unwrap();
        many(40, 59, 1000).unwrap();
    }
    assert_eq!(taken(&user, whole), (40 * 1504 + 19 * 1004, 60));
    let mut changes = Changes::default();
    for _ in 0..3 {
        changes.put(&user, k, b"0000", &[1; 1600]).unwrap();
    }
    user.kv_commit(changes, V).unwrap();
    assert_eq!(taken(&user, whole), (39 * 1504 + 1604 + 19 * 1004, 60));
    // What is put together with a range needs room besides it.
    let with_range = || {
        let mut changes = Changes::default();
        changes.erase_range(k, b"0010", Some(b"0040")).unwrap();
        changes.put(&user, k, b"0039", &[1; 10]).unwrap();
        user.kv_commit(changes, V)
    };
    assert_eq!(with_range(), Err(Error::OverQuota));
    assert_eq!(taken(&user, whole), (39 * 1504 + 1604 + 19 * 1004, 60));
    erase(&user, k, "0000");
    with_range().unwrap();
    assert_eq!(taken(&user, whole), (9 * 1504 + 14 + 19 * 1004, 30));
    let mut changes = Changes::default();
    changes.erase_range(k, b"", None).unwrap();
    user.kv_commit(changes, V).unwrap();
    assert_eq!(taken(&user, whole), DIR);
}

/// More changes than the journal has room for, which the service reads from blocks, part by part.
#[test]
fn more_than_a_record_has_room_for() {
    let mut fixture = Fixture::new(POOL);
    let user = fixture.user();
    let (k, whole) = keyspace(&user, "ks");
    limit(&user, whole, 4_100_000, 0);
    let many = |from: usize, to: usize| {
        let mut changes = Changes::default();
        for n in from..to {
            let key = format!("{n:06}");
            changes.put(&user, k, key.as_bytes(), &[1; 94]).unwrap();
        }
        changes.erase(&user, k, b"000000").unwrap();
        user.kv_commit(changes, V)
    };
    many(0, 20_000).unwrap();
    assert_eq!(taken(&user, whole), (1_999_900, 20_000));
    many(0, 20_000).unwrap();
    assert_eq!(taken(&user, whole), (1_999_900, 20_000));
    assert_eq!(many(0, 24_000), Err(Error::OverQuota));
    assert_eq!(taken(&user, whole), (1_999_900, 20_000));
    // Refused by the service, which finds no room for it in the trees, once some of it is done.
    limit(&user, whole, 1 << 30, 0);
    let mut refused = Err(Error::Invalid);
    for n in 1..400 {
        refused = many(n * 20_000, (n + 1) * 20_000);
        if refused.is_err() {
            break;
        }
    }
    assert!(
        matches!(refused, Err(Error::NoSpace | Error::TooBig)),
        "{refused:?}"
    );
    let (bytes, files) = taken(&user, whole);
    assert_eq!(bytes, (files - 1) * 100);
    counted_anew(&mut fixture, user, &[whole]);
}

#[test]
fn keys_that_are_files_count_once() {
    let mut fixture = Fixture::new(POOL);
    let user = fixture.user();
    let (k, whole) = keyspace(&user, "ks");
    limit(&user, whole, 100_000, 0);
    put(&user, k, "small", 1000).unwrap();
    put(&user, k, "large", 10_000).unwrap();
    for path in ["/ks/small", "/ks/large"] {
        let ofd = user.open(path, O_RDWR).unwrap();
        user.pwrite_all(ofd, b"x", 0);
        user.release(ofd).unwrap();
    }
    assert_eq!(taken(&user, whole), (BLOCK + 3 * BLOCK, 3));
    let ofd = user.open("/ks/file", O_CREAT | O_RDWR).unwrap();
    user.pwrite_all(ofd, &[1; 50_000], 0);
    let full = user.pwrite(ofd, ConstBuf::from(&[1; 100_000][..]), 50_000);
    assert!(full.is_ok_and(|n| n < 100_000));
    user.release(ofd).unwrap();
    assert_eq!(put(&user, k, "new", 9000), Err(Error::OverQuota));
    user.unlink(&ROOT, Base::Root, b"/ks/file").unwrap();
    // A file of any size gets the key.
    let flags = O_TMPFILE_BIT | O_DIRECTORY | O_RDWR;
    let long = user.open("/ks", flags).unwrap();
    user.pwrite_all(long, &[1; 40_000], 0);
    user.kv_name(k, b"small", long, V).unwrap();
    user.release(long).unwrap();
    assert_eq!(taken(&user, whole), (10 * BLOCK + 3 * BLOCK, 3));
    let alien = user.open("/", flags).unwrap();
    assert_eq!(user.kv_name(k, b"alien", alien, V), Err(Error::OtherQuota));
    user.release(alien).unwrap();
    // Values again.
    put(&user, k, "small", 1000).unwrap();
    put(&user, k, "large", 1000).unwrap();
    assert_eq!(taken(&user, whole), (2010, 3));
    let user = counted_anew(&mut fixture, user, &[whole]);
    user.unlink(&ROOT, Base::Root, b"/ks/large").unwrap();
    assert_eq!(taken(&user, whole), (1005, 2));
}

#[test]
fn who_owns_the_keyspace_pays() {
    let mut fixture = Fixture::new(POOL);
    let user = fixture.user();
    let (k, whole) = keyspace(&user, "ks");
    let (second, _) = keyspace(&user, "second");
    let (one, two) = (Subject::User(1001), Subject::User(1002));
    for n in 0..300 {
        put(&user, k, &format!("{n:03}"), 97).unwrap();
    }
    limit(&user, one, 50_000, 0);
    limit(&user, two, 1 << 20, 0);
    let give = |name: &str, uid: u32| {
        let (uid, at) = ((Some(uid), None), (Base::Root, name.as_bytes()));
        user.chown(&ROOT, at.0, at.1, uid, 0).unwrap();
    };
    assert_eq!(taken(&user, one), (0, 0));
    give("/ks", 1001);
    settle(&user);
    assert_eq!(taken(&user, one), (30_000, 301));
    give("/second", 1001);
    put(&user, second, "a", 16_000).unwrap();
    assert_eq!(put(&user, k, "b", 4000), Err(Error::OverQuota));
    give("/ks", 1002);
    settle(&user);
    put(&user, k, "b", 199).unwrap();
    assert_eq!(taken(&user, one), (4 * BLOCK + 1, 2));
    assert_eq!(taken(&user, two), (30_200, 302));
    // Both the directory and its owner; removed while much is in it.
    limit(&user, whole, 40_000, 0);
    assert_eq!(taken(&user, whole), (30_200, 302));
    let user = counted_anew(&mut fixture, user, &[one, two, whole]);
    let (k, _) = keyspace(&user, "ks");
    assert_eq!(put(&user, k, "c", 10_000), Err(Error::OverQuota));
    user.quota_remove(whole).unwrap();
    put(&user, k, "c", 10_000).unwrap();
    user.kv_drop(&ROOT, b"ks").unwrap();
    settle(&user);
    assert_eq!(taken(&user, two), (0, 0));
    assert_eq!(put(&user, k, "d", 10), Err(Error::NotFound));
    counted_anew(&mut fixture, user, &[one, two]);
}

#[test]
fn what_expired_makes_room() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let (k, whole) = keyspace(&user, "ks");
    limit(&user, whole, 10_000, 0);
    let expires = 1;
    for n in 0..9 {
        let key = format!("{n}");
        let key = (k, key.as_bytes());
        user.kv_put_until(key, &[1; 1000], expires, V).unwrap();
    }
    put(&user, k, "lasting", 1500).unwrap();
    put(&user, k, "second", 1500).unwrap();
    assert!(taken(&user, whole).0 <= 10_000);
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

type Model = BTreeMap<String, usize>;

fn sum(model: &Model) -> (u64, u64) {
    let bytes = model.iter().map(|(key, len)| weight(key, *len)).sum();
    (bytes, model.len() as u64 + DIR.1)
}

/// One change; what is refused would have been too much.
fn change(user: &User, k: Keyspace, model: &mut Model, state: &mut u64, limit: u64) -> bool {
    let key = format!("key-{}", random(state) % 40);
    let len = match random(state) % 3 {
        0 => 2100 + random(state) as usize % 20_000,
        _ => random(state) as usize % 1800,
    };
    let mut next = model.clone();
    let done = match random(state) % 12 {
        0 | 1 => {
            next.remove(&key);
            user.kv_erase(k, key.as_bytes(), V)
        }
        2 => {
            let to = format!("key-{}", random(state) % 40);
            next.retain(|found, _| *found < key || *found >= to);
            let mut changes = Changes::default();
            let (from, to) = (key.as_bytes(), Some(to.as_bytes()));
            changes.erase_range(k, from, to).unwrap();
            user.kv_commit(changes, V)
        }
        3 | 4 => {
            let mut changes = Changes::default();
            for n in 0..5 {
                let key = format!("key-{}", (random(state) + n) % 40);
                changes.put(user, k, key.as_bytes(), &vec![3; len]).unwrap();
                next.insert(key, len);
            }
            user.kv_commit(changes, V)
        }
        5 => {
            next.insert(key.clone(), len);
            let old = model.get(&key).map(|len| vec![3; *len]);
            let new = vec![3; len];
            let swapped = user.kv_swap(
                None,
                (k, key.as_bytes()),
                Expected::Value(old.as_deref()),
                Some((&new, NEVER)),
                V,
            );
            swapped.map(|swapped| assert_eq!(swapped, Swapped::Done))
        }
        _ => {
            next.insert(key.clone(), len);
            user.kv_put(k, key.as_bytes(), &vec![3; len], V)
        }
    };
    match done {
        Ok(()) => {
            *model = next;
            assert!(sum(model).0 <= limit, "exceeded");
            false
        }
        Err(Error::OverQuota) => {
            assert!(sum(&next).0 > limit, "{key}: there was room");
            true
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn what_is_counted_is_what_is_there() {
    const LIMIT: u64 = 150_000;
    let mut fixture = Fixture::new(POOL);
    let user = fixture.user();
    let (k, whole) = keyspace(&user, "ks");
    limit(&user, whole, LIMIT, 0);
    let (mut model, mut state, mut over) = (Model::new(), 88_172_645_463_325_252, 0);
    for n in 0..6000 {
        over += u32::from(change(&user, k, &mut model, &mut state, LIMIT));
        if n == 3000 {
            let pool = common::pool_of(&fixture);
            user.snapshot_create(pool, b"half").unwrap();
        }
        if n % 300 == 0 {
            assert_eq!(taken(&user, whole), sum(&model), "after {n}");
        }
    }
    assert!(over > 100, "{over}");
    assert_eq!(taken(&user, whole), sum(&model));
    counted_anew(&mut fixture, user, &[whole]);
}

#[test]
fn nobody_exceeds_a_limit_together() {
    const LIMIT: u64 = 200_000;
    let mut fixture = Fixture::new(POOL);
    let user = fixture.user();
    let (k, whole) = keyspace(&user, "ks");
    limit(&user, whole, LIMIT, 0);
    let (ended, over) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for n in 0..4 {
            let (user, ended, over) = (&user, &ended, &over);
            scope.spawn(move || {
                let mut state = 88_172_645_463_325_252 + n;
                for _ in 0..1500 {
                    // All of them change the same keys.
                    let key = format!("key-{}", random(&mut state) % 30);
                    let done = match random(&mut state) % 5 {
                        0 => user.kv_erase(k, key.as_bytes(), V),
                        _ => put(user, k, &key, random(&mut state) as usize % 30_000),
                    };
                    match done {
                        Err(Error::OverQuota) => drop(over.fetch_add(1, SeqCst)),
                        done => done.unwrap(),
                    }
                }
                ended.fetch_add(1, SeqCst);
            });
        }
        // What a view shows was there at one moment.
        while ended.load(SeqCst) < 4 {
            let view = user.view().unwrap();
            let mut bytes = 0;
            for n in 0..30 {
                let key = format!("key-{n}");
                let at = (k, key.as_bytes());
                if let Some(found) = user.kv_find(None, Some(&view), at, &mut []).unwrap() {
                    let len = found.len as usize;
                    // Between 1,800 and what is in blocks for sure, less is assumed.
                    bytes += key.len() as u64
                        + match len {
                            0..=2000 => len as u64,
                            len => (len as u64).next_multiple_of(BLOCK),
                        };
                }
            }
            user.end_view(view);
            assert!(bytes <= LIMIT, "{bytes}");
        }
    });
    assert!(over.load(SeqCst) > 100, "{over:?}");
    counted_anew(&mut fixture, user, &[whole]);
}
