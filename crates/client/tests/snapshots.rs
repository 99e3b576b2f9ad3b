//! Snapshots of a pool that is being written to.
//!
//! The story: files change in every way that a program knows, by two users; snapshots come and go.
//! What each snapshot shows is compared with a copy that a model made when it was taken, and the
//! pool is checked in the end.

mod common;

use common::{Fixture, ROOT, User, pool_of, read};
use holdfast_client::attach;
use holdfast_client::kv::Durability;
use holdfast_client::{Base, Client, Error, MapPiece, SetTime, abi};
use holdfast_pmem::{ConstBuf, MutBuf};
use holdfast_pool::format::superblock::Consistency;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

type Files = BTreeMap<String, Vec<u8>>;

fn contents(c: &Client, path: &str) -> Vec<u8> {
    let file = c.open(&ROOT, Base::Root, path.as_bytes(), 0, 0, 0).unwrap();
    let size = c.fstat(file).unwrap().size as usize;
    let mut out = vec![0xee; size + 1];
    let n = c.pread(file, MutBuf::from(&mut out[..]), 0).unwrap();
    c.release(file).unwrap();
    assert_eq!(n, size);
    out.truncate(n);
    out
}

fn names(c: &Client) -> Vec<String> {
    let file = c.open(&ROOT, Base::Root, b".", abi::O_DIRECTORY, 0, 0);
    let file = file.unwrap();
    let mut all = Vec::new();
    let mut out = vec![0; 4096];
    loop {
        let format = holdfast_client::DirentFormat::Linux64;
        let n = c
            .getdents(file, MutBuf::from(&mut out[..]), format)
            .unwrap();
        let mut at = 0;
        while at < n {
            let len = u16::from_le_bytes([out[at + 16], out[at + 17]]) as usize;
            let name = out[at + 19..at + len].split(|b| *b == 0).next().unwrap();
            all.push(String::from_utf8(name.to_vec()).unwrap());
            at += len;
        }
        if n == 0 {
            break;
        }
    }
    c.release(file).unwrap();
    all.retain(|name| name != "." && name != "..");
    all.sort();
    all
}

/// The snapshot has exactly these files.
fn assert_has(fixture: &Fixture, snapshot: &str, files: &Files) {
    let reading = read(fixture, snapshot);
    assert_eq!(
        names(&reading.client),
        files.keys().cloned().collect::<Vec<_>>()
    );
    for (path, bytes) in files {
        let found = contents(&reading.client, path);
        let same = found == *bytes;
        let at = found.iter().zip(bytes).position(|(a, b)| a != b);
        let lens = (found.len(), bytes.len());
        assert!(
            same,
            "{snapshot}: {path} differs at {at:?}, lengths {lens:?}"
        );
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 20) % n
    }

    fn size(&mut self) -> usize {
        match self.below(6) {
            0 => self.below(500) as usize,
            1 | 2 => self.below(5000) as usize,
            3 => self.below(8) as usize * 4096,
            4 => self.below(60_000) as usize,
            _ => self.below(3_000_000) as usize,
        }
    }
}

fn put_at(bytes: &mut Vec<u8>, at: usize, with: &[u8]) {
    if with.is_empty() {
        return;
    }
    if bytes.len() < at + with.len() {
        bytes.resize(at + with.len(), 0);
    }
    bytes[at..at + with.len()].copy_from_slice(with);
}

/// One random change of one random file, done by `user` and by the model.
fn change(user: &User, files: &mut Files, rng: &mut Random) {
    let path = format!("f{}", rng.below(10));
    match rng.below(12) {
        0 => {
            let gone = user.client.unlink(&ROOT, Base::Root, path.as_bytes());
            assert_eq!(gone.is_ok(), files.remove(&path).is_some());
            return;
        }
        1 => {
            let to = format!("f{}", rng.below(10));
            let (old, new) = ((Base::Root, path.as_bytes()), (Base::Root, to.as_bytes()));
            let moved = user.client.rename(&ROOT, old, new, 0);
            assert_eq!(moved.is_ok(), files.contains_key(&path));
            if let Some(bytes) = files.remove(&path) {
                files.insert(to, bytes);
            }
            return;
        }
        _ => {}
    }
    let file = user.create(&path);
    let bytes = files.entry(path).or_default();
    let len = bytes.len();
    match rng.below(10) {
        0 => {
            let size = rng.size();
            user.client.ftruncate(file, size as i64).unwrap();
            bytes.resize(size, 0);
        }
        1 => {
            let (from, n) = (rng.below(len as u64 + 1), 1 + rng.size() as u64);
            let mode = abi::FALLOC_FL_PUNCH_HOLE | abi::FALLOC_FL_KEEP_SIZE;
            user.client
                .fallocate(file, mode, from as i64, n as i64)
                .unwrap();
            let end = (from + n).min(len as u64) as usize;
            bytes[(from as usize).min(end)..end].fill(0);
        }
        2 => {
            let (from, n) = (rng.below(len as u64 + 1), 1 + rng.size() as u64);
            let mode = abi::FALLOC_FL_ZERO_RANGE;
            user.client
                .fallocate(file, mode, from as i64, n as i64)
                .unwrap();
            put_at(bytes, from as usize, &vec![0; n as usize]);
        }
        3 | 4 => {
            let with = vec![1 + rng.below(255) as u8; rng.size()];
            user.pwrite_all(file, &with, len as i64);
            put_at(bytes, len, &with);
        }
        _ => {
            let at = rng.below(len as u64 + 5000) as usize;
            let with = vec![1 + rng.below(255) as u8; rng.size()];
            user.pwrite_all(file, &with, at as i64);
            put_at(bytes, at, &with);
        }
    }
    user.client.release(file).unwrap();
}

