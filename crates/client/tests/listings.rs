//! Listings of directories whose latest changes are not in the trees yet.

mod common;

use common::{Fixture, ROOT, User};
use holdfast_client::{Base, abi::*};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

const POOL: u64 = 256 << 20;
/// Records whose names are noted.
const NOTED: usize = holdfast_pool::session::RECENT;

/// The names that a directory should have.
type Names = BTreeSet<String>;

fn mkdir(user: &User, path: &str) {
    user.mkdir(&ROOT, Base::Root, path.as_bytes(), 0o755)
        .unwrap();
}

fn rename(user: &User, from: &str, to: &str, flags: u32) {
    let [from, to] = [from, to].map(|path| (Base::Root, path.as_bytes()));
    user.rename(&ROOT, from, to, flags).unwrap();
}

fn unlink(user: &User, path: &str) {
    user.unlink(&ROOT, Base::Root, path.as_bytes()).unwrap();
}

/// Each name once, whatever room there is for a part of them.
fn assert_listed(user: &User, dir: &str, expected: &Names) {
    for room in [64, 500, 32768] {
        let ofd = user.open(dir, O_RDONLY | O_DIRECTORY).unwrap();
        let listed = user.names_of(
            ofd,
            room.max(expected.iter().map(|n| n.len() + 40).max().unwrap_or(64)),
        );
        user.release(ofd).unwrap();
        let names: Names = listed
            .iter()
            .filter(|n| *n != "." && *n != "..")
            .cloned()
            .collect();
        assert_eq!(listed.len(), names.len() + 2, "{listed:?}");
        assert_eq!(&names, expected, "room {room}");
    }
}

fn settle(user: &User) {
    let taken = user.session().header().next_seq.load(SeqCst);
    holdfast_client::drain::wait_applied(user.session(), taken - 1).unwrap();
}

#[test]
fn a_listing_does_not_wait_for_the_service() {
    let mut fixture = Fixture::new(POOL);
    let mut user = fixture.user();
    mkdir(&user, "d");
    mkdir(&user, "e");
    let (mut names, mut others) = (Names::new(), Names::new());
    for i in 0..300 {
        user.put(&format!("d/old{i}"), b"x");
        names.insert(format!("old{i}"));
    }
    settle(&user);
    fixture.stop();
    assert_listed(&user, "d", &names);
    let long = "n".repeat(250);
    for i in 0..300 {
        let (old, new) = (format!("old{i}"), format!("new{i}"));
        match i % 6 {
            // Made, and made and removed again.
            0 => {
                user.put(&format!("d/{new}"), b"y");
                names.insert(new.clone());
                user.put("d/passing", b"z");
                unlink(&user, "d/passing");
            }
            1 => {
                unlink(&user, &format!("d/{old}"));
                names.remove(&old);
            }
            // To another name, over another one, and to another directory.
            2 => {
                rename(&user, &format!("d/{old}"), &format!("d/{new}"), 0);
                names.remove(&old);
                names.insert(new.clone());
            }
            3 => {
                let over = format!("old{}", i - 3);
                rename(&user, &format!("d/{old}"), &format!("d/{over}"), 0);
                names.remove(&old);
            }
            4 => {
                rename(&user, &format!("d/{old}"), &format!("e/{old}"), 0);
                names.remove(&old);
                others.insert(old.clone());
            }
            // Removed and made again.
            _ => {
                unlink(&user, &format!("d/{old}"));
                user.put(&format!("d/{old}"), b"again");
            }
        }
        if i % 50 == 0 {
            let name = format!("{long}{i:03}");
            user.put(&format!("d/{name}"), b"");
            names.insert(name);
            mkdir(&user, &format!("d/dir{i}"));
            names.insert(format!("dir{i}"));
        }
    }
    rename(&user, "d/new0", "e/old4", RENAME_EXCHANGE);
    let begun = Instant::now();
    assert_listed(&user, "d", &names);
    assert_listed(&user, "e", &others);
    assert!(begun.elapsed() < Duration::from_secs(5), "somebody waited");
    fixture.start();
    user.rejoin(&fixture.dir);
    assert_listed(&user, "d", &names);
    settle(&user);
    assert_listed(&user, "d", &names);
    assert_listed(&user, "e", &others);
}

