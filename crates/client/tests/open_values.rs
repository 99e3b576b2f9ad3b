//! Values that are open as files: reading moves nothing, what was opened stays as it was, and only
//! who writes makes a value a file.

mod common;

use common::{Fixture, ROOT, User};
use holdfast_client::kv::{Changes, Durability, Keyspace};
use holdfast_client::{Base, Error, MapPiece, OfdLink, SetTime, Target, abi::*, drain, slots};
use holdfast_pmem::{ConstBuf, MutBuf};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

const POOL: u64 = 128 << 20;
const V: Durability = Durability::Volatile;
/// Lengths: in an entry, at the borders of what a file keeps inline, and in blocks.
const LENS: [usize; 8] = [0, 1, 512, 513, 1900, 1950, 5000, 700_000];

fn keyspace(user: &User) -> Keyspace {
    user.keyspace(&ROOT, b"ks", true).unwrap()
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    let byte = |i: usize| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed;
    (0..len).map(byte).collect()
}

fn put(user: &User, k: Keyspace, key: &str, value: &[u8]) {
    user.kv_put(k, key.as_bytes(), value, V).unwrap();
}

fn get(user: &User, k: Keyspace, key: &str) -> Option<Vec<u8>> {
    let mut out = vec![0; 1 << 20];
    let len = user.kv_get(k, key.as_bytes(), &mut out).unwrap()?;
    out.truncate(len as usize);
    Some(out)
}

fn content(user: &User, file: OfdLink) -> Vec<u8> {
    user.pread_vec(file, 1 << 20, 0)
}

fn stat_ino(user: &User, path: &str) -> u64 {
    let stat = user.stat(&ROOT, Base::Root, path.as_bytes(), 0);
    stat.unwrap().ino
}

/// Records that were journaled, and objects that the trees have.
fn journaled(user: &User) -> (u64, u64) {
    let h = user.session().header();
    let next = h.next_seq.load(SeqCst);
    drain::wait_applied(user.session(), next - 1).unwrap();
    (next, h.objects.load(SeqCst))
}

/// Values and files of all that is free are written over and over.
fn churn(user: &User, k: Keyspace) {
    for round in 0..6u8 {
        for n in 0..40 {
            put(user, k, &format!("churn-{n}"), &vec![0xcc; 600_000]);
            put(user, k, &format!("small-{n}"), &vec![0xdd; 4096]);
        }
        user.put("noise", &vec![round; 3_000_000]);
        journaled(user);
    }
}

/// Everything that looks at a file and changes nothing.
fn look(user: &User, path: &str, value: &[u8]) {
    let at = path.as_bytes();
    let shown = user.stat(&ROOT, Base::Root, at, 0).unwrap();
    assert_eq!((shown.size, shown.nlink), (value.len() as u64, 1));
    let file = user.open(path, O_RDONLY).unwrap();
    assert_eq!(user.fstat(file).unwrap(), shown, "{path}");
    assert_eq!(content(user, file), value, "{path}");
    let again = user.open(path, O_RDONLY | O_CREAT).unwrap();
    let handle = user.open(path, O_PATH).unwrap();
    for other in [again, handle] {
        assert_eq!(user.ino_of(other).unwrap(), shown.ino);
    }
    let mut page = [0xee; 100];
    assert_eq!(user.lseek(file, -1, SEEK_END).is_ok(), !value.is_empty());
    user.lseek(file, 0, SEEK_SET).unwrap();
    let n = user.read(file, MutBuf::from(&mut page[..])).unwrap();
    assert_eq!(page[..n], value[..n]);
    user.fsync(file).unwrap();
    user.fdatasync(file).unwrap();
    user.flock(file, LOCK_EX).unwrap();
    assert_eq!(
        user.flock(again, LOCK_EX | LOCK_NB),
        Err(Error::WouldBlock),
        "{path}"
    );
    user.access(&ROOT, Base::Root, at, R_OK | W_OK, 0).unwrap();
    let mut room = [0; 200];
    let target = || Target::Path {
        base: Base::Root,
        path: at,
        nofollow: false,
    };
    let list = user.listxattr(&ROOT, target(), MutBuf::from(&mut room[..]));
    assert_eq!(list, Ok(0));
    let none = user.getxattr(
        &ROOT,
        Target::Ofd(file),
        b"user.x",
        MutBuf::from(&mut room[..0]),
    );
    assert_eq!(none, Err(Error::NoAttribute));
    let link = user.readlink(&ROOT, Base::Root, at, MutBuf::from(&mut room[..]));
    assert_eq!(link, Err(Error::Invalid));
    assert_eq!(user.chdir(&ROOT, Base::Root, at), Err(Error::NotDirectory));
    let n = user.path_of(file, &mut room).unwrap();
    assert_eq!(room[..n], *format!("/{path}").as_bytes());
    let written = user.pwrite(file, ConstBuf::from(&b"x"[..]), 0);
    assert_eq!(written, Err(Error::BadDescriptor));
    assert_eq!(user.ftruncate(file, 0), Err(Error::Invalid));
    if !value.is_empty() {
        for shared in [false, true] {
            assert_eq!(mapped(user, file, shared, value.len()), value, "{path}");
        }
    }
    for ofd in [file, again, handle] {
        user.release(ofd).unwrap();
    }
}