fn against_the_model(consistency: Consistency, seed: u64) {
    let mut fixture = Fixture::with(1 << 30, consistency);
    let mut rng = Random(seed);
    let (mut files, mut kept): (Files, BTreeMap<String, Files>) = Default::default();
    for round in 0..3 {
        {
            let users = [fixture.user(), fixture.user()];
            for step in 0..40 {
                for _ in 0..=rng.below(6) {
                    change(&users[rng.below(2) as usize], &mut files, &mut rng);
                }
                if rng.below(3) == 0 {
                    let name = format!("s{round}-{step}");
                    let taken = users[0].snapshot_create(pool_of(&fixture), name.as_bytes());
                    taken.unwrap_or_else(|e| panic!("{name}: {e}"));
                    kept.insert(name, files.clone());
                }
                if kept.len() > 4 || (rng.below(8) == 0 && !kept.is_empty()) {
                    let at = rng.below(kept.len() as u64) as usize;
                    let name = kept.keys().nth(at).unwrap().clone();
                    let gone = users[1].snapshot_delete(pool_of(&fixture), name.as_bytes());
                    gone.unwrap_or_else(|e| panic!("{name}: {e}"));
                    kept.remove(&name);
                }
                if step % 10 == 9 {
                    kept.iter()
                        .for_each(|(name, files)| assert_has(&fixture, name, files));
                }
            }
            for (path, bytes) in &files {
                assert!(users[0].get(path) == *bytes, "{path}");
            }
            let list = users[0].snapshot_list().unwrap();
            assert_eq!(list.len(), kept.len());
            assert!(list.windows(2).all(|two| two[0].time_ns <= two[1].time_ns));
        }
        fixture.stop();
        fixture.check();
        fixture.start();
        kept.iter()
            .for_each(|(name, files)| assert_has(&fixture, name, files));
    }
}

#[test]
fn each_snapshot_shows_what_was_there() {
    against_the_model(Consistency::Posix, 41);
}

#[test]
fn each_snapshot_shows_what_was_there_with_atomic_writes() {
    against_the_model(Consistency::Strict, 42);
}

/// A program writes the same number to one file and then to another, over and over. Whatever
/// moment a snapshot keeps, the second file is never ahead, and no write is half there.
#[test]
fn a_snapshot_is_one_moment() {
    const LEN: usize = 20_000;
    let fixture = Fixture::new(256 << 20);
    let (a, b) = (fixture.user(), fixture.user());
    let files = ["first", "second"].map(|name| a.create(name));
    for file in files {
        a.pwrite_all(file, &[0; LEN], 0);
    }
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut moving = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 1.. {
                let bytes: Vec<u8> = (i as u32).to_le_bytes().repeat(LEN / 4);
                files.iter().for_each(|f| a.pwrite_all(*f, &bytes, 0));
                count.store(i, Relaxed);
                if stop.load(Relaxed) {
                    return;
                }
            }
        });
        for round in 0..60 {
            let before = count.load(Relaxed);
            while count.load(Relaxed) == before {}
            let name = format!("s{round}");
            b.snapshot_create(pool_of(&fixture), name.as_bytes())
                .unwrap();
            let reading = read(&fixture, &name);
            let [first, second] = ["first", "second"].map(|path| {
                let bytes = contents(&reading.client, path);
                let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
                assert!(
                    bytes == number.to_le_bytes().repeat(LEN / 4),
                    "a torn write"
                );
                u64::from(number)
            });
            assert!(second <= first && first <= second + 1, "{first} {second}");
            assert!(second >= before, "{second} is older than {before}");
            moving += u64::from(first != second);
            drop(reading);
            if round % 3 == 2 {
                b.snapshot_delete(pool_of(&fixture), name.as_bytes())
                    .unwrap();
            }
        }
        stop.store(true, Relaxed);
    });
    assert!(count.load(Relaxed) > 60 && moving > 0, "{moving}");
    a.client.release(files[0]).unwrap();
    a.client.release(files[1]).unwrap();
}

