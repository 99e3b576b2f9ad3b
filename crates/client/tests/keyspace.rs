//! Values as files, and files as values: both interfaces on one session.

mod common;

use common::{Fixture, ROOT, User};
use holdfast_client::kv::{Changes, Durability, Keyspace};
use holdfast_client::{Base, Error, abi::*, drain};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const POOL: u64 = 128 << 20;
const V: Durability = Durability::Volatile;

fn keyspace(user: &User) -> Keyspace {
    user.keyspace(&ROOT, b"ks", true).unwrap()
}

fn get(user: &User, k: Keyspace, key: &str) -> Option<Vec<u8>> {
    let mut out = vec![0; 1 << 20];
    let len = user.kv_get(k, key.as_bytes(), &mut out).unwrap()?;
    out.truncate(usize::try_from(len).unwrap());
    Some(out)
}

fn put(user: &User, k: Keyspace, key: &str, value: &[u8]) {
    user.kv_put(k, key.as_bytes(), value, V).unwrap();
}

fn stat(user: &User, path: &str) -> Result<holdfast_client::Stat, Error> {
    user.stat(&ROOT, Base::Root, path.as_bytes(), 0)
}

fn sizes() -> [usize; 7] {
    [0, 1, 512, 513, 1900, 5000, 700_000]
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31) ^ seed)
        .collect()
}

#[test]
fn a_value_is_a_file_with_its_content_and_stays_the_same_when_it_is_opened() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    for round in 0..2 {
        for len in sizes() {
            let (key, value) = (format!("v{len}-{round}"), bytes(len, 7));
            put(&user, k, &key, &value);
            if round == 1 {
                // Now it is found in the trees.
                let taken = user.session().header().next_seq.load(SeqCst);
                drain::wait_applied(user.session(), taken - 1).unwrap();
            }
            let path = format!("ks/{key}");
            let before = stat(&user, &path).unwrap();
            assert_eq!(
                (before.size, before.mode, before.nlink),
                (len as u64, 0o100_644, 1)
            );
            assert_eq!(get(&user, k, &key).as_ref(), Some(&value), "{key}");
            assert_eq!(user.get(&path), value, "{key}");
            let file = user.open(&path, O_RDWR).unwrap();
            assert_eq!(user.pread_vec(file, 1 << 20, 0), value, "{key}");
            user.release(file).unwrap();
            let after = stat(&user, &path).unwrap();
            let same = |s: &holdfast_client::Stat| (s.ino, s.size, s.mtime, s.ctime, s.mode);
            assert_eq!(same(&before), same(&after), "{key}");
            assert_eq!(
                get(&user, k, &key).as_ref(),
                Some(&value),
                "{key} as a file"
            );
        }
    }
    drop(user);
}

#[test]
fn what_one_interface_writes_the_other_reads() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    user.put("ks/file", b"written");
    assert_eq!(get(&user, k, "file").unwrap(), b"written");
    put(&user, k, "file", b"put");
    assert_eq!(user.get("ks/file"), b"put");
    user.put("ks/file", b"again");
    assert_eq!(get(&user, k, "file").unwrap(), b"again");
    user.kv_erase(k, b"file", V).unwrap();
    assert_eq!(stat(&user, "ks/file").unwrap_err(), Error::NotFound);
    assert_eq!(get(&user, k, "file"), None);
    put(&user, k, "value", b"1");
    user.unlink(&ROOT, Base::Root, b"ks/value").unwrap();
    assert_eq!(get(&user, k, "value"), None);
    let gone = user.unlink(&ROOT, Base::Root, b"ks/value");
    assert_eq!(gone.unwrap_err(), Error::NotFound);
}

#[test]
fn who_has_a_file_open_goes_on_reading_it() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    put(&user, k, "key", b"old");
    let old = user.open("ks/key", O_RDWR).unwrap();
    put(&user, k, "key", b"new value");
    assert_eq!(user.pread_vec(old, 100, 0), b"old");
    assert_eq!(user.fstat(old).unwrap().nlink, 0);
    user.pwrite_all(old, b"OLD", 0);
    assert_eq!(get(&user, k, "key").unwrap(), b"new value");
    let new = user.open("ks/key", O_RDONLY).unwrap();
    assert_eq!(user.pread_vec(new, 100, 0), b"new value");
    assert_ne!(user.fstat(old).unwrap().ino, user.fstat(new).unwrap().ino);
    user.release(old).unwrap();
    user.release(new).unwrap();
    assert_eq!(user.get("ks/key"), b"new value");
}

