//! Sessions under use by threads and processes, some of which are killed in the middle.

mod fixture;
mod places;
mod stress;

use fixture::{ROOT, Random, TestPool};
use holdfast_client::{Base, Client, Error, Share, SlotId, attach, drain, inode_table, slots};
use holdfast_pmem::{ConstBuf, MutBuf};
use holdfast_pool::session::INODE_DIRTY;
use std::io::{BufRead, BufReader, Write};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

const CREATE: u32 = 0o102 | 0o200; // O_RDWR | O_CREAT | O_EXCL
const READ: u32 = 0;

fn create(c: &Client, path: &str, content: &[u8]) -> Result<(), Error> {
    let ofd = c.open(&ROOT, Base::Root, path.as_bytes(), CREATE, 0o644, 0)?;
    if !content.is_empty() {
        c.write(ofd, ConstBuf::from(content))?;
    }
    c.release(ofd)
}

fn content(c: &Client, path: &str) -> Result<Vec<u8>, Error> {
    let ofd = c.open(&ROOT, Base::Root, path.as_bytes(), READ, 0, 0)?;
    let mut out = vec![0; 1 << 16];
    let n = c.read(ofd, MutBuf::from(&mut out[..]))?;
    out.truncate(n);
    c.release(ofd)?;
    Ok(out)
}

fn exists(c: &Client, path: &str) -> bool {
    match c.stat(&ROOT, Base::Root, path.as_bytes(), 0) {
        Ok(_) => true,
        Err(Error::NotFound) => false,
        Err(e) => panic!("{path}: {e:?}"),
    }
}

fn drained(c: &Client) {
    let s = c.session();
    drain::wait_applied(s, s.header().next_seq.load(SeqCst) - 1).unwrap();
}

#[test]
fn what_was_made_is_there_before_and_after_the_trees_know() {
    let pool = TestPool::new("basic");
    let c = pool.client();
    c.mkdir(&ROOT, Base::Root, b"d", 0o755).unwrap();
    for i in 0..300 {
        create(&c, &format!("d/f{i}"), format!("content {i}").as_bytes()).unwrap();
    }
    let long = "n".repeat(200);
    create(&c, &format!("d/{long}"), &[7; 9000]).unwrap();
    for round in 0..2 {
        for i in 0..300 {
            assert_eq!(
                content(&c, &format!("d/f{i}")).unwrap(),
                format!("content {i}").as_bytes()
            );
        }
        assert_eq!(content(&c, &format!("d/{long}")).unwrap(), [7; 9000]);
        assert!(!exists(&c, "d/none"));
        let dir = c.stat(&ROOT, Base::Root, b"d", 0).unwrap();
        assert_eq!((dir.nlink, dir.mode & 0o777), (2, 0o755), "round {round}");
        drained(&c);
    }
    for i in 0..300 {
        c.unlink(&ROOT, Base::Root, format!("d/f{i}").as_bytes())
            .unwrap();
    }
    assert!(matches!(
        c.rmdir(&ROOT, Base::Root, b"d"),
        Err(Error::NotEmpty)
    ));
    c.unlink(&ROOT, Base::Root, format!("d/{long}").as_bytes())
        .unwrap();
    c.rmdir(&ROOT, Base::Root, b"d").unwrap();
    drained(&c);
    assert!(!exists(&c, "d"));
}

#[test]
fn another_process_of_the_session_sees_everything_at_once() {
    let pool = TestPool::new("other");
    let (a, b) = (pool.client(), pool.client());
    for i in 0..200 {
        let name = format!("f{i}");
        create(&a, &name, name.as_bytes()).unwrap();
        assert_eq!(content(&b, &name).unwrap(), name.as_bytes());
        b.rename(
            &ROOT,
            (Base::Root, name.as_bytes()),
            (Base::Root, b"moved"),
            0,
        )
        .unwrap();
        assert!(!exists(&a, &name));
        assert_eq!(content(&a, "moved").unwrap(), name.as_bytes());
    }
}