#[test]
fn space_comes_back_with_the_last_snapshot_that_has_it() {
    let fixture = Fixture::new(256 << 20);
    let user = fixture.user();
    user.put("file", &vec![1; 64 << 20]);
    let free = || {
        // What is freed is held back for readers for some commits.
        for i in 0..40 {
            user.put("other", &[i; 10]);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        std::thread::sleep(std::time::Duration::from_millis(300));
        user.client.statfs().unwrap().free >> 8
    };
    // In MiB, give or take what the session has been granted at the moment.
    let before = free();
    for name in [b"a", b"b"] {
        user.snapshot_create(pool_of(&fixture), name).unwrap();
    }
    user.client.unlink(&ROOT, Base::Root, b"file").unwrap();
    let kept = free();
    assert!(kept < before + 32, "{kept} after {before}");
    user.snapshot_delete(pool_of(&fixture), b"a").unwrap();
    let kept = free();
    assert!(kept < before + 32, "b has it still: {kept} after {before}");
    user.snapshot_delete(pool_of(&fixture), b"b").unwrap();
    let back = (0..20).any(|_| free() > before + 32);
    assert!(back, "{} after {before}", free());
}

#[test]
fn nothing_can_be_changed_in_a_snapshot() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    user.put("small", b"inline");
    user.put("large", &[7; 10_000]);
    user.client.mkdir(&ROOT, Base::Root, b"dir", 0o755).unwrap();
    let before = user.client.stat(&ROOT, Base::Root, b"small", 0).unwrap();
    user.snapshot_create(pool_of(&fixture), b"s").unwrap();
    let reading = read(&fixture, "s");
    let c = &reading.client;
    let open = |path: &str, flags| c.open(&ROOT, Base::Root, path.as_bytes(), flags, 0o644, 0);
    let at = |path: &'static str| (Base::Root, path.as_bytes());
    for flags in [
        abi::O_WRONLY,
        abi::O_RDWR,
        abi::O_TRUNC,
        abi::O_RDWR | abi::O_CREAT,
    ] {
        assert!(
            matches!(open("large", flags), Err(Error::ReadOnly)),
            "{flags:o}"
        );
    }
    let refused = [
        open("new", abi::O_CREAT).map(drop),
        c.mkdir(&ROOT, Base::Root, b"new", 0o755),
        c.symlink(&ROOT, b"x", Base::Root, b"new"),
        c.link(&ROOT, at("small"), at("new"), 0),
        c.rename(&ROOT, at("small"), at("new"), 0),
        c.unlink(&ROOT, Base::Root, b"small"),
        c.rmdir(&ROOT, Base::Root, b"dir"),
        c.chmod(&ROOT, Base::Root, b"small", 0o600, 0),
        c.truncate(&ROOT, Base::Root, b"large", 5),
        c.utimens(&ROOT, Base::Root, b"small", [SetTime::Now; 2], 0),
    ];
    for (i, done) in refused.iter().enumerate() {
        assert!(matches!(done, Err(Error::ReadOnly)), "{i}: {done:?}");
    }
    let file = open("small", abi::O_RDONLY).unwrap();
    c.fsync(file).unwrap();
    c.release(file).unwrap();
    c.sync().unwrap();
    assert_eq!(contents(c, "small"), b"inline");
    assert_eq!(c.stat(&ROOT, Base::Root, b"small", 0).unwrap(), before);
    let missing = attach::attach_snapshot(pool_of(&fixture), b"t").unwrap_err();
    assert_eq!(missing.errno(), 2);
}

/// A value that tells which key and which version it is of.
fn value_of(key: usize, version: usize, len: usize) -> Vec<u8> {
    let word = (key * 31 + version) as u64;
    let bytes = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..len).map(|i| bytes[i % 8] ^ (i / 8) as u8).collect()
}