#[test]
fn names_of_values_are_taken() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    put(&user, k, "v", b"value");
    let taken = user.open("ks/v", O_CREAT | O_EXCL | O_RDWR);
    assert_eq!(taken.unwrap_err(), Error::Exists);
    let taken = user.mkdir(&ROOT, Base::Root, b"ks/v", 0o755);
    assert_eq!(taken.unwrap_err(), Error::Exists);
    let taken = user.symlink(&ROOT, b"x", Base::Root, b"ks/v");
    assert_eq!(taken.unwrap_err(), Error::Exists);
    let inside = stat(&user, "ks/v/x");
    assert_eq!(inside.unwrap_err(), Error::NotDirectory);
    let gone = user.rmdir(&ROOT, Base::Root, b"ks/v");
    assert_eq!(gone.unwrap_err(), Error::NotDirectory);
    let full = user.rmdir(&ROOT, Base::Root, b"ks");
    assert_eq!(full.unwrap_err(), Error::NotEmpty);
    user.mkdir(&ROOT, Base::Root, b"other", 0o755).unwrap();
    let from = (Base::Root, &b"other"[..]);
    let full = user.rename(&ROOT, from, (Base::Root, b"ks"), 0);
    assert_eq!(full.unwrap_err(), Error::NotEmpty);
    user.mkdir(&ROOT, Base::Root, b"ks/d", 0o755).unwrap();
    let dir = user.kv_put(k, b"d", b"x", V);
    assert_eq!(dir.unwrap_err(), Error::IsDirectory);
    assert_eq!(get(&user, k, "d"), None);
    user.kv_erase(k, b"d", V).unwrap();
    user.rmdir(&ROOT, Base::Root, b"ks/d").unwrap();
    user.kv_erase(k, b"v", V).unwrap();
    user.rmdir(&ROOT, Base::Root, b"ks").unwrap();
    let gone = user.kv_put(k, b"v", b"x", V);
    assert_eq!(gone.unwrap_err(), Error::NotFound);
    assert_eq!(get(&user, k, "v"), None);
}

#[test]
fn renames_move_values_and_replace_them() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    put(&user, k, "a", b"first");
    put(&user, k, "b", b"second");
    user.rename(&ROOT, (Base::Root, b"ks/a"), (Base::Root, b"ks/b"), 0)
        .unwrap();
    assert_eq!(
        (get(&user, k, "a"), get(&user, k, "b").unwrap()),
        (None, b"first".to_vec())
    );
    put(&user, k, "a", b"third");
    let taken = user.rename(
        &ROOT,
        (Base::Root, b"ks/b"),
        (Base::Root, b"ks/a"),
        RENAME_NOREPLACE,
    );
    assert_eq!(taken.unwrap_err(), Error::Exists);
    user.rename(&ROOT, (Base::Root, b"ks/a"), (Base::Root, b"outside"), 0)
        .unwrap();
    assert_eq!(user.get("outside"), b"third");
    user.link(&ROOT, (Base::Root, b"ks/b"), (Base::Root, b"ks/c"), 0)
        .unwrap();
    user.pwrite_all(user.open("ks/b", O_RDWR).unwrap(), b"F", 0);
    assert_eq!(get(&user, k, "c").unwrap(), b"First");
    let mut changes = Changes::default();
    changes.put(&user, k, b"b", b"B").unwrap();
    changes.erase(&user, k, b"c").unwrap();
    changes.put(&user, k, b"z", b"Z").unwrap();
    user.kv_commit(changes, V).unwrap();
    assert_eq!(user.names("ks").len(), 2 + 2);
    assert_eq!(
        (get(&user, k, "b").unwrap(), get(&user, k, "c")),
        (b"B".to_vec(), None)
    );
}

#[test]
fn readdir_shows_each_value_and_each_file_once() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    let mut want: Vec<String> = vec![".".into(), "..".into()];
    for i in 0..500 {
        let name = format!("key-{i}");
        match i % 5 {
            0 => user.put(&format!("ks/{name}"), b"file"),
            _ => put(&user, k, &name, b"value"),
        }
        want.push(name);
    }
    user.kv_put(k, b"not/a/name", b"x", V).unwrap();
    want.sort();
    // A reader that opens what it sees, and so makes files of values.
    let dir = user.open("ks", O_RDONLY | O_DIRECTORY).unwrap();
    let mut seen = Vec::new();
    loop {
        let names = some_names(&user, dir);
        if names.is_empty() {
            break;
        }
        for name in names.iter().filter(|n| n.starts_with("key")) {
            user.get(&format!("ks/{name}"));
        }
        seen.extend(names);
    }
    user.release(dir).unwrap();
    seen.sort();
    assert_eq!(seen, want);
    let mut again = user.names("ks");
    again.sort();
    assert_eq!(again, want);
}