#[test]
fn threads_share_a_directory() {
    let pool = TestPool::new("threads");
    let c = pool.client();
    c.mkdir(&ROOT, Base::Root, b"d", 0o755).unwrap();
    std::thread::scope(|scope| {
        for t in 0..4 {
            let c = &c;
            scope.spawn(move || {
                for i in 0..2000 {
                    let name = format!("d/t{t}-{i}");
                    create(c, &name, b"x").unwrap();
                    if i % 3 != 0 {
                        c.unlink(&ROOT, Base::Root, name.as_bytes()).unwrap();
                    }
                }
            });
        }
    });
    let names = list(&c, "d");
    assert_eq!(names.len(), 4 * 667);
    drained(&c);
    assert_eq!(list(&c, "d").len(), 4 * 667);
}

fn list(c: &Client, path: &str) -> Vec<String> {
    let ofd = c
        .open(&ROOT, Base::Root, path.as_bytes(), READ, 0, 0)
        .unwrap();
    let (mut names, mut buf) = (Vec::new(), vec![0u8; 1 << 15]);
    loop {
        let format = holdfast_client::DirentFormat::Linux64;
        let n = c.getdents(ofd, MutBuf::from(&mut buf[..]), format).unwrap();
        if n == 0 {
            break;
        }
        let mut at = 0;
        while at < n {
            let len = u16::from_le_bytes([buf[at + 16], buf[at + 17]]) as usize;
            let name: Vec<u8> = buf[at + 19..at + len]
                .iter()
                .copied()
                .take_while(|b| *b != 0)
                .collect();
            let name = String::from_utf8(name).unwrap();
            if name != "." && name != ".." {
                names.push(name);
            }
            at += len;
        }
    }
    c.release(ofd).unwrap();
    names
}

/// What other processes of these tests do.
#[test]
fn child() {
    let Some((role, arg, c)) = fixture::role() else {
        return;
    };
    match role.as_str() {
        "churn" => churn(&c, &arg),
        "stress" => stress::stress(&c, &arg),
        "hold" => hold(&c),
        "forked" => forked(&c, &arg),
        _ => panic!("unknown role {role}"),
    }
}

/// Makes, renames and removes files of its own in a directory that all share, and says after each
/// step that it is done.
fn churn(c: &Client, id: &str) {
    let mut out = std::io::stdout();
    let mut random = Random(std::process::id() as u64 * 77 + 1);
    for step in 0u64.. {
        let name = format!("shared/{id}-{step}");
        let size = [0, 10, 700, 5000][random.below(4) as usize];
        writeln!(out, "create {step} {size}").unwrap();
        create(c, &name, &vec![step as u8; size]).unwrap();
        writeln!(out, "created {step} {size}").unwrap();
        let moved = format!("shared/{id}-{step}-moved");
        c.rename(
            &ROOT,
            (Base::Root, name.as_bytes()),
            (Base::Root, moved.as_bytes()),
            0,
        )
        .unwrap();
        writeln!(out, "moved {step} {size}").unwrap();
        if step >= 8 {
            let old = format!("shared/{id}-{}-moved", step - 8);
            c.unlink(&ROOT, Base::Root, old.as_bytes()).unwrap();
        }
        writeln!(out, "done {step} {size}").unwrap();
    }
}

/// Story: processes of one session are killed with SIGKILL at any moment. Whoever is left goes on
/// without noticing; what a killed process had finished is there, and what it was doing is there
/// as a whole or not at all.
#[test]
fn kill_nine_anywhere() {
    let pool = TestPool::with_size("kill", 256 << 20);
    let c = pool.client();
    c.mkdir(&ROOT, Base::Root, b"shared", 0o755).unwrap();
    let mut random = Random(0x1234_5678_9abc_def1);
    let until = Instant::now() + Duration::from_secs(6);
    let (mut generation, mut steps) = (0, 0);
    while Instant::now() < until {
        let ids: Vec<String> = (0..3).map(|k| format!("g{generation}p{k}")).collect();
        let mut children: Vec<_> = ids.iter().map(|id| pool.spawn("churn", id)).collect();
        std::thread::sleep(Duration::from_millis(150 + random.below(150)));
        let logs: Vec<Vec<String>> = children
            .iter_mut()
            .map(|child| {
                child.kill().unwrap();
                let lines = BufReader::new(child.stdout.take().unwrap()).lines();
                let log = lines.map_while(Result::ok).collect();
                child.wait().unwrap();
                log
            })
            .collect();
        // What the killed had committed happens at the latest now.
        slots::reap_dead(c.session());
        for (id, log) in ids.iter().zip(&logs) {
            steps += verify(&c, id, log);
        }
        generation += 1;
    }
    assert!(
        generation > 5 && steps > 1000,
        "{generation} generations, {steps} steps"
    );
    drained(&c);
    let names = list(&c, "shared");
    for name in &names {
        let _ = content(&c, &format!("shared/{name}")).unwrap();
        c.unlink(&ROOT, Base::Root, format!("shared/{name}").as_bytes())
            .unwrap();
    }
    // The directory's count of names survived all of it.
    c.rmdir(&ROOT, Base::Root, b"shared").unwrap();
    c.session().check().unwrap();
    println!("{generation} generations, {steps} steps");
}

