//! How long others wait while the service works at something huge.
//!
//! The story: one program does what takes the service long. Others join the session, write new
//! blocks, make files durable and ask for the pool's state, again and again, and each time it is
//! measured how long that takes.
//!
//! What is promised is 50 ms. `WAIT_MAX` leaves room for a machine that has others to serve; all of
//! the work in one go takes many times as long.

mod common;

use common::{Fixture, ROOT, User, join};
use holdfast_client::attach;
use holdfast_client::kv::{Changes, Durability};
use holdfast_pmem::ConstBuf;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

const WAIT_MAX: Duration = Duration::from_millis(400);
const POOL: u64 = 1 << 30;
const CREATE: u32 = 0o102;
const KEYS: u64 = 1_200_000;
const EXTENTS: i64 = 30_000;

/// What one test does is not to make another one's calls wait.
static ALONE: Mutex<()> = Mutex::new(());

/// The longest of each kind of call, and how many there were.
#[derive(Debug, Default)]
struct Waits {
    attach: Duration,
    status: Duration,
    write: Duration,
    sync: Duration,
    rounds: u32,
}

fn timed<T>(longest: &mut Duration, call: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let value = call();
    *longest = begun.elapsed().max(*longest);
    value
}

/// Other programs, until `done`.
fn others(dir: &Path, done: &AtomicBool) -> Waits {
    let (user, mut waits) = (join(dir), Waits::default());
    let pool = dir.as_os_str().as_encoded_bytes();
    let file = user.open("others", CREATE).unwrap();
    let block = vec![7; 256 << 10];
    loop {
        let at = i64::from(waits.rounds % 256) * block.len() as i64;
        drop(timed(&mut waits.attach, || {
            attach::attach(pool, None).unwrap()
        }));
        timed(&mut waits.status, || attach::status(pool).unwrap());
        timed(&mut waits.write, || {
            user.pwrite(file, ConstBuf::from(&block[..]), at).unwrap()
        });
        timed(&mut waits.sync, || user.fsync(file).unwrap());
        waits.rounds += 1;
        if done.load(Acquire) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    user.release(file).unwrap();
    waits
}

/// Runs the work beside others.
fn beside(fixture: &Fixture, what: &str, work: impl FnOnce()) {
    let (done, begun) = (AtomicBool::new(false), Instant::now());
    let waits = std::thread::scope(|scope| {
        let others = scope.spawn(|| others(&fixture.dir, &done));
        work();
        done.store(true, Release);
        others.join().unwrap()
    });
    eprintln!("{what}: {:?}, {waits:?}", begun.elapsed());
    for wait in [waits.attach, waits.status, waits.write, waits.sync] {
        assert!(wait < WAIT_MAX, "{what}: {waits:?}");
    }
}

fn settled(user: &User) {
    let taken = user.session().header().next_seq.load(SeqCst);
    holdfast_client::drain::wait_applied(user.session(), taken - 1).unwrap();
}

#[test]
fn nobody_waits_for_a_batch_of_very_many_puts_nor_for_their_end() {
    let _alone = ALONE.lock().unwrap();
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let k = user.keyspace(&ROOT, b"ks", true).unwrap();
    let mut changes = Changes::default();
    for i in 0..KEYS {
        let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        changes.put(&user, k, &key, &[5; 16]).unwrap();
    }
    beside(&fixture, "a batch", || {
        user.kv_commit(changes, Durability::Durable).unwrap();
    });
    let mut changes = Changes::default();
    changes.erase_range(k, b"", None).unwrap();
    beside(&fixture, "a range", || {
        user.kv_commit(changes, Durability::Durable).unwrap();
        settled(&user);
    });
}

#[test]
fn nobody_waits_for_a_file_of_many_extents_that_is_cut() {
    let _alone = ALONE.lock().unwrap();
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let file = user.open("file", CREATE).unwrap();
    for i in 0..EXTENTS {
        user.pwrite(file, ConstBuf::from(&[1; 4096][..]), i * 8192)
            .unwrap();
    }
    user.fsync(file).unwrap();
    settled(&user);
    const PUNCH: u32 = 3;
    beside(&fixture, "a punch", || {
        let (at, len) = (8192 * 10, 8192 * (EXTENTS / 2));
        user.fallocate(file, PUNCH, at, len).unwrap();
        settled(&user);
    });
    beside(&fixture, "a truncation", || {
        user.ftruncate(file, 5 * 8192).unwrap();
        settled(&user);
    });
    let stat = user.fstat(file).unwrap();
    assert_eq!((stat.size, stat.blocks), (5 * 8192, 5 * 8));
    user.release(file).unwrap();
}