/// However a value of more than 50 bytes is looked at.
fn assert_shown_alike(c: &Client, path: &str, wanted: &[u8]) {
    let path = path.as_bytes();
    let file = c
        .open(&ROOT, Base::Root, path, abi::O_RDONLY, 0, 0)
        .unwrap();
    let shown = c.stat(&ROOT, Base::Root, path, 0).unwrap();
    assert_eq!(c.fstat(file).unwrap(), shown);
    let (len, mut out) = (wanted.len(), [0xee; 100]);
    let n = c
        .pread(file, MutBuf::from(&mut out[..]), len as i64 - 50)
        .unwrap();
    assert_eq!(out[..n], wanted[len - 50..]);
    assert_eq!(c.lseek(file, 0, abi::SEEK_HOLE).unwrap(), len as u64);
    let pin = c.map_pin(file, 1, false).unwrap();
    let mut inline = false;
    c.map_plan(pin, 0, 4096, false, &mut |piece| {
        inline |= piece == MapPiece::Inline;
        Ok(())
    })
    .unwrap();
    assert_eq!(inline, len < 1920);
    if inline {
        let mut page = [0; 4096];
        let n = c.map_inline(pin, &mut page).unwrap();
        assert_eq!(page[..n], *wanted);
    }
    c.map_unpin(pin, false).unwrap();
    c.release(file).unwrap();
}

#[test]
fn the_values_of_a_snapshot_are_files() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    let keyspaces = [&b"a"[..], b"b"].map(|name| user.keyspace(&ROOT, name, true).unwrap());
    let lens = [0, 1, 300, 512, 513, 1900, 1930, 4096, 9000, 700_000];
    let len = |i: usize| lens[if i < 40 { i % lens.len() } else { i % 5 }];
    let put = |version| {
        for (n, k) in keyspaces.iter().enumerate() {
            for i in 0..400 {
                let value = value_of(i * 2 + n, version, len(i));
                let key = format!("value-{i:03}");
                user.kv_put(*k, key.as_bytes(), &value, Durability::Volatile)
                    .unwrap();
            }
        }
    };
    put(0);
    // One of them is a file before.
    let early = user.open("a/value-007", abi::O_RDWR).unwrap();
    user.release(early).unwrap();
    user.snapshot_create(pool_of(&fixture), b"s").unwrap();
    put(1);
    let reading = read(&fixture, "s");
    let c = &reading.client;
    for (n, dir) in ["a", "b"].iter().enumerate() {
        for i in 0..400 {
            let path = format!("{dir}/value-{i:03}");
            let wanted = value_of(i * 2 + n, 0, len(i));
            assert_eq!(contents(c, &path), wanted, "{path}");
            // Again, by what is known of it now.
            assert_eq!(contents(c, &path), wanted, "{path}");
            let live = contents(&user.client, &path);
            assert_eq!(live, value_of(i * 2 + n, 1, len(i)), "{path}");
        }
    }
    let open = |path: &str, flags| c.open(&ROOT, Base::Root, path.as_bytes(), flags, 0, 0);
    for i in [2, 5, 8] {
        let wanted = value_of(i * 2 + 1, 0, len(i));
        assert_shown_alike(c, &format!("b/value-{i:03}"), &wanted);
    }
    for flags in [abi::O_RDWR, abi::O_TRUNC, abi::O_WRONLY | abi::O_CREAT] {
        let refused = open("b/value-003", flags);
        assert!(matches!(refused, Err(Error::ReadOnly)), "{refused:?}");
    }
    let removed = c.unlink(&ROOT, Base::Root, b"b/value-003");
    assert!(matches!(removed, Err(Error::ReadOnly)), "{removed:?}");
    let missing = open("b/value-999", abi::O_RDONLY);
    assert!(matches!(missing, Err(Error::NotFound)), "{missing:?}");
    assert_eq!(contents(c, "b/value-003"), value_of(7, 0, len(3)));
}

/// A value that is mapped becomes a file, and what is written to it is not in the snapshot.
#[test]
fn a_mapped_value_of_a_snapshot_is_not_written_to() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    let k = user.keyspace(&ROOT, b"k", true).unwrap();
    for (i, len) in [300, 1900, 9000, 700_000].into_iter().enumerate() {
        let (value, path) = (value_of(i, 0, len), format!("k/{i}"));
        let key = i.to_string();
        user.kv_put(k, key.as_bytes(), &value, Durability::Volatile)
            .unwrap();
        let early = i % 2 == 0;
        let pin = |user: &User| {
            let file = user.open(&path, abi::O_RDONLY).unwrap();
            (file, user.map_pin(file, 1, true).unwrap())
        };
        let before = early.then(|| pin(&user));
        let name = format!("s{i}");
        user.snapshot_create(pool_of(&fixture), name.as_bytes())
            .unwrap();
        let (file, pin) = before.unwrap_or_else(|| pin(&user));
        let written = user.open(&path, abi::O_RDWR).unwrap();
        user.pwrite_all(written, &vec![0xee; len], 0);
        assert_eq!(user.pread_vec(file, len, 0), vec![0xee; len]);
        let reading = read(&fixture, &name);
        assert_eq!(contents(&reading.client, &path), value, "{len}");
        user.map_unpin(pin, false).unwrap();
        for ofd in [file, written] {
            user.release(ofd).unwrap();
        }
        assert_eq!(contents(&reading.client, &path), value, "{len}");
    }
}