/// How many steps the process had logged.
fn verify(c: &Client, id: &str, log: &[String]) -> usize {
    let steps = log.iter().filter_map(|line| {
        let mut words = line.split(' ');
        let word = words.next()?;
        let (step, size) = (
            words.next()?.parse::<u64>().ok()?,
            words.next()?.parse().ok()?,
        );
        Some((word.to_string(), step, size))
    });
    let steps: Vec<(String, u64, usize)> = steps.collect();
    let Some((word, last, size)) = steps.last().cloned() else {
        return 0;
    };
    for (word, step, size) in &steps {
        // What is older was removed, what is newer may be anywhere.
        if word != "done" || *step + 8 <= last || *step == last {
            continue;
        }
        let name = format!("shared/{id}-{step}-moved");
        let found = content(c, &name).unwrap_or_else(|e| panic!("{name} after {word}: {e:?}"));
        assert_eq!(found, vec![*step as u8; *size], "{name}");
    }
    let (name, moved) = (
        format!("shared/{id}-{last}"),
        format!("shared/{id}-{last}-moved"),
    );
    let there = (exists(c, &name), exists(c, &moved));
    match word.as_str() {
        "create" => assert!(there != (true, true)),
        "created" => assert!(there.0 != there.1, "{name}: {there:?}"),
        _ => assert_eq!(there, (false, true), "{name}"),
    }
    if there.1 {
        assert_eq!(
            content(c, &moved).unwrap(),
            vec![last as u8; size],
            "{moved}"
        );
    }
    steps.len()
}

/// Time of one call in nanoseconds: the best and the median batch of 200 calls.
/// `HOLDFAST_COSTS` restricts it to names that contain it.
fn cost(name: &str, calls: u32, mut f: impl FnMut(u32)) {
    if std::env::var("HOLDFAST_COSTS").is_ok_and(|only| !name.contains(&only)) {
        return;
    }
    let mut batches: Vec<f64> = (0..calls / 200)
        .map(|batch| {
            let start = Instant::now();
            for i in 0..200 {
                f(batch * 200 + i);
            }
            start.elapsed().as_nanos() as f64 / 200.0
        })
        .collect();
    batches.sort_by(f64::total_cmp);
    println!(
        "{name:>24} {:>8.1} {:>8.1} ns",
        batches[0],
        batches[batches.len() / 2]
    );
}