#[test]
fn readdir_shows_very_many_values_once_while_others_come_and_go() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    const MANY: usize = 70_000;
    (0..MANY).for_each(|i| put(&user, k, &format!("key-{i}"), b"value"));
    let dir = user.open("ks", O_RDONLY | O_DIRECTORY).unwrap();
    let (mut seen, mut calls) = (vec![0; MANY], 0);
    loop {
        let names = some_names(&user, dir);
        if names.is_empty() {
            break;
        }
        calls += 1;
        for name in &names {
            let number = name.strip_prefix("key-").and_then(|n| n.parse().ok());
            number.into_iter().for_each(|n: usize| seen[n] += 1);
        }
        // Keys 0 to 999 go, others come; now and then a value becomes a file, or a file a value.
        let n = calls % 1000;
        user.kv_erase(k, format!("key-{n}").as_bytes(), V).unwrap();
        put(&user, k, &format!("new-{calls}"), b"value");
        let name = format!("key-{}", 1000 + calls * 7 % 5000);
        match calls % 100 {
            33 => drop(user.get(&format!("ks/{name}"))),
            66 => user.put(&format!("ks/key-{}", 6000 + calls), b"now a file"),
            99 => put(&user, k, &format!("key-{}", 6000 + calls - 33), b"again"),
            _ => {}
        }
    }
    user.release(dir).unwrap();
    assert!(calls > 2000, "{calls}");
    let wrong = seen.iter().skip(1000).position(|times| *times != 1);
    assert_eq!(wrong, None, "{:?} times", wrong.map(|i| seen[1000 + i]));
    assert!(seen[..1000].iter().all(|times| *times <= 1));
    // Who begins anew sees what is there now.
    let names = user.names("ks");
    assert!(names.contains(&format!("new-{calls}")));
    assert!(!names.contains(&"key-1".to_string()));
    assert!(names.len() > MANY);
}

fn some_names(user: &User, dir: holdfast_client::OfdLink) -> Vec<String> {
    let mut out = vec![0; 600];
    let to = holdfast_pmem::MutBuf::from(&mut out[..]);
    let n = user
        .getdents(dir, to, holdfast_client::DirentFormat::Linux64)
        .unwrap();
    let (mut at, mut names) = (0, Vec::new());
    while at < n {
        let len = u16::from_le_bytes([out[at + 16], out[at + 17]]) as usize;
        let name = &out[at + 19..at + len];
        let end = name.iter().position(|&b| b == 0).unwrap();
        names.push(String::from_utf8(name[..end].to_vec()).unwrap());
        at += len;
    }
    names
}

#[test]
fn a_listing_goes_on_where_its_view_is_given_up() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    const MANY: usize = 90_000;
    (0..MANY).for_each(|i| put(&user, k, &format!("key-{i}"), b"value"));
    user.put("full", &vec![1; 90 << 20]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The values that a view keeps for itself are soon more than a third of what is free.
        let writer = scope.spawn(|| {
            let other = fixture.user();
            let k = other.keyspace(&ROOT, b"other", true).unwrap();
            let value = bytes(512 << 10, 7);
            let begun = Instant::now();
            while !done.load(SeqCst) && begun.elapsed() < Duration::from_secs(60) {
                put(&other, k, "key", &value);
            }
        });
        for _ in 0..15 {
            let (mut shown, mut all) = (user.names("ks"), BTreeSet::new());
            shown.retain(|name| !name.starts_with('.'));
            all.extend(&shown);
            assert_eq!((shown.len(), all.len()), (MANY, MANY));
        }
        done.store(true, SeqCst);
        writer.join().unwrap();
    });
}