#[test]
fn a_snapshot_in_use_is_not_deleted() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    user.snapshot_create(pool_of(&fixture), b"s").unwrap();
    let again = user.snapshot_create(pool_of(&fixture), b"s").unwrap_err();
    assert_eq!(again.errno(), 17);
    let reading = read(&fixture, "s");
    let refused = user.snapshot_delete(pool_of(&fixture), b"s").unwrap_err();
    assert_eq!(refused.errno(), 16, "{refused}");
    drop(reading);
    user.snapshot_delete(pool_of(&fixture), b"s").unwrap();
    let gone = user.snapshot_delete(pool_of(&fixture), b"s").unwrap_err();
    assert_eq!(gone.errno(), 2);
    let bad = user.snapshot_create(pool_of(&fixture), b"a/b").unwrap_err();
    assert_eq!(bad.errno(), 22);
}

/// Nobody may take a snapshot who does not keep others from writing.
#[test]
fn a_request_without_the_lock_is_refused() {
    use holdfast_pool::protocol::{Name, Request};
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    let name = Name::new(b"s").unwrap();
    for owner in [0, 1, u32::MAX] {
        let request = Request::SnapshotCreate { name, owner };
        let refused = attach::request(pool_of(&fixture), request).unwrap_err();
        assert_eq!(refused.errno(), 11);
    }
    user.put("file", b"writes go on");
    assert!(user.snapshot_list().unwrap().is_empty());
}

fn first_block(c: &Client, path: &str, shared: bool) -> u64 {
    let file = c.open(&ROOT, Base::Root, path.as_bytes(), abi::O_RDWR, 0, 0);
    let file = file.unwrap();
    let pin = c.map_pin(file, 3, shared).unwrap();
    let mut first = None;
    c.map_plan(pin, 0, 4096, shared, &mut |piece| {
        if let MapPiece::Data { segment_offset, .. } = piece {
            first = first.or(Some(segment_offset));
        }
        Ok(())
    })
    .unwrap();
    c.map_unpin(pin, false).unwrap();
    c.release(file).unwrap();
    first.unwrap()
}

#[test]
fn a_file_gets_blocks_of_its_own_before_it_is_mapped_for_sharing() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    user.put("file", &[7; 8192]);
    let old = first_block(&user.client, "file", true);
    assert_eq!(first_block(&user.client, "file", true), old);
    user.snapshot_create(pool_of(&fixture), b"s").unwrap();
    assert_eq!(first_block(&user.client, "file", false), old);
    let new = first_block(&user.client, "file", true);
    assert_ne!(new, old);
    assert_eq!(first_block(&user.client, "file", true), new);
    // In place now: the snapshot has the old block.
    let file = user.create("file");
    let bytes = [9; 8192];
    let n = user.client.pwrite(file, ConstBuf::from(&bytes[..]), 0);
    assert_eq!(n.unwrap(), 8192);
    user.client.release(file).unwrap();
    assert_eq!(first_block(&user.client, "file", true), new);
    assert_eq!(contents(&read(&fixture, "s").client, "file"), [7; 8192]);
}

/// Behind the end of a file may be blocks that it alone has, and others that a snapshot has, too. A
/// write that begins in the former does not lose what it wrote when it comes to the latter.
#[test]
fn a_write_behind_the_end_over_blocks_of_both_kinds() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    let file = user.create("file");
    let allocate = |from: i64, len: i64| {
        let done = user.fallocate(file, abi::FALLOC_FL_KEEP_SIZE, from, len);
        done.unwrap();
    };
    user.pwrite_all(file, &[1; 5000], 0);
    allocate(40 << 12, 4 << 12);
    user.fsync(file).unwrap();
    user.snapshot_create(pool_of(&fixture), b"s").unwrap();
    allocate(36 << 12, 4 << 12);
    let bytes = vec![7; 8 << 12];
    user.pwrite_all(file, &bytes, 36 << 12);
    assert!(user.pread_vec(file, bytes.len(), 36 << 12) == bytes);
    let gap = user.pread_vec(file, (36 << 12) - 5000, 5000);
    assert!(gap.iter().all(|byte| *byte == 0));
}