/// Not a test: `cargo test --release --test session costs -- --ignored --nocapture`.
#[test]
#[ignore = "prints what calls cost; only means something in a release build"]
fn costs() {
    let pool = TestPool::with_size("costs", 512 << 20);
    let c = pool.client();
    let s = c.session();
    c.mkdir(&ROOT, Base::Root, b"d", 0o755).unwrap();
    create(&c, "d/file", &[1; 65536]).unwrap();
    let ofd = c.open(&ROOT, Base::Root, b"d/file", 0o2, 0, 0).unwrap();
    c.bind(5, ofd).unwrap();
    let mut buf = vec![0u8; 4096];
    for size in [1, 512, 4096] {
        cost(&format!("pread {size}"), 1_000_000, |i| {
            let ofd = c.lookup(5).unwrap();
            let at = i64::from(i % 16) * 4096;
            c.pread(ofd, MutBuf::from(&mut buf[..size]), at).unwrap();
        });
        cost(&format!("pwrite {size}"), 300_000, |i| {
            let ofd = c.lookup(5).unwrap();
            let at = i64::from(i % 16) * 4096;
            c.pwrite(ofd, ConstBuf::from(&buf[..size]), at).unwrap();
        });
    }
    let data = s.data();
    cost("copy out 4096", 1_000_000, |i| {
        let at = 1 << 20 | u64::from(i % 16) << 12;
        data.copy_out(at, MutBuf::from(&mut buf[..])).unwrap();
    });
    cost("stat d/file", 1_000_000, |_| {
        c.stat(&ROOT, Base::Root, b"d/file", 0).unwrap();
    });
    cost("fstat", 1_000_000, |_| {
        c.fstat(c.lookup(5).unwrap()).unwrap();
    });
    cost("clock", 1_000_000, |_| {
        std::hint::black_box(holdfast_client::clock::now());
    });
    cost("open+bind+close", 200_000, |_| {
        let ofd = c.open(&ROOT, Base::Root, b"d/file", 0, 0, 0).unwrap();
        c.bind(6, ofd).unwrap();
        c.unbind(6).unwrap();
    });
    cost("create+bind+close", 40_000, |i| {
        let name = format!("d/c{i}");
        let ofd = c
            .open(&ROOT, Base::Root, name.as_bytes(), CREATE, 0o644, 0)
            .unwrap();
        c.bind(6, ofd).unwrap();
        c.unbind(6).unwrap();
    });
    cost("create+unlink", 40_000, |i| {
        let name = format!("d/u{i}");
        create(&c, &name, b"").unwrap();
        c.unlink(&ROOT, Base::Root, name.as_bytes()).unwrap();
    });
    cost("rename", 20_000, |i| {
        let (from, to) = (format!("d/c{i}"), format!("d/r{i}"));
        c.rename(
            &ROOT,
            (Base::Root, from.as_bytes()),
            (Base::Root, to.as_bytes()),
            0,
        )
        .unwrap();
    });
    cost("unlink", 20_000, |i| {
        c.unlink(&ROOT, Base::Root, format!("d/r{i}").as_bytes())
            .unwrap();
    });
}

/// More names and objects than the tables hold: what the trees know makes room, and comes back.
#[test]
fn tables_make_room() {
    let pool = TestPool::with_size("room", 256 << 20);
    let c = pool.client();
    c.mkdir(&ROOT, Base::Root, b"d", 0o755).unwrap();
    let header = c.session().header();
    header.inode_limit.store(16 << 10, Relaxed);
    header.dentry_limit.store(24 << 10, Relaxed);
    let count = (24 << 10) + 5000;
    for i in 0..count {
        create(&c, &format!("d/f{i}"), b"").unwrap();
    }
    let mut random = Random(7);
    for _ in 0..2000 {
        let i = random.below(count as u64);
        assert!(exists(&c, &format!("d/f{i}")), "d/f{i}");
        assert!(!exists(&c, &format!("d/g{i}")), "d/g{i}");
    }
    // A directory that lost entries from the table is not complete any more.
    assert!(matches!(create(&c, "d/f0", b""), Err(Error::Exists)));
    for i in 0..count {
        c.unlink(&ROOT, Base::Root, format!("d/f{i}").as_bytes())
            .unwrap_or_else(|e| panic!("d/f{i}: {e:?}"));
    }
    c.rmdir(&ROOT, Base::Root, b"d").unwrap();
}

/// Story: files stay open that nobody syncs. A writeback journals them, but for one that somebody
/// keeps locked, which is asked for again.
#[test]
fn a_writeback_takes_what_is_not_locked() {
    let pool = TestPool::with_size("writeback", 32 << 20);
    let c = pool.client();
    let wanted = &c.session().header().writeback_wanted;
    let open = |path: &[u8]| c.open(&ROOT, Base::Root, path, CREATE, 0o644, 0).unwrap();
    let [a, b] = [open(b"a"), open(b"b")];
    assert_eq!(c.write_back(), Ok(0));
    assert_eq!(wanted.load(SeqCst), 0);
    for file in [a, b] {
        c.write(file, ConstBuf::from(&[1; 9000][..])).unwrap();
    }
    assert_eq!(wanted.load(SeqCst), 1);
    let ino = c.fstat(a).unwrap().ino;
    let dirty = |ino| {
        let entry = inode_table::get(c.session(), ino).unwrap();
        entry.e.state.load(SeqCst) & INODE_DIRTY != 0
    };
    let locked = inode_table::lock(c.session(), ino).unwrap();
    assert_eq!(c.write_back(), Ok(1));
    assert_eq!(wanted.load(SeqCst), 1);
    assert!(dirty(ino) && !dirty(c.fstat(b).unwrap().ino));
    drop(locked);
    assert_eq!(c.write_back(), Ok(0));
    assert!(!dirty(ino) && wanted.load(SeqCst) == 0);
    for file in [a, b] {
        c.write(file, ConstBuf::from(&[2; 100][..])).unwrap();
        c.release(file).unwrap();
    }
    assert_eq!(content(&c, "a").unwrap(), content(&c, "b").unwrap());
}