#[test]
fn ranges_and_large_batches_reach_files_too() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    for i in 0..40 {
        let name = format!("{i:03}");
        match i % 2 {
            0 => user.put(&format!("ks/{name}"), b"file"),
            _ => put(&user, k, &name, b"value"),
        }
    }
    let mut changes = Changes::default();
    changes.erase_range(k, b"010", Some(b"020")).unwrap();
    user.kv_commit(changes, V).unwrap();
    assert_eq!(user.names("ks").len(), 2 + 30);
    // Too long for a record.
    let mut changes = Changes::default();
    for i in 0..40 {
        let key = format!("{i:03}");
        changes
            .put(&user, k, key.as_bytes(), &bytes(1800, i))
            .unwrap();
    }
    for i in 0..300 {
        let key = format!("more{i:03}");
        changes
            .put(&user, k, key.as_bytes(), &bytes(1800, 1))
            .unwrap();
    }
    user.kv_commit(changes, V).unwrap();
    for i in 0..40 {
        assert_eq!(get(&user, k, &format!("{i:03}")).unwrap(), bytes(1800, i));
    }
    assert_eq!(user.names("ks").len(), 2 + 340);
}

/// A value can be read by all, so no private file may be one on its way out.
#[test]
fn private_files_in_a_range_are_private_until_they_are_gone() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    let paths: Vec<_> = (0..300).map(|i| format!("ks/{i:03}")).collect();
    for path in &paths {
        user.put(path, &bytes(3000, 1));
        user.chmod(&ROOT, Base::Root, path.as_bytes(), 0o600, 0)
            .unwrap();
    }
    put(&user, k, "value", b"value");
    let (other, over) = (fixture.user(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(SeqCst) {
                for path in &paths {
                    let mode = stat(&other, path).map(|stat| stat.mode & 0o777);
                    assert!(matches!(mode, Ok(0o600) | Err(Error::NotFound)), "{mode:?}");
                }
            }
        });
        let mut changes = Changes::default();
        changes.erase_range(k, b"", None).unwrap();
        user.kv_commit(changes, V).unwrap();
        over.store(true, SeqCst);
    });
    assert_eq!(user.names("ks").len(), 2);
}

type Model = BTreeMap<String, Vec<u8>>;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// One step of both; the model knows what each key has, not where.
fn step(user: &User, k: Keyspace, rng: &mut Rng, model: &mut Model) {
    let key = format!("k{}", rng.below(12));
    let other = format!("k{}", rng.below(12));
    let path = format!("ks/{key}");
    let value = bytes(sizes()[rng.below(6) as usize], rng.below(256) as u8);
    match rng.below(12) {
        0..=2 => {
            put(user, k, &key, &value);
            model.insert(key, value);
        }
        3 => {
            user.put(&path, &value);
            model.insert(key, value);
        }
        4 => {
            user.kv_erase(k, key.as_bytes(), V).unwrap();
            model.remove(&key);
        }
        5 => {
            let done = user.unlink(&ROOT, Base::Root, path.as_bytes());
            assert_eq!(done.is_ok(), model.remove(&key).is_some(), "{done:?}");
        }
        6 => {
            let to = format!("ks/{other}");
            let (from, to) = ((Base::Root, path.as_bytes()), (Base::Root, to.as_bytes()));
            let done = user.rename(&ROOT, from, to, 0);
            assert_eq!(done.is_ok(), model.contains_key(&key), "{done:?}");
            if key != other
                && let Some(value) = model.remove(&key)
            {
                model.insert(other, value);
            }
        }
        7 | 8 => change_many(user, k, rng, model, (key, other)),
        9 => {
            let Ok(ofd) = user.open(&path, O_RDWR | O_APPEND) else {
                assert!(!model.contains_key(&key));
                return;
            };
            user.pwrite_all(ofd, b"tail", 0);
            user.release(ofd).unwrap();
            model.get_mut(&key).unwrap().extend_from_slice(b"tail");
        }
        10 => {
            let there = user.open(&path, [O_RDONLY, O_RDWR][rng.below(2) as usize]);
            assert_eq!(there.is_ok(), model.contains_key(&key), "{there:?}");
            if let Ok(ofd) = there {
                assert_eq!(&user.pread_vec(ofd, 1 << 20, 0), &model[&key]);
                user.release(ofd).unwrap();
            }
        }
        _ => compare_order(user, k, rng, model),
    }
}

/// A batch, or a range.
fn change_many(
    user: &User,
    k: Keyspace,
    rng: &mut Rng,
    model: &mut Model,
    (key, other): (String, String),
) {
    let mut changes = Changes::default();
    if rng.below(2) == 0 {
        let (from, to) = (key.clone().min(other.clone()), key.max(other));
        changes
            .erase_range(k, from.as_bytes(), Some(to.as_bytes()))
            .unwrap();
        user.kv_commit(changes, V).unwrap();
        model.retain(|key, _| !(&from..&to).contains(&key));
        return;
    }
    let value = bytes(sizes()[rng.below(6) as usize], 1);
    changes.put(user, k, key.as_bytes(), &value).unwrap();
    if key != other {
        changes.erase(user, k, other.as_bytes()).unwrap();
        model.remove(&other);
    }
    user.kv_commit(changes, V).unwrap();
    model.insert(key, value);
}