/// What a mapping of the file shows.
fn mapped(user: &User, file: OfdLink, shared: bool, len: usize) -> Vec<u8> {
    let pin = user.map_pin(file, 1, shared).unwrap();
    let pieces = plan(user, pin, shared, len);
    let mut all = Vec::new();
    for piece in pieces {
        match piece {
            MapPiece::Data {
                segment_offset,
                len,
            } => {
                let mut piece = vec![0; len as usize];
                let data = user.session().data();
                data.read(segment_offset, &mut piece).unwrap();
                all.extend(piece);
            }
            MapPiece::Inline => {
                let mut page = [0; 4096];
                user.map_inline(pin, &mut page).unwrap();
                all.extend(page);
            }
            piece => panic!("{piece:?} in a value"),
        }
    }
    user.map_unpin(pin, false).unwrap();
    assert!(all[len..].iter().all(|byte| *byte == 0));
    all.truncate(len);
    all
}

fn plan(user: &User, pin: holdfast_client::MapPin, shared: bool, len: usize) -> Vec<MapPiece> {
    let mut pieces = Vec::new();
    let len = (len as u64).next_multiple_of(4096);
    user.map_plan(pin, 0, len, shared, &mut |piece| {
        pieces.push(piece);
        Ok(())
    })
    .unwrap();
    pieces
}

#[test]
fn reading_moves_nothing() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    for round in 0..2 {
        for len in LENS {
            let (key, value) = (format!("v{len}"), bytes(len, round));
            put(&user, k, &key, &value);
            if round == 1 {
                // Now it is found in the trees.
                journaled(&user);
            }
            let (before, free) = (
                user.session().header().next_seq.load(SeqCst),
                journaled(&user).1,
            );
            look(&user, &format!("ks/{key}"), &value);
            assert_eq!(user.session().header().next_seq.load(SeqCst), before);
            assert_eq!(journaled(&user).1, free);
            assert_eq!(get(&user, k, &key).unwrap(), value);
        }
    }
}

