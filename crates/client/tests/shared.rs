//! Several threads and several processes on the same files.

mod common;

use common::{Fixture, User};
use holdfast_client::abi::*;
use holdfast_pmem::ConstBuf;
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const POOL: u64 = 128 << 20;
const RECORD: usize = 53;
const RECORDS: u32 = 400;

/// Names the pool to the children that this test program starts of itself.
const POOL_VARIABLE: &str = "HF_TEST_POOL";
const WRITER_VARIABLE: &str = "HF_TEST_WRITER";

fn record(writer: u32, n: u32) -> Vec<u8> {
    let mut r = format!("{writer:04} {n:08} ").into_bytes();
    r.resize(RECORD - 1, b'a' + (n % 26) as u8);
    r.push(b'\n');
    r
}

fn append_all(user: &User, writer: u32, records: u32) {
    let ofd = user.open("log", O_CREAT | O_WRONLY | O_APPEND).unwrap();
    for n in 0..records {
        let r = record(writer, n);
        assert_eq!(user.write(ofd, ConstBuf::from(&r[..])).unwrap(), r.len());
    }
    user.release(ofd).unwrap();
}

/// Each record is whole, and each writer's records are in its order; how many there are of each.
fn judge(bytes: &[u8]) -> HashMap<u32, u32> {
    assert_eq!(bytes.len() % RECORD, 0);
    let mut next: HashMap<u32, u32> = HashMap::new();
    for r in bytes.chunks(RECORD) {
        let text = std::str::from_utf8(r).unwrap();
        let writer: u32 = text[..4].parse().unwrap();
        let n = next.entry(writer).or_default();
        assert_eq!(r, record(writer, *n));
        *n += 1;
    }
    next
}

#[test]
fn appends_of_threads_neither_mix_nor_vanish() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let user = &user;
            scope.spawn(move || append_all(user, writer, RECORDS));
        }
    });
    let counts = judge(&user.get("log"));
    assert!((0..4).all(|w| counts[&w] == RECORDS), "{counts:?}");
}

#[test]
fn readers_never_see_a_hole_where_a_file_is_cut() {
    const LEN: usize = 64 * 4096;
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    user.put("cut", &[7; LEN]);
    let ofd = user.open("cut", O_RDWR).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (user, done) = (&user, &done);
        let reader = scope.spawn(move || {
            let mut reads = 0;
            while !done.load(Relaxed) || reads == 0 {
                // From the last block on: that is where size and blocks have to agree.
                let bytes = user.pread_vec(ofd, 4096, LEN as i64 - 4096);
                assert!(bytes.iter().all(|b| *b == 7), "after {reads} reads");
                reads += 1;
            }
        });
        for _ in 0..20_000 {
            user.ftruncate(ofd, LEN as i64 - 5000).unwrap();
            user.pwrite_all(ofd, &[7; 5000], LEN as i64 - 5000);
            if reader.is_finished() {
                break;
            }
        }
        done.store(true, Relaxed);
    });
}

/// What a child does; not a test of its own.
#[test]
fn child_appends() {
    let (Some(dir), Some(writer)) = (
        std::env::var_os(POOL_VARIABLE),
        std::env::var(WRITER_VARIABLE).ok(),
    ) else {
        return;
    };
    let user = common::join(&PathBuf::from(dir));
    append_all(&user, writer.parse().unwrap(), RECORDS);
    holdfast_client::slots::exit(user.session(), true);
}

fn child(fixture: &Fixture, writer: u32) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_appends", "-q"])
        .env(POOL_VARIABLE, &fixture.dir)
        .env(WRITER_VARIABLE, writer.to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn appends_of_processes_neither_mix_nor_vanish() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let children: Vec<_> = (1..4).map(|w| child(&fixture, w)).collect();
    append_all(&user, 0, RECORDS);
    for mut c in children {
        assert!(c.wait().unwrap().success());
    }
    let counts = judge(&user.get("log"));
    assert!((0..4).all(|w| counts[&w] == RECORDS), "{counts:?}");
}

#[test]
fn a_killed_process_leaves_whole_records_and_no_lock() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    for round in 0..12u32 {
        let mut killed = child(&fixture, 100 + round);
        while user
            .open("log", O_RDONLY)
            .map(|f| user.release(f).unwrap())
            .is_err()
        {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(u64::from(20 + round * 3)));
        killed.kill().unwrap();
        killed.wait().unwrap();
        append_all(&user, round, 20);
    }
    let counts = judge(&user.get("log"));
    assert!((0..12).all(|w| counts[&w] == 20), "{counts:?}");
}

#[test]
fn threads_that_make_and_move_names_agree_in_the_end() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let root = common::ROOT;
    let base = holdfast_client::Base::Root;
    for dir in ["x", "y"] {
        user.mkdir(&root, base, dir.as_bytes(), 0o755).unwrap();
    }
    std::thread::scope(|scope| {
        for t in 0..4u32 {
            let user = &user;
            scope.spawn(move || {
                for n in 0..200 {
                    let (a, b) = (format!("x/{t}-{n}"), format!("y/{t}-{n}"));
                    user.put(&a, format!("{t} {n}").as_bytes());
                    user.rename(&root, (base, a.as_bytes()), (base, b.as_bytes()), 0)
                        .unwrap();
                    // All threads fight for one name.
                    let _ = user.rename(&root, (base, b.as_bytes()), (base, b"y/one"), 0);
                    if n % 3 == 0 {
                        let _ = user.unlink(&root, base, b"y/one");
                    }
                }
            });
        }
    });
    assert_eq!(user.names("x").len(), 2);
    let names = user.names("y");
    assert!(names.len() <= 3, "{names:?}");
    let stat = user.stat(&root, base, b"y", 0).unwrap();
    assert_eq!((stat.nlink, stat.size), (2, 20 * names.len() as u64));
}

#[test]
fn readers_of_a_growing_file_see_only_what_was_written() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let ofd = user.create("grow");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let bytes = user.pread_vec(ofd, 1 << 20, 0);
                    let wrong = bytes
                        .iter()
                        .enumerate()
                        .find(|(i, b)| **b != (*i / 777) as u8);
                    assert_eq!(wrong, None);
                }
            });
        }
        for round in 0..20 {
            for n in 0..300usize {
                user.pwrite_all(ofd, &[n as u8; 777], (n * 777) as i64);
            }
            if round % 2 == 0 {
                user.ftruncate(ofd, 0).unwrap();
                // Another file takes the blocks, if they are free for it.
                user.put("other", &[0xaa; 200_000]);
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