/// Story: a mistake of Holdfast leaves an open file without references. Whoever finds it gives the
/// session up and says where; what was journaled is in the pool.
#[test]
fn a_mistake_of_our_own_is_loud() {
    let mut pool = TestPool::with_size("mistake", 32 << 20);
    let c = pool.client();
    create(&c, "kept", b"journaled").unwrap();
    let file = c.open(&ROOT, Base::Root, b"kept", READ, 0, 0).unwrap();
    c.session().ofd(file.raw()).unwrap().refs.store(0, SeqCst);
    assert_eq!(c.release(file), Err(Error::Poisoned(5)));
    assert_eq!(create(&c, "later", b""), Err(Error::Poisoned(5)));
    let answer = attach::status(pool.path.as_os_str().as_encoded_bytes()).unwrap();
    let said = answer.text().to_string();
    let place = "a mistake of Holdfast: crates/client/src/content/close.rs:";
    assert!(said.contains(place), "{said}");
    assert!(
        said.ends_with("a description that is let go has a reference"),
        "{said}"
    );
    c.exit(true);
    drop(c);
    pool.stop();
    pool.start();
    let c = pool.client();
    assert_eq!(content(&c, "kept").unwrap(), b"journaled");
    assert!(!exists(&c, "later"));
}

/// A full pool says so, and goes on when something was removed.
#[test]
fn a_full_pool_recovers() {
    let pool = TestPool::with_size("full", 32 << 20);
    let c = pool.client();
    for round in 0..3 {
        let ofd = c.open(&ROOT, Base::Root, b"big", CREATE, 0o644, 0).unwrap();
        let piece = vec![round as u8; 1 << 20];
        let mut written = 0u64;
        let error = loop {
            match c.write(ofd, ConstBuf::from(&piece[..])) {
                Ok(n) => written += n as u64,
                Err(e) => break e,
            }
        };
        assert!(matches!(error, Error::NoSpace), "{error:?}");
        assert!(
            written > 20 << 20,
            "only {written} bytes fit in round {round}"
        );
        assert_eq!(c.fstat(ofd).unwrap().size, written);
        c.release(ofd).unwrap();
        assert!(matches!(
            create(&c, "more", &[1; 8192]),
            Err(Error::NoSpace)
        ));
        c.unlink(&ROOT, Base::Root, b"more").unwrap();
        c.unlink(&ROOT, Base::Root, b"big").unwrap();
        create(&c, "small", &[2; 8192]).unwrap();
        assert_eq!(content(&c, "small").unwrap(), [2; 8192]);
        c.unlink(&ROOT, Base::Root, b"small").unwrap();
    }
}