#[test]
fn what_was_opened_stays_whatever_becomes_of_its_key() {
    type Change = fn(&User, Keyspace, &[u8]);
    let changes: [Change; 5] = [
        |u, k, key| u.kv_put(k, key, b"new", V).unwrap(),
        |u, k, key| u.kv_erase(k, key, V).unwrap(),
        |u, k, key| {
            let mut all = Changes::default();
            all.erase_range(k, key, None).unwrap();
            u.kv_commit(all, V).unwrap();
        },
        |u, _, key| {
            let path = [&b"ks/"[..], key].concat();
            u.unlink(&ROOT, Base::Root, &path).unwrap();
        },
        |u, _, key| {
            u.put("other", b"renamed");
            let path = [&b"ks/"[..], key].concat();
            let to = (Base::Root, &path[..]);
            u.rename(&ROOT, (Base::Root, b"other"), to, 0).unwrap();
        },
    ];
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    let mut open = Vec::new();
    for (c, change) in changes.iter().enumerate() {
        for len in LENS {
            for in_trees in [false, true] {
                let value = bytes(len, c as u8);
                put(&user, k, "z", &value);
                if in_trees {
                    journaled(&user);
                }
                let file = user.open("ks/z", O_RDONLY).unwrap();
                let pin = user.map_pin(file, 1, true).unwrap();
                change(&user, k, b"z");
                let is_renamed = c == 4;
                let links = user.fstat(file).unwrap().nlink;
                assert_eq!(links, 0, "{c} {len}");
                let new = user.open("ks/z", O_RDONLY).map(|new| content(&user, new));
                match c {
                    0 => assert_eq!(new.unwrap(), b"new"),
                    _ if is_renamed => assert_eq!(new.unwrap(), b"renamed"),
                    _ => assert_eq!(new.unwrap_err(), Error::NotFound),
                }
                open.push((file, pin, value));
            }
        }
    }
    churn(&user, k);
    for (file, pin, value) in &open {
        assert!(content(&user, *file) == *value);
        if !value.is_empty() {
            assert!(mapped(&user, *file, true, value.len()) == *value);
        }
        user.map_unpin(*pin, false).unwrap();
        user.release(*file).unwrap();
    }
}

/// The blocks of `n` values of 1 MB that are put over while `user` has them open.
fn hold(user: &User, other: &User, n: usize) -> Vec<(OfdLink, Vec<u8>)> {
    let k = keyspace(user);
    let mut open = Vec::new();
    for i in 0..n {
        let value = bytes(1 << 20, i as u8);
        put(other, k, "large", &value);
        open.push((user.open("ks/large", O_RDONLY).unwrap(), value));
    }
    other.kv_erase(k, b"large", V).unwrap();
    journaled(other);
    open
}

/// Waits until a value of so many bytes can be put.
fn finds_room(user: &User, k: Keyspace, len: usize) {
    let value = vec![1; len];
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match user.kv_put(k, b"room", &value, V) {
            Ok(()) => break,
            Err(Error::NoSpace | Error::FileTooLarge) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(50));
            }
            other => panic!("{other:?}"),
        }
    }
    user.kv_erase(k, b"room", V).unwrap();
}

#[test]
fn blocks_come_back_when_they_are_closed_or_their_reader_is_killed() {
    let fixture = Fixture::new(64 << 20);
    let (user, other) = (fixture.user(), fixture.user());
    let k = keyspace(&user);
    for kill in [false, true] {
        let open = hold(&other, &user, 40);
        for n in 0.. {
            // What is left of the pool; the values that are open stay as they are.
            match user.kv_put(k, format!("fill-{n}").as_bytes(), &vec![9; 500_000], V) {
                Err(Error::NoSpace | Error::FileTooLarge) => {
                    assert!(n < 50, "held blocks were handed out");
                    break;
                }
                done => done.unwrap(),
            }
        }
        for (file, value) in &open {
            assert!(content(&other, *file) == *value);
        }
        if kill {
            other.die();
            assert!(slots::reap_dead(user.session()) > 0);
        } else {
            for (file, _) in open {
                other.release(file).unwrap();
            }
        }
        let mut all = Changes::default();
        all.erase_range(k, b"fill", None).unwrap();
        user.kv_commit(all, V).unwrap();
        finds_room(&user, k, 40 << 20);
        let h = user.session().header();
        assert_eq!(h.open_values_in_blocks.load(SeqCst), 0);
    }
}

