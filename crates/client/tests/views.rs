//! Views: one moment each, whatever the service is at.

mod common;

use common::{Fixture, ROOT};
use holdfast_client::kv::{Changes, Durability, Entry, Keyspace, Scan, View};
use holdfast_client::{Client, Error, drain};
use holdfast_pool::session::{VIEWS, VIEWS_RESERVED};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

const POOL: u64 = 128 << 20;
const V: Durability = Durability::Volatile;

fn keyspace(user: &Client) -> Keyspace {
    user.keyspace(&ROOT, b"ks", true).unwrap()
}

fn put(user: &Client, k: Keyspace, key: &str, number: u64) {
    let value = number.to_le_bytes();
    user.kv_put(k, key.as_bytes(), &value, V).unwrap();
}

fn get(user: &Client, view: &View, k: Keyspace, key: &str) -> Option<u64> {
    let mut out = [0; 8];
    let found = user.view_get(view, k, key.as_bytes(), &mut out).unwrap();
    found.map(|len| {
        assert_eq!(len, 8);
        u64::from_le_bytes(out)
    })
}

fn scan(user: &Client, view: &View, k: Keyspace) -> Vec<(String, u64)> {
    let (mut scan, mut all) = (Scan::new(k, b"", None, false), Vec::new());
    while let Some((key, entry)) = scan.next(user.session(), view).unwrap() {
        let Entry::Inline(value) = entry else {
            panic!("a value in blocks")
        };
        let number = u64::from_le_bytes(value.try_into().unwrap());
        all.push((String::from_utf8(key.to_vec()).unwrap(), number));
    }
    all
}

/// Two keys that always change together, among many others, are the same in each view, at any
/// time, and not older than when it began.
#[test]
fn a_view_is_one_moment_while_others_write() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let pair = |n: u64| {
        let mut changes = Changes::default();
        for key in ["a", "b"] {
            changes
                .put(&user, k, key.as_bytes(), &n.to_le_bytes())
                .unwrap();
        }
        user.kv_commit(changes, V).unwrap();
        done.store(n, SeqCst);
    };
    pair(1);
    let (mut views, mut moved) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 2.. {
                pair(n);
                for i in 0..20 {
                    put(&user, k, &format!("other {}", (n * 7 + i) % 500), n);
                }
                if stop.load(Relaxed) {
                    break;
                }
            }
        });
        let readers = [0, 1].map(|_| {
            scope.spawn(|| {
                let begun = Instant::now();
                let (mut views, mut moved) = (0u64, 0u64);
                while begun.elapsed() < Duration::from_millis(1500) {
                    let least = done.load(SeqCst);
                    let view = user.view().unwrap();
                    let first = get(&user, &view, k, "a").unwrap();
                    assert!(first >= least, "{first} after {least}");
                    for i in 0..6 {
                        let key = ["b", "a"][i % 2];
                        assert_eq!(get(&user, &view, k, key), Some(first));
                    }
                    if views % 8 == 0 {
                        let all = scan(&user, &view, k);
                        assert_eq!((all[0].1, all[1].1), (first, first));
                        assert!(all[2..].iter().all(|(_, n)| *n <= first));
                    }
                    moved += u64::from(done.load(SeqCst) != first);
                    views += 1;
                    user.end_view(view);
                }
                (views, moved)
            })
        });
        for reader in readers {
            let (a, b) = reader.join().unwrap();
            (views, moved) = (views + a, moved + b);
        }
        stop.store(true, Relaxed);
    });
    println!("{views} views, under {moved} of which something changed");
    assert!(views > 50 && moved > 10);
}

/// A number that nobody used, as of a process that died before it wrote its record, changes
/// nothing: the root that a view of that moment is given is the one from before.
#[test]
fn a_view_begins_behind_numbers_that_nobody_used() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    for n in 1..=20 {
        put(&user, k, "a", n);
        let h = user.session().header();
        drain::wait_applied(user.session(), h.next_seq.load(SeqCst) - 1).unwrap();
        let unused = h.next_seq.fetch_add(1, SeqCst);
        h.values_seq.fetch_max(unused, SeqCst);
        let view = user.view().unwrap();
        assert_eq!(scan(&user, &view, k), [("a".to_string(), n)]);
        assert_eq!(get(&user, &view, k, "a"), Some(n));
        user.end_view(view);
    }
}

/// However many views other users begin, the pool's owner begins some.
#[test]
fn others_leave_views_to_the_owner() {
    let fixture = Fixture::new(64 << 20);
    let (owner, other) = (fixture.user(), fixture.user());
    other.session().serve_another();
    let mut views = Vec::new();
    let full = loop {
        match other.view() {
            Ok(view) => views.push(view),
            Err(e) => break e,
        }
    };
    assert_eq!(full, Error::TooManyViews);
    assert_eq!(views.len(), VIEWS - VIEWS_RESERVED);
    for _ in 0..3 {
        let own: Vec<_> = (0..VIEWS_RESERVED).map(|_| owner.view().unwrap()).collect();
        assert_eq!(owner.view().unwrap_err(), Error::TooManyViews);
        own.into_iter().for_each(|view| owner.end_view(view));
        assert_eq!(other.view().unwrap_err(), Error::TooManyViews);
    }
    other.end_view(views.pop().unwrap());
    views.push(other.view().unwrap());
    views.into_iter().for_each(|view| other.end_view(view));
}
