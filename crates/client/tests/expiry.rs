//! Values that expire, by every interface, before and after the trees have them.

mod common;

use common::{Fixture, ROOT, User};
use holdfast_client::kv::{Changes, Durability, Expected, Keyspace, NEVER, Present, Scan, Swapped};
use holdfast_client::{Base, Error, abi::*, drain};
use std::sync::atomic::Ordering::SeqCst;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const POOL: u64 = 128 << 20;
const V: Durability = Durability::Volatile;
/// In the entry of the tree, the longest there, and in blocks.
const SIZES: [usize; 4] = [0, 100, 1900, 9000];

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_nanos() as i64
}

fn ms(n: i64) -> i64 {
    now() + n * 1_000_000
}

fn keyspace(user: &User) -> Keyspace {
    user.keyspace(&ROOT, b"ks", true).unwrap()
}

fn put(user: &User, k: Keyspace, key: &str, value: &[u8], expires: i64) {
    user.kv_put_until((k, key.as_bytes()), value, expires, V)
        .unwrap();
}

fn get(user: &User, k: Keyspace, key: &str) -> Option<Vec<u8>> {
    let mut out = vec![0; 1 << 20];
    let len = user.kv_get(k, key.as_bytes(), &mut out).unwrap()?;
    out.truncate(len as usize);
    Some(out)
}

fn expires(user: &User, k: Keyspace, key: &str) -> Option<i64> {
    let found = user.kv_find(None, None, (k, key.as_bytes()), &mut []);
    found.unwrap().map(|found| found.expires)
}

fn settle(user: &User) {
    let taken = user.session().header().next_seq.load(SeqCst);
    drain::wait_applied(user.session(), taken - 1).unwrap();
}

fn keys(user: &User, k: Keyspace, backward: bool) -> Vec<String> {
    let view = user.view_of(k).unwrap();
    let mut scan = Scan::new(k, b"", None, backward);
    let mut all = Vec::new();
    while scan.advance(user.session(), &view).unwrap().is_some() {
        all.push(String::from_utf8(scan.key().to_vec()).unwrap());
    }
    user.end_view(view);
    all
}

fn stat(user: &User, path: &str) -> Result<holdfast_client::Stat, Error> {
    user.stat(&ROOT, Base::Root, path.as_bytes(), 0)
}

fn wait_until(time: i64) {
    while now() <= time {
        sleep(Duration::from_millis(1));
    }
}

/// All that there is to know of a key that is there and one that is not any more.
#[test]
fn from_its_time_on_a_key_is_not_there() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    for settled in [false, true] {
        let end = ms(400);
        for len in SIZES {
            put(&user, k, &format!("a{len}"), &vec![7; len], end);
            put(
                &user,
                k,
                &format!("b{len}"),
                &vec![7; len],
                end + 3_600_000_000_000,
            );
            put(&user, k, &format!("c{len}"), &vec![7; len], NEVER);
        }
        if settled {
            settle(&user);
        }
        let open = user.open("ks/a9000", O_RDONLY).unwrap();
        for len in SIZES {
            let (key, path) = (format!("a{len}"), format!("ks/a{len}"));
            assert_eq!(get(&user, k, &key), Some(vec![7; len]), "{key} {settled}");
            assert_eq!(expires(&user, k, &key), Some(end));
            assert_eq!(stat(&user, &path).unwrap().size, len as u64);
            assert_eq!(user.get(&path), vec![7; len]);
        }
        let before = user.view().unwrap();
        assert!(now() < end, "this machine is too slow for the test");
        wait_until(end);
        for len in SIZES {
            let (key, path) = (format!("a{len}"), format!("ks/a{len}"));
            assert_eq!(get(&user, k, &key), None, "{key} {settled}");
            assert_eq!(expires(&user, k, &key), None);
            assert_eq!(stat(&user, &path).unwrap_err(), Error::NotFound);
            assert_eq!(user.open(&path, O_RDWR).unwrap_err(), Error::NotFound);
            let gone = user.unlink(&ROOT, Base::Root, path.as_bytes());
            assert_eq!(gone.unwrap_err(), Error::NotFound);
            // A view stays as it was when it began.
            let mut out = vec![0; 10_000];
            let seen = user.view_get(&before, k, key.as_bytes(), &mut out);
            assert_eq!(seen.unwrap(), Some(len as u64));
            assert_eq!(expires(&user, k, &format!("c{len}")), Some(NEVER));
            assert!(get(&user, k, &format!("b{len}")).is_some());
        }
        user.end_view(before);
        assert_eq!(user.pread_vec(open, 10_000, 0), vec![7; 9000]);
        assert_eq!(user.fstat(open).unwrap().nlink, 0);
        user.release(open).unwrap();
        let mut left: Vec<String> = SIZES
            .iter()
            .flat_map(|len| [format!("b{len}"), format!("c{len}")])
            .collect();
        left.sort();
        assert_eq!(keys(&user, k, false), left);
        left.reverse();
        assert_eq!(keys(&user, k, true), left);
        let (view, mut scan) = (user.view().unwrap(), Scan::new(k, b"", None, false));
        let counted = user.kv_count(&view, &mut scan, u64::MAX).unwrap();
        assert_eq!(counted, (8, true));
        user.end_view(view);
        // And the two that every directory has.
        assert_eq!(user.names("ks").len(), 10);
    }
}