#[test]
fn a_service_that_is_started_anew_keeps_what_is_open() {
    let mut fixture = Fixture::new(POOL);
    let mut user = fixture.user();
    let k = keyspace(&user);
    let mut open = hold(&user, &user, 10);
    for len in LENS {
        let value = bytes(len, 77);
        put(&user, k, &format!("v{len}"), &value);
        let file = user.open(&format!("ks/v{len}"), O_RDONLY).unwrap();
        open.push((file, value));
    }
    for round in 0..2 {
        fixture.stop();
        if round == 0 {
            // In the journal, while no service is there.
            for len in LENS {
                user.kv_erase(k, format!("v{len}").as_bytes(), V).unwrap();
            }
        }
        fixture.start();
        user.rejoin(&fixture.dir);
        churn(&user, k);
        for (file, value) in &open {
            assert!(content(&user, *file) == *value, "{}", value.len());
        }
    }
    for (file, _) in open {
        user.release(file).unwrap();
    }
    let mut all = Changes::default();
    all.erase_range(k, b"", None).unwrap();
    user.kv_commit(all, V).unwrap();
    finds_room(&user, k, 60 << 20);
}

#[test]
fn who_reads_goes_along_when_another_writes() {
    let fixture = Fixture::new(POOL);
    let (user, writer) = (fixture.user(), fixture.user());
    let k = keyspace(&user);
    for len in LENS {
        let (key, value) = (format!("v{len}"), bytes(len, 5));
        let path = format!("ks/{key}");
        put(&user, k, &key, &value);
        let file = user.open(&path, O_RDONLY).unwrap();
        let pin = user.map_pin(file, 1, true).unwrap();
        let before = plan(&user, pin, true, len.max(1));
        let ino = stat_ino(&user, &path);
        let written = writer.open(&path, O_RDWR).unwrap();
        assert_eq!(content(&user, file), value);
        writer.pwrite_all(written, b"WRITTEN", 0);
        let mut wanted = value.clone();
        wanted.splice(..len.min(7), *b"WRITTEN");
        assert_eq!(content(&user, file), wanted, "{len}");
        assert_eq!(get(&user, k, &key).unwrap(), wanted);
        let inos = [file, written].map(|ofd| user.fstat(ofd).unwrap().ino);
        assert_eq!(inos, [ino; 2]);
        assert_eq!(user.fstat(file).unwrap().nlink, 1);
        if len > 0 {
            // The mapping shows it, too.
            let after = plan(&user, pin, true, len);
            assert_eq!(before, after, "{len}");
        }
        user.map_unpin(pin, false).unwrap();
        // From now on it is an ordinary file with an ordinary life.
        put(&user, k, &key, b"put again");
        assert_eq!(content(&user, file), wanted);
        assert_eq!(user.fstat(file).unwrap().nlink, 0);
        for ofd in [file, written] {
            user.release(ofd).unwrap();
        }
        assert_eq!(user.get(&path), b"put again");
    }
}