fn compare_order(user: &User, k: Keyspace, rng: &mut Rng, model: &Model) {
    let view = user.view_of(k).unwrap();
    let backward = rng.below(2) == 0;
    let mut scan = holdfast_client::kv::Scan::new(k, b"", None, backward);
    let mut keys = Vec::new();
    while let Some((key, _)) = scan.next(user.session(), &view).unwrap() {
        keys.push(String::from_utf8(key.to_vec()).unwrap());
    }
    user.end_view(view);
    let want: Vec<_> = match backward {
        true => model.keys().rev().cloned().collect(),
        false => model.keys().cloned().collect(),
    };
    assert_eq!(keys, want);
}

#[test]
fn random_changes_by_both_interfaces_are_one_map() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    let (mut rng, mut model) = (Rng(0x1234_5678_9abc_def1), BTreeMap::new());
    for i in 0..6000 {
        step(&user, k, &mut rng, &mut model);
        let key = format!("k{}", rng.below(12));
        assert_eq!(
            get(&user, k, &key),
            model.get(&key).cloned(),
            "step {i}, {key}"
        );
        let size = stat(&user, &format!("ks/{key}"))
            .ok()
            .map(|s| s.size as usize);
        assert_eq!(size, model.get(&key).map(Vec::len), "step {i}, {key}");
        if i % 500 == 0 {
            let mut names = user.names("ks");
            names.retain(|n| !n.starts_with('.'));
            names.sort();
            assert_eq!(names, model.keys().cloned().collect::<Vec<_>>());
        }
    }
}

/// A value that shows where it came from: all its bytes are the same, as many as they say.
fn whole(bytes: &[u8]) -> bool {
    let first = bytes.first().copied().unwrap_or(0);
    bytes.iter().all(|b| *b == first) && bytes.len() == usize::from(first) * 21
}

/// What one user does until the time is over; how often it found something.
fn race(user: &User, what: usize, until: std::time::Instant) -> usize {
    let k = keyspace(user);
    let (mut rng, mut found) = (Rng(what as u64 * 77 + 1), 0);
    while std::time::Instant::now() < until {
        let (key, other) = (format!("k{}", rng.below(3)), format!("k{}", rng.below(3)));
        let seed = rng.below(250) as u8 + 1;
        let path = format!("ks/{key}");
        match (what, rng.below(4)) {
            (0, _) => put(user, k, &key, &vec![seed; usize::from(seed) * 21]),
            (1, _) => {
                if let Ok(ofd) = user.open(&path, [O_RDONLY, O_RDWR][rng.below(2) as usize]) {
                    assert!(whole(&user.pread_vec(ofd, 1 << 16, 0)), "{path}");
                    user.release(ofd).unwrap();
                    found += 1;
                }
            }
            (2, 0) => user.kv_erase(k, key.as_bytes(), V).unwrap(),
            (2, 1) => drop(user.unlink(&ROOT, Base::Root, path.as_bytes())),
            (2, 2) => {
                let to = format!("ks/{other}");
                let (from, to) = ((Base::Root, path.as_bytes()), (Base::Root, to.as_bytes()));
                drop(user.rename(&ROOT, from, to, 0));
            }
            (2, _) => {
                let mut changes = Changes::default();
                let value = vec![seed; usize::from(seed) * 21];
                changes.put(user, k, b"k0", &value).unwrap();
                changes.put(user, k, b"k1", &value).unwrap();
                user.kv_commit(changes, V).unwrap();
            }
            _ => {
                if let Some(value) = get(user, k, &key) {
                    assert!(whole(&value), "{key}");
                    found += 1;
                }
                if let Ok(stat) = stat(user, &path) {
                    assert!(stat.size % 21 == 0);
                }
            }
        }
    }
    found
}

#[test]
fn users_of_both_interfaces_race_for_few_keys() {
    let fixture = Fixture::new(POOL);
    keyspace(&fixture.user());
    let until = std::time::Instant::now() + std::time::Duration::from_secs(3);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|what| {
                let user = fixture.user();
                scope.spawn(move || race(&user, what, until))
            })
            .collect();
        let found: Vec<usize> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        assert!(found[1] > 10 && found[3] > 10, "{found:?}");
    });
}