#[test]
fn the_next_put_says_anew_whether_a_key_expires() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    for (i, settled) in [false, true].iter().enumerate() {
        let key = format!("key{i}");
        let end = ms(60);
        put(&user, k, &key, b"1", end);
        if *settled {
            settle(&user);
        }
        user.kv_put(k, key.as_bytes(), b"2", V).unwrap();
        assert_eq!(expires(&user, k, &key), Some(NEVER));
        wait_until(end);
        assert_eq!(get(&user, k, &key).unwrap(), b"2");
        user.kv_remove_expired(1000).unwrap();
        settle(&user);
        assert_eq!(get(&user, k, &key).unwrap(), b"2");
        // What has expired is nothing to a change that depends on it.
        put(&user, k, &key, b"3", 1);
        let absent = |value| {
            let key = (k, key.as_bytes());
            user.kv_swap(None, key, Expected::Value(None), Some((value, NEVER)), V)
                .unwrap()
        };
        assert_eq!(absent(b"4"), Swapped::Done);
        assert_eq!(absent(b"5"), present(b"4", NEVER));
    }
}

fn present(value: &[u8], expires: i64) -> Swapped {
    let value = value.to_vec();
    Swapped::Other(Some(Present { value, expires }))
}

#[test]
fn a_change_may_depend_on_the_expiry_alone() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    for (i, settled) in [false, true].iter().enumerate() {
        let key = format!("key{i}");
        let put = |value: &[u8], expires| {
            put(&user, k, &key, value, expires);
            if *settled {
                settle(&user);
            }
        };
        put(b"4", NEVER);
        let swap = |expected, value: &[u8], until| {
            let key = (k, key.as_bytes());
            user.kv_swap(None, key, expected, Some((value, until)), V)
                .unwrap()
        };
        let (soon, later) = (ms(3_600_000), ms(7_200_000));
        assert_eq!(
            swap(Expected::Expiry(None), b"5", soon),
            present(b"", NEVER)
        );
        put(b"5", soon);
        assert_eq!(
            swap(Expected::Expiry(Some(later)), b"6", 0),
            present(b"", soon)
        );
        assert_eq!(
            swap(Expected::Both(b"6", None), b"6", 0),
            present(b"5", soon)
        );
        let both = Expected::Both(b"5", Some(soon));
        assert_eq!(swap(both, b"6", later), Swapped::Done);
        assert_eq!(swap(both, b"7", later), present(b"6", later));
        assert_eq!(swap(Expected::Expiry(None), b"7", soon), Swapped::Done);
        let erased = user.kv_swap(
            None,
            (k, key.as_bytes()),
            Expected::Expiry(Some(soon)),
            None,
            V,
        );
        assert_eq!(erased, Ok(Swapped::Done));
        assert_eq!(expires(&user, k, &key), None);
        put(b"8", 1);
        assert_eq!(swap(Expected::Expiry(None), b"9", 0), Swapped::Other(None));
    }
}

