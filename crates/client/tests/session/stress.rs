//! Story: several processes do everything to a small tree of files, and are killed at any moment.
//! What the session then says about the tree is exactly what the pool says after a restart, and
//! the pool's checker finds nothing.

use crate::fixture::{ROOT, Random, TestPool};
use crate::{CREATE, content, list};
use holdfast_client::{Base, Client, Error, slots};
use holdfast_pmem::ConstBuf;
use holdfast_pool::format::superblock::Consistency;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const DIRS: u64 = 4;
const NAMES: u64 = 6;
/// The tree only grows, by names moved into each other: more records fill the pool.
const RECORDS_MAX: u64 = 60_000;

fn name(random: &mut Random) -> String {
    let (d, n) = (random.below(DIRS), random.below(NAMES));
    match random.below(5) {
        0 => format!("d{d}"),
        1 => format!("d{d}/sub{}/n{n}", random.below(2)),
        2 => format!("d{d}/sub{}", random.below(2)),
        _ => format!("d{d}/n{n}"),
    }
}

/// Errors that are an answer; anything else is a failure of the session.
fn allowed(result: Result<(), Error>, what: &str) {
    match result {
        Ok(()) => {}
        Err(
            Error::NotFound
            | Error::Exists
            | Error::NotDirectory
            | Error::IsDirectory
            | Error::NotEmpty
            | Error::Invalid
            | Error::NotPermitted
            | Error::Stale
            | Error::Busy,
        ) => {}
        Err(e) => panic!("{what}: {e:?}"),
    }
}

/// One random operation.
fn step(c: &Client, random: &mut Random) {
    let (a, b) = (name(random), name(random));
    let pair = ((Base::Root, a.as_bytes()), (Base::Root, b.as_bytes()));
    let what = random.below(12);
    let done = match what {
        0 | 1 => c.mkdir(&ROOT, Base::Root, a.as_bytes(), 0o755),
        2 | 3 => make(c, &a, random),
        4 => c.unlink(&ROOT, Base::Root, a.as_bytes()),
        5 => c.rmdir(&ROOT, Base::Root, a.as_bytes()),
        6 => c.rename(&ROOT, pair.0, pair.1, 0),
        7 => c.rename(&ROOT, pair.0, pair.1, 2),
        8 => c.link(&ROOT, pair.0, pair.1, 0),
        9 => c.chmod(
            &ROOT,
            Base::Root,
            a.as_bytes(),
            0o700 | random.below(64) as u32,
            0,
        ),
        10 => c.truncate(&ROOT, Base::Root, a.as_bytes(), random.below(20_000) as i64),
        _ => write(c, &a, random),
    };
    allowed(done, &format!("{what} {a} {b}"));
}

fn make(c: &Client, path: &str, random: &mut Random) -> Result<(), Error> {
    let ofd = c.open(&ROOT, Base::Root, path.as_bytes(), CREATE, 0o644, 0)?;
    put(c, ofd, random)
}

fn write(c: &Client, path: &str, random: &mut Random) -> Result<(), Error> {
    let ofd = c.open(&ROOT, Base::Root, path.as_bytes(), 2, 0, 0)?;
    put(c, ofd, random)
}

fn put(c: &Client, ofd: holdfast_client::OfdLink, random: &mut Random) -> Result<(), Error> {
    let size = [3, 400, 5000, 30_000][random.below(4) as usize];
    let bytes = vec![random.below(256) as u8; size];
    let at = [0, 0, 100, 9000][random.below(4) as usize];
    c.pwrite(ofd, ConstBuf::from(&bytes[..]), at)?;
    if random.below(3) == 0 {
        c.fsync(ofd)?;
    }
    c.release(ofd)
}

pub fn stress(c: &Client, arg: &str) {
    let mut random = Random(arg.parse().unwrap());
    println!("started");
    loop {
        step(c, &mut random);
    }
}

/// What can be seen of one object.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    nlink: u32,
    size: u64,
    ino: u64,
    times: [i64; 2],
    content: Vec<u8>,
}

fn look(c: &Client, path: &str, all: &mut BTreeMap<String, Seen>) {
    let stat = c
        .stat(&ROOT, Base::Root, path.as_bytes(), 0)
        .unwrap_or_else(|e| panic!("{path}: {e:?}"));
    let directory = stat.mode & 0o170_000 == 0o040_000;
    let content = if directory {
        Vec::new()
    } else {
        content(c, path).unwrap()
    };
    let (mode, nlink, size, ino) = (stat.mode, stat.nlink, stat.size, stat.ino);
    let times = [stat.mtime, stat.ctime];
    all.insert(
        path.to_string(),
        Seen {
            mode,
            nlink,
            size,
            ino,
            times,
            content,
        },
    );
    if directory {
        for name in list(c, path) {
            look(c, &format!("{path}/{name}"), all);
        }
    }
}

fn snapshot(c: &Client) -> BTreeMap<String, Seen> {
    let mut all = BTreeMap::new();
    look(c, ".", &mut all);
    all
}

#[test]
fn the_session_and_the_pool_agree_after_chaos() {
    let mut random = Random(0x5eed_1234_5678_9abc ^ u64::from(std::process::id()) << 7);
    for round in [Consistency::Posix, Consistency::Sync, Consistency::Strict] {
        let mut pool = TestPool::with("stress", 128 << 20, round);
        let before = {
            let c = pool.client();
            run(&pool, &c, &mut random);
            let before = snapshot(&c);
            slots::exit(c.session(), true);
            before
        };
        pool.stop();
        let files = holdfast_service::Files::open_read_only(&pool.path).unwrap();
        let report = holdfast_service::check(&files).unwrap();
        assert!(report.is_clean(), "round {round:?}: {report:?}");
        pool.start();
        let c = pool.client();
        let after = snapshot(&c);
        for (path, seen) in &before {
            assert_eq!(Some(seen), after.get(path), "{path} in round {round:?}");
        }
        assert_eq!(before.len(), after.len(), "round {round:?}");
        slots::exit(c.session(), true);
    }
}

fn run(pool: &TestPool, c: &Client, random: &mut Random) {
    let until = Instant::now() + Duration::from_millis(1500);
    let taken = || c.session().header().next_seq.load(Ordering::Relaxed);
    let most = taken() + RECORDS_MAX;
    while Instant::now() < until && taken() < most {
        let mut children: Vec<_> = (0..3)
            .map(|_| pool.spawn("stress", &(random.below(u64::MAX) | 1).to_string()))
            .collect();
        let killed = Instant::now() + Duration::from_millis(200 + random.below(300));
        while Instant::now() < killed && taken() < most {
            std::thread::sleep(Duration::from_millis(5));
        }
        for child in &mut children {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "a process failed: {ended:?}");
            child.kill().unwrap();
            child.wait().unwrap();
        }
        slots::reap_dead(c.session());
        let found = || c.session().header().broken.finding().map(|f| f.to_string());
        c.session()
            .check()
            .unwrap_or_else(|e| panic!("{e:?}: {:?}", found()));
        for _ in 0..50 {
            step(c, random);
        }
    }
}