#[test]
fn what_needs_an_inode_makes_one() {
    type Need = fn(&User, OfdLink, &str) -> Result<(), Error>;
    let needs: [Need; 7] = [
        |u, f, _| u.fchmod(&ROOT, f, 0o600),
        |u, f, _| u.fchown(&ROOT, f, (Some(7), None)),
        |u, f, _| u.futimens(&ROOT, f, [SetTime::At(5), SetTime::At(6)]),
        |u, f, _| {
            let value = ConstBuf::from(&b"x"[..]);
            u.setxattr(&ROOT, Target::Ofd(f), b"user.x", value, 0)
        },
        |u, _, path| u.chmod(&ROOT, Base::Root, path.as_bytes(), 0o600, 0),
        |u, f, path| {
            let old = (Base::Ofd(f), &b""[..]);
            let to = format!("{path}-linked");
            u.link(&ROOT, old, (Base::Root, to.as_bytes()), AT_EMPTY_PATH)
        },
        |u, _, path| u.truncate(&ROOT, Base::Root, path.as_bytes(), 3),
    ];
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    for (n, need) in needs.iter().enumerate() {
        for len in [5, 1000, 6000] {
            let (key, value) = (format!("v{n}-{len}"), bytes(len, 5));
            let path = format!("ks/{key}");
            put(&user, k, &key, &value);
            let file = user.open(&path, O_RDONLY).unwrap();
            let (before, objects) = (user.fstat(file).unwrap(), journaled(&user).1);
            need(&user, file, &path).unwrap();
            assert_eq!(journaled(&user).1, objects + 1, "{n}");
            let after = user.fstat(file).unwrap();
            let named = user.stat(&ROOT, Base::Root, path.as_bytes(), 0).unwrap();
            assert_eq!(after, named, "{n}");
            assert_eq!(before.ino, after.ino);
            assert_ne!(before, after, "{n}");
            let left = if n == 6 { &value[..3] } else { &value[..] };
            assert_eq!(content(&user, file), left, "{n}");
            user.release(file).unwrap();
        }
    }
}

#[test]
fn what_no_key_has_any_more_is_like_a_file_without_a_name() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    put(&user, k, "v", &bytes(6000, 1));
    let file = user.open("ks/v", O_RDONLY).unwrap();
    put(&user, k, "v", b"new");
    let (records, objects) = journaled(&user);
    user.fchmod(&ROOT, file, 0o600).unwrap();
    user.fchown(&ROOT, file, (Some(7), Some(8))).unwrap();
    user.futimens(&ROOT, file, [SetTime::At(5), SetTime::At(6)])
        .unwrap();
    let stat = user.fstat(file).unwrap();
    assert_eq!((stat.mode & 0o7777, stat.uid, stat.gid), (0o600, 7, 8));
    assert_eq!((stat.atime, stat.mtime, stat.nlink), (5, 6, 0));
    let old = (Base::Ofd(file), &b""[..]);
    let linked = user.link(&ROOT, old, (Base::Root, b"name"), AT_EMPTY_PATH);
    assert_eq!(linked, Err(Error::NotFound));
    let mut room = [0; 100];
    let n = user.path_of(file, &mut room).unwrap();
    assert_eq!(room[..n], *b"/ks/v (deleted)");
    assert_eq!(content(&user, file), bytes(6000, 1));
    assert_eq!(journaled(&user), (records, objects));
    user.release(file).unwrap();
}

/// Without a block left, and without room in the trees, what is there can be read.
#[test]
fn values_of_a_full_pool_can_be_opened() {
    let fixture = Fixture::new(16 << 20);
    let user = fixture.user();
    let k = keyspace(&user);
    let small = bytes(900, 3);
    for n in 0..100 {
        put(&user, k, &format!("small-{n}"), &small);
    }
    let large = vec![7; 20_000];
    let mut full = 0;
    while user
        .kv_put(k, format!("large-{full}").as_bytes(), &large, V)
        .is_ok()
    {
        full += 1;
    }
    while user
        .kv_put(k, format!("one-{full}").as_bytes(), &large[..4000], V)
        .is_ok()
    {
        full += 1;
    }
    for n in 0..100 {
        let file = user.open(&format!("ks/small-{n}"), O_RDONLY).unwrap();
        assert_eq!(content(&user, file), small);
        assert_eq!(mapped(&user, file, n % 2 == 0, 900), small);
        user.release(file).unwrap();
    }
    assert_eq!(user.get("ks/large-3"), large);
}