/// Who has gone through some of a directory goes on where it was, whatever the trees learn.
#[test]
fn positions_stay_when_the_trees_learn_names() {
    let mut fixture = Fixture::new(POOL);
    let mut user = fixture.user();
    mkdir(&user, "d");
    for i in 0..200 {
        user.put(&format!("d/old{i}"), b"");
    }
    settle(&user);
    fixture.stop();
    for i in 0..200 {
        user.put(&format!("d/new{i}"), b"");
    }
    let ofd = user.open("d", O_RDONLY | O_DIRECTORY).unwrap();
    let mut out = vec![0; 4096];
    let to = holdfast_pmem::MutBuf::from(&mut out[..]);
    let format = holdfast_client::DirentFormat::Linux64;
    let n = user.getdents(ofd, to, format).unwrap();
    assert!(n > 3000, "some, and not all");
    fixture.start();
    user.rejoin(&fixture.dir);
    settle(&user);
    let rest = user.names_of(ofd, 4096);
    let mut all: Names = rest.iter().cloned().collect();
    assert_eq!(all.len(), rest.len());
    let mut at = 0;
    while at < n {
        let len = u16::from_le_bytes([out[at + 16], out[at + 17]]) as usize;
        let name: Vec<u8> = out[at + 19..at + len]
            .iter()
            .copied()
            .take_while(|b| *b != 0)
            .collect();
        assert!(all.insert(String::from_utf8(name).unwrap()), "a name twice");
        at += len;
    }
    assert_eq!(all.len(), 402);
    user.release(ofd).unwrap();
}

/// More records than are noted: then a listing waits, and is whole.
#[test]
fn what_is_not_noted_any_more_is_waited_for() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    mkdir(&user, "d");
    let mut names = Names::new();
    for round in 0..4 {
        for i in 0..NOTED {
            let name = format!("{round}-{i}");
            user.put(&format!("d/{name}"), b"");
            names.insert(name);
        }
        assert_listed(&user, "d", &names);
    }
}

/// Names that a reader finds in every listing, once.
const STAY: usize = 150;

/// Makes, moves and removes names that only this client has, which knows them.
fn work(fixture: &Fixture, who: u64) {
    let user = fixture.user();
    let mut random = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(who + 1);
    let mut own = Names::new();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        for _ in 0..1 + who * 7 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            change(&user, &mut own, who, random);
        }
        let prefix = format!("{who}-");
        let listed = user.names("d").into_iter();
        let (mine, others): (Vec<_>, Vec<_>) = listed.partition(|n| n.starts_with(&prefix));
        assert_eq!(Names::from_iter(mine), own, "client {who}");
        let stay = others.iter().filter(|n| n.starts_with("stays")).count();
        assert_eq!(stay, STAY, "client {who}");
    }
}

fn change(user: &User, own: &mut Names, who: u64, random: u64) {
    let name = format!("{who}-{}", random % 97);
    let path = format!("d/{name}");
    match (random / 9409 % 3, own.contains(&name)) {
        (0, _) => {
            user.put(&path, b"x");
            own.insert(name);
        }
        (1, true) => {
            unlink(user, &path);
            own.remove(&name);
        }
        (2, true) => {
            let other = format!("{who}-{}", random / 97 % 97);
            rename(user, &path, &format!("d/{other}"), 0);
            own.remove(&name);
            own.insert(other);
        }
        _ => {}
    }
}

#[test]
fn listings_are_whole_while_others_work() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    mkdir(&user, "d");
    for i in 0..STAY {
        user.put(&format!("d/stays{i}"), b"");
    }
    let done = AtomicBool::new(false);
    let read = || {
        let user = fixture.user();
        while !done.load(Acquire) {
            let listed = user.names("d");
            let stay = listed.iter().filter(|n| n.starts_with("stays")).count();
            assert_eq!(stay, STAY, "{listed:?}");
            let different = Names::from_iter(listed.iter().cloned());
            assert_eq!(different.len(), listed.len(), "a name twice: {listed:?}");
        }
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(read);
        let workers = [0, 1].map(|who| {
            scope.spawn({
                let fixture = &fixture;
                move || work(fixture, who)
            })
        });
        let ended = workers.map(|worker| worker.join());
        done.store(true, Release);
        reader.join().unwrap();
        for ended in ended {
            ended.unwrap();
        }
    });
}