#[test]
fn what_has_expired_is_removed_and_nothing_else() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    let mut changes = Changes::default();
    for i in 0..500 {
        let (key, value) = (format!("{i:03}"), vec![1; 5000 * (i % 2)]);
        let until = if i < 300 { 1 + i as i64 } else { ms(3_600_000) };
        changes
            .put_until(&user, (k, key.as_bytes()), &value, until)
            .unwrap();
    }
    user.kv_commit(changes, V).unwrap();
    assert_eq!(keys(&user, k, false).len(), 200);
    settle(&user);
    user.kv_remove_expired(10_000).unwrap();
    settle(&user);
    assert_eq!(keys(&user, k, false).len(), 200);
    let reader = user.session().tree().reader();
    let mut entries = 0;
    reader
        .scan(5, &k.ino().to_be_bytes(), None, |_, _| {
            entries += 1;
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(entries, 200, "expired values are still in the tree");
}

/// A name takes the place of what has expired, and a directory of nothing else is empty.
#[test]
fn files_and_directories_do_not_meet_what_has_expired() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    for settled in [false, true] {
        let k = keyspace(&user);
        for key in ["file", "link", "moved", "left"] {
            put(&user, k, key, b"expired", 1);
        }
        if settled {
            settle(&user);
        }
        user.put("ks/file", b"new");
        assert_eq!(get(&user, k, "file").unwrap(), b"new");
        user.put("other", b"moved");
        user.link(&ROOT, (Base::Root, b"other"), (Base::Root, b"ks/link"), 0)
            .unwrap();
        user.rename(&ROOT, (Base::Root, b"other"), (Base::Root, b"ks/moved"), 0)
            .unwrap();
        let names: Vec<String> = ["file", "link", "moved"].map(String::from).into();
        assert_eq!(keys(&user, k, false), names);
        settle(&user);
        for name in names {
            let path = format!("ks/{name}");
            user.unlink(&ROOT, Base::Root, path.as_bytes()).unwrap();
        }
        put(&user, k, "one more", &[1; 5000], 1);
        user.rmdir(&ROOT, Base::Root, b"ks").unwrap();
        settle(&user);
        assert_eq!(stat(&user, "ks").unwrap_err(), Error::NotFound);
    }
}

/// What becomes a file stays.
#[test]
fn a_value_that_becomes_a_file_does_not_expire_any_more() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    for len in SIZES {
        let (key, path) = (format!("v{len}"), format!("ks/v{len}"));
        let end = ms(300);
        put(&user, k, &key, &vec![3; len], end);
        settle(&user);
        let file = user.open(&path, O_RDWR).unwrap();
        user.release(file).unwrap();
        assert_eq!(expires(&user, k, &key), Some(NEVER));
        settle(&user);
        wait_until(end);
        user.kv_remove_expired(1000).unwrap();
        assert_eq!(get(&user, k, &key), Some(vec![3; len]));
        assert_eq!(user.get(&path), vec![3; len]);
    }
}

/// Puts go on where only what has expired takes the room.
#[test]
fn a_full_pool_of_what_has_expired_takes_more() {
    let fixture = Fixture::new(16 << 20);
    let user = fixture.user();
    let k = keyspace(&user);
    let value = vec![5; 256 << 10];
    for i in 0..400 {
        let key = format!("{i}");
        user.kv_put_until((k, key.as_bytes()), &value, ms(1), V)
            .unwrap_or_else(|e| panic!("put {i}: {e}"));
        sleep(Duration::from_millis(1));
    }
    wait_until(ms(1));
    assert_eq!(keys(&user, k, false), Vec::<String>::new());
}