#[test]
fn very_many_are_opened_one_after_another_and_many_at_once() {
    const KEYS: usize = 1000;
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = keyspace(&user);
    let value = |n: usize| bytes(if n % 10 == 0 { 4000 } else { 100 }, n as u8);
    for n in 0..KEYS {
        put(&user, k, &format!("{n}"), &value(n));
    }
    let (records, objects) = journaled(&user);
    for i in 0..100_000 {
        let n = i * 7 % KEYS;
        let file = user.open(&format!("ks/{n}"), O_RDONLY).unwrap();
        if i % 16 == 0 {
            assert_eq!(content(&user, file), value(n));
        }
        user.release(file).unwrap();
    }
    let h = user.session().header();
    assert_eq!(h.open_values_used.load(SeqCst), 1);
    assert_eq!(journaled(&user), (records, objects));
    // Ten of each key, put over in between.
    let mut open = Vec::new();
    for version in 0..10 {
        for n in 0..KEYS {
            let value = bytes(if n % 10 == 0 { 4000 } else { 100 }, (n + version) as u8);
            put(&user, k, &format!("{n}"), &value);
            open.push((user.open(&format!("ks/{n}"), O_RDONLY).unwrap(), value));
        }
    }
    assert_eq!(h.open_values_used.load(SeqCst), 10 * KEYS as u32);
    for n in 0..KEYS {
        user.kv_erase(k, format!("{n}").as_bytes(), V).unwrap();
    }
    churn(&user, k);
    let mut inos: Vec<u64> = open
        .iter()
        .map(|(file, _)| user.ino_of(*file).unwrap())
        .collect();
    inos.sort_unstable();
    inos.dedup();
    assert_eq!(inos.len(), open.len());
    for (file, value) in open {
        assert!(content(&user, file) == value);
        user.release(file).unwrap();
    }
    assert_eq!(h.open_values_in_blocks.load(SeqCst), 0);
}

/// A value of this kind is of one byte only, and so is whatever was opened, twice.
#[test]
fn readers_see_one_value_while_others_put_write_and_erase() {
    let fixture = Fixture::new(POOL);
    let stop = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let changer = |seed: u64| {
            let user = fixture.user();
            let stop = &stop;
            move || {
                let k = keyspace(&user);
                let mut x = seed;
                while !stop.load(Relaxed) {
                    x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let (key, len) = (format!("k{}", x >> 60 & 3), LENS[(x >> 50) as usize % 7]);
                    let path = format!("ks/{key}");
                    match x >> 40 & 7 {
                        0 => user.kv_erase(k, key.as_bytes(), V).unwrap(),
                        1 => {
                            let mut all = Changes::default();
                            all.erase_range(k, b"k2", None).unwrap();
                            user.kv_commit(all, V).unwrap();
                        }
                        // A file now, and soon a value again.
                        2 => match user.open(&path, O_RDWR) {
                            Ok(file) => user.release(file).unwrap(),
                            Err(e) => assert_eq!(e, Error::NotFound),
                        },
                        _ => put(&user, k, &key, &vec![(x >> 32) as u8; len]),
                    }
                }
            }
        };
        let changers = [1, 2].map(|seed| scope.spawn(changer(seed)));
        let readers = [3u64, 4].map(|seed| {
            let (user, stop) = (fixture.user(), &stop);
            scope.spawn(move || {
                keyspace(&user);
                let (mut x, mut reads) = (seed, 0);
                let mut held: Vec<(OfdLink, Vec<u8>)> = Vec::new();
                while !stop.load(Relaxed) {
                    x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let Ok(file) = user.open(&format!("ks/k{}", x >> 60 & 3), O_RDONLY) else {
                        continue;
                    };
                    let found = content(&user, file);
                    assert!(found.iter().all(|byte| *byte == found[0]), "a mix");
                    held.push((file, found));
                    reads += 1;
                    if held.len() == 20 {
                        for (file, found) in held.drain(..) {
                            assert!(content(&user, file) == found, "it changed");
                            user.release(file).unwrap();
                        }
                    }
                }
                reads
            })
        });
        std::thread::sleep(Duration::from_secs(5));
        stop.store(true, Relaxed);
        for changer in changers {
            changer.join().unwrap();
        }
        readers.map(|reader| reader.join().unwrap())
    });
    assert!(reads.iter().all(|reads| *reads > 100), "{reads:?}");
}