/// Story: a process opens files and is killed; the files that it alone had open, and whose names
/// went meanwhile, are freed, and their space with them.
#[test]
fn what_the_dead_had_open_is_released() {
    let pool = TestPool::with_size("open", 32 << 20);
    let c = pool.client();
    for _ in 0..4 {
        let mut child = pool.spawn("hold", "x");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while !lines.next().unwrap().unwrap().ends_with("ready") {}
        assert!(!exists(&c, "held"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(slots::reap_dead(c.session()), 1);
    }
    assert_eq!(orphans(&c), 0);
}

/// Objects without a name that somebody is said to have open.
fn orphans(c: &Client) -> usize {
    let s = c.session();
    let used = s.header().inode_used.load(Acquire);
    let of = |link| s.inode(link).unwrap();
    let open = |e: &holdfast_pool::session::Inode| {
        e.ino.load(Relaxed) != 0 && e.nlink.load(Relaxed) == 0 && e.opens.load(Relaxed) != 0
    };
    (1..=used).filter(|link| open(of(*link))).count()
}

fn hold(c: &Client) {
    let ofd = c
        .open(&ROOT, Base::Root, b"held", CREATE, 0o644, 0)
        .unwrap();
    c.write(ofd, ConstBuf::from(&vec![1u8; 18 << 20][..]))
        .unwrap();
    c.bind(9, ofd).unwrap();
    c.dup(9, 10).unwrap();
    c.map_pin(ofd, 1, true).unwrap();
    c.map_pin(ofd, 1, true).unwrap();
    c.unlink(&ROOT, Base::Root, b"held").unwrap();
    let unbound = c.open(&ROOT, Base::Root, b".", READ, 0, 0).unwrap();
    c.chdir(&ROOT, Base::Root, b".").unwrap();
    println!("ready");
    std::thread::sleep(Duration::from_secs(60));
    c.release(unbound).unwrap();
}

/// A child of fork shares descriptions with its parent; exec keeps what is still open.
#[test]
fn descriptions_are_shared_over_fork_and_kept_over_exec() {
    let pool = TestPool::new("fork");
    let c = pool.client();
    let s = c.session();
    create(&c, "f", b"0123456789").unwrap();
    let ofd = c.open(&ROOT, Base::Root, b"f", 2, 0, 0).unwrap();
    c.bind(7, ofd).unwrap();
    let refs = || s.ofd(ofd.raw()).unwrap().refs.load(Relaxed);
    let slot = slots::child_prepare(s, Share::default()).unwrap();
    assert_eq!(refs(), 2);
    assert!(slots::child_gone(s, slot));
    assert_eq!(refs(), 1);

    // Another process stands for the forked child: it joins with the slot that was prepared.
    let slot = slots::child_prepare(s, Share::default()).unwrap();
    let mut child = pool.spawn("forked", &format!("{} {}", slot.to_bits(), ofd.raw()));
    slots::child_made(s, slot, child.id()).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(slots::reap_dead(s), 1);
    assert_eq!(refs(), 1);
    assert_eq!(c.lseek(ofd, 0, 1).unwrap(), 6, "the child read six bytes");
}

fn forked(c: &Client, arg: &str) {
    let (slot, link) = arg.split_once(' ').unwrap();
    let s = c.session();
    slots::exit(s, true);
    slots::fork_child(s, SlotId::from_bits(slot.parse().unwrap())).unwrap();
    let ofd = c.lookup(7).unwrap();
    assert_eq!(ofd.raw().to_string(), link);
    let mut buf = [0; 6];
    assert_eq!(c.read(ofd, MutBuf::from(&mut buf[..])).unwrap(), 6);
    c.dup(7, 8).unwrap();
    // As after exec: descriptor 8 was close-on-exec.
    let lock = &s
        .inode(s.ofd(ofd.raw()).unwrap().inode.load(Relaxed))
        .unwrap()
        .lock;
    std::mem::forget(holdfast_client::lock::acquire(s, lock).unwrap());
    assert!(slots::exec_adopt(s, &|fd| fd == 7).unwrap().is_some());
    assert!(c.lookup(8).is_none() && c.lookup(7) == Some(ofd));
    // A thread of the old program held the lock.
    c.fstat(ofd).unwrap();
    drop(holdfast_client::lock::acquire(s, lock).unwrap());
}

/// Not a test: what operations cost when several processes do them at once.
#[test]
#[ignore = "prints what calls cost; only means something in a release build"]
fn costs_of_sharing() {
    let pool = TestPool::with_size("sharing", 512 << 20);
    let (a, b) = (pool.client(), pool.client());
    a.mkdir(&ROOT, Base::Root, b"x", 0o755).unwrap();
    a.mkdir(&ROOT, Base::Root, b"y", 0o755).unwrap();
    std::thread::scope(|scope| {
        for (c, d) in [(&a, "x"), (&b, "y")] {
            scope.spawn(move || {
                cost(&format!("create in {d}"), 30_000, |i| {
                    create(c, &format!("{d}/f{i}"), b"").unwrap();
                });
                cost(&format!("unlink in {d}"), 30_000, |i| {
                    let name = format!("{d}/f{i}");
                    c.unlink(&ROOT, Base::Root, name.as_bytes()).unwrap();
                });
            });
        }
    });
}
